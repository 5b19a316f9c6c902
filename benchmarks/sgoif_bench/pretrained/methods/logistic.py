"""cleanlab as its own guide has it: logistic regression on features, five folds, both scores.

scikit-learn's LogisticRegression(max_iter=1000), all else at its defaults, on standardised features; cleanlab's label
quality by self-confidence, p_y, and by normalised margin, (p_y − max_{k≠y} p_k + 1) / 2; suspicion is 1 − quality.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import MissingExtraError
from sgoif_bench.pretrained.kept import cleanlab_outcomes, out_of_fold
from sgoif_bench.pretrained.task import Outcome, Rows, Task

FAMILY = "cleanlab-logistic"
ITERATIONS = 1000


def logistic(task: Task) -> dict[str, Outcome]:
    """Both scores of out-of-fold probabilities of a logistic regression."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "demo", FAMILY) from error

    def fit_predict(fold: int, rest: Rows, held_out: Rows) -> NDArray[Any]:
        del fold
        features = task.pictures.standardised.cpu().numpy()
        model = LogisticRegression(max_iter=ITERATIONS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(features[rest], task.labels[rest])
        found = np.zeros((len(held_out), task.classes))
        found[:, model.classes_] = model.predict_proba(features[held_out])
        return found

    probabilities = out_of_fold(task, FAMILY, fit_predict)
    return cleanlab_outcomes(task, FAMILY, probabilities, uses_features=True)
