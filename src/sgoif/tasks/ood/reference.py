"""What a sentinel compares with: sums over examples that belong, a sample of them, and those that calibrate.

The reference may hold wrong labels. In its sums they hardly matter: no layer but the last is told the labels, and there
they move every centre a little towards the middle. That changes the order of scores less than leaving out the doubtful
examples does, many of which are only rare. What wrong labels do is done to the network: it is unsure of everything,
which takes most of its meaning from the energy E of an answer. So E counts to the power of

    g = 1 − share of the examples with max_k p_k − p_y > ½

where p is the network's answer and y the label: the share of labels that the network does not outvote. It is close to 1
where the labels are right, or where the network has learned wrong ones by heart, and smaller by the share of wrong ones
where it has seen through them.
"""

import numpy as np
import torch
from torch import Tensor

from sgoif.core.logits import two_classes
from sgoif.errors import SettingError
from sgoif.tasks.ood.moments import MomentSums
from sgoif.tasks.ood.neighbours import RandomSample
from sgoif.tasks.ood.network import Network, Seen

LEAST_TRUST = 0.01
"""Of g: to the power of 0, an answer that is no number would count like any other."""
MOST_CALIBRATION = 10_000


class Reference:
    """The sums of every layer over the examples that belong, a sample of these, and how far their labels are believed.

    Without a `gate` all labels are believed.
    """

    def __init__(self, network: Network, gate: bool) -> None:
        self.network, self.gate = network, gate
        self.sums: list[MomentSums] = []
        self.sample = RandomSample()
        self._labelled = self._outvoted = 0

    @property
    def trust(self) -> float:
        """g."""
        return max(LEAST_TRUST, 1 - self._outvoted / max(1, self._labelled))

    def add(
        self, seen: Seen, labels: Tensor | None, chosen: Tensor | None = None, weights: Tensor | None = None
    ) -> None:
        """Fold a batch in: those `chosen`, by what each counts."""
        device = seen.logits.device
        classes = max(2, self.network.classes)
        answers = two_classes(seen.logits).softmax(1)
        y = answers.argmax(1) if labels is None else checked(labels, len(seen), classes).to(device)
        finite = torch.isfinite(answers).all(1)
        here = finite if chosen is None else finite & chosen.to(device)
        w = here.float() if weights is None else weights.to(device) * here
        if self.gate and labels is not None:
            self._labelled += int(here.sum())
            self._outvoted += int((outvoted(answers, y) & here).sum())
        activations = activations_of(seen)
        if not self.sums:
            self.sums = [MomentSums(a.shape[1], 1, device) for a in activations[:-1]]
            self.sums.append(MomentSums(activations[-1].shape[1], classes, device))
        one = torch.zeros_like(y)
        for number, (sums, a) in enumerate(zip(self.sums, activations, strict=True)):
            sums.add(torch.nan_to_num(a), y if number == len(activations) - 1 else one, w)
        self.sample.add(activations, here)


def checked(labels: Tensor, count: int, classes: int) -> Tensor:
    """Labels as numbers of classes, [count]; anything else is an error."""
    if tuple(labels.shape) != (count,) or labels.is_floating_point() or labels.is_complex():
        raise SettingError(
            f"labels must be one whole number for each of {count} inputs, the number of its class; found {labels.dtype}"
            f" {list(labels.shape)}"
        )
    if bool(((labels < 0) | (labels >= classes)).any()):
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise SettingError(f"labels must lie between 0 and {classes - 1}; found {found}")
    return labels.long()


def outvoted(answers: Tensor, labels: Tensor) -> Tensor:
    """Where the network believes more in another label, by over half of all its belief, [n]."""
    return answers.amax(1) - answers.gather(1, labels[:, None]).squeeze(1) > 0.5


class OneInMany:
    """Chooses one of every so many examples, at random, whatever batches they come in.

    At random, since classes often come in turn; with a seed of its own, so that it is the same in every run.
    """

    def __init__(self, many: int) -> None:
        self.many, self._chance = many, np.random.default_rng(0)
        self._at, self._begun = 0, np.zeros(0)  # how far the last group has come, and which of it is chosen

    def chosen(self, count: int) -> Tensor:
        """Which of the next examples are, [count]."""
        at = np.arange(self._at, self._at + count)
        groups = -(-(self._at + count) // self.many)
        places = np.append(self._begun, np.floor(self.many * self._chance.random(groups - len(self._begun))))
        self._at = (self._at + count) % self.many
        self._begun = places[-1:] if self._at else places[:0]
        return torch.from_numpy(at % self.many == places[at // self.many])


class CalibrationSet:
    """Activations and logits of the examples that calibrate; of more than there is room for, some at random."""

    def __init__(self) -> None:
        self._sample = RandomSample(MOST_CALIBRATION)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._sample)

    def add(self, seen: Seen, chosen: Tensor) -> None:
        """Keep those chosen, as far as there is room."""
        self._sample.add((seen.logits, *activations_of(seen)), chosen)

    def seen(self) -> Seen:
        """All of them as one batch; the images are gone."""
        logits, *stages, features = self._sample.rows
        return Seen(logits, logits, features, tuple(stage.unsqueeze(2) for stage in stages))


def activations_of(seen: Seen) -> tuple[Tensor, ...]:
    """What is compared with the reference: pooled stages, and last the input of the head."""
    return (*seen.pooled, seen.features.flatten(1))
