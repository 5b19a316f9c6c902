"""SG-OIF in this comparison: one watched training run, and variants that show what its parts are worth."""

from __future__ import annotations

import torch

from sgoif_bench.fidelity.answer import Answer, Cost, Trained
from sgoif_bench.fidelity.online import OnlineSettings, QueryWatch


def along_the_run(trained: Trained, settings: OnlineSettings, watcher: type[QueryWatch] = QueryWatch) -> Answer:
    """Train once more, watched; what that takes beyond the plain run is the cost."""
    study, problem = trained.study, trained.study.problem
    cost = Cost(problem.device)
    with cost.counted():
        model, batches = problem.new_model(), problem.batches()
        watch = watcher(study, model, settings, trained.relabelled)
        watch.begin(1)
        problem.fit(model, batches, watching=watch.step, on_epoch=lambda epoch: watch.begin(epoch + 1))
        scores, changes, trust = watch.scores(), watch.relabelled(), watch.trust()
        watch.close()
    added = max(0.0, cost.seconds - watch.aside - trained.seconds)
    return Answer(
        scores.cpu().numpy(),
        added,
        cost.memory,
        confidence=trust.pop("confidence"),
        error=trust.pop("error"),
        relabelled=None if changes is None else changes.cpu().numpy(),
        details={"epochs_scored": watch.epochs, "weights": watch.layout.size, "trust": trust},
    )


def at_the_end(trained: Trained, settings: OnlineSettings) -> Answer:
    """The same scores from the trained network alone: one more pass over the training data."""
    study = trained.study
    cost = Cost(study.problem.device)
    with cost.counted():
        watch = QueryWatch(study, trained.model, settings, trained.relabelled)
        phi = watch.directions()
        parts = [watch.asked_of(phi, x, y) for x, y, _ in study.problem.plain_batches()]
        scores = torch.cat(parts, dim=1)
    changes = None if trained.relabelled is None else watch.changes(phi).cpu().numpy()
    watch.close()
    details = {"weights": watch.layout.size}
    return Answer(scores.cpu().numpy(), cost.seconds, cost.memory, relabelled=changes, details=details)
