"""Every method that only looks at a plain training, from one such training: a run without us, on all examples."""

from __future__ import annotations

from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.rivals.influence_common import head_gradients, train
from sgoif_bench.labels.rivals.knn import knn_of
from sgoif_bench.labels.rivals.self_influence import self_influence_of
from sgoif_bench.labels.rivals.tracin import Trace
from sgoif_bench.labels.rivals.watched import TrainingWatch

NAMES = {"mean_loss": "loss", "probability_margin": "probability-margin", "data_maps": "data-maps"}
"""Where the command line has another name than the function."""


def plain(problem: Problem, tell: Say) -> dict[str, Outcome]:
    """Train once by the recipe and let them all look."""
    watch, trace = TrainingWatch(len(problem), problem.device), Trace.of_itself(problem)
    model = train(problem, tell, "plain training", observe=watch.update, on_epoch=trace.look)
    found = {NAMES.get(name, name): outcome for name, outcome in watch.outcomes().items()}
    found["tracin-self"] = trace.outcome()
    found["self-influence"] = self_influence_of(head_gradients(problem, model), tell)
    found["knn"] = knn_of(problem, problem.features(model), tell)
    return found
