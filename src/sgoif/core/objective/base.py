"""What every kind of training is asked: see the table in `core.objective`."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgoif.core.losses import Loss, gradient_of
from sgoif.errors import AnchorError, StepError


class Target(NamedTuple):
    """What the loss of a batch is given."""

    values: Tensor
    """What the loss takes: class numbers [B], probabilities [B, C], …"""
    label: Tensor | None = None
    """The class of each example, where `values` are something else."""


class Columns(NamedTuple):
    """What the outputs say of every example's class."""

    label: Tensor
    rival: Tensor
    """The best class other than the given one."""
    margin: Tensor
    logit_margin: Tensor
    probabilities: Tensor
    """[B, C]"""
    surprise: Tensor
    """−log of the probability of the given class."""


class Objective(ABC):
    """What training minimises, as far as a monitor has to know."""

    what = "class numbers"
    """What targets are, in a sentence."""
    classes: int = 0
    """Classes that examples belong to; 0: none."""
    loss: Loss
    """ℓ_i of (outputs, targets), one value per example."""
    readable = False
    """Whether targets can be read off the gradient, so that a step needs none."""

    @abstractmethod
    def read(self, raw: Any) -> Any:
        """The target of one held-out example, as its data set gives it."""

    @abstractmethod
    def stack(self, targets: Sequence[Any]) -> Tensor:
        """Targets that were read, as one tensor."""

    def check_anchors(self, targets: Tensor) -> None:  # noqa: B027 - few kinds can tell before the first step
        """Raise where targets that were read do not fit the model."""

    def key(self, target: Any) -> Any:
        """A target as a function in `groups` is given it."""
        return target

    def group_keys(self, targets: Sequence[Any]) -> list[Hashable]:
        """The group of every target by default."""
        return [None] * len(targets)

    @abstractmethod
    def answer(self, output: Tensor, count: int) -> Tensor | None:
        """A model's output for so many examples in the form that the loss takes; None where it has another shape."""

    def held_out_answer(self, output: Tensor, count: int) -> Tensor:
        """The same of held-out examples; raises where it has another shape."""
        found = self.answer(output, count)
        if found is None:
            raise AnchorError(f"the model's output for {count} anchors has shape {tuple(output.shape)}, unlike before")
        return found

    @abstractmethod
    def gradient_of_answer(self, delta: Tensor, count: int) -> Tensor:
        """The gradient of an output in the same form."""

    @abstractmethod
    def check(self, target: Any, shape: torch.Size, device: torch.device) -> Target | None:
        """The target of a step whose answer has this shape, on the right device; raises where it does not fit."""

    def require(self, target: Any) -> None:
        """Raise where a target is missing."""
        if target is None:
            raise StepError(
                "targets cannot be read off the gradient of this loss: pass them to every step,"
                " monitor.step(index, target=y)"
            )

    @abstractmethod
    def check_strangers(self, targets: Any, count: int, device: torch.device) -> Tensor:
        """Targets of examples from outside, on the right device; raises where they do not fit."""

    def columns(self, z: Tensor, label: Tensor) -> Columns:
        """What the answers [B, ...] say about classes: nothing where there are none."""
        none = torch.full((len(z),), -1, device=z.device)
        empty = torch.full((len(z),), torch.nan, device=z.device)
        return Columns(none, none, empty, empty, z.new_zeros(len(z), 0), empty)

    def losses(self, z: Tensor, target: Tensor, columns: Columns) -> Tensor:
        """ℓ_i of every example, [B]."""
        return self.loss(z, target).float()

    def comparable(self, z: Tensor, delta: Tensor, target: Tensor, columns: Columns) -> tuple[Tensor, Tensor]:
        """The gradient of the outputs in training, and that of Σ_i ℓ_i; they differ by the factor s."""
        return delta, gradient_of(self.loss, z, target)

    def share(self, target: Tensor, label: Tensor) -> Tensor | None:
        """What the class of every example counts in its target, [B]; None: all of it."""
        return None

    def as_mixture(self, labels: Tensor) -> Tensor:
        """Class numbers as probabilities [B, C]."""
        raise NotImplementedError

    @abstractmethod
    def guess(self, targets: Tensor) -> float:
        """The mean loss of the best constant answer to these targets."""

    def kept(self, z: Tensor) -> Tensor:
        """What is kept of the outputs for anchors."""
        return z.new_zeros(len(z), 0)

    def entries(self, target: Tensor) -> Tensor | None:
        """What of every example enters the mean that training takes, [B]; None: each counts once."""
        return None
