"""One more look at every training example, by the model as it is when training ends.

In a run of one to three epochs most of what was seen of an example was seen by a model that knew little yet. So the
anchors are refreshed once more, every training example is scored out of training, and that joins its means as one more
observation, with the weight of a step of this moment (`stability.step_weight`): after one epoch it says nearly all,
after forty next to nothing. The run is unchanged: what was learned is put back as it was.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgoif.core.batches import read_items
from sgoif.core.data import isolated_random_state
from sgoif.core.interrupts import guarded
from sgoif.engine.checkpoint import Checkpoint
from sgoif.engine.held_out import HeldOutScorer
from sgoif.engine.pipeline import StepPipeline
from sgoif.scoring.ledger import Ledger

LOOKS = 10
"""Observations of an example on average, from which one more would count for less than a tenth."""


class Ledgers(NamedTuple):
    """What is remembered of the training examples and of the held-out ones."""

    training: Ledger
    held_out: Ledger


def looks_an_example(ledger: Ledger) -> float:
    """Mean number of equally weighted observations that those of an example are worth."""
    looks = ledger.effective_count()
    return float(looks[looks > 0].mean()) if bool((looks > 0).any()) else 0.0


def obstacle(pipeline: StepPipeline, dataset: Any) -> str:
    """Why the examples of a run cannot be seen once more, if they cannot."""
    if pipeline.communicator.size > 1:
        return "where several processes train the model"
    if dataset is None:
        return "without the data: give dataset=, indexed like the loop"
    return "" if len(dataset) >= pipeline.ledger.used else "with a data set that has fewer examples than the loop"


@guarded
def closing_pass(pipeline: StepPipeline, held_out: HeldOutScorer, checkpoint: Checkpoint, dataset: Any) -> Ledgers:
    """The ledgers as they were if every training example was seen once more now, with the label it was trained with.

    `dataset` is indexed like the loop; one process alone.
    """

    def read(rows: Tensor) -> tuple[Any, Tensor]:
        with isolated_random_state():
            inputs, _ = read_items(dataset, rows, held_out.device)
        return inputs, given[rows.to(given.device)].long()

    before, given = checkpoint.collect(), pipeline.ledger.label
    try:
        with held_out.gradients.captured() as capture:
            pipeline.refresher.complete(pipeline.refresher.collect(pipeline.steps, False, capture))
        own = held_out.flags()
        training = pipeline.ledger.copy()
        seen = training.column("count") > 0
        if own is not None:
            known = torch.from_numpy(own[: training.used]).to(seen.device)
            seen[: len(known)] &= ~known
        rows = seen.nonzero().squeeze(1).cpu()
        held_out.score_into(training, rows, read, held_out.step_weight.factor)
        return Ledgers(training, held_out.record())
    finally:
        checkpoint.restore(before)
