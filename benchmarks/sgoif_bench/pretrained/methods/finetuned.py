"""Fine-tuning: SG-OIF beside one training, and cleanlab on five of them, each the same but for its rows.

sgoif-finetuned is what `sgoif audit --finetune` does: images held out by its rule, `InfluenceMonitor` around every
step, `LabelErrors` at the end with the features of the network before and after; the suspicion is its probability that
a label is wrong. cleanlab-finetuned takes out-of-fold probabilities of five trainings.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif import InfluenceMonitor
from sgoif.audit.plan import hold_out
from sgoif.audit.settings import AuditSettings
from sgoif.core.data import Part
from sgoif.tasks.labels import LabelErrors
from sgoif_bench.pretrained.finetuning import Bytes, FineTuning
from sgoif_bench.pretrained.kept import cleanlab_outcomes, out_of_fold
from sgoif_bench.pretrained.task import Outcome, Rows, Task

OURS, CLEANLAB = "sgoif-finetuned", "cleanlab-finetuned"


def sgoif(task: Task) -> dict[str, Outcome]:
    """The label score of one fine-tuning."""
    began = task.pictures.features.value.cpu().numpy()
    start = time.perf_counter()
    dataset = Bytes(task.pictures.data.images, task.labels)
    rows, held = hold_out(task.labels, AuditSettings.holdout, task.seed)
    run = FineTuning(task, rows)
    with InfluenceMonitor(
        run.model,
        run.optimizer,
        anchors=Part(dataset, held.tolist()),
        size=len(task),
        max_anchors=len(held),
        seed=task.seed,
    ) as monitor:
        task.tell(f"{OURS}: {task.recipe.epochs} epochs, {len(held)} images held out")
        run.train(watching=monitor.step)
        table = LabelErrors(monitor, dataset=dataset, features=[run.features(), began]).table()
    suspicion = np.zeros(len(task))
    suspicion[table["index"]] = np.nan_to_num(table["probability_wrong"])
    return {OURS: Outcome(suspicion, time.perf_counter() - start)}


def cleanlab(task: Task) -> dict[str, Outcome]:
    """Both scores of out-of-fold probabilities of five fine-tunings."""

    def fit_predict(fold: int, rest: Rows, held_out: Rows) -> NDArray[Any]:
        run = FineTuning(task, rest, number=fold + 1)
        run.train()
        return run.predict(held_out)

    probabilities = out_of_fold(task, CLEANLAB, fit_predict)
    return cleanlab_outcomes(task, CLEANLAB, probabilities, uses_features=False)
