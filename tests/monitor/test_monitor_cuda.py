"""What only a GPU can show: scores there, untouched training, deferred checks, and a state that comes back."""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy

import numpy as np
import pytest
import torch
from engine_cases import LAYERS, assert_scores, func_gradients, make_inputs, make_labels, make_monitor, make_probe
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.errors import IndexingError, NonFiniteError

pytestmark = pytest.mark.gpu
CUDA = "cuda"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.AvgPool2d(4))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 4)).to(CUDA)


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 8, 8, generator=generator), torch.arange(count) % 4


class Run:
    """A short training run in bfloat16, with or without a monitor."""

    def __init__(self, watched: bool, **options: object) -> None:
        torch.manual_seed(1)
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.inputs, self.labels = data(64, 0)
        self.monitor = InfluenceMonitor(self.model, self.optimizer, data(24, 1), **options) if watched else None
        torch.manual_seed(2)

    def step(self, number: int, factor: float = 1.0) -> None:
        torch.manual_seed(number)  # dropout
        rows = (torch.arange(16) + 16 * number) % 64
        x, y = self.inputs[rows].to(CUDA), self.labels[rows].to(CUDA)

        def forward_backward() -> None:
            with torch.autocast(CUDA, dtype=torch.bfloat16):
                logits = self.model(x)
            (nn.functional.cross_entropy(logits.float(), y) * factor).backward()

        if self.monitor is None:
            forward_backward()
        else:
            with self.monitor.step(rows):
                forward_backward()
        if np.isfinite(factor):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, first: int, last: int) -> None:
        for number in range(first, last):
            torch.cuda.synchronize()  # a note is never waited for; a real step takes long enough
            self.step(number)


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_scores_equal_per_example_gradients(name: str) -> None:
    """TF32 off, as the oracle in float64 is exact; the engine itself never uses it for scores."""
    model = make_probe(name).eval()
    for _ in range(2):
        x, y = make_inputs(name, 6, seed=3), make_labels(6)
        oracle = func_gradients(model, x, y)
        model.to(CUDA)
        monitor = make_monitor(model, (make_inputs(name, 9).to(CUDA), make_labels(9).to(CUDA)), layers="all")
        for _ in range(2):  # the first step has no directions yet
            with monitor.step(torch.arange(6)):
                nn.functional.cross_entropy(model(x.to(CUDA)), y.to(CUDA)).backward()
            monitor.optimizer.zero_grad()
        scores = monitor.last
        assert scores is not None
        monitor.scorer._last = type(scores)(**{key: value.cpu() for key, value in vars(scores).items()})
        assert monitor.directions.psi is not None
        monitor.directions.psi = monitor.directions.psi.cpu()
        model.cpu()
        assert_scores(monitor, oracle)
        monitor.close()


@pytest.mark.parametrize("layers", ["head", "all"])
def test_training_is_bit_identical(layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    plain, watched = Run(False), Run(True, layers=layers, refresh_every=3)
    for number in range(12):
        plain.step(number)
        watched.step(number)
    for (key, a), b in zip(plain.model.state_dict().items(), watched.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), key


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_loss_that_is_not_finite_is_reported_soon(value: float, layers: str) -> None:
    run = Run(True, refresh_every=4, layers=layers)
    for number in range(5):
        run.step(number)
    assert run.monitor is not None
    run.step(5, value)
    with pytest.raises(NonFiniteError, match="learning rate"):
        run.steps(6, 12)
    run.optimizer.zero_grad()
    for number in range(12, 20):
        run.step(number)
    table = run.monitor.scores()
    assert np.isfinite(table["influence"]).all()


def test_skipped_steps_leave_no_trace() -> None:
    run = Run(True, refresh_every=4, skip_nonfinite=True)
    for number in range(8):
        run.step(number, float("nan") if number == 5 else 1.0)
    assert run.monitor is not None
    counts = run.monitor.scores()["n_observations"]
    assert counts.sum() == 7 * 16
    assert np.isfinite(run.monitor.scores()["influence"]).all()


@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_saved_state_comes_back(layers: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    run, other = Run(True, layers=layers, refresh_every=3), Run(True, layers=layers, refresh_every=3)
    for number in range(7):
        run.step(number)
    assert run.monitor is not None
    assert other.monitor is not None
    run.monitor.save(tmp_path / "state.npz")
    other.model.load_state_dict(run.model.state_dict())
    other.optimizer.load_state_dict(deepcopy(run.optimizer.state_dict()))  # else the two would share their buffers
    other.monitor.load(tmp_path / "state.npz")
    for number in range(7, 12):
        run.step(number)
        other.step(number)
    mine, theirs = run.monitor.scores(), other.monitor.scores()
    np.testing.assert_allclose(mine["influence"], theirs["influence"], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(mine["n_observations"], theirs["n_observations"])


def test_an_index_given_twice_is_named_some_steps_later_and_nothing_else_is_lost() -> None:
    run = Run(True, refresh_every=1000)
    for number in range(80):
        run.step(number)
    assert run.monitor is not None
    before = run.monitor.scores()["n_observations"].sum()
    with run.monitor.step(torch.tensor([3, 3])):
        nn.functional.cross_entropy(run.model(run.inputs[:2].to(CUDA)), run.labels[:2].to(CUDA)).backward()
    run.optimizer.zero_grad()
    with pytest.raises(IndexingError, match="appears 2 times"):
        run.steps(80, 112)
    for number in range(112, 116):
        run.step(number)
    assert run.monitor.scores()["n_observations"].sum() > before + 4 * 16


def test_several_monitors_of_a_model_score_as_each_alone() -> None:
    def scores(temperatures: tuple[float, ...]) -> list[np.ndarray]:
        run = Run(watched=False)
        monitors = [
            InfluenceMonitor(run.model, run.optimizer, data(24, 1), temperature=temperature, execution="deferred")
            for temperature in temperatures
        ]
        for number in range(200):
            with ExitStack() as steps:
                for monitor in monitors:
                    steps.enter_context(monitor.step((torch.arange(16) + 16 * number) % 64))
                run.step(number)
        return [monitor.scores(anchors=False)["influence"] for monitor in monitors]

    together = scores((2.0, 4.0, 8.0))
    for temperature, found in zip((2.0, 4.0, 8.0), together, strict=True):
        assert np.array_equal(found, scores((temperature,))[0], equal_nan=True)
