"""Targets that are no class numbers: leave-one-out, resuming, harmlessness, and what the messages say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_monitor_oracle_targets import CASES, VOCABULARY, Reader, sentences, token_loss
from test_monitor_resume import assert_same
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.errors import AnchorError, StepError
from sgoif.stability.step_weight import POWER

TRAINING, BATCH, CLASSES = 48, 8, 4


# --- leave one out ------------------------------------------------------------------------------------------------


def ridge(a: Tensor, y: Tensor) -> Tensor:
    """Weights and biases [D, d + 1] of the least squares fit."""
    return torch.linalg.lstsq(a, y).solution.T


@pytest.mark.parametrize(("curvature", "outputs"), [("kfac", 1), ("kfac", 3), ("fisher", 1)])
def test_leave_one_out_of_a_linear_regression(outputs: int, curvature: str) -> None:
    """What leaving out an example does to the mean loss on the anchors, in closed form, against its influence."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
        noise = torch.randn(count, outputs, generator=generator, dtype=torch.float64)
        if curvature == "fisher":  # the covariance of gradients is the curvature where all residuals have one size
            noise = noise.sign()
        return x, x @ slope + 0.5 * noise

    slope = torch.randn(4, outputs, generator=generator, dtype=torch.float64)
    (x, y), (held_x, held_y) = draw(300), draw(60)
    ones = [torch.cat([part, torch.ones(len(part), 1)], 1) for part in (x, held_x)]

    def held_out_loss(w: Tensor) -> float:
        return float((ones[1] @ w.T - held_y).square().sum(1).mean())

    w = ridge(ones[0], y)
    keep = ~torch.eye(len(x), dtype=torch.bool)
    effect = [held_out_loss(ridge(ones[0][rows], y[rows])) - held_out_loss(w) for rows in keep]

    model = nn.Linear(4, outputs)
    with torch.no_grad():
        model.weight.copy_(w[:, :-1])
        model.bias.copy_(w[:, -1])
    monitor = InfluenceMonitor(
        model, torch.optim.SGD(model.parameters(), lr=0.0), (held_x.float(), held_y.float()), loss=nn.MSELoss(),
        curvature=curvature, damping=1e-5, decay=0.0, gate="none", temperature=None, weigh_steps=False, help_weight=1.0,
        solver="conjugate", solver_steps=60, curvature_every=1,
    )  # fmt: skip
    for _ in range(3):
        with monitor.step(torch.arange(300), target=y):
            F.mse_loss(model(x.float()), y.float()).backward()
        monitor.refresh()
    influence = monitor.scores()["influence"]
    assert np.corrcoef(influence, -np.array(effect))[0, 1] > 0.99


# --- the loss of a guess ------------------------------------------------------------------------------------------


def test_the_weight_of_a_step_compares_with_the_best_constant_answer() -> None:
    """Variance, entropy of shares, entropy of frequencies; and of balanced classes ln C."""

    def guess(model: nn.Module, x: Tensor, y: Tensor, loss: Any) -> float:
        monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), loss=loss)
        return monitor.step_weight.guess

    x, y = torch.randn(40, 3), torch.randn(40, 2) * 3 + 1
    variance = float((y - y.mean(0)).square().sum(1).mean())
    assert guess(nn.Linear(3, 2), x, y, nn.MSELoss()) == pytest.approx(variance, rel=1e-5)
    by_function = guess(nn.Linear(3, 2), x, y, lambda z, t: (z - t).square().mean())
    assert by_function == pytest.approx(variance / 2, rel=1e-4)
    median = float((y - y.median(0).values).abs().sum(1).mean())
    assert guess(nn.Linear(3, 2), x, y, nn.L1Loss()) == pytest.approx(median, rel=1e-3)

    labels = (torch.rand(40, 5) < 0.3).float()
    p = labels.mean(0)
    entropy = float(-(torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)).sum())
    assert guess(nn.Linear(3, 5), x, labels, nn.BCEWithLogitsLoss()) == pytest.approx(entropy, rel=1e-4)

    tokens, following = sentences(40, 3)
    counts = torch.bincount(following[following >= 0], minlength=VOCABULARY).float()
    entropy = float(-torch.special.xlogy(counts, counts / counts.sum()).sum()) / 40
    assert guess(Reader(False), tokens, following, None) == pytest.approx(entropy, rel=1e-4)
    function = guess(Reader(False), tokens, following, lambda z, t: token_loss(z, t, reduction="sum"))
    assert function == pytest.approx(entropy, rel=1e-3)
    balanced = torch.arange(40 * 7).view(40, 7) % VOCABULARY
    assert guess(Reader(False), balanced, balanced, None) == pytest.approx(7 * np.log(VOCABULARY), rel=1e-4)
    assert guess(nn.Linear(3, 4), x, torch.arange(40) % 4, None) == pytest.approx(np.log(4))


def test_a_loss_below_zero_weighs_all_steps_alike() -> None:
    x, y = torch.randn(40, 3), torch.randn(40, 1)
    model = nn.Linear(3, 1)
    loss = lambda z, t: ((z - t).square() - 100).mean()  # noqa: E731
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), loss=loss)
    with monitor.step(torch.arange(40), target=y):
        loss(model(x), y).backward()
    assert monitor.step_weight.factor == 1


def test_a_model_that_answers_well_weighs_more() -> None:
    x = torch.randn(64, 3)
    y = x @ torch.randn(3, 2)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    monitor = InfluenceMonitor(model, optimizer, (x, y), loss=nn.MSELoss(), refresh_every=20)
    for _ in range(100):
        with monitor.step(torch.arange(64), target=y):
            F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = [entry["step_weight"] for entry in monitor.history]
    assert weights[0] == pytest.approx(0.05**POWER)
    assert weights[-1] > 0.8


# --- resuming, and doing no harm ----------------------------------------------------------------------------------


class Run:
    """Training with one kind of target, shuffled, with dropout."""

    def __init__(self, kind: str, watched: bool = True, **options: Any) -> None:
        generator = torch.Generator().manual_seed(7)
        self.kind = kind
        self.x = torch.randn(96, 6, generator=generator)
        self.y: Tensor = torch.arange(96) % CLASSES
        loss: Any = None
        if kind == "values":
            self.y, loss = torch.randn(96, CLASSES, generator=generator), nn.MSELoss()
        elif kind == "labels":
            self.y, loss = (torch.rand(96, CLASSES, generator=generator) < 0.4).float(), nn.BCEWithLogitsLoss()
        elif kind == "tokens":
            (self.x, self.y), loss = sentences(96, 1), nn.CrossEntropyLoss()
        self.loss = loss
        with torch.random.fork_rng():
            torch.manual_seed(3)
            body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, CLASSES))
            self.model = Reader(False) if kind == "tokens" else body
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.order = torch.Generator().manual_seed(11)
        self.waiting: list[Tensor] = []
        self.step = 0
        options = {"refresh_every": 4, "max_anchors": 24, "replace_every": 2, "replace_share": 0.2, **options}
        anchors = (self.x[TRAINING:], self.y[TRAINING:])
        self.monitor = InfluenceMonitor(self.model, self.optimizer, anchors, loss=loss, **options) if watched else None

    def batch(self, index: Tensor) -> tuple[Any, Any]:
        """What `target=` is given, and the loss as a function of the outputs."""
        y = self.y[index]
        if self.kind == "probabilities":
            q = F.one_hot(y, CLASSES).float() * 0.6 + 0.1
            return q, lambda z: F.cross_entropy(z, q)
        if self.kind == "pairs" and self.step % 3:  # a loop that mixes most batches
            other = y.flip(0)
            return (y, other, 0.7), lambda z: 0.7 * F.cross_entropy(z, y) + 0.3 * F.cross_entropy(z, other)
        if self.kind == "pairs":
            return None, lambda z: F.cross_entropy(z, y)
        if self.kind == "tokens":
            return y, lambda z: token_loss(z, y)
        return y, lambda z: self.loss(z, y)

    def train(self, steps: int) -> Run:
        for _ in range(steps):
            if not self.waiting:
                self.waiting = list(torch.randperm(TRAINING, generator=self.order).split(BATCH))
            index = self.waiting.pop(0)
            target, loss = self.batch(index)
            if self.monitor is None:
                loss(self.model(self.x[index])).backward()
            else:
                with self.monitor.step(index, target=target):
                    loss(self.model(self.x[index])).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
        return self


KINDS = ("probabilities", "pairs", "values", "labels", "tokens")


@pytest.mark.parametrize("stop", [5, 8])
@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_stop_and_resume(kind: str, layers: str, stop: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = Run(kind, layers=layers).train(14)
    torch.manual_seed(0)
    first = Run(kind, layers=layers).train(stop)
    first.monitor.save(tmp_path / "state.npz")
    resumed = Run(kind, layers=layers)
    resumed.model.load_state_dict(first.model.state_dict())
    resumed.optimizer.load_state_dict(first.optimizer.state_dict())
    resumed.order, resumed.waiting, resumed.step = first.order, first.waiting, first.step
    resumed.monitor.load(tmp_path / "state.npz")
    assert_same(whole.monitor, resumed.train(14 - stop).monitor)
    for label in range(CLASSES if kind == "labels" else 0):
        tables = [run.monitor.scores(label=label) for run in (whole, resumed)]
        tables += [run.monitor.anchor_scores(label=label) for run in (whole, resumed)]
        for name in tables[0].columns:
            np.testing.assert_array_equal(tables[0][name], tables[1][name], err_msg=name)
            np.testing.assert_array_equal(tables[2][name], tables[3][name], err_msg=name)


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_the_same_without_the_monitor(kind: str, layers: str) -> None:
    models = []
    for watched in (True, False):
        torch.manual_seed(0)
        models.append(Run(kind, watched, layers=layers).train(12).model)
    for mine, theirs in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.equal(mine, theirs)


def test_mixtures_are_deferred_with_the_same_scores() -> None:
    tables = []
    for execution in ("eager", "deferred"):
        torch.manual_seed(0)
        tables.append(Run("pairs", execution=execution, refresh_every=50).train(130).monitor.scores())
    for name in tables[0].columns:
        np.testing.assert_array_equal(tables[0][name], tables[1][name], err_msg=name)


def test_a_state_of_another_kind_of_target_is_refused() -> None:
    from sgoif.errors import StateError

    state = Run("values").train(5).monitor.state_dict()
    with pytest.raises(StateError):
        Run("labels").monitor.load_state_dict(state)
    with pytest.raises(StateError):
        Run("pairs").monitor.load_state_dict(state)


# --- messages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mse", "labels", "tokens", "function"])
def test_a_missing_target_is_named(name: str) -> None:
    make, data, given, trained, _ = CASES[name]
    model = make()
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), data(9, 0), loss=given)
    x, y = data(6, 1)
    message = r"targets cannot be read off the gradient of this loss.*monitor\.step\(index, target=y\)"
    with pytest.raises(StepError, match=message), monitor.step(torch.arange(6)):
        trained(model(x), y).backward()


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("mse", torch.zeros(6), r"numbers of shape \(6, 3\); got shape \(6,\)"),
        ("mse", torch.zeros(5, 3), r"numbers of shape \(6, 3\); got shape \(5, 3\)"),
        ("mse", ["a"] * 6, "must hold numbers"),
        ("labels", torch.zeros(6, 3), r"0 or 1 for every label of shape \(6, 4\)"),
        ("tokens", torch.zeros(6, 4, dtype=torch.long), r"one whole number per token, shape \(6, 5\); got \(6, 4\)"),
        ("tokens", torch.zeros(6, 5), "one whole number per token.*float32"),
    ],
)
def test_a_target_that_does_not_fit(name: str, target: Any, message: str) -> None:
    make, data, given, trained, _ = CASES[name]
    model = make()
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), data(9, 0), loss=given)
    x, y = data(6, 1)
    with pytest.raises(StepError, match=message), monitor.step(torch.arange(6), target=target):
        trained(model(x), y).backward()


X = torch.randn(12, 5)
BAD_ANCHORS = {
    "continuous": ((X, torch.linspace(0.2, 3, 12)), 1, None, r"look continuous \(0\.2, say\)\."
                   r" For regression give the loss, loss=nn\.MSELoss\(\)"
                   r".*monitor\.step\(index, target=y\)"),
    "continuous rows": ((X, torch.rand(12, 2) + 0.1), 2, None, r"look continuous.*loss=nn\.MSELoss\(\)"),
    "later continuous": ((X, torch.tensor([1.0, 0] * 5 + [1, 0.25])), 3, None, r"look continuous \(0\.25, say\)"),
    "ages": ((X, torch.arange(12) + 20), 1, None, r"labels from 20 to 31.*2 classes.*loss=nn\.MSELoss\(\)"),
    "other width": ((X, torch.rand(12, 2)), 3, nn.MSELoss(), r"targets of the anchors have shape \(2,\) and the"
                    r" model's outputs \(3,\).*MSELoss needs both alike"),
    "several labels": ((X, torch.ones(12, 3, dtype=torch.long)), 3, None, r"one class number.*shape \(3,\).*"
                       r"loss=nn\.BCEWithLogitsLoss\(\)"),
    "not finite": ((X, torch.tensor([[0.5]] * 11 + [[torch.nan]])), 1, nn.MSELoss(), "all finite"),
    "groups": ((X, torch.rand(12, 1)), 1, nn.MSELoss(), "groups='class' needs classes"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ANCHORS)
def test_anchors_that_do_not_fit_the_loss(name: str) -> None:
    anchors, outputs, loss, message = BAD_ANCHORS[name]
    model = nn.Linear(5, outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    groups = "class" if name == "groups" else None
    with pytest.raises(AnchorError, match=message):
        InfluenceMonitor(model, optimizer, anchors, loss=loss, groups=groups)


# --- models that take one batch size alone ------------------------------------------------------------------------


class FixedBatch(nn.Module):
    """A class token that was expanded to the batch of training once and for all."""

    def __init__(self, size: int, named: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(5, 4), nn.Linear(4, 3)
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.size, self.named = size, named

    def forward(self, x: Tensor) -> Tensor:
        if not self.named and len(x) != self.size:
            raise RuntimeError("this engine was built for other inputs")
        token = self.token.expand(len(x) if self.size < 0 else self.size, -1, -1)
        return self.head(torch.tanh(torch.cat([token, self.embed(x).unsqueeze(1)], 1)).sum(1))


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize(("size", "named", "option"), [(50, True, None), (8, False, None), (11, False, 11)])
def test_a_model_that_takes_one_batch_size_alone(size: int, named: bool, option: int | None, layers: str) -> None:
    """Anchors run in batches of that size, the last filled up, with the scores of a model that takes any."""
    x, y = torch.randn(20 + size, 5), torch.arange(20 + size) % 3
    tables = []
    for taken in (size, -1):
        torch.manual_seed(0)
        model = FixedBatch(taken, named or taken < 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = InfluenceMonitor(model, optimizer, (x[:20], y[:20]), layers=layers, anchor_batch=option)
        for _ in range(3):
            with monitor.step(torch.arange(size)):
                F.cross_entropy(model(x[20:]), y[20:]).backward()
            optimizer.step()
            optimizer.zero_grad()
        tables += [monitor.scores()["influence"], monitor.anchor_scores()["influence"]]
        assert monitor.most_harmed(x[:5], y[:5]).shape == (5, 4)
    for mine, theirs in zip(tables[:2], tables[2:], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_a_model_that_cannot_run_says_which_batches_were_tried() -> None:
    model, message = FixedBatch(11, named=False), r"neither on 2 of them nor on batches of 5, 1, 4, 8.*anchor_batch="
    with pytest.raises(AnchorError, match=message) as caught:
        InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), (X, torch.arange(12) % 3), anchor_batch=5)
    assert "built for other inputs" in str(caught.value)
