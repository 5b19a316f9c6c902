"""The truth that scores are held against: networks trained again on parts of the data.

A set of kept examples is drawn from its kind, its number and the seed alone, so sets can be trained in any order and by
several processes, and a run that was interrupted goes on. What is kept on disk are the logits of all queries:
`KIND-NUMBER.npz` with `logits` [trainings, Q, C], written whole or not at all.

Kinds: `half` keeps a share of the examples (for the linear datamodeling score); `out-K` leaves K examples out, of one
class and each near the others in pixels where K > 1, so that their absence can be told from chance at all; `all` is
the whole data set, with which the latter are compared. `alone` and `label-K` are changes of the data that are trained
in pairs (`paired`).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sgoif.core.serialization import DAMAGE, atomic_write
from sgoif.errors import SettingError
from sgoif_bench.fidelity.study import Floats, Mask, Study
from sgoif_bench.fidelity.together import can_stack, train_together

HALF, ALL, OUT = "half", "all", "out-"
ALONE, LABEL = "alone", "label-"
STACKED = 32
"""Small networks trained as one."""


@dataclass(frozen=True)
class Wanted:
    """How many sets of a kind, and how many trainings of each."""

    kind: str
    sets: int
    trainings: int
    share: float = 0.5
    """Of the examples kept in a set of kind `half`."""

    @property
    def left_out(self) -> int:
        """K of kind `out-K`."""
        return int(self.kind.removeprefix(OUT))

    @property
    def is_paired(self) -> bool:
        """Whether the sets are changes of the data, the first of them none."""
        return self.kind == ALONE or self.kind.startswith(LABEL)


def kept(study: Study, wanted: Wanted, number: int) -> Mask:
    """Which examples set `number` keeps, [N]."""
    size, seed = len(study), study.problem.seed
    mask = np.ones(size, dtype=np.bool_)
    if wanted.kind == ALL:
        return mask
    generator = np.random.default_rng((seed, number, *wanted.kind.encode()))
    if wanted.kind == HALF:
        mask[generator.permutation(size)[round(wanted.share * size) :]] = False
        return mask
    mask[neighbours(study, int(generator.integers(size)), wanted.left_out)] = False
    return mask


def neighbours(study: Study, centre: int, count: int) -> NDArray[np.int64]:
    """An example and those of its class that are nearest in pixels."""
    if count >= len(study):
        raise SettingError(f"{count} examples cannot be left out of {len(study)}")
    problem = study.problem
    family = np.flatnonzero(problem.labels == problem.labels[centre])
    if count > len(family):
        raise SettingError(f"a class has {len(family)} examples: {count} of one class cannot be left out")
    pixels = problem.images[family].flatten(1).float()
    distance = (pixels - problem.images[centre].flatten().float()).square().sum(1).numpy()
    nearest: NDArray[np.int64] = family[np.argsort(distance, kind="stable")[:count]]
    return nearest


def path_of(folder: Path, kind: str, number: int) -> Path:
    """Where a set is kept."""
    return folder / f"{kind}-{number:05d}.npz"


def missing(folder: Path, wanted: Wanted) -> list[int]:
    """Sets that were not trained yet, or not often enough."""
    return [number for number in range(wanted.sets) if trained(folder, wanted, number) is None]


def trained(folder: Path, wanted: Wanted, number: int) -> Floats | None:
    """Logits [trainings, Q, C] of a set; None where they are not there, or damaged."""
    path = path_of(folder, wanted.kind, number)
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            logits: Floats = archive["logits"]
    except (*DAMAGE, zipfile.BadZipFile):
        return None
    return logits[: wanted.trainings] if logits.ndim == 3 and len(logits) >= wanted.trainings else None


def train_sets(study: Study, folder: Path, wanted: Wanted, numbers: Sequence[int]) -> None:
    """Train on these sets as often as wanted and keep the answers."""
    stack = can_stack(study)
    for part in stacks(wanted, numbers, stack):
        sets = [np.flatnonzero(kept(study, wanted, number)) for number in part]
        turns = [_training_number(wanted, number, turn) for number in part for turn in range(wanted.trainings)]
        rows = [chosen for chosen in sets for _ in range(wanted.trainings)]
        if stack:
            models = train_together(study, rows, turns)
        else:
            models = [study.train(chosen, turn) for chosen, turn in zip(rows, turns, strict=True)]
        keep_answers(study, folder, wanted, part, models)


def stacks(wanted: Wanted, numbers: Sequence[int], stack: bool) -> Iterator[Sequence[int]]:
    """These sets, as many at a time as are trained together."""
    at_once = max(1, STACKED // wanted.trainings) if stack else 1
    for start in range(0, len(numbers), at_once):
        yield numbers[start : start + at_once]


def keep_answers(
    study: Study, folder: Path, wanted: Wanted, numbers: Sequence[int], models: Sequence[nn.Module]
) -> None:
    """Keep what the networks of these sets say, set by set."""
    logits = np.stack([study.answers(model) for model in models])
    for number, answers in zip(numbers, np.split(logits, len(numbers)), strict=True):
        write_logits(path_of(folder, wanted.kind, number), answers)


def _training_number(wanted: Wanted, number: int, turn: int) -> int:
    """Number 0 is the network that the methods look at; every training here has weights and batches of its own."""
    return 1 + turn + (0 if wanted.kind == ALL else number * wanted.trainings)


def write_logits(path: Path, logits: Floats) -> None:
    """Keep the answers of a set."""
    atomic_write(path, lambda file: np.savez(file, logits=logits))


@dataclass(frozen=True)
class Truth:
    """Sets of kept examples and what was answered after training on them."""

    kept: Mask
    """[M, N]"""
    logits: Floats
    """[M, trainings, Q, C]"""


def read_truth(study: Study, folder: Path, wanted: Wanted) -> Truth:
    """Everything that was trained of a kind; an error where something is missing."""
    found = [trained(folder, wanted, number) for number in range(wanted.sets)]
    if any(logits is None for logits in found):
        raise SettingError(f"{sum(x is None for x in found)} of {wanted.sets} sets of kind {wanted.kind} are missing")
    masks = np.stack([kept(study, wanted, number) for number in range(wanted.sets)])
    return Truth(masks, np.stack([logits for logits in found if logits is not None]))


def train_all(study: Study, folder: Path, wanted: Wanted) -> Truth:
    """Train what is missing, here and one after the other."""
    train_sets(study, folder, wanted, missing(folder, wanted))
    return read_truth(study, folder, wanted)
