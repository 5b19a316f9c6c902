"""Training on everything as it is, and training on the right labels alone."""

from __future__ import annotations

import numpy as np

from sgoif_bench.curriculum.study import Study, Trained, Weights
from sgoif_bench.labels.problem import Rows


def plain(study: Study) -> Trained:
    """What happens without any of this."""
    return _train(study, study.problem.rows())


def oracle(study: Study) -> Trained:
    """The ceiling: every wrong label is known and left out. No rival, for nobody knows that."""
    assert study.right is not None, "the oracle is told which labels are right"
    return _train(study, study.right)


def _train(study: Study, rows: Rows) -> Trained:
    problem = study.problem
    model = problem.new_model()
    weights: Weights = np.zeros(len(problem), dtype=np.float32)
    weights[rows] = 1
    problem.fit(model, problem.batches(rows), on_epoch=lambda epoch: study.look(model, weights=weights))
    return Trained(len(rows) / len(problem))
