"""What serves a set of images best, by the run itself: pretrained features, their network fine-tuned, or a small one.

Each is looked at briefly and compared by the share of held-out labels that it agrees with. Heads on features are
trained to the end, in seconds; a network has a part of its epochs, with the whole course of the learning rate: first a
twenty-fourth and, where that decides nothing (`Goal.decided`), a sixth.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from sgoif.audit.finetuning import described
from sgoif.audit.plan import Plan
from sgoif.audit.progress import Progress
from sgoif.audit.settings import AuditSettings
from sgoif.audit.training import Course
from sgoif.backbones import Backbone
from sgoif.core.types import Indices
from sgoif.images import Pixels

Method = Literal["frozen", "finetuned", "scratch"]
CHOICE = "choice.npz"
"""What a run directory keeps of it."""
LOOKS = (24, 6)
"""A short look has one in so many epochs, and at last one in so many."""
SAID = {
    "frozen": "heads on frozen features",
    "finetuned": "the pretrained network after a short fine-tuning",
    "scratch": "a small network after a short training from scratch",
}
AT_ONCE = 256


@dataclass(frozen=True)
class Choice:
    """Which way was taken, and how often each agreed with held-out labels."""

    method: Method
    agreement: dict[Method, float]

    @classmethod
    def of(cls, agreement: dict[Method, float]) -> "Choice":
        """The way that agrees most; of equals the first."""
        return cls(max(agreement, key=lambda method: agreement[method]), agreement)

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        return asdict(self)

    def sentence(self) -> str:
        """Which and why."""
        others = [
            f"{SAID[method]} with {share:.1%}" for method, share in self.agreement.items() if method != self.method
        ]
        chosen = f"{SAID[self.method]} agreed with {self.agreement[self.method]:.1%} of the held-out labels"
        return f"chosen by a short look at each: {', '.join([chosen, *others])}"


@dataclass(frozen=True)
class Goal:
    """What a network has to agree with to be chosen, and what the best one could agree with."""

    agreement: float
    """Share of held-out labels that the best way so far agrees with."""
    most: float
    """Share of labels that are right, at most."""

    def decided(self, agreement: float) -> bool:
        """Whether a network that agrees with so many after a first look needs no second one, of four times the epochs.

        It needs none where it is ahead, for more training adds to that. Nor where it would be behind if it lost half of
        what it lacks, as the error of an estimate does that has four times the data.
        """
        return agreement > self.agreement or self.most - self.agreement < (self.most - agreement) / 2


def short_look(
    settings: AuditSettings,
    plan: Plan,
    pixels: Pixels,
    split: tuple[Indices, Indices],
    goal: Goal,
    show: Progress,
    backbone: Backbone | None = None,
) -> float:
    """The share of held-out labels that a network agrees with after a sixth of its epochs, or fewer if they decide."""
    rows, held = split
    agreement = 0.0
    for epochs in sorted({max(1, round(plan.epochs / part)) for part in LOOKS}):
        course = Course(pixels, settings, replace(plan, epochs=epochs), rows, backbone=backbone)
        show.stage(f"a short look at {described(plan.model)}", course.plan.steps)
        while not course.finished():
            course.advance()
            show.advance(course.step, course.plan.steps)
        agreement = _agreement(course, pixels, held)
        if goal.decided(agreement):
            break
    return agreement


@torch.inference_mode()
def _agreement(course: Course, pixels: Pixels, held: Indices) -> float:
    course.model.eval()
    normalise: Callable[[torch.Tensor], torch.Tensor] = course.dataset.normalise
    right = 0
    for start in range(0, len(held), AT_ONCE):
        rows = held[start : start + AT_ONCE]
        images = torch.from_numpy(np.ascontiguousarray(pixels.array[rows])).to(course.plan.device)
        likeliest = course.model(normalise(images)).argmax(1).cpu().numpy()
        right += int((likeliest == pixels.labels[rows]).sum())
    return right / len(held)
