"""Out-of-fold probabilities on disk: computed where the machine for it is, scored by cleanlab where that is installed.

They stay as float32: in float16 all of the smallest probabilities, those of the most suspicious labels, would be 0.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif_bench.pretrained.task import Outcome, Rows, Task

Probabilities = NDArray[np.float32]
FitPredict = Callable[[int, Rows, Rows], NDArray[Any]]
"""(fold, rows to train on, rows to predict) to probabilities [predicted, classes]."""
SCORES = {"confidence": "self_confidence", "margin": "normalized_margin"}
"""cleanlab's two scores by our names."""


@dataclass(frozen=True)
class OutOfFold:
    """Probabilities of every example by what never saw it, and where and how fast they were made."""

    values: Probabilities
    seconds: float
    origin: Mapping[str, Any]


def out_of_fold(task: Task, family: str, fit_predict: FitPredict) -> OutOfFold:
    """Cross-validation over the folds of the task, read from disk where it was done before."""
    file = task.file(family)
    if file.is_file():
        with np.load(file, allow_pickle=False) as kept:
            if np.array_equal(kept["labels"], task.labels):
                return OutOfFold(kept["probabilities"], float(kept["seconds"]), json.loads(str(kept["origin"])))
        task.tell(f"{file} belongs to other labels and is made again")
    start, fold_of = time.perf_counter(), task.folds()
    values = np.zeros((len(task), task.classes), dtype=np.float32)
    for fold in range(task.recipe.folds):
        task.tell(f"{family}: fold {fold + 1} of {task.recipe.folds}")
        held_out, rest = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        values[held_out] = fit_predict(fold, rest, held_out)
    seconds = time.perf_counter() - start
    file.parent.mkdir(parents=True, exist_ok=True)
    origin = json.dumps(dict(task.origin))
    np.savez(file, probabilities=values, labels=task.labels, seconds=seconds, origin=origin)
    return OutOfFold(values, seconds, task.origin)


def cleanlab_outcomes(task: Task, family: str, found: OutOfFold, *, uses_features: bool) -> dict[str, Outcome]:
    """Both scores, named after the family; none where cleanlab is missing: the probabilities are kept."""
    if find_spec("cleanlab") is None:
        task.tell(
            f"{family}: cleanlab is not installed; its probabilities are in {task.file(family)}. The same command with"
            " that file in --scratch scores them where `pip install 'sgoif-bench[cleanlab]'` was done"
        )
        return {}
    from cleanlab.rank import get_label_quality_scores

    outcomes = {}
    for name, method in SCORES.items():
        start = time.perf_counter()
        quality = get_label_quality_scores(task.labels, found.values, method=method)
        seconds = found.seconds + time.perf_counter() - start
        suspicion = 1 - np.asarray(quality, dtype=np.float64)
        outcomes[f"{family}-{name}"] = Outcome(suspicion, seconds, uses_features, found.origin)
    return outcomes
