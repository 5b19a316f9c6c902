"""What a few checked labels tell: which class is which.

A model that is trained on noisy labels learns, for every kind of thing, with which given labels it comes: a mean
probability vector Q_k. Given labels say which kind carries which name as long as most labels of a class are right.
Where they are not, the names are not in the data: with 70% wrong labels a class may be called something else more often
than by its own name, and no ranking can do better than the names it assumes. A couple of held-out examples per class
that somebody has looked at settle it. With p_v the probabilities of held-out example v and y_v a checked label,

    q_v(k) ∝ π_k exp(−S KL(p_v ‖ Q_k)),      q_v = e_{y_v} where v was checked
    Q_k = Σ_v q_v(k) p_v / Σ_v q_v(k),       π_k = mean_v q_v(k)                        repeated

and the joint of given and true labels counts q by given label. A class of which nothing was checked starts unchecked.
"""

from collections.abc import Mapping

import numpy as np

from sgoif.errors import SettingError
from sgoif.tasks.labels.channel import SMALLEST, Array, Labels, normalised, posterior
from sgoif.tasks.labels.evidence import Evidence

SHARPNESS = 10.0
ROUNDS = 5
ASTRAY, AGREED = 0.5, 0.75
"""Share of held-out examples with the same likeliest class, by given and by checked labels, below which nothing that
rests on the given names is believed, and from which all of it is."""


def to_check(held_out: Labels, count: int, seed: int = 0) -> Labels:
    """So many held-out examples to look at, drawn at random."""
    generator = np.random.default_rng((seed, 0xC4EC))
    return np.sort(generator.choice(held_out, size=min(count, len(held_out)), replace=False))


def rows_of(anchors: Evidence, checked: Mapping[int, int], classes: int) -> tuple[Labels, Labels]:
    """Rows of the checked held-out examples and the labels they should have."""
    row = {index: row for row, index in enumerate(anchors.index.tolist())}
    for index, label in checked.items():
        if index not in row:
            raise SettingError(
                f"checked= names example {index}, which is not a scored held-out example; check labels of the hold-out"
            )
        if not 0 <= label < classes:
            raise SettingError(f"checked= has label {label} for example {index}; there are {classes} classes")
    return np.array([row[index] for index in checked]), np.array(list(checked.values()), dtype=np.int64)


def checked_joint(anchors: Evidence, joint: Array, rows: Labels, labels: Labels) -> Array:
    """The joint of given and true labels, named by the checked ones; `joint` is the unchecked estimate."""
    classes = len(joint)
    p = normalised(anchors.probabilities(classes))
    known = np.eye(classes)[labels]
    belief = posterior(p, anchors.given, joint)
    belief[:, np.isin(np.arange(classes), labels)] = 0.0  # these start from what was checked alone
    belief[rows] = known
    prior = np.full(classes, 1 / classes)
    entropy = (p * np.log(p)).sum(1, keepdims=True)
    for _ in range(ROUNDS):
        kinds = normalised((belief.T @ p) / np.maximum(belief.sum(0), SMALLEST)[:, None])
        score = np.log(prior) - SHARPNESS * (entropy - p @ np.log(kinds).T)
        belief = np.exp(score - score.max(1, keepdims=True))
        belief /= belief.sum(1, keepdims=True)
        belief[rows] = known
        prior = (belief.sum(0) + 1) / (len(p) + classes)
    counts = np.zeros((classes, classes))
    np.add.at(counts, anchors.given, belief)
    return np.asarray(counts / counts.sum())


def trust(anchors: Evidence, joint: Array, named: Array) -> float:
    """How far the names in the given labels can be believed: 1 where both joints agree, 0 where they do not."""
    p = anchors.probabilities(len(joint))
    same = posterior(p, anchors.given, joint).argmax(1) == posterior(p, anchors.given, named).argmax(1)
    return float(np.clip((same.mean() - ASTRAY) / (AGREED - ASTRAY), 0, 1))
