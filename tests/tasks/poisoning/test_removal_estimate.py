"""How many to remove: the convex refit, the level it is asked at, and when there is no answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sgoif.tasks.poisoning.removal_estimate import Level, estimate_removal, fit_linear


def test_the_refit_is_the_optimum_of_penalised_regression() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    torch.manual_seed(0)
    x = torch.randn(300, 6, dtype=torch.float64)
    y = (x[:, :3] + 0.5 * torch.randn(300, 3)).argmax(1)
    penalty = 0.01
    weights = fit_linear(x, y, torch.zeros(3, 6, dtype=torch.float64), penalty)
    wanted = linear_model.LogisticRegression(C=1 / (penalty * len(x)), fit_intercept=False, tol=1e-10, max_iter=5000)
    wanted.fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(weights.numpy(), wanted.coef_, atol=1e-3)
    with torch.no_grad():
        error = (x @ weights.T).softmax(1) - torch.nn.functional.one_hot(y, 3)
        gradient = error.T @ x / len(x) + penalty * weights
    assert float(gradient.abs().max()) < 1e-6


class Scene:
    """Two classes by axis 0; poison of class 1 looks like class 0 but for a trigger on axis 1."""

    def __init__(self, poison: int = 20, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def noise(count: int) -> torch.Tensor:
            return 0.5 * torch.randn(count, 4, generator=generator)

        def at(count: int, content: float, trigger: float) -> torch.Tensor:
            return noise(count) + torch.tensor([content, trigger, 0.0, 0.0])

        self.x = torch.cat([at(200, -2, 0), at(200, 2, 0), at(poison, -2, 5)])
        self.y = torch.tensor([0] * 200 + [1] * (200 + poison))
        self.victims = at(15, -2, 5)
        self.wrong = torch.ones(15, dtype=torch.long)
        self.order = np.concatenate([np.arange(400, 400 + poison), np.arange(400)])
        """Poison first."""

    def level(self, name: str, body: bool = False) -> Level:
        """The features as they are; or with a body that turns the trigger into content."""

        def seen(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x[:, :1] + 2 * x[:, 1:2].clamp_min(0), x[:, 2:]], dim=1) if body else x

        return Level(name, seen(self.x), seen(self.victims))


def test_all_of_the_poison_has_to_go() -> None:
    scene = Scene()
    found = estimate_removal([scene.level("head")], scene.y, 2, scene.order, scene.wrong, most=80)
    assert found is not None
    assert found.before > 0.9
    assert 10 <= found.count <= 21  # a few may stay: too few to teach the trigger
    assert found.after < found.before / 2
    assert found.control > 0.9
    assert found.level == "head"
    counts = [count for count, _ in found.curve]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 80
    curve = dict(found.curve)
    assert curve[found.count] == found.after
    assert all(
        value >= found.before / 2 for count, value in found.curve if count < found.count - max(1, found.count // 20)
    )


def test_what_the_body_has_learned_is_undone_further_down() -> None:
    scene = Scene()
    head = scene.level("head", body=True)
    assert estimate_removal([head], scene.y, 2, scene.order, scene.wrong, most=80) is None
    found = estimate_removal([head, scene.level("stage")], scene.y, 2, scene.order, scene.wrong, most=80)
    assert found is not None
    assert found.level == "stage"
    assert 10 <= found.count <= 21


def test_there_is_no_estimate_where_removal_changes_nothing_or_anything_does() -> None:
    scene = Scene()
    innocent = np.concatenate([np.arange(200, 400), scene.order[:20]])
    assert estimate_removal([scene.level("head")], scene.y, 2, innocent, scene.wrong, most=60) is None
    right = torch.zeros(15, dtype=torch.long)  # they never get this label
    assert estimate_removal([scene.level("head")], scene.y, 2, scene.order, right, most=60) is None
    assert estimate_removal([], scene.y, 2, scene.order, scene.wrong, most=60) is None
    assert estimate_removal([scene.level("head")], scene.y, 2, scene.order[:0], scene.wrong, most=60) is None
    # Victims in the middle between the classes flip whoever is removed: the control says so.
    between = Scene(poison=0)
    middle = Level("head", between.x[:, :1], torch.full((9, 1), 0.0))
    rows = np.arange(200, 400)
    answer = estimate_removal([middle], between.y, 2, rows, between.wrong[:9], most=100)
    assert answer is None or answer.control >= answer.before / 2


def test_the_same_seed_gives_the_same_estimate() -> None:
    scene = Scene()
    first, second = (
        estimate_removal([scene.level("head")], scene.y, 2, scene.order, scene.wrong, most=40, seed=3) for _ in range(2)
    )
    assert first == second
