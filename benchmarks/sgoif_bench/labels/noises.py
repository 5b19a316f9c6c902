"""Kinds of wrong labels by name, for data sets by name.

    none                     the labels as they were published
    symmetric-20             20% of all labels become any other class
    class-dependent-20       20% become the class theirs is taken for: CIFAR-10's and the digits' usual confusions, the
                             next class of the superclass for CIFAR-100, the next class for others
    matrix-40-sparsity-0.6   by a random matrix of that rate and sparsity, the one of the Confident Learning paper (its
                             generator's seed 0); the run's seed chooses the examples
    instance-20              about 20%, depending on the image
    human-aggregate          what people said: aggregate, random1 to random3 or worst of CIFAR-10N, noisy of CIFAR-100N
    package.module:function  one's own: called with (data, seed), a `LabelledData` and a number, it returns new labels

Rates are percentages of all labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.core.user_code import own_function
from sgoif.errors import SettingError, SgoifError
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.noise import (
    CIFAR10_FLIPS,
    DIGIT_FLIPS,
    NoisyLabels,
    by_matrix,
    class_dependent,
    human,
    instance_dependent,
    next_class,
    noise_matrix_from_trace,
    symmetric,
    within_superclass,
)

HUMAN_KEYS = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
    "noisy": "noisy_label",
}
CHOICES = (
    "none",
    "symmetric-RATE",
    "class-dependent-RATE",
    "matrix-RATE-sparsity-SHARE",
    "instance-RATE",
    *(f"human-{name}" for name in HUMAN_KEYS),
    "package.module:function",
)
FLIPS: Mapping[str, Mapping[int, int]] = {"cifar10": CIFAR10_FLIPS, "mnist": DIGIT_FLIPS, "digits": DIGIT_FLIPS}
MATRIX_SEED = 0

_NUMBER = r"(\d+(?:\.\d+)?)"
_PATTERN = re.compile(
    rf"none|(?P<plain>symmetric|class-dependent|instance)-{_NUMBER}|matrix-{_NUMBER}-sparsity-{_NUMBER}"
    rf"|human-({'|'.join(HUMAN_KEYS)})"
)


@dataclass(frozen=True)
class Setting:
    """A kind of noise and its numbers."""

    kind: str
    percent: float = 0.0
    sparsity: float = 0.0
    key: str = ""
    """Of the human labels in their file, or a function of the user's."""

    @property
    def rate(self) -> float:
        """Share of all labels."""
        return self.percent / 100


def parse(setting: str) -> Setting:
    """What a name stands for."""
    if ":" in setting:
        own_function(setting, "noise")
        return Setting("own", key=setting)
    match = _PATTERN.fullmatch(setting)
    if match is None:
        raise SettingError(
            f"noise {setting!r} is unknown; choose from {', '.join(CHOICES)}, with a RATE in percent such as 20 and a "
            "SHARE from 0 to 1"
        )
    plain, rate, matrix_rate, sparsity, who = match.groups()
    if plain is not None:
        found = Setting(plain, percent=float(rate))
    elif matrix_rate is not None:
        found = Setting("matrix", percent=float(matrix_rate), sparsity=float(sparsity))
    elif who is not None:
        found = Setting("human", key=HUMAN_KEYS[who])
    else:
        found = Setting("none")
    if found.percent > 100 or found.sparsity > 1:
        raise SettingError(f"noise {setting!r}: a rate is at most 100 percent and a sparsity at most 1")
    return found


def make_noise(setting: str, data: LabelledData, seed: int, human: str | Path | None = None) -> NoisyLabels:
    """The labels of a data set after this noise, and which of them are wrong; `human` is the file of human labels.

    For a data set whose labels are wrong from the start, the mask says what is known: where somebody has looked it
    compares with the right class, elsewhere (see `LabelledData.verified`) it only knows of the flips made here.
    """
    wanted = parse(setting)
    noisy = _human(wanted, data, human) if wanted.kind == "human" else _MADE[wanted.kind](wanted, data, seed)
    if data.clean_labels is None:
        return noisy
    return NoisyLabels(
        noisy.labels, np.where(data.verified, noisy.labels != data.clean_labels, noisy.is_wrong).astype(np.bool_)
    )


def _none(_: Setting, data: LabelledData, seed: int) -> NoisyLabels:
    return NoisyLabels(data.labels.copy(), np.zeros(len(data), dtype=np.bool_))


def _symmetric(wanted: Setting, data: LabelledData, seed: int) -> NoisyLabels:
    return symmetric(data.labels, len(data.classes), wanted.rate, seed)


def _class_dependent(wanted: Setting, data: LabelledData, seed: int) -> NoisyLabels:
    if data.superclasses is not None:
        return within_superclass(data.labels, data.superclasses, wanted.rate, seed)
    flips = FLIPS.get(data.name) or next_class(len(data.classes))
    return class_dependent(data.labels, flips, seed=seed, overall=wanted.rate)


def _matrix(wanted: Setting, data: LabelledData, seed: int) -> NoisyLabels:
    classes = len(data.classes)
    # In percent, since 10 · (1 - 0.7) is not 3.
    trace = classes * (100 - wanted.percent) / 100
    return by_matrix(data.labels, noise_matrix_from_trace(classes, trace, wanted.sparsity, MATRIX_SEED), seed)


def _instance(wanted: Setting, data: LabelledData, seed: int) -> NoisyLabels:
    return instance_dependent(data.labels, data.images, len(data.classes), wanted.rate, seed)


def _own(wanted: Setting, data: LabelledData, seed: int) -> NoisyLabels:
    before = data.labels
    try:  # with a copy, in case it writes into what it is given
        made = np.array(own_function(wanted.key, "noise")(replace(data, labels=before.copy()), seed))
    except SgoifError:
        raise
    except Exception as error:
        raise SettingError(
            f"noise {wanted.key!r}: calling it with (data, seed) failed: {type(error).__name__}: {error}"
        ) from error
    classes = len(data.classes)
    if made.shape != before.shape or made.dtype.kind not in "iu" or made.min() < 0 or made.max() >= classes:
        raise SettingError(
            f"noise {wanted.key!r} returned an array of {made.dtype} with shape {made.shape}{_range(made)}; expected"
            f" {len(before)} whole numbers from 0 to {classes - 1}, a label for every example"
        )
    return NoisyLabels(made.astype(np.int64), made != before)


def _range(values: NDArray[Any]) -> str:
    return f" and values from {values.min()} to {values.max()}" if values.size and values.dtype.kind in "iuf" else ""


def _human(wanted: Setting, data: LabelledData, file: str | Path | None) -> NoisyLabels:
    if file is None:
        raise SettingError(
            f"human labels are read from a file: give --human FILE with labels {wanted.key!r}, as published"
            " (CIFAR-10_human.pt, CIFAR-100_human.pt) or as .npz, .npy or .csv"
        )
    if not data.train:
        raise SettingError("human labels are published for training images, not for the test set")
    return human(data.labels, file, wanted.key, len(data.classes), data.rows)


_MADE: Mapping[str, Callable[[Setting, LabelledData, int], NoisyLabels]] = {
    "none": _none,
    "symmetric": _symmetric,
    "class-dependent": _class_dependent,
    "matrix": _matrix,
    "instance": _instance,
    "own": _own,
}
