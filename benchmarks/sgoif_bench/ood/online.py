"""The sentinel as a monitor makes it while a network trains, whole and with parts of the engine left out.

Who watches a training has the sentinel for nothing: its reference are the monitor's anchors. They count alike, and then
no part of the engine reaches the sentinel. Weighted by the monitor's confidence in each they can: that confidence is
what the parts of the engine change, so these are the variants of which the paper's ablations report AUROC and AUPR of
outliers. They are settings (`bench.labels.ours.ABLATIONS`), and all monitors watch the same training, so that all
sentinels look at the same network.

Where the gate is left out, both are: that of the monitor (all anchors are believed) and that of the sentinel (g = 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from sgoif.tasks.ood.sentinel import Sentinel
from sgoif_bench.command import Say
from sgoif_bench.labels.ours import ABLATIONS, EVERY_PART
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.watching import together, watch
from sgoif_bench.ood.registry import ONLINE, WEIGHTED


def engine_of(name: str) -> Mapping[str, Any]:
    """The settings of the monitor behind a variant."""
    return EVERY_PART if name in (ONLINE, WEIGHTED) else ABLATIONS[name.removeprefix(f"{ONLINE}-")]


def watched_sentinels(problem: Problem, names: Sequence[str], tell: Say) -> dict[str, Sentinel]:
    """Train once with a monitor for each of these variants; the sentinels that come of them."""
    training, held_out = problem.split()
    model, batches = problem.new_model(), problem.batches(np.asarray(training.indices))
    optimizer, schedule = problem.optimizer(model, problem.recipe.epochs * len(batches))
    with ExitStack() as opened:
        monitors = [
            opened.enter_context(watch(problem, model, optimizer, held_out, **engine_of(name))) for name in names
        ]
        problem.fit(
            model,
            batches,
            optimizer=(optimizer, schedule),
            watching=together(monitors),
            on_epoch=lambda epoch: tell(f"watched: epoch {epoch} of {problem.recipe.epochs}"),
        )
        sentinels = {
            name: Sentinel.from_monitor(monitor, gate=engine_of(name).get("gate") != "none", weighted=name != ONLINE)
            for name, monitor in zip(names, monitors, strict=True)
        }
    model.eval()  # a monitor's sentinel leaves the model as it was, in training; the panel looks at it as it is
    return sentinels
