"""SG-OIF in the comparison: one training with monitors attached, read out as label errors and as plain influence.

The run is a user's run: a hold-out with labels as noisy as the others, everything else by the recipe. Every example is
scored: what was trained on from the training steps, held-out examples with their own part left out.

`ABLATIONS` are settings of the engine, not other code; what they are compared with has every part. Several monitors
watch the same run, so a difference between two of them is a difference between two settings and nothing else. The
paper's names for what is left out:

    every-part                 what the others are compared with
    without-gate               every anchor is believed
    moving-average-gate        an anchor is believed if its residual is below its own past
    without-calibration        the residual decides whether an anchor counts, but not how much
    without-temperature        raw scores are averaged
    without-sketch             refinement by conjugate gradients without the sketched preconditioner
    without-trigger            no refinement
    low-rank                   the paper's curvature and solver in place of K-FAC and Richardson: low rank + diagonal
    without-low-rank           that without its low-rank part: diagonal curvature, Neumann series
    without-preconditioner     low rank + diagonal, solved by plain Richardson steps
    one-tolerance              one τ for the anchors of all groups
    one-pool                   all anchors in one group, as the paper has it
    fixed-kappa                κ as it was after the first epoch
    influence                  without the margin; the margin without influence is `probability-margin` of the rivals
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from math import inf
from typing import Any

import numpy as np

from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels import LabelErrors
from sgoif.tasks.labels.evidence import anchor_evidence, training_evidence
from sgoif.tasks.labels.judgement import judge
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem, Scores
from sgoif_bench.labels.watching import together, watch

FULL = "sgoif"
EVERY_PART = {"refine": True}
"""What the engine does not do unless it is asked to."""
LOW_RANK = {"curvature": "lowrank", "solver": "subspace"}
_LEFT_OUT: Mapping[str, Mapping[str, Any]] = {
    "without-gate": {"gate": "none"},
    "moving-average-gate": {"gate": "moving-average"},
    "without-calibration": {"gate": "hard"},
    "without-temperature": {"temperature": None},
    "without-sketch": {"sketch": 0},
    "without-trigger": {"refine": False},
    "low-rank": LOW_RANK,
    "without-low-rank": {"curvature": "diagonal", "solver": "neumann"},
    "without-preconditioner": {**LOW_RANK, "solver": "richardson"},
    "one-tolerance": {"tolerance_by_group": False},
    "one-pool": {"one_pool": True},
    "fixed-kappa": {"kappa_memory": inf},
}
ABLATIONS = {name: {**EVERY_PART, **changes} for name, changes in _LEFT_OUT.items()}


def family(problem: Problem, tell: Say) -> dict[str, Outcome]:
    """The label score and the influence it is made of, from one training."""
    return _watch(problem, tell, {FULL: {}})


def ablations(problem: Problem, tell: Say) -> dict[str, Outcome]:
    """Every ablation beside the whole method, from one training; their cost is not measured here."""
    found = _watch(problem, tell, {FULL: EVERY_PART, **ABLATIONS})
    return found | {"every-part": found[FULL], "every-part-influence": found["influence"]}


def sgoif(problem: Problem, tell: Say) -> Outcome:
    """The label score."""
    return family(problem, tell)[FULL]


def influence(problem: Problem, tell: Say) -> Outcome:
    """Class-wise gated influence alone."""
    return family(problem, tell)["influence"]


def _watch(problem: Problem, tell: Say, variants: Mapping[str, Mapping[str, Any]]) -> dict[str, Outcome]:
    training, held_out = problem.split()
    rows = np.asarray(training.indices)
    model, batches = problem.new_model(), problem.batches(rows, problem.labels)
    optimizer, schedule = problem.optimizer(model, problem.recipe.epochs * len(batches))
    score: list[Scores] = []
    influences: dict[str, list[Scores]] = {name: [] for name in variants}
    with ExitStack() as opened:
        monitors = {
            name: opened.enter_context(watch(problem, model, optimizer, held_out, **own))
            for name, own in variants.items()
        }
        watching = together(monitors.values())

        def on_epoch(epoch: int) -> None:
            score.append(_score_now(problem, monitors[FULL]))
            for name, monitor in monitors.items():
                influences[name].append(_influence_now(problem, monitor))
            tell(f"SG-OIF: epoch {epoch}/{problem.recipe.epochs}")

        problem.fit(model, batches, optimizer=(optimizer, schedule), watching=watching, on_epoch=on_epoch)
        share = len(rows) / len(problem)
        outcomes: dict[str, Outcome] = {}
        for name, monitor in monitors.items():
            whole, influence = _label_errors(problem, monitor, share, _figures(monitor))
            influence.details["ranks_over_epochs"] = np.stack(influences[name])
            if name == FULL:
                whole.details["ranks_over_epochs"] = np.stack(score)
            outcomes[name], outcomes["influence" if name == FULL else f"{name}-influence"] = whole, influence
    return outcomes


def _score_now(problem: Problem, monitor: InfluenceMonitor) -> Scores:
    """The label score as it is at this moment, of the examples that are trained on; −inf elsewhere."""
    evidence, anchors = training_evidence(monitor), anchor_evidence(monitor)
    scores = np.full(len(problem), -np.inf)
    scores[evidence.index] = judge(evidence, anchors, problem.classes).suspicion
    return scores


def _influence_now(problem: Problem, monitor: InfluenceMonitor) -> Scores:
    """The same of the influence alone."""
    table = monitor.scores(anchors=False)
    scores = np.full(len(problem), -np.inf)
    scores[table["index"]] = np.nan_to_num(table["influence"].astype(np.float64), nan=-np.inf)
    return scores


def _label_errors(
    problem: Problem, monitor: InfluenceMonitor, share: float, details: dict[str, Any]
) -> tuple[Outcome, Outcome]:
    """The label score, and the influence behind it."""
    errors = LabelErrors(monitor, dataset=problem.dataset())
    table, rate = errors.table(), errors.noise_rate()
    at = table["index"]
    probability, flagged, suggested = np.zeros(len(problem)), np.zeros(len(problem), dtype=bool), problem.labels.copy()
    probability[at] = np.nan_to_num(table["probability_wrong"])
    flagged[at] = table["is_label_issue"]
    named = errors.suggested
    suggested[list(named)] = list(named.values())
    influence = np.full(len(problem), -np.inf)
    influence[at] = np.nan_to_num(table["influence"].astype(np.float64), nan=-np.inf)
    details["structure"] = errors.judgement.structure
    whole = Outcome(
        suspicion=probability,
        flagged=flagged,
        trainings=share,
        probability=probability,
        suggested=suggested,
        noise_rate=(rate.estimate, rate.low, rate.high),
        details=details,
    )
    return whole, Outcome(influence, trainings=share, details=dict(details))


def _figures(monitor: InfluenceMonitor) -> dict[str, Any]:
    history = monitor.history
    names = ("step", "residual_mean", "confidence_mean")
    return {
        "curvature_products_per_step": sum(entry["products"] for entry in history) / max(monitor.steps, 1),
        "refreshes": [{name: entry[name] for name in names} for entry in history],
    }
