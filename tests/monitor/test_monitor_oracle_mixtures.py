"""Scores against per-example gradients where labels are mixtures of classes: mixup, distillation, smoothing by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import CLASSES, assert_scores, func_gradients, make_labels, make_monitor, train_step
from mistake_cases import BATCH as LOOP_BATCH
from mistake_cases import Loop
from oracle_cases import ANCHORS, BATCH, images, small_net
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.errors import StepError

Mixed = tuple[Tensor, Any, Callable[[Tensor, Tensor], Tensor]]
"""Probabilities [B, C], what `target=` is given, and the loss of the batch as it is trained."""


def one_hot(labels: Tensor) -> Tensor:
    return F.one_hot(labels, CLASSES).float()


def mixed(kind: str, seed: int) -> Mixed:
    generator = torch.Generator().manual_seed(seed)
    y, other = make_labels(BATCH, seed), make_labels(BATCH, seed + 7)
    if kind == "probabilities":
        q = torch.rand(BATCH, CLASSES, generator=generator).softmax(1)
        return q, q, lambda z, _: F.cross_entropy(z, q)
    if kind == "distillation":
        q = torch.rand(BATCH, CLASSES, generator=generator).mul(3).softmax(1)
        return q, q.double(), lambda z, _: F.kl_div(z.log_softmax(1), q, reduction="batchmean")
    share = torch.rand(BATCH, generator=generator) if kind == "pairs" else torch.tensor(0.3)
    column = share.reshape(-1, 1)
    q = column * one_hot(y) + (1 - column) * one_hot(other)

    def loss(z: Tensor, _: Tensor) -> Tensor:
        each = [F.cross_entropy(z, part, reduction="none") for part in (y, other)]
        return 64 * (share * each[0] + (1 - share) * each[1]).sum()

    return q, (y, other, share if kind == "pairs" else 0.3), loss


def soft_cross_entropy(z: Tensor, q: Tensor) -> Tensor:
    return -(q * z.log_softmax(1)).sum(1)


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("kind", ["probabilities", "distillation", "pairs", "pair"])
def test_mixtures(kind: str, layers: str) -> None:
    model = small_net()
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers=layers)
    for seed in (1, 2):
        x, (q, target, loss) = images(BATCH, seed), mixed(kind, seed)
        train_step(monitor, model, x, make_labels(BATCH, seed), loss=loss, target=target)
    gradients = func_gradients(model, x, q, lambda z, t: soft_cross_entropy(z, t.to(z.dtype)))
    assert_scores(monitor, gradients)
    torch.testing.assert_close(monitor.last.loss, soft_cross_entropy(model(x), q).detach())
    expected = make_labels(BATCH, 2) if kind in ("pair", "pairs") else q.argmax(1)
    assert torch.equal(monitor.last.label, expected)


def test_an_observation_counts_by_the_share_that_the_label_has_in_the_mixture() -> None:
    model = small_net()
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)))
    y, other = make_labels(BATCH, 1), make_labels(BATCH, 8)
    _, target, loss = mixed("pairs", 1)
    train_step(monitor, model, images(BATCH, 1), y, loss=loss, target=target)
    train_step(monitor, model, images(BATCH, 2), y)
    monitor.flush()
    expected = 1 + torch.where(y == other, 1, target[2])
    weight = monitor.ledger.column("weight")
    torch.testing.assert_close(weight / weight[0], expected / expected[0])
    assert monitor.ledger.column("count").tolist() == BATCH * [2]


def test_a_mixture_under_smoothed_and_weighted_cross_entropy() -> None:
    model, weight = small_net(), torch.tensor([1.0, 3.0, 0.5])
    loss = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1, reduction="sum")
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), layers="all", loss=loss)
    for seed in (1, 2):
        x, (q, target, _) = images(BATCH, seed), mixed("pairs", seed)
        train_step(monitor, model, x, q, loss=loss, target=target)
    single = nn.CrossEntropyLoss(weight=weight.double(), label_smoothing=0.1, reduction="none")
    assert_scores(monitor, func_gradients(model, x, q, lambda z, t: single(z, t.to(z.dtype))))


def test_plain_and_mixed_steps_in_one_block() -> None:
    """A loop may mix some batches only; what waits together is read as mixtures, with the scores of each on its own."""
    tables = []
    for together in (True, False):
        torch.manual_seed(0)
        model = small_net()
        monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)))
        for number, kind in enumerate(("plain", "pair", "target", "probabilities")):
            x, y = images(BATCH, number), make_labels(BATCH, number)
            target, loss = {"plain": (None, F.cross_entropy), "target": (y, F.cross_entropy)}.get(kind, (None, None))
            if loss is None:
                _, target, loss = mixed(kind, number)
            with monitor.step(torch.arange(BATCH) + BATCH * number, target=target):
                loss(model(x), y).backward()
            if not together:
                monitor.flush()
        assert len(monitor.pipeline.queue.steps) == (4 if together else 0)
        tables.append(monitor.scores())
    for name in tables[0].columns:
        torch.testing.assert_close(*(torch.as_tensor(table[name]) for table in tables), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["pair", "second", "column", "both"])
def test_one_logit_takes_mixtures_of_two_classes(form: str) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    x, y, other = torch.randn(BATCH, 5), torch.arange(BATCH) % 2, torch.arange(BATCH) // 2 % 2
    monitor = make_monitor(model, (torch.randn(ANCHORS, 5), torch.arange(ANCHORS) % 2), layers="all")
    q = 0.8 * y + 0.2 * other
    target = {"pair": (y.float(), other, 0.8), "second": q, "column": q[:, None], "both": torch.stack([1 - q, q], 1)}
    for _ in range(2):
        train_step(
            monitor, model, x, q, loss=lambda z, t: F.binary_cross_entropy_with_logits(z[:, 0], t), target=target[form]
        )

    def single(z: Tensor, t: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z[:, 0], t.to(z.dtype), reduction="none")

    assert_scores(monitor, func_gradients(model, x, q, single))


def test_one_logit_with_a_weight_for_the_second_class() -> None:
    """BCEWithLogitsLoss(pos_weight=w) is not cross-entropy of two classes."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    x, y = torch.randn(BATCH, 5), torch.arange(BATCH) % 2
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([4.0]))
    monitor = make_monitor(model, (torch.randn(ANCHORS, 5), torch.arange(ANCHORS) % 2), layers="all", loss=loss)
    for target in (y, y[:, None].float()):
        train_step(monitor, model, x, y, loss=lambda z, t: loss(z[:, 0], t.float()), target=target)
    single = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([4.0]).double(), reduction="none")
    assert_scores(monitor, func_gradients(model, x, y, lambda z, t: single(z[:, 0], t.to(z.dtype))))


Y = torch.arange(LOOP_BATCH) % CLASSES


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (torch.rand(LOOP_BATCH, CLASSES) + 1, r"no probabilities: every row.*add up to 1.*y\.long\(\)"),
        (-one_hot(Y), "no probabilities"),
        ((Y, Y, 1.5), r"share of labels_a, from 0 to 1; got 1\.5"),
        ((Y, Y, torch.rand(3)), r"one number or one per example, shape \(10,\); got shape \(3,\)"),
        ((Y, Y + 1, 0.5), "labels from 1 to 3; the model has 3"),
        ((Y[1:], Y, 0.5), r"shape \(10,\)"),
        (torch.rand(LOOP_BATCH, 2).softmax(1), r"probabilities of a mixture, shape \(10, 3\)"),
    ],
)
def test_a_mixture_that_does_not_fit(target: Any, message: str) -> None:
    loop = Loop()
    with pytest.raises(StepError, match=message), loop.monitor.step(loop.rows(), target=target):
        loop.loss().backward()
    loop.assert_goes_on()


def test_a_loss_that_needs_labels_says_so_and_takes_no_mixture() -> None:
    model, (x, y) = nn.Linear(5, CLASSES), (torch.randn(12, 5), torch.arange(12) % CLASSES)
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), loss=nn.MultiMarginLoss())
    with (
        pytest.raises(StepError, match=r"cannot be read off the gradient of this loss.*monitor\.step\(index, target=y"),
        monitor.step(torch.arange(12)),
    ):
        nn.functional.multi_margin_loss(model(x), y).backward()
    with (
        pytest.raises(StepError, match=r"mixture of labels as target= is understood for cross-entropy alone"),
        monitor.step(torch.arange(12), target=(y, y, 0.5)),
    ):
        nn.functional.multi_margin_loss(model(x), y).backward()


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy])
def test_plain_cross_entropy_may_be_given_too(loss: Any) -> None:
    """It is the default: labels are read off its gradient, and the scale with them."""
    model = small_net()
    monitor = make_monitor(model, (images(ANCHORS, 0), make_labels(ANCHORS)), loss=loss)
    for seed in (1, 2):
        x, y = images(BATCH, seed), make_labels(BATCH, seed)
        train_step(monitor, model, x, y, loss=lambda z, t: F.cross_entropy(z, t) * 512)
    assert_scores(monitor, func_gradients(model, x, y))
