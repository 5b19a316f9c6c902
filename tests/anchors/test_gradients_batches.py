"""In what batches held-out examples go through a model, which must not matter to what is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import CLASSES, make_labels, make_monitor, train_step
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.anchors.gradients import LEAST_BATCH, ExampleGradients, _clean
from sgoif.curvature.base import Factors
from sgoif.distributed.communicator import Communicator
from sgoif.errors import SettingError

ANCHORS = 10


class Counted(nn.Sequential):
    """A network that notes the sizes of the batches it is given in evaluation mode."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.sizes.append(len(x))
        return super().forward(x)


def watched(layers: str, **options: Any) -> InfluenceMonitor:
    torch.manual_seed(3)
    model = Counted()
    monitor = make_monitor(model, (torch.randn(ANCHORS, 5), make_labels(ANCHORS)), layers=layers, **options)
    train_step(monitor, model, torch.randn(6, 5), make_labels(6))
    model.sizes.clear()
    return monitor


def parts_of(gradients: ExampleGradients) -> tuple[Tensor, Tensor, Tensor]:
    found = gradients.of_anchors()
    assert all(part.grad_fn is None for part in found)
    return found


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("size", [1, 4, 5, 10, 16])
def test_passes_filled_up_to_one_size_find_the_same(layers: str, size: int) -> None:
    monitor = watched(layers)
    gradients, model = monitor.gradients, monitor.model
    expected = parts_of(gradients)
    model.sizes.clear()
    gradients._only_batch = size
    assert gradients.batch_size == size
    for found, wanted in zip(parts_of(gradients), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert model.sizes == [size] * -(-ANCHORS // size)
    model.sizes.clear()
    x, y = torch.randn(7, 5), make_labels(7)
    strangers = gradients.of_strangers(x, y)
    assert model.sizes == [size] * -(-7 // size)
    gradients._only_batch = None
    torch.testing.assert_close(gradients.of_strangers(x, y), strangers)


@pytest.mark.parametrize(("layers", "factor"), [("head", 2), ("all", 1)])
def test_batches_are_of_the_size_of_training_or_twice_it(layers: str, factor: int) -> None:
    gradients = watched(layers).gradients
    assert gradients.training_batch == 6
    assert gradients.batch_size == LEAST_BATCH, "no smaller than is worth a pass"
    gradients.training_batch = 100
    assert gradients.batch_size == 100 * factor
    gradients._costly_sizes = True
    assert gradients.batch_size == 100, "a size that the device knows"
    gradients._batch = 7
    assert gradients.batch_size == 7, "what the user asks for"
    gradients._only_batch = 3
    assert gradients.batch_size == 3, "what the model can take"


def test_given_batches_are_those_of_the_hold_out() -> None:
    monitor = watched("head", anchor_batch=4)
    monitor.gradients.of_anchors()
    assert monitor.model.sizes == [4, 4, 2]


def test_a_rank_looks_at_its_own_anchors_and_at_any_of_them_while_others_have_more() -> None:
    for layers in ("head", "all"):
        monitor = watched(layers, anchor_batch=4)
        bank, expected = monitor.anchors, monitor.gradients.of_anchors()
        monitor.model.sizes.clear()
        bank.communicator, bank.own, bank.phi = Elsewhere(), slice(5, 10), bank.phi[5:]
        for found, wanted in zip(monitor.gradients.of_anchors(), expected, strict=True):
            torch.testing.assert_close(found, wanted[5:])
        assert monitor.model.sizes == [4, 1, 1], "a sharded model runs on all ranks or on none"
        parts = monitor.gradients.of_bank().gradients
        assert sum(len(part.delta) for part in parts) == 5 if layers == "head" else len(parts) == 5


class Elsewhere(Communicator):
    """One of several ranks, of which another has an anchor batch more."""

    def turns(self, count: int, batch: int) -> int:
        return 3


class Convolving(nn.Module):
    def __init__(self, kind: type[nn.Module], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.body, self.head = shape, kind(1, 2, 1), nn.Linear(2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.view(len(x), 1, *self.shape)).flatten(2).mean(2))


KINDS = [(nn.Conv1d, (4,)), (nn.Conv2d, (2, 2)), (nn.Conv3d, (1, 2, 2)), (None, ())]


@pytest.mark.parametrize(("kind", "shape"), KINDS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sizes_are_costly_for_convolutions_on_a_gpu(kind: Any, shape: tuple[int, ...], device: str) -> None:
    model = Convolving(kind, shape) if kind else nn.Sequential(nn.Linear(4, CLASSES))
    monitor = make_monitor(model, (torch.randn(ANCHORS, 4), make_labels(ANCHORS)))
    known, bank = monitor.gradients, monitor.anchors
    bank.device = torch.device(device)
    given = model, known.capture, known.layers, known.layout, known.objective, bank, None
    made = ExampleGradients(*given, only_batch=5)
    assert made._costly_sizes is (kind is not None and device == "cuda")
    assert made.batch_size == 5
    assert made.training_batch == 0
    assert made.autocast is None


@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_gradient_that_is_not_finite_is_none(layers: str) -> None:
    monitor = watched(layers)
    gradients, bank = monitor.gradients, monitor.anchors
    expected = gradients.of_anchors()[0]
    assert isinstance(bank._cache, Tensor)
    for row, value in ((2, torch.nan), (5, torch.inf)):
        bank._cache[bank.members[row], 0] = value
    found = gradients.of_anchors()[0]
    sound = [row for row in range(ANCHORS) if row not in (2, 5)]
    torch.testing.assert_close(found[sound], expected[sound])
    assert bool(found.isfinite().all())
    assert found[2].eq(0).all()
    out = torch.ones(4)
    _clean(torch.tensor([3.0, torch.nan, torch.inf, -torch.inf]), out)
    assert out.tolist() == [3.0, 0.0, 0.0, 0.0]


def test_of_a_head_factors_are_kept_and_gradients_of_several_layers() -> None:
    x, y = torch.randn(4, 5), make_labels(4)
    head, whole = watched("head").gradients, watched("all").gradients
    factored, joined = head.of(x, y).gradients, whole.of(x, y).gradients
    assert isinstance(factored, list)
    assert [type(part) for part in factored] == [Factors]
    assert isinstance(joined, Tensor)
    torch.testing.assert_close(head.joined(factored), joined[:, -head.layout.size :])


def test_strangers_may_have_a_loss_of_their_own_and_must_be_some() -> None:
    gradients = watched("head").gradients
    x, y = torch.randn(4, 5), make_labels(4)
    plain = gradients.of_strangers(x, y)
    twice = gradients.of_strangers(x, y, lambda z, t: 2 * F.cross_entropy(z, t, reduction="none"))
    torch.testing.assert_close(twice, 2 * plain)
    gradients._only_batch = 3
    again = gradients.of_strangers(x, y, lambda z, t: 2 * F.cross_entropy(z, t, reduction="none"))
    torch.testing.assert_close(again, 2 * plain)
    with pytest.raises(SettingError, match="there are no examples"):
        gradients.of_strangers(x[:0], y[:0])


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_monitor_that_is_closed_looks_with_hooks_of_its_own(layers: str, size: int | None) -> None:
    monitor = watched(layers)
    gradients, x, y = monitor.gradients, torch.randn(7, 5), make_labels(7)
    strangers, anchors = gradients.of_strangers(x, y), gradients.of_anchors()
    monitor.close()
    gradients._only_batch = size
    torch.testing.assert_close(gradients.of_strangers(x, y), strangers)
    with gradients.captured() as capture:
        for found, expected in zip(gradients.of_anchors(capture), anchors, strict=True):
            torch.testing.assert_close(found, expected)


def test_losses_and_logits_are_those_of_evaluation() -> None:
    monitor = watched("head")
    rows = monitor.anchors.positions()
    inputs, labels = monitor.anchors.batch(torch.arange(ANCHORS))
    _, losses, logits = monitor.gradients.of_anchors()
    monitor.model.eval()
    expected = monitor.model(inputs).detach()
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(losses, F.cross_entropy(expected, labels, reduction="none"))
    assert losses.dtype == torch.float32
    assert len(rows) == ANCHORS


@pytest.mark.parametrize("kind", [None, torch.bfloat16, torch.float16])
def test_they_go_on_in_the_precision_and_the_batches_of_training(kind: torch.dtype | None) -> None:
    one, other = watched("head").gradients, watched("head").gradients
    other.autocast, other.training_batch = torch.bfloat16, 1
    one.autocast, one.training_batch = kind, 33
    other.load_state_dict(one.state_dict())
    assert other.autocast is kind
    assert other.training_batch == 33
    assert one.state_dict() == {"batch": 33, "autocast": "" if kind is None else str(kind).removeprefix("torch.")}
    logits = other.of(torch.randn(4, 5), make_labels(4)).logits
    rounded = [torch.equal(logits.to(precision).float(), logits) for precision in (torch.bfloat16, torch.float16)]
    assert rounded[0] is (kind is torch.bfloat16)
    assert any(rounded) is (kind is not None), "outputs have the precision of training"


def test_hooks_of_a_look_at_strangers_are_gone_afterwards() -> None:
    monitor = watched("head")
    before = [len(module._forward_hooks) for module in monitor.model.modules()]
    states = torch.get_rng_state()
    with monitor.gradients.captured():
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), states)
    assert [len(module._forward_hooks) for module in monitor.model.modules()] == before
    with pytest.raises(KeyError), monitor.gradients.captured():
        raise KeyError
    assert [len(module._forward_hooks) for module in monitor.model.modules()] == before
