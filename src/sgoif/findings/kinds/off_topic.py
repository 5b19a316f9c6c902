"""Images that are unlike the others, of the whole set or of their class, by features of a pretrained network.

The distance of two images is 1 − the cosine of their features, as the network gives them: centred or reduced features
separate worse. An image is as far away as the reference image at a fixed share of its ranks, so that a group of
strange images, each other's nearest neighbours, is seen as long as it is smaller than that share. The reference is a
sample: work grows with the number of images, not with its square.

Logarithms of such distances are nearly normal in the upper half. What lies further above their median than one in
`ONE_IN` of a normal distribution does is unlike the others; the spread is that from the median to the upper tenth,
which a share of strange images well below a tenth hardly moves.
"""

from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sgoif.core.types import Array
from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import Finding, Severity
from sgoif.images.text import shown

ONE_IN = 2000
LIMIT = NormalDist().inv_cdf(1 - 1 / ONE_IN)
"""In standard deviations."""
UPPER = 0.9
GROUP, LEAST_GROUP = 0.02, 10
"""Share of all images, and number, up to which a group of strange ones is seen."""
OWN, NEAR = 0.25, 0.05
"""Share of its class that an image in place is near to; and that no image of the class should be without."""
REFERENCE, OF_CLASS = 4096, 512
"""Images that all are compared with, and those of a class."""
LEAST, LEAST_IN_CLASS = 100, 20
"""Images from which on the spread of distances is known well enough."""
AT_ONCE = 4096
TINY = 1e-6


class OffTopic(Check):
    """Images that do not belong to the set at all.

    Such an image is far from nearly all images and also from its own class, so that a small class of its own kind is
    not off topic. The limit would be passed by one in 2,000 of normally distributed distances. Measured on sets as
    they are, with features of lite0: 6 of 19,024 images (photos 1 of 2,527, CIFAR-10 2 of 6,000, SVHN 1 of 5,000,
    MNIST 2 of 6,000, textures 0 of 1,200, digits 0 of 1,797). Of 1% planted among photos 72% (house numbers) to 100%
    (digits, noise) are found; among CIFAR-10, which is as coarse, 18% of house numbers, 55% of textures, all noise.
    """

    kind = "off-topic"
    title = "Images that do not belong to the set"
    needs = ("features",)

    def find(self, seen: Examined) -> list[Finding]:
        """One finding for each image, the farthest first."""
        if seen.features is None or len(seen.names) < LEAST:
            return []
        sample = _some(np.arange(len(seen.names)), REFERENCE)
        rank = min(max(LEAST_GROUP, round(GROUP * len(sample))), len(sample) - 1)
        far = distances(seen.features, np.arange(len(seen.names)), sample, rank)
        for rows in _classes(seen):
            among = _some(rows, OF_CLASS)
            far[rows] = np.minimum(far[rows], distances(seen.features, rows, among, round(OWN * len(among))))
        height = above(far)
        return [
            self.finding(
                seen,
                [row],
                "the image is unlike nearly all others and unlike its class",
                "Look whether it belongs to the set; drop it otherwise.",
                evidence=_evidence(far, height, row),
                classes=[seen.labels[row]] if seen.labels[row] >= 0 else [],
            )
            for row in _beyond(height)
        ]


class OutlierInClass(Check):
    """Images that are unlike the others of their class, though they may be in place elsewhere.

    It is far from even the nearest twentieth of its class. Rare views of a class are so, too: a note, not a warning.
    Found in 15 of 19,024 images as they are. An image of one class that lies in another is seldom so far away (8% of
    photos): wrong labels are found by judging labels.
    """

    kind = "class-outlier"
    title = "Images unlike the others of their class"
    severity = Severity.NOTE
    needs = ("features", "labels")

    def find(self, seen: Examined) -> list[Finding]:
        """One finding for each image, the farthest first."""
        if seen.features is None:
            return []
        far, height = np.zeros(len(seen.names)), np.full(len(seen.names), -np.inf)
        for rows in _classes(seen):
            among = _some(rows, OF_CLASS)
            far[rows] = distances(seen.features, rows, among, max(1, round(NEAR * len(among))))
            height[rows] = above(far[rows])
        return [
            self.finding(
                seen,
                [row],
                f"the image is unlike the others of {shown(seen.class_names[seen.labels[row]])}",
                "Look whether it shows its class; relabel or drop it otherwise.",
                evidence=_evidence(far, height, row),
                classes=[seen.labels[row]],
            )
            for row in _beyond(height)
        ]


def distances(features: Array, rows: Array, reference: Array, rank: int) -> Array:
    """From each of these rows to the nearest but `rank` − 1 of the reference other than itself: float64."""
    base = _units(features, reference)
    place = np.full(len(features), -1)
    place[reference] = np.arange(len(reference))
    found = []
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        alike = _units(features, some) @ base.T
        itself = np.flatnonzero(place[some] >= 0)
        alike[itself, place[some[itself]]] = -torch.inf
        found.append(1 - alike.topk(rank).values[:, -1].double())
    return np.asarray(torch.cat(found).clamp_min(TINY).numpy())


def above(far: Array) -> Array:
    """How far the logarithm of each distance lies above the median, in standard deviations of the upper half."""
    logs = np.log(far)
    middle, upper = np.quantile(logs, [0.5, UPPER])
    return np.asarray((logs - middle) * NormalDist().inv_cdf(UPPER) / max(upper - middle, TINY))


def _beyond(height: Array) -> list[int]:
    order = np.argsort(-height, kind="stable")
    return [int(row) for row in order[: np.count_nonzero(height > LIMIT)]]


def _evidence(far: Array, height: Array, row: int) -> dict[str, float]:
    return {"distance": float(far[row]), "standard deviations": float(height[row]), "limit": LIMIT}


def _classes(seen: Examined) -> list[Array]:
    """The rows of each class that is large enough."""
    order = np.argsort(seen.labels, kind="stable")
    rows = np.split(order, np.flatnonzero(np.diff(seen.labels[order])) + 1)
    return [some for some in rows if len(some) >= LEAST_IN_CLASS and seen.labels[some[0]] >= 0]


def _some(rows: Array, most: int) -> Array:
    """At most so many of them, the same in every run."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _units(features: Array, rows: Array) -> Tensor:
    return normalize(torch.from_numpy(np.asarray(features[rows], dtype=np.float32)), dim=1)
