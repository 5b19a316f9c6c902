"""From what a monitor knows at one moment to the weights that examples should have.

Training examples are judged by what training saw of them (`fading_ledgers`). Held-out ones are judged too where they
are to join the training (`joining`); then limits, floors and the mean are those of both together.

How far the network's own answers are trusted (`answer_trust`) is the share that logit margins have in the ranking of
labels (`labels.ranking`): 1 where the noise has no structure that could be learned and training examples are fitted no
better than held-out ones, 0 where either is otherwise. Two judgements in a row must say so: the smaller counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sgoif.analysis.intervals import half_width
from sgoif.monitor import InfluenceMonitor
from sgoif.scoring.ledger import Ledger
from sgoif.tasks.curriculum.fading_ledgers import FadingLedgers
from sgoif.tasks.curriculum.settings import CurriculumSettings
from sgoif.tasks.curriculum.weights import (
    ExampleWeights,
    believed_share,
    class_limits,
    harmfulness,
    lower_odds,
    sharpen,
    weigh,
)
from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.evidence import Evidence, Rows, from_ledger
from sgoif.tasks.labels.judgement import LEAST_EXAMPLES, Judgement, judge, suggestions


@dataclass(frozen=True)
class InfluenceSnapshot:
    """Influences of examples on the hold-out, half-widths and parts by group, as they were when it joined the training.

    A hold-out that is trained on says no more about influence.
    """

    index: Labels
    influence: Array
    width: Array
    groups: Rows

    def put_into(self, evidence: Evidence) -> tuple[Evidence, Array]:
        """What is known of the same examples now, with influences as they were; and their half-widths."""
        evidence = evidence.take(np.flatnonzero(np.isin(evidence.index, self.index)))
        at = np.searchsorted(self.index, evidence.index)
        return replace(evidence, influence=self.influence[at], groups=self.groups.take(at)), self.width[at]

    def state_dict(self) -> dict[str, Tensor]:
        """All of it as tensors."""
        parts = {"index": self.index, "influence": self.influence, "width": self.width, "groups": self.groups.mean}
        if self.groups.slots is not None:
            parts["slots"] = self.groups.slots
        return {name: torch.from_numpy(part.copy()) for name, part in parts.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """What `state_dict` gave."""
        part = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        return cls(part["index"], part["influence"], part["width"], Rows(part["groups"], part.get("slots")))


RANDOM, LEARNED = 0.15, 0.3
"""Structure of the noise up to which a network's own answers are trusted in full, and from which not at all."""


@dataclass(frozen=True)
class Assessment:
    """What is believed about labels at one moment, and the weights that follow."""

    index: Labels
    """The examples that were judged: training examples, then held-out ones where they join."""
    training: int
    """How many of them are training examples."""
    weighed: ExampleWeights
    noise_rate: float
    trust: float
    caution: float
    answer_trust: float
    """By this assessment alone."""
    influences: InfluenceSnapshot
    """Of the training examples."""


def assess_labels(
    ledgers: FadingLedgers,
    settings: CurriculumSettings,
    rate_before: float | None,
    *,
    joining: bool = False,
    joined: InfluenceSnapshot | None = None,
) -> Assessment | None:
    """Judge every label; None where too little is known yet. `rate_before` is the noise rate of the last assessment.

    Where the hold-out has `joined` the training, influences are what they were then.
    """
    monitor = ledgers.monitor
    held = monitor.held_out_indices()
    training, width = _training_evidence(monitor, ledgers.record())
    if joined is not None:
        training, width = joined.put_into(training)
    elif held is not None:
        apart = np.flatnonzero(~np.isin(training.index, held))
        training, width = training.take(apart), width[apart]
    anchors, anchor_width = _held_out_evidence(ledgers, joining)
    if len(training) < LEAST_EXAMPLES or not len(anchors):
        return None
    verdict = judge(training, anchors, monitor.classes)
    known, evidence = float(verdict.knows), training
    influences = InfluenceSnapshot(training.index, training.influence, width, training.groups)
    probability = known * verdict.probability
    if joining:
        probability = np.concatenate([probability, known * verdict.anchor_probability])
        evidence, width = appended(training, anchors), np.concatenate([width, anchor_width])
    weighed = _weigh(monitor, settings, verdict, evidence, probability, width, rate_before)
    return Assessment(
        evidence.index,
        len(training),
        weighed,
        verdict.rate.estimate,
        float(verdict.knows),
        certainty(verdict),
        verdict.weights.logits * (1 - float(np.clip((verdict.structure - RANDOM) / (LEARNED - RANDOM), 0, 1))),
        influences,
    )


def certainty(verdict: Judgement) -> float:
    """0 to 1: how much of the estimated noise rate is proven."""
    return verdict.rate.low / verdict.rate.estimate if verdict.rate.estimate > 0 else 0.0


def _training_evidence(monitor: InfluenceMonitor, ledger: Ledger) -> tuple[Evidence, Array]:
    """What a ledger knows about labels, and the half-widths of the influences."""
    found = from_ledger(ledger)
    width: Array = half_width(ledger, monitor.settings.level, monitor.scaling.bound).double().cpu().numpy()[found.index]
    return found, width


def _held_out_evidence(ledgers: FadingLedgers, joining: bool) -> tuple[Evidence, Array]:
    """The held-out examples: influences by the monitor, who leaves each one's own part out, and answers by memory."""
    monitor, said = ledgers.monitor, from_ledger(ledgers.held_out)
    found, width = _training_evidence(monitor, monitor.anchor_record() if joining else monitor.anchor_ledger)
    known = np.flatnonzero(np.isin(found.index, said.index))
    found, width = found.take(known), width[known]
    said = said.take(np.searchsorted(said.index, found.index))
    numbers = monitor.held_out_indices()
    index = found.index if numbers is None else numbers[found.index]
    return replace(said, index=index, influence=found.influence, groups=found.groups), width


def _weigh(
    monitor: InfluenceMonitor,
    settings: CurriculumSettings,
    verdict: Judgement,
    evidence: Evidence,
    probability: Array,
    width: Array,
    rate_before: float | None,
) -> ExampleWeights:
    rate, bank, classes = verdict.rate.estimate, monitor.anchors, monitor.classes
    by_class = list(bank.group_names) == list(range(classes)) and torch.equal(bank.groups, bank.labels)
    held_out: Array = np.bincount(verdict.anchors.given, minlength=classes).astype(np.float64)
    sizes: Array = np.bincount(evidence.given, minlength=classes).astype(np.float64)
    believed = lower_odds(probability, believed_share(rate_before, rate) * float(probability.sum()))
    return weigh(
        sharpen(believed, 1 + certainty(verdict) * (settings.sharpness - 1)),
        evidence.given,
        suggestions(evidence, by_group=by_class),
        class_limits(verdict.joint, held_out, rate, sizes),
        settings,
        harmfulness(evidence.influence, width),
    )


def appended(evidence: Evidence, others: Evidence) -> Evidence:
    """These examples, then the others."""
    changes: dict[str, Any] = {}
    for f in fields(Evidence):
        one, other = getattr(evidence, f.name), getattr(others, f.name)
        changes[f.name] = appended_rows(one, other) if isinstance(one, Rows) else np.concatenate([one, other])
    return Evidence(**changes)


def appended_rows(rows: Rows, others: Rows) -> Rows:
    """These rows, then the others."""
    slots = None if rows.slots is None or others.slots is None else np.concatenate([rows.slots, others.slots])
    return Rows(np.concatenate([rows.mean, others.mean]), slots)
