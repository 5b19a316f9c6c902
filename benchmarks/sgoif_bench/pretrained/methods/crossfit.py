"""SG-OIF on frozen features: what `sgoif audit` does with them.

Four heads, each holding out a part of the examples with a monitor attached, and the neighbours of each example
(`sgoif.tasks.crossfit`). The suspicion is its probability that a label is wrong.
"""

from __future__ import annotations

import time

from sgoif.tasks.crossfit import CrossFit
from sgoif_bench.pretrained.task import Outcome, Scores, Task


def sgoif(task: Task) -> dict[str, Outcome]:
    """The label score of cross-fitted heads."""
    features = task.pictures.features.value.cpu().numpy()
    start = time.perf_counter()
    found = CrossFit(features, task.labels, task.pictures.data.classes, seed=task.seed, device=task.device).findings()
    suspicion: Scores = found.table()["probability_wrong"]
    return {"sgoif-frozen": Outcome(suspicion, time.perf_counter() - start)}
