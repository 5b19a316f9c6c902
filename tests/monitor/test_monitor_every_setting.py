"""No setting is without effect: each changes what a small run says, alone or beside the settings that it needs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sgoif import InfluenceMonitor
from sgoif.errors import IndexingError, NonFiniteError, SettingError
from sgoif.settings import Settings

TRAINING, HELD, CLASSES, BATCH = 60, 40, 4, 12
SMALL_BANK = {"max_anchors": 20, "refresh_every": 1}
OFTEN = {"refresh_every": 1, "replace_every": 2, "solver_steps": 1}
REFINING = {**OFTEN, "refine": True}
LOW_RANK = {"curvature": "lowrank", "curvature_every": 1}
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "layers": ({}, "all"),
    "body_share": ({"layers": "all"}, 1.0),
    "curvature": ({}, "diagonal"),
    "damping": ({}, 0.1),
    "decay": ({}, 0.2),
    "rank": (LOW_RANK, 2),
    "rank_every": (LOW_RANK, 3),
    "curvature_every": ({}, 4),
    "solver": ({}, "conjugate"),
    "solver_steps": ({}, 3),
    "step_decay": ({}, 0.6),
    "preconditioner": ({"solver": "neumann", "solver_steps": 2}, False),
    "residual_budget": ({}, 0.5),
    "steer": ({}, False),
    "gate": ({}, "none"),
    "kappa": ({}, 1e4),
    "kappa_memory": ({}, 1.0),
    "pass_quantile": ({}, 0.5),
    "tolerance_by_group": ({}, False),
    "gamma": ({"kappa_memory": 1.0}, (1.0, 30.0)),
    "one_pool": ({}, True),
    "max_anchors": ({}, 20),
    "refresh_every": ({}, 3),
    "replace_every": (SMALL_BANK, 2),
    "replace_share": (SMALL_BANK, 0.3),
    "coverage_floor": ({}, 1.0),
    "coverage_of": ({**SMALL_BANK, "coverage_floor": 1.0, "replace_every": 0}, "anchors"),
    "refine": (OFTEN, True),
    "sketch": (REFINING, 0),
    "refine_steps": (REFINING, 1),
    "refine_outside": ({**REFINING, "pass_quantile": 0.4}, True),
    "help_weight": ({}, 1.0),
    "temperature": ({}, None),
    "weigh_steps": ({}, False),
    "level": ({}, 0.5),
    "projection": ({"layers": "all", "width": 1500}, 8),
    "budget": ({}, 1e-6),
    "reduction": ({}, "sum"),
    "allow_duplicates": ({"index": [24, 24]}, True),
    "skip_nonfinite": ({"scale": float("nan")}, True),
    "anchor_batch": ({}, 3),
    "execution": ({"index": [12, 12], "refresh_every": 100, "curvature_every": 100, "steps": 80}, "deferred"),
    "seed": ({"max_anchors": 20}, 1),
}
"""Further settings, and the value whose effect is looked for; a setting of the run itself may be among the former."""


def outcome(
    width: int = 6, steps: int = 16, index: list[int] | None = None, scale: float = 1.0, **options: Any
) -> dict[str, Any]:
    """All that a user sees of a short run; one of its steps has this index and scale of the loss, if any."""
    torch.manual_seed(0)
    labels = torch.arange(TRAINING + HELD) % CLASSES
    inputs = torch.randn(CLASSES, 5)[labels] + torch.randn(TRAINING + HELD, 5)
    labels[::7] = (labels[::7] + 1) % CLASSES
    model = nn.Sequential(*(nn.Linear(5, width), nn.Tanh()), *(nn.Linear(width, 7), nn.Tanh()), nn.Linear(7, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=0.01)
    passes: list[int] = []
    anchors = inputs[TRAINING:], labels[TRAINING:]
    monitor = InfluenceMonitor(model, optimizer, anchors, size=TRAINING, **options)
    model.register_forward_hook(lambda module, x, y: None if module.training else passes.append(len(y)))
    step = 0
    try:
        for step in range(steps):
            rows = torch.arange(step * BATCH, (step + 1) * BATCH) % TRAINING
            odd = step == steps - 4
            with monitor.step(torch.tensor([*index, *rows[2:]]) if index and odd else rows):
                loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
                (loss * scale if odd else loss).backward()
            if not odd:
                optimizer.step()
            optimizer.zero_grad()
        table = monitor.scores()
    except (IndexingError, NonFiniteError) as error:
        return {"refused": type(error).__name__, "at": step}
    history = [{name: value for name, value in entry.items() if name != "seconds"} for entry in monitor.history]
    last = monitor.last
    assert last is not None
    return {
        **{
            name: np.nan_to_num(table[name].astype(float), nan=-1.0).tolist()
            for name in table.columns
            if name != "group"
        },
        "raw": last.influence.tolist(),
        "history": history,
        "passes": sorted(set(passes)),
    }


@pytest.mark.filterwarnings("ignore::sgoif.errors.HealthWarning")
def test_a_run_is_the_same_again() -> None:
    assert repr(outcome()) == repr(outcome())


@pytest.mark.filterwarnings("ignore::sgoif.errors.HealthWarning")
@pytest.mark.parametrize("name", [item.name for item in fields(Settings)])
def test_every_setting_changes_a_result(name: str) -> None:
    beside, value = CASES[name]
    assert repr(outcome(**beside)) != repr(outcome(**{**beside, name: value}))


@pytest.mark.parametrize(
    "options",
    [
        {"gamma": (2.0, 1.0)},
        {"rank": 3},
        {"rank_every": 2, "solver": "subspace"},
        {"step_decay": 0.6, "solver": "neumann"},
        {"preconditioner": False},
        {"kappa": 1.0, "kappa_memory": 1.0},
        {"refine": False, "sketch": 3},
    ],
    ids=str,
)
def test_a_setting_that_would_change_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="it would change nothing"):
        Settings(**options)
