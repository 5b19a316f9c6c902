"""TracIn, FastIF and self-influence: against per-example gradients of torch.func and against dense algebra."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from problems import striped
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sgoif_bench.labels.problem import Outcome, Problem, last_linear
from sgoif_bench.labels.rivals import self_influence as self_influence_module
from sgoif_bench.labels.rivals.fastif import (
    Pairs,
    contraction_scale,
    fastif,
    fastif_sum,
    influence_of_candidates,
    influences,
    lissa,
    neighbour_count,
)
from sgoif_bench.labels.rivals.influence_common import HeadGradients, head_gradients, nearest
from sgoif_bench.labels.rivals.self_influence import (
    DAMPING,
    exact_self_influence,
    hessian,
    kronecker_self_influence,
    self_influence,
)
from sgoif_bench.labels.rivals.tracin import checkpoint_rates, tracin_anchors, tracin_self, tracin_voices
from sgoif_bench.metrics import auroc

pytestmark = pytest.mark.long

Method = Callable[[Problem, Callable[[str], None]], Outcome]
METHODS: tuple[Method, ...] = (tracin_self, tracin_anchors, fastif, fastif_sum, self_influence)


def silent(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def noisy() -> tuple[Problem, NDArray[np.bool_]]:
    return striped()


@pytest.fixture(scope="module")
def small() -> Problem:
    return striped(size=120, epochs=3, anchors=24)[0]


def checked_anchors(**settings: float) -> tuple[Problem, NDArray[np.bool_], NDArray[np.int64]]:
    """A problem whose anchors carry their true labels, which labels are wrong, and the rows trained on."""
    problem, wrong = striped(**settings)
    true = striped(**{**settings, "rate": 0.0})[0].labels
    training, anchors = problem.split()
    problem.labels[anchors.indices] = true[anchors.indices]
    problem.split = lambda: (training, anchors)
    return problem, wrong, np.asarray(training.indices)


def random_head(size: int = 40, width: int = 5, classes: int = 3) -> tuple[HeadGradients, Tensor, Tensor, Tensor]:
    """Gradients of a random linear classifier in float64, with its weights, inputs and labels."""
    inputs = torch.cat([torch.randn(size, width), torch.ones(size, 1)], dim=1).double()
    weights = torch.randn(classes, width + 1).double()
    labels = torch.randint(classes, (size,))
    p = (inputs @ weights.T).softmax(1)
    return HeadGradients(inputs, p, p - F.one_hot(labels, classes)), weights, inputs, labels


def dense_hessian(weights: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """Hessian of the mean loss by automatic differentiation."""

    def loss(flat: Tensor) -> Tensor:
        return F.cross_entropy(inputs @ flat.view_as(weights).T, labels)

    return torch.autograd.functional.hessian(loss, weights.flatten())


def head_gradients_by_autograd(problem: Problem, model: nn.Module, rows: NDArray[np.int64]) -> Tensor:
    """Per-example gradients of the last layer's weights and biases, flat, [n, P]."""
    model.eval()
    head = last_linear(model)
    prefix = next(name for name, module in model.named_modules() if module is head)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    own = {name: state.pop(f"{prefix}.{name}").detach() for name in ("weight", "bias")}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        everything = {**state, **{f"{prefix}.{name}": value for name, value in parameters.items()}}
        return F.cross_entropy(functional_call(model, everything, (x[None],)), y[None])

    x, y, _ = next(iter(problem.plain_batches(rows)))
    per_example = vmap(grad(loss), in_dims=(None, 0, 0))(own, x, y)
    return torch.cat([per_example["weight"], per_example["bias"][:, :, None]], dim=2).flatten(1).detach()


def replay(problem: Problem, rows: NDArray[np.int64] | None) -> list[tuple[float, nn.Module]]:
    """The models at the end of every epoch and the mean learning rate that the optimizer really used in it."""
    made: list[torch.optim.Optimizer] = []
    watched = replace(problem)

    def optimizer(model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.OneCycleLR]:
        pair = problem.optimizer(model, steps)
        made.append(pair[0])
        pair[0].register_step_pre_hook(lambda used, *_: rates.append(used.param_groups[0]["lr"]))
        return pair

    watched.optimizer = optimizer
    rates: list[float] = []
    seen: list[tuple[float, nn.Module]] = []
    model = watched.new_model()

    def keep(_: int) -> None:
        seen.append((float(np.mean(rates)), copy.deepcopy(model)))
        rates.clear()

    watched.fit(model, watched.batches(rows), on_epoch=keep)
    assert len(made) == 1
    return seen


# Head gradients and neighbours ---------------------------------------------------------------------------------------


def test_head_gradients_equal_those_of_autograd(small: Problem) -> None:
    model = small.fit(small.new_model(), small.batches())
    rows = np.arange(0, 120, 7)
    gradients, expected = head_gradients(small, model), head_gradients_by_autograd(small, model, rows)
    some = gradients.take(torch.from_numpy(rows))
    direction = torch.randn(4, gradients.inputs.shape[1])
    assert len(gradients) == 120
    assert torch.allclose(some.dense().flatten(1), expected, atol=1e-5)
    assert torch.allclose(some.squared_norms(), expected.square().sum(1), rtol=1e-4)
    assert torch.allclose(some.mean().flatten(), expected.mean(0), atol=1e-5)
    assert torch.allclose(some.dot(direction), expected @ direction.flatten(), atol=1e-4)


def test_gradients_of_well_fitted_examples_are_not_rounding_errors() -> None:
    problem, _ = striped(size=20, anchors=4)
    model = problem.new_model()
    head = last_linear(model)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([20.0, 0.0, 0.0, 0.0]))
    problem.labels[:] = 0
    own = head_gradients(problem, model).delta[:, 0]
    expected = -3 * np.exp(-20.0) / (1 + 3 * np.exp(-20.0))
    assert torch.allclose(own, torch.full_like(own, expected), rtol=1e-4, atol=0)


def test_neighbours_equal_brute_force_and_never_hold_the_query() -> None:
    keys = torch.randn(50, 3).double()
    own = torch.tensor([4, 0, 49, 17, 30])
    squared, rows = nearest(keys[own], keys, 6, own, block=2)
    for query, itself in enumerate(own.tolist()):
        distance = [(float((keys[itself] - key).square().sum()), row) for row, key in enumerate(keys) if row != itself]
        expected = sorted(distance)[:6]
        assert rows[query].tolist() == [row for _, row in expected]
        assert np.allclose(squared[query], [value for value, _ in expected])


# TracIn --------------------------------------------------------------------------------------------------------------


def test_self_influence_along_the_run_is_the_sum_over_checkpoints(small: Problem) -> None:
    outcome = tracin_self(small, silent)
    rows = np.arange(0, 120, 5)
    expected = sum(
        rate * head_gradients_by_autograd(small, model, rows).square().sum(1) for rate, model in replay(small, None)
    )
    assert np.allclose(outcome.suspicion[rows], expected, rtol=1e-3)


def test_influence_on_anchors_is_minus_the_sum_over_checkpoints(small: Problem) -> None:
    outcome = tracin_anchors(small, silent)
    training, held_out = small.split()
    rows, anchors = np.asarray(training.indices), np.asarray(held_out.indices)
    on_others, on_itself = np.zeros(len(rows)), np.zeros(len(anchors))
    for rate, model in replay(small, rows):
        of_anchors = head_gradients_by_autograd(small, model, anchors)
        on_others -= rate * (head_gradients_by_autograd(small, model, rows) @ of_anchors.mean(0)).numpy()
        products = of_anchors @ of_anchors.T
        on_itself -= rate * ((products.sum(1) - products.diag()) / (len(anchors) - 1)).numpy()
    assert np.allclose(outcome.suspicion[rows], on_others, rtol=1e-3, atol=1e-4)
    # Anchors keep their order among themselves and take the places of trained examples.
    assert np.array_equal(np.argsort(outcome.suspicion[anchors]), np.argsort(on_itself))
    assert on_others.min() <= outcome.suspicion[anchors].min() <= outcome.suspicion[anchors].max() <= on_others.max()
    assert abs(np.median(outcome.suspicion[anchors]) - np.median(on_others)) < 0.2 * np.std(on_others)


def test_one_voice_for_each_anchor_is_the_mean_of_unit_columns(small: Problem) -> None:
    outcome = tracin_voices(small, silent)
    training, held_out = small.split()
    rows, anchors = np.asarray(training.indices), np.asarray(held_out.indices)
    everything = np.arange(len(small))
    harm = np.zeros((len(small), len(anchors)))
    for rate, model in replay(small, rows):
        gradients = head_gradients_by_autograd(small, model, everything).double()
        harm -= rate * (gradients @ gradients[anchors].T).numpy()
    harm[anchors, np.arange(len(anchors))] = 0
    expected = (harm / np.linalg.norm(harm, axis=0)).mean(axis=1)
    assert np.allclose(outcome.suspicion[rows], expected[rows], rtol=1e-3, atol=1e-5)
    assert np.array_equal(np.argsort(outcome.suspicion[anchors]), np.argsort(expected[anchors]))


def test_checkpoints_are_evenly_spread_and_share_out_the_learning_rates() -> None:
    problem, _ = striped(epochs=20)
    rates = checkpoint_rates(problem, steps=10, count=5)
    every = checkpoint_rates(problem, steps=10, count=20)
    assert list(rates) == [4, 8, 12, 16, 20]
    assert list(every) == list(range(1, 21))
    for end, rate in rates.items():
        assert rate == pytest.approx(np.mean([every[epoch] for epoch in range(end - 3, end + 1)]))


def test_tracin_finds_wrong_labels(noisy: tuple[Problem, NDArray[np.bool_]]) -> None:
    problem, wrong = noisy
    assert auroc(wrong, tracin_self(problem, silent).suspicion) > 0.85


def test_tracin_finds_what_harms_checked_anchors() -> None:
    problem, wrong, rows = checked_anchors(size=1200, epochs=12)
    problem.recipe = replace(problem.recipe, learning_rate=0.05)
    assert auroc(wrong[rows], tracin_anchors(problem, silent).suspicion[rows]) > 0.8


# FastIF --------------------------------------------------------------------------------------------------------------


def test_the_recursion_tends_to_the_damped_inverse() -> None:
    gradients, weights, inputs, labels = random_head()
    scale = contraction_scale(gradients)
    right_side = gradients.dense()[:7]
    matrix = dense_hessian(weights, inputs, labels) + 0.01 * scale * torch.eye(weights.numel())
    expected = torch.linalg.solve(matrix, right_side.flatten(1).T).T
    found = lissa(right_side, gradients, scale, torch.Generator(), damping=0.01, recursions=2500, batch=0)
    assert torch.allclose(found.flatten(1), expected, rtol=1e-6, atol=1e-8)
    undamped = torch.linalg.pinv(dense_hessian(weights, inputs, labels)) @ right_side.flatten(1).T
    assert not torch.allclose(found.flatten(1), undamped.T, rtol=0.05)


def test_single_examples_estimate_the_same_without_bias() -> None:
    gradients, weights, inputs, labels = random_head()
    scale = contraction_scale(gradients)
    right_side = gradients.dense()[:4]
    matrix = dense_hessian(weights, inputs, labels) + 0.05 * scale * torch.eye(weights.numel())
    expected = torch.linalg.solve(matrix, right_side.flatten(1).T).T
    generator = torch.Generator().manual_seed(0)
    runs = torch.stack(
        [lissa(right_side, gradients, scale, generator, damping=0.05, recursions=120) for _ in range(150)]
    ).flatten(2)
    assert float((runs.mean(0) - expected).norm() / expected.norm()) < 0.05
    assert float(runs.std(0).max()) > 0, "repetitions must draw their own examples"


def test_the_scale_bounds_every_single_hessian() -> None:
    gradients, weights, inputs, labels = random_head()
    largest = [
        float(torch.linalg.eigvalsh(dense_hessian(weights, inputs[i, None], labels[i, None]))[-1])
        for i in range(len(inputs))
    ]
    scale = contraction_scale(gradients)
    assert max(largest) <= scale <= 2 * max(largest)


def test_influence_of_candidates_is_the_written_out_product() -> None:
    gradients, *_ = random_head()
    solved, candidates = torch.randn(20, 3, 6).double(), torch.randint(40, (20, 8))
    found = influence_of_candidates(solved, gradients, candidates)
    for anchor, row in enumerate(candidates.tolist()):
        for column, example in enumerate(row):
            assert float(found[anchor, column]) == pytest.approx(
                -float((solved[anchor] * gradients.dense()[example]).sum()), abs=1e-10
            )


def test_influences_agree_with_the_dense_inverse(small: Problem) -> None:
    pairs = influences(small, silent)
    training, held_out = small.split()
    rows, anchors = np.asarray(training.indices), torch.tensor(held_out.indices)
    model = small.fit(small.new_model(), small.batches(rows))
    gradients = head_gradients(small, model)
    matrix = hessian(gradients.take(torch.from_numpy(rows)))
    matrix.diagonal().add_(pairs.details["damping"])
    dense = gradients.dense().flatten(1).double()
    exact = -(dense[anchors] @ torch.linalg.solve(matrix, dense.T)).numpy()
    expected = np.take_along_axis(exact, pairs.candidates, axis=1)
    assert np.corrcoef(pairs.harm.ravel(), expected.ravel())[0, 1] > 0.95
    features = small.features(model)
    for anchor, own in zip(held_out.indices, pairs.candidates, strict=True):
        distance = (features - features[anchor]).norm(dim=1).numpy()
        distance[anchor] = np.inf
        assert len(own) == neighbour_count(120) == 12
        assert distance[own].max() <= np.sort(distance)[11] + 1e-3


def test_what_anchors_say_is_averaged_and_the_never_retrieved_stay_neutral(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, _ = striped(size=20, anchors=4)
    pairs = Pairs(np.array([[3, 5], [5, 7]]), np.array([[3.0, -4.0], [0.6, 0.8]]), {})
    monkeypatch.setattr("sgoif_bench.labels.rivals.fastif.influences", lambda *_: pairs)
    plain, voices = fastif_sum(problem, silent), fastif(problem, silent)
    assert plain.suspicion[[3, 5, 7]] == pytest.approx([1.5, -1.7, 0.4])
    assert voices.suspicion[[3, 5, 7]] == pytest.approx([0.3, -0.1, 0.4])
    assert not np.delete(voices.suspicion, [3, 5, 7]).any()
    assert plain.details["never_retrieved"] == 17


def test_fastif_finds_wrong_labels(noisy: tuple[Problem, NDArray[np.bool_]]) -> None:
    problem, wrong = noisy
    assert auroc(wrong, fastif(problem, silent).suspicion) > 0.85


def test_plain_fastif_finds_what_harms_checked_anchors() -> None:
    problem, wrong, rows = checked_anchors()
    assert auroc(wrong[rows], fastif_sum(problem, silent).suspicion[rows]) > 0.9


# Self-influence ------------------------------------------------------------------------------------------------------


def test_exact_self_influence_is_dense_algebra() -> None:
    gradients, weights, inputs, labels = random_head()
    matrix = dense_hessian(weights, inputs, labels)
    assert torch.allclose(hessian(gradients), matrix, atol=1e-10)
    damped = matrix + 0.3 * matrix.trace() / len(matrix) * torch.eye(len(matrix))
    flat = gradients.dense().flatten(1)
    expected = (flat @ torch.linalg.inv(damped) * flat).sum(1)
    assert torch.allclose(exact_self_influence(gradients, 0.3), expected)


def test_kronecker_self_influence_is_dense_algebra() -> None:
    gradients, *_ = random_head()
    p, inputs = gradients.probabilities, gradients.inputs
    spread = torch.stack([row.diag() - row[:, None] * row for row in p]).mean(0)
    matrix = torch.kron(spread, inputs.T @ inputs / len(inputs))
    matrix += DAMPING * matrix.trace() / len(matrix) * torch.eye(len(matrix))
    flat = gradients.dense().flatten(1)
    expected = (flat @ torch.linalg.inv(matrix) * flat).sum(1)
    assert torch.allclose(kronecker_self_influence(gradients), expected)


@pytest.mark.parametrize(("limit", "curvature"), [(6000, "exact"), (100, "kronecker")])
def test_self_influence_finds_wrong_labels(
    noisy: tuple[Problem, NDArray[np.bool_]], monkeypatch: pytest.MonkeyPatch, limit: int, curvature: str
) -> None:
    problem, wrong = noisy
    monkeypatch.setattr(self_influence_module, "EXACT_UP_TO", limit)
    outcome = self_influence(problem, silent)
    assert outcome.details["curvature"] == curvature
    assert auroc(wrong, outcome.suspicion) > 0.9


# All of them ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_outcomes_are_complete_and_repeat(method: Method, small: Problem) -> None:
    before, told = small.labels.copy(), []
    first, second = method(small, told.append), method(small, silent)
    assert first.suspicion.shape == (120,)
    assert first.suspicion.dtype == np.float64
    assert np.isfinite(first.suspicion).all()
    assert np.ptp(first.suspicion) > 0
    assert np.array_equal(first.suspicion, second.suspicion)
    assert np.array_equal(small.labels, before)
    assert first.flagged is None
    assert sum("epoch" in line for line in told) == 3
    held_out = len(small.split()[1]) if method in (tracin_anchors, fastif, fastif_sum) else 0
    assert first.trainings == pytest.approx(1 - held_out / 120)
