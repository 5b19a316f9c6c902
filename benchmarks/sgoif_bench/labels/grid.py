"""The cells of the comparison: which there are, and which are done.

A cell is one method on one data set with one kind of noise and one seed, trained by one recipe. Its result is one line
of a JSON Lines file (`bench.journal`). A cell that stands in the file is not computed again, and a recipe that changed
makes other cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import MissingExtraError, SettingError
from sgoif_bench.jobs import NoisyJob
from sgoif_bench.journal import Line, kind_by
from sgoif_bench.labels.problem import Outcome
from sgoif_bench.labels.recipes import Training, identity
from sgoif_bench.labels.registry import METHODS, form_of, is_known, method_of, shares_training
from sgoif_bench.methods import marked
from sgoif_bench.metrics import (
    average_precision,
    detection_metrics,
    expected_calibration_error,
    flag_metrics,
    precision_at,
    precision_recall_curve,
    top_kendall,
)
from sgoif_bench.progress import Grid
from sgoif_bench.result_texts import rounded

RANKS = "ranks_over_epochs"
"""In an outcome's details: [epochs, examples], how suspicious each example was after each epoch (higher = more so).
Judged here, since a method does not know which labels are wrong, and too large to be written down."""
PRODUCTS = "curvature_products_per_step"
DETECTION = ("p_at_1", "recall_at_1", "recall_at_5", "recall_at_10", "aupr", "auroc")
FLAGS = ("precision", "recall", "f1")
NOISE_RATE = ("noise_rate", "noise_rate_low", "noise_rate_high")
CLAIMS = ("calibration_error", "top_100_stated", "top_100_real", "suggested_right", *NOISE_RATE, "noise_rate_error")
"""How far a method's own statements hold: expected calibration error of its probabilities, what it expects of its
first hundred and what they are, share of the found errors for which it names the right class, its noise rate with
interval and how far it is off."""
DIGITS = 4
"""Significant ones, of what is drawn and not compared: curves and details. Metrics are written in full."""
FOUND = 0.95
"""An epoch has found the wrong labels when the first percent of its ranking holds this share of them."""
NEEDS = {"confident-learning": ("cleanlab", "datalab")}
"""Methods that need a package which is not always there: its name and the extra that brings it."""


class Key(NamedTuple):
    """What tells one cell from another."""

    set: str
    noise: str
    method: str
    seed: int
    recipe_id: str
    shared: bool
    form: int = 1


KIND = kind_by("sgoif-bench labels", Key, shown=partial(marked, METHODS))


@dataclass(frozen=True)
class Job(NoisyJob):
    """One training: all methods of a family on one data set with one noise and seed, or one of them alone."""

    training: Training
    human: str | None = None
    """Identity of the file with human labels, where the noise needs one."""
    solo: bool = False

    @property
    def shared(self) -> bool:
        """Whether several methods' outcomes come from this training."""
        return shares_training(self.methods[0], solo=self.solo)

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything else that the outcome depends on."""
        return self.training.described(human=self.human)

    def key(self, method: str) -> Key:
        return Key(self.set, self.noise, method, self.seed, identity(self.recipe), self.shared, form_of(method))

    def __str__(self) -> str:
        return self.called(self.family if self.shared else self.methods[0])


def plan(
    trainings: Mapping[str, Training],
    noises: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    human: str | None = None,
    solo: bool = False,
) -> list[Job]:
    """Every job of the grid, data set by data set and seed by seed; `trainings` gives each data set its recipe."""
    together: dict[str, list[str]] = {}
    for name in methods:
        together.setdefault(method_of(name).family if shares_training(name, solo=solo) else name, []).append(name)
    return [
        Job(
            name,
            noise,
            seed,
            method_of(group[0]).family,
            tuple(group),
            training,
            human if noise.startswith("human") else None,
            solo,
        )
        for (name, training), seed, noise, group in product(trainings.items(), seeds, noises, together.values())
    ]


def check_packages(jobs: Iterable[Job]) -> None:
    """Find out before anything is trained that a method needs a package that is not installed."""
    for name in {name for job in jobs for name in job.methods} & NEEDS.keys():
        package, extra = NEEDS[name]
        if find_spec(package) is None:
            raise MissingExtraError(package, extra, f"the method {name}")


def to_keep(job: Job, lines: Sequence[Line], done: Mapping[Key, Line]) -> list[Line]:
    """The lines of a finished job that belong in the file.

    Variants of ours that a family returns without their being registered are kept as well. They come first: when a
    kill tears the last lines off, it is a registered method that is missing, and the next start computes the job again.
    """
    variants = [line for line in lines if not is_known(line["method"]) and KIND.key_of(line) not in done]
    return variants + [line for line in lines if line["method"] in job.methods]


@dataclass(frozen=True)
class LabelsGrid(Grid[Job]):
    """Counts variants of registered methods in, which come with the results of a method of their family."""

    def asked_for(self, jobs: Iterable[Job], done: Mapping[Key, Line]) -> list[Line]:
        registered = {job.key(method) for job in jobs for method in job.methods}
        places = {(key._replace(method=""), method_of(key.method).family) for key in registered}
        return [
            line
            for key, line in done.items()
            if key in registered or (not is_known(key.method) and (key._replace(method=""), line["family"]) in places)
        ]


def measure(
    is_wrong: NDArray[np.bool_],
    outcome: Outcome,
    known: NDArray[np.bool_] | None = None,
    true: NDArray[np.int64] | None = None,
) -> Line:
    """The part of a line that says how well an outcome finds the wrong labels.

    It is over all examples of the data set, anchors and all, unless `known` marks the only ones whose right label
    somebody knows. `true` are the right labels, for methods that suggest some. The curve is the precision at evenly
    spaced recalls from 0 to 1.
    """
    if outcome.suspicion.shape != is_wrong.shape:
        raise SettingError(f"scores of shape {outcome.suspicion.shape} came back for {len(is_wrong)} examples")
    rows = np.arange(len(is_wrong)) if known is None else np.flatnonzero(known)
    is_wrong, suspicion = is_wrong[rows], outcome.suspicion[rows]
    details = {name.replace(" ", "_"): value for name, value in outcome.details.items()}
    some = bool(is_wrong.any())
    metrics: Line = dict.fromkeys((*DETECTION, *FLAGS, *CLAIMS, "flagged_share", "top_kendall", "found_at_share"))
    metrics[PRODUCTS] = details.get(PRODUCTS)
    if some:
        metrics |= detection_metrics(is_wrong, suspicion)
    if outcome.flagged is not None:
        metrics |= flag_metrics(is_wrong, outcome.flagged[rows])
        metrics["flagged_share"] = float(np.mean(outcome.flagged))
    if outcome.probability is not None:
        stated = outcome.probability[rows]
        metrics["calibration_error"] = expected_calibration_error(stated, is_wrong)
        first = np.argsort(-stated, kind="stable")[:100]
        metrics["top_100_stated"], metrics["top_100_real"] = float(stated[first].mean()), float(is_wrong[first].mean())
    if outcome.suggested is not None and true is not None and some:
        caught = is_wrong if outcome.flagged is None else is_wrong & outcome.flagged[rows]
        right = (outcome.suggested == true)[rows][caught]
        metrics["suggested_right"] = float(right.mean()) if len(right) else None
    if outcome.noise_rate is not None:
        metrics |= dict(zip(NOISE_RATE, outcome.noise_rate, strict=True))
        metrics["noise_rate_error"] = abs(outcome.noise_rate[0] - float(np.mean(is_wrong)))
    ranks = details.pop(RANKS, None)
    if ranks is not None:
        epochs, metrics["top_kendall"] = over_epochs(is_wrong, np.asarray(ranks)[:, rows], details.get("epochs"))
        found = (number for number, epoch in enumerate(epochs, 1) if (epoch["p_at_1"] or 0.0) >= FOUND)
        first_epoch = next(found, None)
        metrics["found_at_share"] = None if first_epoch is None else first_epoch / len(epochs)
        details["epochs"] = epochs
    precision = precision_recall_curve(is_wrong, suspicion)["precision"] if some else None
    return {"metrics": metrics, "curve": rounded(precision, DIGITS), "details": rounded(details, DIGITS)}


def over_epochs(
    is_wrong: NDArray[np.bool_], ranks: NDArray[Any], records: Sequence[Mapping[str, Any]] | None
) -> tuple[list[Line], float | None]:
    """Per-epoch records with AUPR and agreement with the epoch before, and that agreement's mean.

    They are over the examples that are ranked after some epoch: a hold-out that is scored at the end alone is left out.
    """
    known = [{"epoch": number + 1} for number in range(len(ranks))] if records is None else records
    if ranks.ndim != 2 or ranks.shape[1] != len(is_wrong) or len(known) != len(ranks):
        raise SettingError(
            f"{RANKS} of shape {ranks.shape} does not go with {len(known)} epochs and {len(is_wrong)} examples"
        )
    scores = np.nan_to_num(ranks.astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    ranked = np.isfinite(scores).any(axis=0)
    scores, is_wrong = scores[:, ranked], is_wrong[ranked]
    agreement = [None, *(top_kendall(before, after) for before, after in pairwise(scores))]
    full = [
        {
            **record,
            "aupr": average_precision(is_wrong, row) if is_wrong.any() else None,
            "p_at_1": precision_at(is_wrong, row) if is_wrong.any() else None,
            "top_kendall": agree,
        }
        for record, row, agree in zip(known, scores, agreement, strict=True)
    ]
    defined = [agree for agree in agreement if agree is not None and np.isfinite(agree)]
    return full, float(np.mean(defined)) if defined else None
