"""SPECTRE: whiten the features of a class by a covariance that poison cannot move, then look where they stick out.

Jonathan Hayase, Weihao Kong, Raghav Somani, Sewoong Oh: "SPECTRE: Defending Against Backdoor Attacks Using Robust
Covariance Estimation", ICML 2021. In every class with n features, of which at most εn are poison, and for some k:

1. x_i: the features, centred, on their first k principal components;
2. Σ: the covariance of those that the robust estimator below keeps, x̃_i = Σ^(−1/2) x_i, and Σ̃ the covariance of x̃;
3. the QUE score (quantum entropy)  score(x_i) = x̃_iᵀ Q x̃_i / tr Q ,   Q = exp( α (Σ̃ − I) / (‖Σ̃‖ − 1) ) ,   α = 4,

which lies between the squared length of x̃_i (α = 0) and its square along the direction of most variance (α = ∞). For
k = 1 it is the spectral signature. k is one of 1, 4, 9, …, 100: the one with which the 1.5 εn examples of the highest
score, once left out, leave a covariance under which all features spread most, ⟨Σ̃, Q⟩ / tr Q on all components.

The estimator is the filter of Diakonikolas et al. ("Being Robust (in High Dimensions) Can Be Practical", ICML 2017) as
the authors' code has it. With y_i = (mean x xᵀ)^(−1/2) x_i over the examples left, v the top eigenvector of
mean (y⊗y)(y⊗y)ᵀ − (I)(I)ᵀ, λ its eigenvalue, V its symmetric matrix, p_i = (y_iᵀ V y_i − tr V) / √2 and d_i the
distance of p_i from their median,

    stop           where λ ≤ 1 + 10 ε log²(1/ε), or where no d_i is above 3
    first of all   drop i with ‖y_i‖² ≥ 10 k log(n / 0.1), where there are any
    else           drop i with d_i > d − 3, d being the smallest above 3 + 10 log(1/ε), or the largest where none is;

2 εn examples are dropped at most, the farthest. It goes on until it stops or that many are gone.

As with spectral signatures the true number of all poisoned examples is told to the method, for εn of every class, and
of every class the 1.5 εn examples of the highest score are removed. The authors look at one class, which they know. To
rank the examples of all, classes are put in the order of the evidence that k is chosen by: the examples that would be
removed come first, class by class, then all others by their place in their class.

Their classes have 5,000 examples for 100 components. In small ones less is possible: at most half of a class is
dropped, and k is at most half of what is left. With fewer than 20 examples for each component some have next to no
variance once examples are dropped, and Σ^(−1/2) would blow up noise; there σ + 0.1 σ_max takes the place of each
deviation σ. Of four shares tried on digits that is the one that does best.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgoif_bench.labels.problem import Scores
from sgoif_bench.poisoning.case import Case, Finding
from sgoif_bench.poisoning.rivals.spectral import MARGIN, top_of_each_class

ALPHA, TAU, TAIL = 4.0, 0.1, 10.0
DROPPED = 2
"""Times εn: the most that the estimator drops."""
COMPONENTS = tuple(root**2 for root in range(1, 11))
SHIFT = 3.0
RIDGE, PLENTY = 0.1, 20
"""What is added to deviations as a share of the largest, where there are fewer examples for each component."""
POWER_STEPS, CLOSE = 300, 1e-6
TINY = 1e-9
Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]


def spectre(case: Case) -> Finding:
    """QUE scores of every class."""
    features, labels = case.features.double().cpu().numpy(), case.problem.labels
    scores, classes = np.zeros(len(labels)), []
    evidence = np.zeros(len(labels))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        scores[rows], components, evidence[rows] = class_scores(features[rows], case.poison)
        classes.append({"class": int(label), "components": components, "spread": float(evidence[rows[0]])})
    selected = top_of_each_class(scores, labels, round(MARGIN * case.poison))
    return Finding(in_order(scores, labels, evidence, selected), selected, {"classes": classes})


def in_order(scores: Scores, labels: NDArray[np.int64], evidence: Scores, selected: NDArray[np.int64]) -> Scores:
    """One ranking: what is selected by the evidence against its class, the rest below, by the place in each class."""
    places = np.zeros(len(scores))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        places[rows[np.argsort(scores[rows], kind="stable")]] = np.arange(len(rows)) / len(rows)
    places[selected] += 1 + np.searchsorted(np.unique(evidence), evidence[selected])
    return places


def class_scores(features: Matrix, poison: int) -> tuple[Scores, int, float]:
    """QUE scores of the features [n, D] of one class, the components that they were found with, and the spread."""
    poison = max(1, min(poison, len(features) // (2 * DROPPED)))
    whole = principal_components(features, (len(features) - round(MARGIN * poison)) // 2)
    ridge = 0.0 if len(features) >= PLENTY * whole.shape[1] else RIDGE
    best: tuple[Scores, int, float] | None = None
    for count in COMPONENTS:
        if count > whole.shape[1]:
            break
        scores = que_scores(whole[:, :count], poison, ridge)
        kept = np.argsort(-scores, kind="stable")[round(MARGIN * poison) :]
        spread = entropy_spread(whole, kept, ridge)
        if best is None or spread > best[2]:
            best = scores, count, spread
    return best or (np.zeros(len(features)), 0, 0.0)


def principal_components(features: Matrix, most: int) -> Matrix:
    """Centred features on their first components: at most so many, and no more than `COMPONENTS` go up to."""
    centred = features - features.mean(axis=0)
    left, size, _ = np.linalg.svd(centred, full_matrices=False)
    rank = int((size > 1e-6 * size[0]).sum()) if size[0] > TINY else 0
    count = max(0, min(rank, most, COMPONENTS[-1]))
    return np.asarray(left[:, :count] * size[:count])


def que_scores(x: Matrix, poison: int, ridge: float = 0.0) -> Scores:
    """x̃ᵀQx̃ / tr Q of rows x [n, k]."""
    if x.shape[1] == 1:
        return np.asarray(x[:, 0] ** 2)
    kept = robust(x, poison, ridge)
    white = whitened(x, np.cov(x[kept], rowvar=False, bias=True), ridge)
    return np.asarray(((white @ entropy(np.cov(white, rowvar=False))) * white).sum(axis=1))


def entropy(covariance: Matrix) -> Matrix:
    """Q / tr Q."""
    values, vectors = np.linalg.eigh(covariance)
    excess = (values - 1) / max(values[-1] - 1, TINY)
    weights = np.exp(ALPHA * (excess - excess[-1]))  # a factor that the trace takes out again
    return np.asarray(vectors * (weights / weights.sum()) @ vectors.T)


def entropy_spread(x: Matrix, kept: NDArray[np.int64], ridge: float = 0.0) -> float:
    """⟨Σ̃, Q⟩ / tr Q of all rows, whitened by the covariance of the kept ones."""
    white = whitened(x, np.cov(x[kept], rowvar=False).reshape(x.shape[1], -1), ridge)
    covariance = np.cov(white, rowvar=False).reshape(x.shape[1], -1)
    return float((covariance * entropy(covariance)).sum())


def whitened(x: Matrix, covariance: Matrix, ridge: float = 0.0) -> Matrix:
    """Rows times Σ^(−1/2); `ridge` is added to deviations, as a share of the largest."""
    values, vectors = np.linalg.eigh(covariance)
    deviations = np.sqrt(np.maximum(values, TINY * values[-1]))
    return np.asarray(x @ (vectors / (deviations + ridge * deviations[-1])) @ vectors.T)


def robust(x: Matrix, poison: int, ridge: float = 0.0) -> Mask:
    """The rows that the estimator keeps."""
    share, left = poison / len(x), DROPPED * poison
    kept = np.ones(len(x), dtype=bool)
    while left > 0:
        found = one_filter(x[kept], share, left, ridge)
        if found is None:
            break
        left -= int((~found).sum())
        kept[np.flatnonzero(kept)[~found]] = False
    return kept


def one_filter(x: Matrix, share: float, most: int, ridge: float = 0.0) -> Mask | None:
    """Which rows one round of the filter keeps, dropping at most so many; None where it has come to its end."""
    count, size = x.shape
    y = whitened(x, x.T @ x / count, ridge)
    lengths = (y**2).sum(axis=1)
    far = lengths >= TAIL * size * np.log(count / TAU)
    if far.any():
        return np.asarray(~far | nearest(lengths, count - most))
    value, matrix = top_of_squares(y)
    if value <= 1 + TAIL * share * np.log(1 / share) ** 2:
        return None
    places = (((y @ matrix) * y).sum(axis=1) - np.trace(matrix)) / np.sqrt(2)
    distance = np.abs(places - np.median(places))
    beyond = np.sort(distance[distance > SHIFT])
    if not len(beyond):
        return None
    outside = beyond[beyond - SHIFT > TAIL * np.log(1 / share)]
    bound = (outside[0] if len(outside) else beyond[-1]) - SHIFT
    return np.asarray((distance <= bound) | nearest(distance, count - most))


def nearest(values: Scores, count: int) -> Mask:
    """The so many smallest, and their equals."""
    return np.asarray(values <= np.sort(values)[count - 1]) if count > 0 else np.zeros(len(values), dtype=bool)


def top_of_squares(y: Matrix) -> tuple[float, Matrix]:
    """Top eigenvalue of mean (y⊗y)(y⊗y)ᵀ − (I)(I)ᵀ and its symmetric matrix of length one, by power iteration."""
    count, size = y.shape
    identity = np.eye(size)
    matrix = np.random.default_rng(0).standard_normal((size, size))
    matrix = (matrix + matrix.T) / np.linalg.norm(matrix + matrix.T)
    value = 0.0
    for _ in range(POWER_STEPS):
        turned = (y.T * ((y @ matrix) * y).sum(axis=1)) @ y / count - np.trace(matrix) * identity
        before, value = value, float(np.linalg.norm(turned))
        if value <= TINY:
            return 0.0, matrix
        matrix = turned / value
        if abs(value - before) <= CLOSE * value:
            break
    return value, matrix
