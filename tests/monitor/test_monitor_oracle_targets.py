"""Scores against per-example gradients where targets are no classes: values, several labels per example, tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_cases import assert_scores, func_gradients, make_monitor
from oracle_cases import images
from torch import Tensor, nn

from sgoif import InfluenceMonitor

BATCH, ANCHORS, TOKENS, VOCABULARY = 6, 9, 5, 7


def net(outputs: int) -> nn.Sequential:
    layers = (nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 5), nn.Tanh(), nn.Linear(5, outputs))
    return nn.Sequential(*layers)


class Flat(nn.Module):
    """One number per example, [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(1)


class Reader(nn.Module):
    """A small language model; `flat`: it answers with [B T, V]."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, 4), nn.Linear(4, VOCABULARY)
        self.flat = flat

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        z = self.head(torch.tanh(self.mix(h) + h.cumsum(1)))
        return z.flatten(0, 1) if self.flat else z


def numbers(*shape: int) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
        return images(count, seed), torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed + 50))

    return draw


def counts(count: int, seed: int) -> tuple[Tensor, Tensor]:
    return images(count, seed), torch.randint(5, (count,), generator=torch.Generator().manual_seed(seed + 50))


def labels(count: int, seed: int) -> tuple[Tensor, Tensor]:
    return images(count, seed), (numbers(4)(count, seed)[1] > 0.3).float()


def sentences(count: int, seed: int, tokens: int = TOKENS) -> tuple[Tensor, Tensor]:
    """Tokens, and those that follow; some are to be ignored, of one sentence all but one."""
    drawn = torch.randint(VOCABULARY, (count, tokens + 1), generator=torch.Generator().manual_seed(seed))
    target = drawn[:, 1:].clone()
    target[0, 1:] = -100
    target[2, -2:] = -100
    return drawn[:, :-1], target


def token_loss(z: Tensor, y: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(z.reshape(-1, VOCABULARY), y.reshape(-1), **options)


def masked_mean(z: Tensor, y: Tensor) -> Tensor:
    """Of one example the mean over its tokens; picks them by a mask, which vmap cannot."""
    kept = y != -100
    return F.cross_entropy(z[kept], y[kept])


def sum_of(loss: Callable[..., Tensor], **options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of one example, [1, ...], in float64."""
    return lambda z, t: loss(z, t.to(z.dtype).reshape(z.shape), reduction="sum", **options)


def gaussian(z: Tensor, y: Tensor) -> Tensor:
    """Mean and log-variance against one number: outputs and targets differ in shape."""
    return (z[:, 1] + (y - z[:, 0]).square() / z[:, 1].exp()).mean()


WEIGHT = torch.tensor([1.0, 5.0, 0.2, 2.0])
Case = tuple[Callable[[], nn.Module], Callable[..., Any], Any, Any, Any]
# name -> model, data, loss as given, loss of a batch as trained, loss of one example
CASES: dict[str, Case] = {
    "mse": (lambda: net(3), numbers(3), nn.MSELoss(), nn.MSELoss(), sum_of(F.mse_loss)),
    "mse_sum": (lambda: net(3), numbers(3), nn.MSELoss(), nn.MSELoss(reduction="sum"), sum_of(F.mse_loss)),
    "mse_column": (lambda: net(1), numbers(), nn.MSELoss(), lambda z, y: F.mse_loss(z[:, 0], y),
                   lambda z, y: F.mse_loss(z[:, 0], y.to(z.dtype))),
    "mse_flat": (Flat, numbers(), nn.MSELoss(), nn.MSELoss(), sum_of(F.mse_loss)),
    "mse_flat_column": (Flat, numbers(1), nn.MSELoss(), lambda z, y: F.mse_loss(z, y[:, 0]), sum_of(F.mse_loss)),
    "counts": (Flat, counts, nn.PoissonNLLLoss(), nn.PoissonNLLLoss(),
               lambda z, y: F.poisson_nll_loss(z, y.to(z.dtype), reduction="sum")),
    "huber": (lambda: net(2), numbers(2), nn.HuberLoss(delta=0.5), nn.HuberLoss(delta=0.5),
              sum_of(F.huber_loss, delta=0.5)),
    "l1": (lambda: net(2), numbers(2), nn.L1Loss(), nn.L1Loss(), sum_of(F.l1_loss)),
    "counts_function": (Flat, counts, F.mse_loss, F.mse_loss, lambda z, y: F.mse_loss(z, y.to(z.dtype))),
    "labels_function": (lambda: net(4), labels, F.binary_cross_entropy_with_logits,
                        F.binary_cross_entropy_with_logits, sum_of(F.binary_cross_entropy_with_logits)),
    "function": (lambda: net(3), numbers(3), lambda z, y: (z - y).abs().pow(1.5).mean(),
                 lambda z, y: (z - y).abs().pow(1.5).mean(), lambda z, y: (z - y.to(z.dtype)).abs().pow(1.5).mean()),
    "gaussian": (lambda: net(2), numbers(), gaussian, gaussian, lambda z, y: gaussian(z, y.to(z.dtype))),
    "labels": (lambda: net(4), labels, nn.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss(),
               sum_of(F.binary_cross_entropy_with_logits)),
    "labels_weighted": (lambda: net(4), labels, nn.BCEWithLogitsLoss(pos_weight=WEIGHT),
                        nn.BCEWithLogitsLoss(pos_weight=WEIGHT),
                        sum_of(F.binary_cross_entropy_with_logits, pos_weight=WEIGHT.double())),
    "tokens": (lambda: Reader(False), sentences, nn.CrossEntropyLoss(ignore_index=-100), token_loss,
               lambda z, y: token_loss(z, y, reduction="sum")),
    "tokens_default": (lambda: Reader(False), sentences, None, token_loss,
                       lambda z, y: token_loss(z, y, reduction="sum")),
    "tokens_flattened": (lambda: Reader(True), sentences, nn.CrossEntropyLoss(), token_loss,
                         lambda z, y: token_loss(z, y, reduction="sum")),
    "tokens_smoothed": (lambda: Reader(False), sentences, nn.CrossEntropyLoss(label_smoothing=0.2),
                        lambda z, y: token_loss(z, y, label_smoothing=0.2),
                        lambda z, y: token_loss(z, y, label_smoothing=0.2, reduction="sum")),
    "tokens_function": (lambda: Reader(False), sentences, lambda z, y: token_loss(z, y, reduction="sum"), token_loss,
                        lambda z, y: token_loss(z, y, reduction="sum")),
    "tokens_masked": (lambda: Reader(True), sentences, lambda z, y: F.cross_entropy(z[y != -100], y[y != -100],
                                                                                    reduction="sum"),
                      lambda z, y: masked_mean(z, y.flatten()), lambda z, y: token_loss(z, y, reduction="sum")),
}  # fmt: skip


def train(monitor: InfluenceMonitor, model: nn.Module, x: Tensor, y: Tensor, loss: Any, factor: float = 1.0) -> None:
    with monitor.step(torch.arange(len(x)), target=y):
        (factor * loss(model(x), y)).backward()
    monitor.optimizer.zero_grad()


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("name", CASES)
def test_scores(name: str, layers: str) -> None:
    make, data, given, trained, single = CASES[name]
    torch.manual_seed(0)
    model = make()
    monitor = make_monitor(model, data(ANCHORS, 0), layers=layers, loss=given)
    for seed in (1, 2):
        x, y = data(BATCH, seed)
        train(monitor, model, x, y, trained, 512.0)
    assert_scores(monitor, func_gradients(model, x, y, single))
    expected = [float(single(model(x[i : i + 1]), y[i : i + 1]).detach()) for i in range(BATCH)]
    np.testing.assert_allclose(monitor.last.loss.numpy(), expected, rtol=1e-4)
    # Directions come from the gradients of the anchors, under the same loss.
    x, y = data(ANCHORS, 0)
    losses = [float(single(model(x[i : i + 1]), y[i : i + 1]).detach()) for i in range(ANCHORS)]
    assert monitor.history[0]["anchor_loss"] == pytest.approx(float(np.mean(losses)), rel=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["mse", "labels", "tokens"])
def test_a_reduction_that_is_given(name: str, reduction: str) -> None:
    """A mean is taken over all entries, and over the tokens that are not ignored."""
    make, data, given, _, single = CASES[name]
    trained = copy.deepcopy(given)
    trained.reduction = reduction
    model = make()
    monitor = make_monitor(model, data(ANCHORS, 0), loss=given, reduction=reduction)
    for seed in (1, 2):
        x, y = data(BATCH, seed)
        train(monitor, model, x, y, (lambda z, t: trained(z.mT, t)) if name == "tokens" else trained)
    assert_scores(monitor, func_gradients(model, x, y, single))


@pytest.mark.parametrize("layers", ["head", "all"])
def test_batches_of_sentences_of_different_lengths(layers: str) -> None:
    """Batches padded each to its own longest sentence wait together and are scored shape by shape."""
    tables = []
    for together in (True, False):
        torch.manual_seed(0)
        model = Reader(False)
        monitor = make_monitor(model, sentences(ANCHORS, 0), layers=layers, loss=nn.CrossEntropyLoss())
        for number, tokens in enumerate((5, 3, 3, 6)):
            x, y = sentences(BATCH, number, tokens)
            with monitor.step(torch.arange(BATCH) + BATCH * number, target=y):
                token_loss(model(x), y).backward()
            monitor.optimizer.step()
            monitor.optimizer.zero_grad()
            if not together:
                monitor.flush()
        tables.append(monitor.scores())
        assert_scores_of_last(monitor, model, x, y)
    for name in tables[0].columns:
        torch.testing.assert_close(*(torch.as_tensor(t[name]) for t in tables), rtol=1e-4, atol=1e-6, equal_nan=True)


def assert_scores_of_last(monitor: InfluenceMonitor, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The last step, repeated without an update after it."""
    with monitor.step(torch.arange(BATCH) + 1000, target=y):
        token_loss(model(x), y).backward()
    monitor.optimizer.zero_grad()
    assert_scores(monitor, func_gradients(model, x, y, lambda z, t: token_loss(z, t, reduction="sum")))


@pytest.mark.parametrize("name", ["mse", "labels", "tokens", "mse_flat"])
def test_columns_that_need_a_class_are_empty(name: str) -> None:
    make, data, given, trained, _ = CASES[name]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor = InfluenceMonitor(model, optimizer, data(ANCHORS, 0), loss=given, refresh_every=2)
    for seed in (1, 2, 3):
        train(monitor, model, *data(BATCH, seed), trained)
    for table in (monitor.scores(), monitor.anchor_scores()):
        assert np.isnan(table["margin"]).all()
        assert np.isnan(table["logit_margin"]).all()
        assert table["group"].dtype == np.int64
        assert (table["group"] == -1).all()
        for column in ("influence", "confidence", "loss"):
            assert np.isfinite(table[column]).all(), column
    assert monitor.classes == 0
    assert (monitor.last.label == -1).all()
    assert monitor.last.probabilities.shape == (BATCH, 0)
    assert monitor.error_budget().solver >= 0
    assert monitor.most_harmed(*data(3, 5)).shape == (3, 4)


def _side(target: float) -> str:
    return "high" if target > 0 else "low"


def test_groups_by_a_function_of_the_target() -> None:
    make, data, given, trained, _ = CASES["mse_flat"]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor = InfluenceMonitor(model, optimizer, data(ANCHORS, 0), loss=given, groups=_side)
    train(monitor, model, *data(BATCH, 1), trained)
    assert monitor.group_names == ["high", "low"]
    assert set(monitor.scores()["group"]) <= {"high", "low"}
