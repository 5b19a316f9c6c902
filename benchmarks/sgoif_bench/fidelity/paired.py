"""Small changes of the training data, told from chance: trainings that differ in the change and in nothing else.

One example among thousands moves a margin less than another order of the batches does. So the change is trained in
pairs: network s starts from the same weights and sees the same batches with and without it,

    Δ_m(q) = mean_s [ f_{s,m}(q) − f_{s,0}(q) ] ,        m = 0: nothing is changed ,

and what is left of chance, since training amplifies any change, shows in how far pairs agree (`lds.mean_ceiling`).

Kinds: `alone` leaves one example out, by counting its loss zero times; `label-K` gives K examples of one class, each
near the others in pixels, the label of another class, drawn at random. Networks that normalise by batch still see the
image of an example that is left out.

Examples that are left out alone are, in turn, one that stands out and one drawn at random. Standing out is judged in
pixels, before anything is trained and by none of the methods: the distance to the nearest example of the same class
over that to the nearest of another. The K examples of `label-K` are one of these and its neighbours. Set `number`
depends on kind, number and seed alone; its file is like that of any other set (`truth`): logits [trainings, Q, C].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from sgoif.errors import SettingError
from sgoif_bench.fidelity.answer import Relabelled
from sgoif_bench.fidelity.study import Floats, Study
from sgoif_bench.fidelity.together import can_stack, train_together
from sgoif_bench.fidelity.truth import ALONE, LABEL, Wanted, keep_answers, neighbours, stacks, trained
from sgoif_bench.labels.problem import Labels, Rows, StepLoss

CHUNK = 1024


@dataclass(frozen=True)
class Change:
    """What is different in the training data: these examples count zero times, or have another label."""

    rows: Rows
    label: int | None = None
    """None: left out."""


def changes(study: Study, wanted: Wanted) -> list[Change]:
    """Sets 1, 2, … of a kind; set 0 is the data as it is."""
    order = candidates(study, wanted.sets - 1)
    if wanted.kind == ALONE:
        return [Change(np.array([row])) for row in order]
    size, found = int(wanted.kind.removeprefix(LABEL)), []
    for number, row in enumerate(order, start=1):
        generator = np.random.default_rng((study.problem.seed, number, *wanted.kind.encode()))
        others = [label for label in range(study.problem.classes) if label != study.problem.labels[row]]
        found.append(Change(neighbours(study, int(row), size), int(generator.choice(others))))
    return found


def candidates(study: Study, count: int) -> Rows:
    """So many different examples: one that stands out, one at random, and so on."""
    if count > len(study):
        raise SettingError(f"{count} examples cannot be changed one by one in a training set of {len(study)}")
    generator = np.random.default_rng((study.problem.seed, *ALONE.encode()))
    queues = [iter(np.argsort(-standing_out(study), kind="stable")), iter(generator.permutation(len(study)))]
    taken: dict[int, None] = {}
    while len(taken) < count:
        queue = queues[len(taken) % 2]
        taken[next(int(row) for row in queue if int(row) not in taken)] = None
    return np.array(list(taken), dtype=np.int64)


def standing_out(study: Study) -> NDArray[np.float64]:
    """Distance in pixels to the nearest example of the same class over that to the nearest of another, [N]."""
    device = study.problem.device
    pixels = study.problem.images.flatten(1).to(device).float()
    labels = torch.from_numpy(study.problem.labels).to(device)
    parts = []
    for start in range(0, len(pixels), CHUNK):
        rows = slice(start, start + CHUNK)
        distance = torch.cdist(pixels[rows], pixels)
        distance[:, start : start + len(distance)].fill_diagonal_(torch.inf)
        same = labels[rows, None] == labels
        own, other = (distance.masked_fill(~mask, torch.inf).amin(1) for mask in (same, ~same))
        parts.append(own.clamp_min(1e-6) / other.clamp_min(1e-6))
    return torch.cat(parts).double().nan_to_num(0.0, posinf=0.0).cpu().numpy()


def asked_about(study: Study, everything: Sequence[Wanted]) -> Relabelled | None:
    """Every new label that some change gives to some example, once; None where no label is changed."""
    pairs = {
        (int(row), change.label): None
        for wanted in everything
        if wanted.is_paired and wanted.kind != ALONE
        for change in changes(study, wanted)
        for row in change.rows
        if change.label is not None
    }
    if not pairs:
        return None
    rows, labels = (np.array(values, dtype=np.int64) for values in zip(*pairs, strict=True))
    return Relabelled(rows, labels)


def train_changes(study: Study, folder: Path, wanted: Wanted, numbers: Sequence[int]) -> None:
    """Train with these changes as often as wanted and keep the answers."""
    everything = [None, *changes(study, wanted)]
    stack, problem = can_stack(study), study.problem
    turns = range(1, wanted.trainings + 1)
    for part in stacks(wanted, numbers, stack):
        counts, labels = zip(*(changed(study, everything[number]) for number in part), strict=True)
        if stack:
            sets = [problem.rows()] * (len(part) * len(turns))
            models = train_together(
                study,
                sets,
                [turn for _ in part for turn in turns],
                [count for count in counts for _ in turns],
                [label for label in labels for _ in turns],
            )
        else:
            models = [
                problem.fit(
                    problem.new_model(turn), problem.batches(labels=label, number=turn), loss=counted(count, study)
                )
                for count, label in zip(counts, labels, strict=True)
                for turn in turns
            ]
        keep_answers(study, folder, wanted, part, models)


def changed(study: Study, change: Change | None) -> tuple[Floats, Labels]:
    """How much every example counts, and its label, under a change."""
    counts, labels = np.ones(len(study), dtype=np.float32), study.problem.labels.copy()
    if change is not None and change.label is None:
        counts[change.rows] = 0
    elif change is not None and change.label is not None:
        labels[change.rows] = change.label
    return counts, labels


def counted(counts: Floats, study: Study) -> StepLoss:
    """The loss of a batch of which some examples count less."""
    weights = torch.from_numpy(counts).to(study.problem.device)

    def loss(logits: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        return (weights[index.to(weights.device)] * F.cross_entropy(logits, labels, reduction="none")).mean()

    return loss


@dataclass(frozen=True)
class Responses:
    """Changes, and what each did to the margin of every query in every pair of trainings."""

    changes: list[Change]
    margins: NDArray[np.float64]
    """f_{s,m}(q) − f_{s,0}(q), [M, S, Q]"""


def read_responses(study: Study, folder: Path, wanted: Wanted) -> Responses:
    """Everything that was trained of a kind; an error where something is missing."""
    found = [trained(folder, wanted, number) for number in range(wanted.sets)]
    known = [logits for logits in found if logits is not None]
    if len(known) < wanted.sets:
        raise SettingError(f"{wanted.sets - len(known)} of {wanted.sets} sets of kind {wanted.kind} are missing")
    margins = study.margins(np.stack(known))
    return Responses(changes(study, wanted), margins[1:] - margins[0])
