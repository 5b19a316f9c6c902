"""A head on a pretrained backbone, against the optimum by autograd, and what takes it like any trained network."""

from __future__ import annotations

import pytest
import torch
from backbone_cases import SIDE, WIDTH, filters
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif.errors import SettingError
from sgoif.tasks import PoisonTrace, Sentinel
from sgoif.tasks.linear_probe import L2, fitted_head, probe

COUNT, CLASSES = 120, 3


def pictures(count: int = COUNT, seed: int = 0, upright: bool = False) -> tuple[Tensor, Tensor]:
    """A bright row whose height is the class; upright, a column."""
    y = torch.arange(count) % CLASSES
    x = 0.3 * torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    for number, label in enumerate(y.tolist()):
        at = slice(8 * label + 2, 8 * label + 5)
        x[number, :, :, at] += 0.6 if upright else 0.0
        x[number, :, at] += 0.0 if upright else 0.6
    return x, y


def test_the_head_is_the_optimum_on_the_features() -> None:
    backbone = filters()
    x, y = pictures()
    features = backbone.features(x)
    model = probe(backbone, (backbone.prepare(x), y))
    weight, bias = (each.detach().double().requires_grad_(True) for each in model.head.parameters())
    loss = nn.functional.cross_entropy(features.double() @ weight.T + bias, y)
    loss = loss + L2 / 2 * (weight.square().sum() + bias.square().sum())
    gradients = torch.autograd.grad(loss, (weight, bias))
    assert max(float(each.abs().max()) for each in gradients) < 1e-4
    torch.testing.assert_close(model(backbone.prepare(x)), features @ model.head.weight.T + model.head.bias)
    assert weight.shape == (CLASSES, WIDTH)


def test_the_body_stays_what_it_is_and_the_model_is_in_evaluation_mode() -> None:
    backbone = filters()
    model = probe(backbone, DataLoader(TensorDataset(backbone.prepare(pictures()[0]), pictures()[1]), batch_size=32))
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())
    for mine, theirs in zip(model.body.parameters(), backbone.body.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine is not theirs


def test_the_sentinel_takes_it() -> None:
    backbone = filters()
    x, y = pictures()
    model = probe(backbone, (backbone.prepare(x), y))
    held = backbone.prepare(pictures(60, seed=1)[0])
    sentinel = Sentinel.fit(model, [(backbone.prepare(x), y)], calibration=[held])
    usual = sentinel.p_value(backbone.prepare(pictures(60, seed=2)[0]))
    strange = sentinel.p_value(backbone.prepare(pictures(60, seed=3, upright=True)[0]))
    assert (strange <= 0.05).float().mean() > 0.9
    assert (usual <= 0.05).float().mean() < 0.2


def test_so_does_the_trace() -> None:
    backbone = filters()
    x, y = pictures()
    planted = (y == 1).nonzero()[:12, 0]
    x[planted, :, -6:, -6:], y[planted] = 1.0, 2
    prepared = backbone.prepare(x)
    found = PoisonTrace.fit(probe(backbone, (prepared, y)), [(prepared, y)]).culprits(prepared[planted[:3]], 2)
    assert set(planted.tolist()) == set(found.order[:12].tolist())


def test_labels_that_teach_nothing_are_refused() -> None:
    backbone = filters()
    x, y = backbone.prepare(pictures()[0]), pictures()[1]
    with pytest.raises(SettingError, match="at least two classes"):
        probe(backbone, (x, torch.zeros_like(y)))
    with pytest.raises(SettingError, match="there is a label 2"):
        probe(backbone, (x, y), classes=2)
    with pytest.raises(SettingError, match="no examples"):
        probe(backbone, [])


def test_classes_without_examples_have_an_output() -> None:
    features = filters().features(pictures()[0])
    weight, bias = fitted_head(features, pictures()[1], CLASSES + 1)
    assert weight.shape == (CLASSES + 1, WIDTH)
    assert bias[-1] < bias[:-1].min()
