"""Mixed labels are told from single ones, whatever the loss was weighed, smoothed, scaled or rounded with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.errors import StepError
from sgoif.scoring.mixture_check import MixtureCheck, is_mixed

BATCH = 64


def logits_of(classes: int, sharpness: float, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Logits of a model that knows nothing (0), something, or all (30) and a tenth of the labels wrong."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (BATCH,), generator=generator)
    z = torch.randn(BATCH, classes, generator=generator) + sharpness * F.one_hot(y, classes)
    y[: BATCH // 10] = torch.randint(classes, (BATCH // 10,), generator=generator)
    return z.to(dtype), y


def gradient(z: Tensor, loss: Callable[[Tensor], Tensor], factor: float = 1.0) -> Tensor:
    """As autocast has it: the loss in float32, the gradient in the type of the logits."""
    z = z.detach().requires_grad_(True)
    (found,) = torch.autograd.grad(factor * loss(z.float()), z)
    return found


def mixed_loss(z: Tensor, y: Tensor, other: Tensor, share: float) -> Tensor:
    return share * F.cross_entropy(z, y) + (1 - share) * F.cross_entropy(z, other)


SINGLE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": F.cross_entropy,
    "sum": lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    "smoothed": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1),
    "much smoothed": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.4),
    "class weights": lambda z, y: F.cross_entropy(z, y, weight=torch.arange(1.0, z.shape[1] + 1)),
    "weighted examples": lambda z, y: (F.cross_entropy(z, y, reduction="none") * torch.linspace(0.1, 5, BATCH)).mean(),
    "smoothed and weighted": lambda z, y: F.cross_entropy(
        z, y, label_smoothing=0.1, weight=torch.linspace(1, 2, z.shape[1])
    ),
    "focal": lambda z, y: ((1 - (p := z.softmax(1).gather(1, y[:, None]))).square() * -p.log()).mean(),
    "one against all": lambda z, y: F.binary_cross_entropy_with_logits(z, F.one_hot(y, z.shape[1]).float()),
    "hinge": F.multi_margin_loss,
    "confidence penalty": lambda z, y: F.cross_entropy(z, y) + 0.1 * (z.softmax(1) * z.log_softmax(1)).sum(1).mean(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("name", SINGLE)
def test_single_labels_are_not_accused(name: str, classes: int, dtype: torch.dtype) -> None:
    for seed, sharpness in enumerate((0.0, 1.0, 5.0, 12.0, 30.0)):
        z, y = logits_of(classes, sharpness, dtype, seed)
        for factor in (1.0, 2.0**10, 1e-3):
            delta = gradient(z, lambda logits, y=y: SINGLE[name](logits, y), factor)
            assert not is_mixed(z, delta), (sharpness, factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [3, 10, 100])
@pytest.mark.parametrize("share", [0.5, 0.7, 0.25])
def test_mixup_is_noticed(share: float, classes: int, dtype: torch.dtype) -> None:
    """Of models that know little and more, smoothed as well; among three classes not in every batch."""
    for smoothing in (0.0, 0.1):
        seen = []
        for seed, sharpness in enumerate((0.0, 1.0, 2.0)):
            z, y = logits_of(classes, sharpness, dtype, seed)
            other = y.roll(1)

            def loss(logits: Tensor, y: Tensor = y, other: Tensor = other, smoothing: float = smoothing) -> Tensor:
                parts = [F.cross_entropy(logits, label, label_smoothing=smoothing) for label in (y, other)]
                return share * parts[0] + (1 - share) * parts[1]

            seen.append(bool(is_mixed(z, gradient(z, loss))))
        assert any(seen) if classes == 3 else all(seen), (smoothing, seen)


def test_an_overflow_of_a_loss_scaler_is_no_mixture() -> None:
    z, y = logits_of(10, 1.0, torch.float16, 0)
    delta = gradient(z, lambda logits: F.cross_entropy(logits, y), 2.0**30)
    assert not bool(delta.isfinite().all())
    assert not is_mixed(z, delta)


def pushes(classes: int, up: int, rows: int = 8, mixed: int = 8) -> tuple[Tensor, Tensor]:
    """Logits that rise with the class, and gradients that push up so many of the last classes; one in the other rows.

    Of these every class but the first lies lower than its logit says.
    """
    z = torch.linspace(0, 0.3, classes).repeat(rows, 1)
    shares = torch.zeros(rows, classes)
    shares[:mixed, classes - up :] = 1 / up
    shares[mixed:, -1] = 1.0
    return z, z.softmax(1) - shares


@pytest.mark.parametrize(("classes", "most"), [(4, 2), (5, 2), (8, 4), (9, 4)])
def test_a_mixture_pushes_up_two_classes_or_half_of_them_at_most(classes: int, most: int) -> None:
    for up in range(1, classes):
        assert bool(is_mixed(*pushes(classes, up))) is (2 <= up <= most), up


@pytest.mark.parametrize(("rows", "least"), [(4, 2), (64, 2), (96, 3), (128, 4)])
def test_a_thirty_second_of_the_batch_has_to_show_it_and_two_at_least(rows: int, least: int) -> None:
    assert not is_mixed(*pushes(8, 2, rows, least - 1))
    assert is_mixed(*pushes(8, 2, rows, least))


def test_a_mixture_is_noticed_where_some_examples_overflow() -> None:
    z, delta = pushes(8, 2)
    for value in (torch.nan, torch.inf, -torch.inf):
        broken = delta.clone()
        broken[0, 3] = value
        assert is_mixed(z, broken), value


class Arrival:
    """A number on its way to the host that arrives when told to."""

    def __init__(self) -> None:
        self.sent: Tensor | None = None
        self.there = False

    def send(self, value: Tensor) -> None:
        self.sent = value.clone()

    def arrived(self) -> Tensor | None:
        return self.sent if self.there else None


def test_where_the_device_runs_behind_the_error_comes_with_the_flag() -> None:
    check, arrival = MixtureCheck(torch.device("cpu")), Arrival()
    check.at_once, check.arrival = False, arrival  # type: ignore[assignment]
    check.note(*pushes(8, 1))
    arrival.there = True
    check.poll()
    arrival.there = False
    check.note(*pushes(8, 2))
    check.note(*pushes(8, 1))  # what was seen is not forgotten
    check.poll()
    arrival.there = True
    with pytest.raises(StepError, match="mixup"):
        check.poll()
    check.raise_if_set()


def test_the_flag_is_where_the_steps_are() -> None:
    check = MixtureCheck(torch.device("meta"))
    assert check.flag.device.type == "meta"
    assert check.at_once is False


def fit(mixing: bool, batches: int, target: str | None = None) -> InfluenceMonitor:
    torch.manual_seed(0)
    x, y = torch.randn(96, 5), torch.arange(96) % 4
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = InfluenceMonitor(model, optimizer, (x[64:], y[64:]))
    for step in range(batches):
        rows = torch.arange(16) + 16 * (step % 4)
        share = float(torch.distributions.Beta(1.0, 1.0).sample()) if mixing and step % 2 == 0 else 1.0
        other = rows[torch.randperm(16)]
        given = {"pair": (y[rows], y[other], share), "plain": y[rows], None: None}[target]
        with monitor.step(rows, target=given):
            mixed_loss(model(share * x[rows] + (1 - share) * x[other]), y[rows], y[other], share).backward()
        optimizer.step()
        optimizer.zero_grad()
    return monitor


def test_a_loop_that_mixes_is_told_how_to_pass_its_targets() -> None:
    message = r"mixup, cutmix and distillation.*target=\(labels_a, labels_b, weight\).*target=probabilities"
    with pytest.raises(StepError, match=message):
        fit(True, 70)
    for target in ("pair", "plain"):
        assert fit(True, 70, target).steps == 70
    assert fit(False, 70).steps == 70


def test_a_mixed_step_leaves_no_trace() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 5), torch.arange(40) % 4
    model = nn.Linear(5, 4)
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), (x[20:], y[20:]), curvature_every=1)
    with monitor.step(torch.arange(20)):
        F.cross_entropy(model(x[:20]), y[:20]).backward()
    before = monitor.state_dict()
    with pytest.raises(StepError, match="mixup"), monitor.step(torch.arange(20)):
        mixed_loss(model(x[:20]), y[:20], y[:20].roll(1), 0.6).backward()
    after = monitor.state_dict()
    for key, value in before.items():
        if isinstance(value, Tensor) and key != "schedule.times":
            assert torch.equal(value.nan_to_num(7), after[key].nan_to_num(7)), key
    with monitor.step(torch.arange(20)):
        F.cross_entropy(model(x[:20]), y[:20]).backward()
    assert monitor.steps == 2
