"""Training with a monitor is training without it, bit for bit; and nothing is left behind."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_cases import CLASSES, make_labels, make_monitor, train_step
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sgoif import InfluenceMonitor, indexed
from sgoif.scoring.score_queue import ScoreQueue
from sgoif_bench.models import tiny_vit


class Augmented(Dataset[Any]):
    """Images that are flipped and shifted at random, with the global generator, whenever they are read."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 2, 8, 8, generator=generator)
        self.y = make_labels(count, seed)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        x = self.x[i]
        if torch.rand(()) < 0.5:
            x = x.flip(2)
        return x.roll(int(torch.randint(3, ())), 1), int(self.y[i])


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.GroupNorm(2, 6),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Linear(216, 10),
        nn.BatchNorm1d(10),
        nn.Dropout(0.5),
        nn.Linear(10, CLASSES),
    )


def transformer() -> nn.Module:
    return tiny_vit(2, CLASSES, image=8, patch=4, width=8, depth=1, heads=2)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def train(
    make: Callable[[], nn.Module], optimizer_name: str, autocast: bool = False, **options: Any
) -> tuple[dict[str, Tensor], list[Tensor], list[float], Tensor]:
    """Two epochs; returns weights and buffers, optimizer state, losses, and what the generator draws next."""
    torch.manual_seed(7)
    model = make()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    loader = DataLoader(indexed(Augmented(40, 1)), batch_size=8, shuffle=True)
    monitor = InfluenceMonitor(model, optimizer, Augmented(15, 2), **options) if options else None
    losses = []
    for _ in range(2):
        for x, y, index in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                if monitor is None:
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                else:
                    with monitor.step(index):
                        loss = F.cross_entropy(model(x), y)
                        loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    if monitor is not None:
        assert len(monitor.history) >= 3
        assert len(monitor.scores()) == 40
        assert monitor.error_budget().total >= 0
    state = [v for entry in optimizer.state_dict()["state"].values() for v in entry.values() if isinstance(v, Tensor)]
    return model.state_dict(), state, losses, torch.rand(4)


@functools.cache
def train_plainly(optimizer_name: str) -> tuple[Any, ...]:
    return train(convolutional, optimizer_name)


def assert_identical(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert found[2] == expected[2], "losses differ"
    assert found[0].keys() == expected[0].keys()
    for name, value in expected[0].items():
        assert torch.equal(found[0][name], value), f"{name} differs"
    assert len(found[1]) == len(expected[1]) > 0
    assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True)), "optimizer state differs"
    assert torch.equal(found[3], expected[3]), "the global generator was used"


@pytest.mark.parametrize("layers", ["head", "last-stage", "all"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_are_bit_identical(optimizer: str, layers: str) -> None:
    plain = train_plainly(optimizer)
    assert_identical(train(convolutional, optimizer, layers=layers, refresh_every=3), plain)
    assert torch.isfinite(plain[0]["0.weight"]).all()


@pytest.mark.parametrize(
    ("curvature", "solver"),
    [
        ("diagonal", "richardson"),
        ("fisher", "richardson"),
        ("lowrank", "subspace"),
        ("kfac", "neumann"),
        ("kfac", "conjugate"),
    ],
)
def test_no_backend_or_solver_touches_training(curvature: str, solver: str) -> None:
    options = {"layers": "all", "refresh_every": 3, "replace_every": 1, "max_anchors": 9}
    plain = train_plainly("adamw")
    assert_identical(train(convolutional, "adamw", curvature=curvature, solver=solver, **options), plain)


@pytest.mark.parametrize("autocast", [False, True])
def test_transformer_is_bit_identical(autocast: bool) -> None:
    plain = train(transformer, "adamw", autocast)
    assert_identical(train(transformer, "adamw", autocast, layers="all", refresh_every=3), plain)


def test_autocast_is_bit_identical() -> None:
    plain = train(convolutional, "sgd", True)
    assert_identical(train(convolutional, "sgd", True, layers="all", refresh_every=3), plain)


def test_the_comparison_can_fail() -> None:
    plain, other = train_plainly("sgd"), train_plainly("adamw")
    with pytest.raises(AssertionError):
        assert_identical(other, plain)


# --- hooks ----------------------------------------------------------------------------------------------------------

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks(model: nn.Module) -> int:
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in HOOKS)


def anchors(count: int = 9) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 2, 8, 8), make_labels(count)


@pytest.mark.parametrize("layers", ["head", "all"])
def test_close_removes_every_hook(layers: str) -> None:
    model = convolutional()
    seen: list[int] = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    monitor = make_monitor(model, anchors(), layers=layers)
    assert hooks(model) > 1
    train_step(monitor, model, torch.randn(8, 2, 8, 8), make_labels(8))
    monitor.scores()
    monitor.anchor_scores()
    monitor.error_budget()
    monitor.close()
    assert hooks(model) == 1, "only the user's own hook stays"
    monitor.close()
    assert monitor.last is not None
    assert len(monitor.scores()) == 8


def test_with_block_removes_every_hook_also_after_an_error() -> None:
    model = convolutional()
    monitor = make_monitor(model, anchors(), layers="all")
    with pytest.raises(ValueError, match="batch_size"), monitor, monitor.step(torch.arange(8)):
        F.cross_entropy(model(torch.randn(8, 2, 8, 8)), make_labels(7)).backward()
    assert hooks(model) == 0


def test_parameters_carry_no_hooks() -> None:
    model = convolutional()
    monitor = make_monitor(model, anchors(), layers="all")
    train_step(monitor, model, torch.randn(8, 2, 8, 8), make_labels(8))
    for parameter in model.parameters():
        assert not parameter._backward_hooks
        assert not getattr(parameter, "_post_accumulate_grad_hooks", None)


def test_failed_construction_leaves_no_hook() -> None:
    model = convolutional()
    with pytest.raises(ValueError, match="no layer"):
        make_monitor(model, anchors(), layers="nothing.*")
    assert hooks(model) == 0


def test_evaluation_between_steps_is_not_watched() -> None:
    model = convolutional()
    monitor = make_monitor(model, anchors(), layers="all")
    x, y = torch.randn(8, 2, 8, 8), make_labels(8)
    train_step(monitor, model, x, y)
    assert monitor.last is not None
    last = monitor.last
    model.eval()
    with torch.no_grad():
        model(torch.randn(3, 2, 8, 8))
    F.cross_entropy(model(x), y).backward()
    assert monitor.last is last


def through_torch(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    assert b"sgoif" not in file.getvalue(), "who loads the model need not have the monitor"
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("duplicate", [through_torch, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_watched_model_can_be_saved_and_copied_whole(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    model = convolutional()
    monitor = make_monitor(model, anchors(), layers="all")
    x, y = torch.randn(8, 2, 8, 8), make_labels(8)
    train_step(monitor, model, x, y)
    other = duplicate(model)
    assert torch.equal(other.eval()(x), model.eval()(x))
    before = monitor.scores()["influence"]
    F.cross_entropy(other(x), y).backward()
    assert np.array_equal(monitor.scores()["influence"], before)
    with monitor.step(torch.arange(8)):
        F.cross_entropy(model(x), y).backward()
        other(x)  # would be a second pass if the copy were listened to
    assert monitor.scores()["n_observations"].tolist() == [2] * 8
    monitor.close()
    watched = weakref.ref(monitor)
    del monitor
    gc.collect()
    assert watched() is None, "copies do not keep the monitor alive"
    make_monitor(other, anchors(), layers="all").close()


# --- memory ---------------------------------------------------------------------------------------------------------


def feature_maps() -> int:
    """Feature maps of a batch of eight that Python can reach."""
    gc.collect()
    return sum(type(thing) is Tensor and thing.dim() == 4 and len(thing) == 8 for thing in gc.get_objects())


def spied_step(monitor: InfluenceMonitor, model: nn.Module, start: int) -> tuple[Tensor, weakref.ref[Any]]:
    """One step; returns its loss and a weak reference to its record."""
    with monitor.step(torch.arange(start, start + 8)):
        record = weakref.ref(monitor.capture.record)
        loss = F.cross_entropy(model(torch.randn(8, 2, 8, 8)), make_labels(8))
        loss.backward()
    return loss, record


@pytest.mark.parametrize("layers", ["head", "last-stage", "all"])
def test_what_was_captured_dies_with_the_step(layers: str) -> None:
    """Also while the user still holds the loss, whose graph carries the hooks."""
    model = convolutional()
    monitor = make_monitor(model, anchors(), layers=layers, curvature_every=1)
    for number in range(3):  # the first step refreshes, and all of them learn the curvature
        loss, record = spied_step(monitor, model, 8 * number)
        gc.collect()
        assert loss.grad_fn is not None
        assert record() is None, f"the record of step {number} outlives it"


def test_a_step_that_is_kept_does_not_keep_what_was_captured() -> None:
    model = convolutional()
    monitor = make_monitor(model, anchors(), layers="all")
    step = monitor.step(torch.arange(8))
    with step:
        record = weakref.ref(monitor.capture.record)
        F.cross_entropy(model(torch.randn(8, 2, 8, 8)), make_labels(8)).backward()
    gc.collect()
    assert record() is None
    assert monitor.steps == 1
    del step


def test_activations_are_released() -> None:
    """Inputs and output gradients of the layers below the head cannot be reached any more after the step."""
    model = convolutional()
    monitor = make_monitor(model, anchors(), layers="all", curvature_every=1)
    before = feature_maps()
    for number in range(2):
        with monitor.step(torch.arange(8 * number, 8 * number + 8)):
            loss = F.cross_entropy(model(torch.randn(8, 2, 8, 8)), make_labels(8))
            loss.backward()
            assert feature_maps() > before
        assert loss.grad_fn is not None
        assert feature_maps() == before


def test_steps_that_wait_for_scoring_are_few_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgoif.scoring.score_queue.BLOCK_STEPS", 4)
    model = convolutional()
    monitor = make_monitor(model, anchors(), layers="all")
    queued = []
    for number in range(10):
        spied_step(monitor, model, 8 * number)
        queued.append(len(monitor.pipeline.queue.steps))
        for step in monitor.pipeline.queue.steps:
            assert not step.inputs.requires_grad
            assert not step.logits.requires_grad
    assert 1 <= max(queued) <= 4
    assert monitor.last is not None
    assert not monitor.pipeline.queue.steps
    assert int((monitor.ledger.column("count") > 0).sum()) == 80


def test_no_graph_is_kept() -> None:
    model = convolutional()
    monitor = make_monitor(model, anchors(), layers="all")
    train_step(monitor, model, torch.randn(8, 2, 8, 8), make_labels(8))
    last = monitor.last
    assert last is not None
    for value in filter(torch.is_tensor, vars(last).values()):
        assert not value.requires_grad
        assert value.numel() <= 8 * CLASSES
        assert value.untyped_storage().nbytes() <= 8 * 8 * CLASSES
    assert not monitor.anchors.phi.requires_grad
    assert not monitor.gradients.of_anchors()[0].requires_grad
    assert monitor.directions.psi is not None
    assert not monitor.directions.psi.requires_grad


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("start", [0, 5])
def test_logits_that_the_loop_overwrites_are_scored_as_they_were(start: int, buffered: bool) -> None:
    """Nothing is lost on the host; on a GPU a loop that begins with it later loses the one step before it is seen."""
    tables = []
    for overwrite in (False, True):
        torch.manual_seed(0)
        model = convolutional()
        monitor = make_monitor(model, anchors())
        monitor.pipeline.queue = ScoreQueue(buffered)
        for number in range(12):
            x, y = torch.randn(8, 2, 8, 8), make_labels(8)
            with monitor.step(torch.arange(8 * number, 8 * number + 8)):
                logits = model(x)
                F.cross_entropy(logits, y).backward()
            if overwrite and number >= start:
                logits.detach().zero_()
        tables.append(monitor.scores(anchors=False))
    plain, overwritten = tables
    lost = np.setdiff1d(plain["index"], overwritten["index"])
    assert lost.tolist() == ([] if start == 0 or buffered else list(range(8 * start, 8 * start + 8)))
    both = np.isin(plain["index"], overwritten["index"])
    np.testing.assert_allclose(plain["margin"][both], overwritten["margin"], atol=1e-6)
    if start == 0:
        np.testing.assert_array_equal(plain["influence"], overwritten["influence"])
