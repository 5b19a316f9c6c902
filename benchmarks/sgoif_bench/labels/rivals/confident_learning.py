"""Confident learning, by its authors' own library cleanlab.

Curtis Northcutt, Lu Jiang, Isaac Chuang: "Confident Learning: Estimating Uncertainty in Dataset Labels", JAIR 70,
2021. With out-of-sample probabilities p(k | x) and the thresholds t_k = mean of p(k | x) over the examples given label
k, the confident joint counts

    C[i, j] = |{x given label i : j = argmax_{k : p(k|x) ≥ t_k} p(k | x)}|

and estimates the joint of given and true labels. Pruning by noise rate, the filter that cleanlab takes by default,
removes for each pair i ≠ j as many examples of given label i as the joint says, those of largest p(j | x) − p(i | x).

Probabilities come from 4-fold cross-validation, as in the paper, with folds stratified by given label: every fold is
predicted by a network that never saw it, so 4 × ¾ = 3 trainings. Flagged is what `cleanlab.filter.find_label_issues`
flags; suspicion is 1 − cleanlab's label quality by normalised margin, (p(y) − max_{k≠y} p(k) + 1)/2, which is the
margin that the paper's pruning ranks by.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import MissingExtraError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem, Rows
from sgoif_bench.labels.rivals.influence_common import train

FOLDS = 4
FILTER = "prune_by_noise_rate"
QUALITY = "normalized_margin"


def confident_learning(problem: Problem, tell: Say) -> Outcome:
    """What cleanlab says of out-of-sample probabilities."""
    find_label_issues, get_label_quality_scores = _cleanlab()
    probabilities = out_of_sample(problem, tell)
    tell("confident learning: cleanlab")
    flagged = find_label_issues(problem.labels, probabilities, filter_by=FILTER, n_jobs=1)
    quality = get_label_quality_scores(problem.labels, probabilities, method=QUALITY)
    agreement = float((probabilities.argmax(1) == problem.labels).mean())
    return Outcome(
        1 - np.asarray(quality, dtype=np.float64),
        flagged=np.asarray(flagged, dtype=bool),
        trainings=float(FOLDS - 1),
        details={"folds": FOLDS, "out_of_sample_agreement": agreement},
    )


def out_of_sample(problem: Problem, tell: Say) -> NDArray[np.float64]:
    """Probabilities [N, C] of every example by the network that was trained without its fold."""
    fold_of = folds(problem)
    probabilities = np.zeros((len(problem), problem.classes))
    for fold in range(FOLDS):
        held_out, rest = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        name = f"confident learning, fold {fold + 1}/{FOLDS}"
        model = train(problem, tell, name, batches=problem.batches(rest, number=fold), number=fold)
        probabilities[held_out] = problem.predict(model, held_out).double().softmax(1).cpu().numpy()
    return probabilities


def folds(problem: Problem) -> Rows:
    """The fold of every example; each given label is dealt out evenly."""
    order = np.random.default_rng(problem.seed).permutation(len(problem))
    order = order[np.argsort(problem.labels[order], kind="stable")]
    fold_of = np.empty(len(problem), dtype=np.int64)
    fold_of[order] = np.arange(len(problem)) % FOLDS
    return fold_of


def _cleanlab() -> tuple[Any, Any]:
    try:
        from cleanlab.filter import find_label_issues
        from cleanlab.rank import get_label_quality_scores
    except ImportError as error:
        raise MissingExtraError("cleanlab", "datalab", "confident_learning()") from error
    return find_label_issues, get_label_quality_scores
