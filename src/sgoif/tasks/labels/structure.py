"""How structured the noise looks: whether suspicious labels of a class agree on another class.

Among the most suspicious tenth of the examples of which the model believes something else, y being the given label and
r the likeliest class,

    s = 1 − H(r | y) / H₀(r | y)

with H the entropy that is seen, and H₀ its mean where every r is drawn anew from all of them, whatever the label (but
never the label itself). Drawing leaves the number of examples of each label and the frequency of each r as they are, so
s is 0 on average where labels are wrong at random: however few examples there are of a class, and however often a model
that has learned little says one and the same. It is near 1 where every wrong cat is called a dog. What is suspicious is
told once by margins and once by influence, and s is the mean of both: margins miss errors that the model has learned.
"""

import numpy as np

from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.evidence import Evidence

SUSPICIOUS = 0.1
DRAWS = 20
TRIES = 50
"""How often a class that is the label itself is drawn again."""


def structure_of(evidence: Evidence, classes: int) -> float:
    """The structure s of the noise in some examples, from 0 to 1."""
    likeliest, count = evidence.likeliest[0], int(SUSPICIOUS * len(evidence))
    found = []
    for order in (np.argsort(evidence.margin, kind="stable"), np.argsort(-evidence.influence, kind="stable")):
        worst = order[:count]
        worst = worst[likeliest[worst] != evidence.given[worst]]
        found.append(structure_of_pairs(evidence.given[worst], likeliest[worst], classes))
    return float(np.mean(found))


def structure_of_pairs(given: Labels, rival: Labels, classes: int) -> float:
    """The same from the label of each suspicious example and its likeliest class."""
    generator = np.random.default_rng(0)
    chance = np.mean([_entropy(*_drawn(given, rival, generator), classes) for _ in range(DRAWS)]) if len(given) else 0.0
    return float(np.clip(1 - _entropy(given, rival, classes) / chance, 0, 1)) if chance > 0 else 0.0


def _drawn(given: Labels, rival: Labels, generator: np.random.Generator) -> tuple[Labels, Labels]:
    """Labels, and other classes drawn for them; without those for which there is no other."""
    drawn = given.copy()
    for _ in range(TRIES):
        same = np.flatnonzero(drawn == given)
        if not len(same):
            break
        drawn[same] = generator.choice(rival, len(same))
    other = drawn != given
    return given[other], drawn[other]


def _entropy(given: Labels, rival: Labels, classes: int) -> float:
    """H(rival | given) in nats, by frequencies."""
    labels, label, count = np.unique(given, return_inverse=True, return_counts=True)
    pairs, each = np.unique(label * classes + rival, return_counts=True)
    share: Array = each / count[pairs // classes]
    return float(-(each * np.log(share)).sum() / max(len(given), 1)) if len(labels) else 0.0
