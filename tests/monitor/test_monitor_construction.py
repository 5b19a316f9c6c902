"""Anchors, layers, settings and optimizers that a monitor cannot be made with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from mistake_cases import CLASSES, tokens
from torch import nn
from torch.utils.data import TensorDataset

from sgoif import InfluenceMonitor, Settings
from sgoif.errors import (
    AnchorError,
    LayerError,
    SettingError,
)

# --- anchors ----------------------------------------------------------------------------------------------------


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))


LABELS = torch.arange(9) % CLASSES


BAD_ANCHORS: dict[str, tuple[Callable[[], nn.Module], object, str]] = {
    "empty": (images, (torch.zeros(0, 3, 8, 8), LABELS[:0]), "anchors is empty.*split_holdout"),
    "none": (images, None, "got NoneType.*split_holdout"),
    "too large a label": (images, (torch.zeros(9, 3, 8, 8), LABELS + 1), "labels from 1 to 3.*model has 3 classes"),
    "negative label": (images, (torch.zeros(9, 3, 8, 8), LABELS - 1), "labels from -1 to 1"),
    "bytes into floats": (
        images,
        (torch.zeros(9, 3, 8, 8, dtype=torch.uint8), LABELS),
        "uint8.*weights are torch.float32",
    ),
    "double into floats": (images, (torch.zeros(9, 3, 8, 8, dtype=torch.double), LABELS), "float64.*same transforms"),
    "wrong shape": (images, (torch.zeros(9, 1, 8, 8), LABELS), r"shape \(2, 1, 8, 8\).*same transforms"),
    "unequal lengths": (images, (torch.zeros(9, 3, 8, 8), LABELS[:5]), "9 anchor inputs but 5 labels"),
    "unknown tokens": (tokens, (torch.full((9, 2), 99), LABELS), "cannot run on the anchors"),
    "unequal shapes": (images, [(torch.zeros(3, 8, 8 + i), 0) for i in range(4)], "one batch.*transforms"),
    "not tensors": (images, [(object(), 0), (object(), 1)], "one batch.*transforms"),
    "no labels": (images, TensorDataset(torch.zeros(9, 3, 8, 8)), r"\(input, label\) pairs"),
    "soft labels": (images, (torch.zeros(9, 3, 8, 8), torch.rand(9, CLASSES)), "one class number"),
    "names for labels": (images, [(torch.zeros(3, 8, 8), "cat")] * 4, "class number; got 'cat'"),
}


@pytest.mark.parametrize("mistake", BAD_ANCHORS)
def test_bad_anchors(mistake: str) -> None:
    make, anchors, message = BAD_ANCHORS[mistake]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(AnchorError, match=message):
        InfluenceMonitor(model, optimizer, anchors=anchors)
    assert all(not m._forward_hooks for m in model.modules()), "nothing is left on the model"
    good = torch.zeros(9, 2, dtype=torch.long) if make is tokens else torch.randn(9, 3, 8, 8)
    monitor = InfluenceMonitor(model, optimizer, anchors=(good, LABELS))
    with monitor.step(range(9)):
        nn.functional.cross_entropy(model(good), LABELS).backward()
    assert np.isfinite(monitor.scores()["influence"]).all()


def test_a_model_that_gives_no_logits() -> None:
    class Strange(nn.Linear):
        def forward(self, x: torch.Tensor) -> str:  # type: ignore[override]
            super().forward(x)
            return "logits"

    model = Strange(5, 3)
    with pytest.raises(AnchorError, match="returned str; expected logits"):
        InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=(torch.zeros(9, 5), LABELS))
    flat = nn.Sequential(nn.Linear(5, 3), nn.Flatten(0))
    with pytest.raises(AnchorError, match=r"logits \[batch, classes\]"):
        InfluenceMonitor(flat, torch.optim.SGD(flat.parameters(), lr=0.1), anchors=(torch.zeros(9, 5), LABELS))


# --- layers -----------------------------------------------------------------------------------------------------


def monitored(model: nn.Module, **options) -> InfluenceMonitor:
    parameters = list(model.parameters()) or [nn.Parameter(torch.zeros(()))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return InfluenceMonitor(model, optimizer, anchors=(torch.randn(9, 5), LABELS), **options)


def test_no_layer_to_watch() -> None:
    class Bilinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(5, 5, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x)

    with pytest.raises(LayerError, match=r"no layer to watch was found.*layers=\[\.\.\.\]"):
        monitored(Bilinear())
    frozen = nn.Linear(5, 3).requires_grad_(False)
    with pytest.raises(LayerError, match=r"Unfreeze the head"):
        monitored(nn.Sequential(frozen, nn.PReLU()))
    with pytest.raises(LayerError, match="no parameters"):
        monitored(nn.Flatten())


def test_a_layer_that_does_not_exist() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(LayerError, match=r"matches 'fc\*'. Layers of this model: 0, 2"):
        monitored(model, layers=["fc*"])
    assert monitored(model, layers=["2"]).head.name == "2"


def test_a_layer_that_the_model_uses_twice() -> None:
    shared = nn.Linear(5, 5)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(5, CLASSES))
    with pytest.raises(LayerError, match=r"'0' is used 2 times.*layers=\[\.\.\.\]"):
        monitored(model, layers="all")
    assert monitored(model).head.name == "3", "the head alone can be watched"


def test_a_model_that_is_one_layer() -> None:
    assert monitored(nn.Linear(5, CLASSES)).head.name == ""


# --- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dampening": 0.1}, "unknown setting 'dampening'; known are .*damping"),
        ({"curvature": "hessian"}, "unknown curvature 'hessian'.*kfac"),
        ({"solver": "lissa"}, "unknown solver 'lissa'.*richardson"),
        ({"gate": "off"}, "gate='off'.*none"),
        ({"reduction": "batchmean"}, "reduction='batchmean'"),
        ({"damping": 0}, "damping=0 is not valid: expected a positive number"),
        ({"damping": float("nan")}, "damping"),
        ({"decay": 1.0}, "decay"),
        ({"kappa": -1.0}, "kappa"),
        ({"pass_quantile": 0.0}, "pass_quantile"),
        ({"temperature": 0.0}, "temperature"),
        ({"level": 1.0}, "level"),
        ({"budget": 0.0}, "budget"),
        ({"budget": 1.0}, "budget"),
        ({"replace_share": 1.0}, "replace_share"),
        ({"refresh_every": 0}, "refresh_every"),
        ({"curvature_every": 0}, "curvature_every"),
        ({"max_anchors": 0}, "max_anchors"),
        ({"gamma": (0.0, 0.0)}, "gamma"),
        ({"solver_steps": 0}, "solver_steps"),
        ({"size": 0}, "size=0"),
        ({"budget": 0.05, "refresh_every": 10}, "budget=0.05.*one of the two sets the schedule"),
        ({"settings": Settings(), "damping": 0.1}, "either settings"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(options: dict, message: str) -> None:
    model = nn.Linear(5, CLASSES)
    with pytest.raises(SettingError, match=message):
        monitored(model, **options)
    assert not model._forward_hooks
    monitored(model)


def replaced_head() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(8, CLASSES)
    return model, optimizer


ANCHORS = torch.randn(12, 5), torch.arange(12) % CLASSES


def test_an_optimizer_without_the_watched_layer_is_noticed() -> None:
    model, optimizer = replaced_head()
    with pytest.warns(UserWarning, match="holds no weights of the watched layers '2'.*make it afterwards"):
        InfluenceMonitor(model, optimizer, anchors=ANCHORS)


@pytest.mark.parametrize("case", ["other layers", "added", "parametrised", "frozen below", "the model itself"])
def test_an_optimizer_with_the_watched_layers_is_not(case: str, recwarn: pytest.WarningsRecorder) -> None:
    model, optimizer = replaced_head()
    if case == "added":
        optimizer.add_param_group({"params": model[2].parameters()})
    elif case == "parametrised":
        nn.utils.parametrizations.weight_norm(model[2])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    elif case == "frozen below":
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    layers: str | list[str] = {"other layers": ["0"], "frozen below": "all"}.get(case, "head")
    chosen: nn.Module = model
    if case == "the model itself":
        chosen = nn.Linear(5, CLASSES)
        optimizer = torch.optim.SGD(chosen.parameters(), lr=0.1)
    InfluenceMonitor(chosen, optimizer, anchors=ANCHORS, layers=layers)
    assert not [entry for entry in recwarn if "optimizer" in str(entry.message)]


def test_several_optimizers_are_refused() -> None:
    model, optimizer = replaced_head()
    with pytest.raises(SettingError, match="one torch optimizer; got list"):
        InfluenceMonitor(model, [optimizer], anchors=ANCHORS)
