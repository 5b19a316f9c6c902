"""What any training run shows for nothing: mean loss, margins, forgetting and data maps, all from one run.

With logits z, probabilities p and given label y of an example in the training batches (augmented, as the step saw it),
averaged over the epochs,

    mean_loss            −log p_y
    aum                  −(z_y − max_{k≠y} z_k)
    probability_margin   −(p_y − max_{k≠y} p_k)

all turned so that higher = more suspicious. None of the three has a threshold of its own.

The second is minus the area under the margin of Geoff Pleiss, Tianyi Zhang, Ethan Elenberg, Kilian Weinberger:
"Identifying Mislabeled Data using the Area Under the Margin Ranking", NeurIPS 2020. Its threshold is `aum_threshold`:
N/(c + 1) random examples, the threshold samples, are given the label of an extra class c + 1 that is wrong for all of
them; the 99th percentile of their AUM is the threshold γ, and an example with AUM ≤ γ is flagged. Threshold samples
cannot be judged themselves, so a second run with others judges those of the first: two trainings. Suspicion is γ − AUM
of the run that judged the example, so that flagged means suspicion ≥ 0 in both runs.

The authors stop before the first drop of the learning rate; here the recipe is the same for every method and is run to
its end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem, Rows, Scores
from sgoif_bench.labels.rivals.data_maps import DataMap
from sgoif_bench.labels.rivals.forgetting import ForgettingCounter
from sgoif_bench.labels.rivals.influence_common import train
from sgoif_bench.signals import SignalTracker

PERCENTILE = 99
RUNS = 2
SIGNAL_OF = {"mean_loss": "loss", "aum": "margin", "probability_margin": "prob_margin"}


class TrainingWatch:
    """Collects every signal of one training; `update` goes wherever the training has logits, labels and indices.

    An example that was never seen gets −inf from each method.
    """

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self._device = device
        self._signals = SignalTracker(size, device)
        self._forgetting = ForgettingCounter(size, device)
        self._map = DataMap(size, device)

    def update(self, logits: Tensor, labels: Tensor, index: Tensor) -> None:
        """Take in one batch as the training step saw it."""
        index = index.to(self._device)
        for part in (self._signals, self._forgetting, self._map):
            part.update(logits, labels, index)

    def outcomes(self) -> dict[str, Outcome]:
        """What each method says of this one training, by its name."""
        suspicion = self._signals.suspicion()
        return {
            **{name: Outcome(suspicion[signal]) for name, signal in SIGNAL_OF.items()},
            "forgetting": self._forgetting.outcome(),
            "data_maps": self._map.outcome(),
        }


def watched(problem: Problem, tell: Say) -> dict[str, Outcome]:
    """One plain training and all that it shows."""
    watch = TrainingWatch(len(problem), problem.device)
    train(problem, tell, "watched training", observe=watch.update)
    return watch.outcomes()


def mean_loss(problem: Problem, tell: Say) -> Outcome:
    """Mean loss over a plain training."""
    return watched(problem, tell)["mean_loss"]


def aum(problem: Problem, tell: Say) -> Outcome:
    """Minus the mean logit margin over a plain training."""
    return watched(problem, tell)["aum"]


def probability_margin(problem: Problem, tell: Say) -> Outcome:
    """Minus the mean probability margin over a plain training."""
    return watched(problem, tell)["probability_margin"]


def aum_threshold(problem: Problem, tell: Say) -> Outcome:
    """AUM against the threshold that samples of an extra class set."""
    suspicion = np.full(len(problem), np.nan)
    thresholds = []
    for number, samples in enumerate(threshold_samples(problem)):
        labels = problem.labels.copy()
        labels[samples] = problem.classes
        extended = replace(problem, labels=labels, classes=problem.classes + 1)
        tracker = SignalTracker(len(problem), problem.device)
        name = f"AUM with threshold samples, run {number + 1}/{RUNS}"
        train(extended, tell, name, batches=extended.batches(number=number), observe=tracker.update, number=number)
        excess, threshold = above_threshold(-tracker.suspicion()["margin"], samples)
        suspicion = np.where(np.isnan(suspicion), excess, suspicion)
        thresholds.append(threshold)
    return Outcome(suspicion, flagged=suspicion >= 0, trainings=float(RUNS), details={"thresholds": thresholds})


def threshold_samples(problem: Problem) -> list[Rows]:
    """Rows of the threshold samples of each run, N/(c + 1) a run and none in two runs."""
    count = max(1, len(problem) // (problem.classes + 1))
    order = np.random.default_rng(problem.seed).permutation(len(problem))
    return [order[run * count : (run + 1) * count] for run in range(RUNS)]


def above_threshold(area: Scores, samples: Rows) -> tuple[Scores, float]:
    """γ − AUM of every example, not a number for the threshold samples themselves, and γ."""
    threshold = float(np.percentile(area[samples], PERCENTILE))
    excess = threshold - area
    excess[samples] = np.nan
    return excess, threshold
