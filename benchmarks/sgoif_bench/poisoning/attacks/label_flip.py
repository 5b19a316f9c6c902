"""Targeted label flips: the neighbours of a few test inputs are given one wrong label.

Flipping labels to make a learner err goes back to Battista Biggio, Blaine Nelson, Pavel Laskov: "Support Vector
Machines Under Adversarial Label Noise", ACML 2011; doing so inside one region of a network's feature space is the
cluster attack of Matthew Jagielski, Giorgio Severi, Niklas Pousette Harger, Alina Oprea: "Subpopulation Data Poisoning
Attacks", CCS 2021. Here the region is the neighbourhood of a target x_t of class c, in the features f of a network that
was trained on clean data:

    among the examples of class c, the k with the smallest ‖f(x_i) − f(x_t)‖ get the label w

w is the class that the network finds likeliest after c. No pixel changes; k = rate × examples / targets, and no example
serves two targets. Targets are test inputs that the clean network answers rightly: any of them or, with `among` below
1, those of that share of them for which p_c − p_w is smallest. An attacker who can choose takes what few labels decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sgoif.errors import SettingError
from sgoif_bench.poisoning.attacks.attack import Labels, Poisoned, Rows, Scene, Targets, check_rate, check_whole
from sgoif_bench.poisoning.attacks.surrogate import Surrogate

AMONG = 1.0


@dataclass(frozen=True)
class LabelFlip:
    """Wrong labels around so many targets, for this share of all examples together."""

    rate: float = 0.01
    targets: int = 3
    among: float = AMONG

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_among(self.among)
        check_whole(targets=self.targets)

    def poison(self, scene: Scene) -> Poisoned:
        """Relabel the neighbours of the targets."""
        each = scene.budget(self.rate) // self.targets
        if each < 1:
            raise SettingError(
                f"a rate of {self.rate:.3%} of {len(scene)} examples leaves none for each of {self.targets} targets;"
                " raise the rate or lower the number of targets"
            )
        targets = draw_targets(scene, self.targets, self.among)
        rows, labels = neighbours(scene, targets, each)
        return Poisoned(**scene.changed(rows, labels=labels), targets=targets, details={"each": each})


def draw_targets(scene: Scene, count: int, among: float = AMONG) -> Targets:
    """Test inputs that the clean network answers rightly but not surely, with the class it finds next."""
    images, labels = scene.tests()
    probabilities = scene.surrogate.answers(images).softmax(1).cpu()
    own = torch.from_numpy(labels)[:, None]
    others = probabilities.scatter(1, own, -1.0).max(1)
    margin = (probabilities.gather(1, own).squeeze(1) - others.values).numpy()
    right = np.flatnonzero(margin > 0)
    weakest = right[np.argsort(margin[right], kind="stable")[: max(count, round(among * len(right)))]]
    rows = scene.draw(weakest, count, "among the tests that the clean network answers rightly")
    return Targets(images[torch.from_numpy(rows)], labels[rows], others.indices.numpy()[rows])


def check_among(among: float) -> None:
    """A share of the test inputs from which targets are drawn."""
    if not 0 < among <= 1:
        raise SettingError(f"among = {among} must lie in (0, 1]: it is the share of test inputs that may be targets")


def neighbours(scene: Scene, targets: Targets, each: int) -> tuple[Rows, Labels]:
    """For every target so many nearest examples of its class, with the label that they get."""
    surrogate: Surrogate = scene.surrogate
    features, centres = surrogate.features(scene.images), surrogate.features(targets.images)
    taken = np.zeros(len(scene), dtype=bool)
    rows, labels = [], []
    for centre, label, wanted in zip(centres, targets.labels, targets.wanted, strict=True):
        allowed = np.flatnonzero((scene.labels == label) & ~taken)
        if len(allowed) < each:
            raise SettingError(
                f"class {label} has {len(allowed)} examples left, {each} are to be relabelled around one target; lower"
                " the rate"
            )
        distance = (features[torch.from_numpy(allowed).to(features.device)] - centre).square().sum(1)
        nearest = allowed[distance.topk(each, largest=False).indices.cpu().numpy()]
        taken[nearest] = True
        rows.append(nearest)
        labels.append(np.full(each, wanted))
    return np.concatenate(rows), np.concatenate(labels)
