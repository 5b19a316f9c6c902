"""Activation clustering: the poisoned class falls into two clusters, and the smaller one is poison.

Bryant Chen, Wilka Carvalho, Nathalie Baracaldo, Heiko Ludwig, Benjamin Edwards, Taesung Lee, Ian Molloy, Biplav
Srivastava: "Detecting Backdoor Attacks on Deep Neural Networks by Activation Clustering", 2018. For every class, the
activations of the last hidden layer are brought to 10 dimensions by independent component analysis and divided in two
by k-means. The two figures that they judge a class by are

    relative size   share of the class in the smaller cluster: poison is the smaller part
    silhouette      how well two clusters describe the class: high where there is poison

A class is called poisoned, and its smaller cluster removed, if that holds less than 35% of the class and the silhouette
is above 0.10 (the authors name 0.10 to 0.15 as reasonable; the 35% are those of the implementation that their group
published). A ranking is not part of the method. To compare it with the others, examples in a smaller cluster are ranked
by the silhouette of their class, so that classes come in the order of the evidence against them, those in larger
clusters come last, and within a cluster the nearer to its centre the more suspicious.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import MissingExtraError
from sgoif_bench.labels.problem import Rows, Scores
from sgoif_bench.poisoning.case import Case, Finding

DIMENSIONS = 10
SIZE, SILHOUETTE = 0.35, 0.10
SILHOUETTE_FROM = 2000
"""Examples of a class from which the silhouette is computed: all of them would need every distance between two."""
Matrix = NDArray[np.float64]


def activation_clustering(case: Case) -> Finding:
    """Two clusters in every class."""
    features = case.features.double().cpu().numpy()
    labels = case.problem.labels
    suspicion, selected, classes = np.full(len(labels), -1.0), [np.zeros(0, dtype=np.int64)], []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) <= 2:
            continue
        smaller, nearness, silhouette = two_clusters(features[rows], case.problem.seed)
        suspicion[rows] = np.where(smaller, silhouette + 1e-3 * nearness, -1.0 + 1e-3 * (1 - nearness))
        size = float(smaller.mean())
        suspected = size < SIZE and silhouette > SILHOUETTE
        classes.append({"class": int(label), "size": size, "silhouette": silhouette, "suspected": suspected})
        if suspected:
            selected.append(rows[smaller])
    return Finding(suspicion, np.sort(np.concatenate(selected)), {"clusters": classes})


def two_clusters(features: Matrix, seed: int) -> tuple[NDArray[np.bool_], Scores, float]:
    """Which examples of a class are in its smaller cluster, how near each is to its own centre, the silhouette."""
    decomposition, cluster, metrics = _sklearn()
    reduced = reduce(features, decomposition, seed)
    if not np.ptp(reduced, axis=0).any():
        return np.zeros(len(features), dtype=bool), np.ones(len(features)), 0.0
    found = cluster.KMeans(n_clusters=2, n_init=10, random_state=seed).fit(reduced)
    own = np.linalg.norm(reduced - found.cluster_centers_[found.labels_], axis=1)
    if len(np.unique(found.labels_)) < 2:
        return np.zeros(len(features), dtype=bool), 1 / (1 + own), 0.0
    smaller = found.labels_ == np.argmin(np.bincount(found.labels_, minlength=2))
    rows = _some(len(features), smaller, seed)
    silhouette = float(metrics.silhouette_score(reduced[rows], found.labels_[rows]))
    return smaller, 1 / (1 + own), silhouette


def _some(count: int, smaller: NDArray[np.bool_], seed: int) -> Rows:
    """At most so many examples at random, one of each cluster at least."""
    if count <= SILHOUETTE_FROM:
        return np.arange(count)
    drawn = np.random.default_rng(seed).permutation(count)[: SILHOUETTE_FROM - 2]
    return np.union1d(drawn, [np.argmax(smaller), np.argmin(smaller)])


def reduce(features: Matrix, decomposition: Any, seed: int) -> Matrix:
    """Independent components, at most ten; dead features are left out first, since nothing can be told from them."""
    alive = features[:, features.std(axis=0) > 1e-9 * max(1.0, float(np.abs(features).max()))]
    if alive.shape[1] == 0:
        return np.zeros((len(features), 1))
    spread = np.linalg.svd(alive - alive.mean(axis=0), compute_uv=False)
    rank = int((spread > 1e-6 * spread[0]).sum())
    count = min(DIMENSIONS, rank, len(features) - 1)
    with warnings.catch_warnings():
        # Components that have not settled after the usual number of rounds are still components.
        warnings.simplefilter("ignore")
        analysis = decomposition.FastICA(count, whiten="unit-variance", random_state=seed, max_iter=400)
        reduced: Matrix = analysis.fit_transform(alive)
    return reduced


def _sklearn() -> tuple[Any, Any, Any]:
    try:
        from sklearn import cluster, decomposition, metrics
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "demo", "Activation clustering") from error
    return decomposition, cluster, metrics
