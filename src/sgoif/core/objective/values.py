"""Numbers to be met: regression, and several labels per example."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.core.losses import Loss, per_example
from sgoif.core.objective.base import Objective, Target
from sgoif.errors import AnchorError, StepError

GUESSED_ENTRIES = 2**22
"""Outputs over which the best constant answer is sought."""


class Values(Objective):
    """Floating-point targets of the shape of the outputs, or of another if the loss is a function that wants that."""

    what = "numbers"

    def __init__(self, loss: Loss, shape: torch.Size, example: Tensor) -> None:
        self.shape = shape
        """Of one output."""
        self.summed = hasattr(loss, "reduction")
        self.target_shape = shape if self.summed else example.shape
        """Of one target, as the loss takes it."""
        self.loss = per_example(loss)
        if self.summed and example.numel() != shape.numel():
            raise AnchorError(
                f"the targets of the anchors have shape {tuple(example.shape)} and the model's outputs"
                f" {tuple(shape)}, for one example each; {type(loss).__name__} needs both alike"
            )

    def read(self, raw: Any) -> Any:
        try:
            target = torch.as_tensor(raw).detach().float()
        except (TypeError, ValueError, RuntimeError) as error:
            raise AnchorError(f"the target of an anchor must be {self.what}; got {raw!r:.60}") from error
        if target.numel() != self.target_shape.numel() or not bool(target.isfinite().all()):
            raise AnchorError(
                f"the target of an anchor must be {self.what} of shape {tuple(self.target_shape)}, all finite; got"
                f" {raw!r:.60}"
            )
        return target.reshape(self.target_shape)

    def stack(self, targets: Sequence[Any]) -> Tensor:
        return torch.stack([torch.as_tensor(target) for target in targets])

    def key(self, target: Any) -> Any:
        return target.item() if target.numel() == 1 else target

    def answer(self, output: Tensor, count: int) -> Tensor | None:
        if not output.dim() or len(output) != count or output.numel() != count * self.shape.numel():
            return None
        return output.reshape(count, *self.shape)

    def gradient_of_answer(self, delta: Tensor, count: int) -> Tensor:
        return delta.reshape(count, *self.shape)

    def check(self, target: Any, shape: torch.Size, device: torch.device) -> Target | None:
        self.require(target)
        return Target(self.check_strangers(target, shape[0], device))

    def check_strangers(self, targets: Any, count: int, device: torch.device) -> Tensor:
        try:
            given: Tensor = torch.as_tensor(targets).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise StepError(f"target must hold {self.what}, one row per example; got {targets!r:.60}") from error
        expected = (count, *self.target_shape)
        if not given.dim() or len(given) != count or given.numel() != math.prod(expected):
            raise StepError(f"target must hold {self.what} of shape {expected}; got shape {tuple(given.shape)}")
        return given.reshape(expected).float().to(device, non_blocking=True)

    def entries(self, target: Tensor) -> Tensor | None:
        return target.new_full((len(target),), float(self.shape.numel())) if self.summed else None

    def guess(self, targets: Tensor) -> float:
        targets = targets[: max(1, GUESSED_ENTRIES // max(1, self.shape.numel()))]
        starts = [torch.zeros(self.shape, device=targets.device)]
        if self.target_shape == self.shape:
            starts += [targets.mean(0), targets.median(0).values, self.link(targets.mean(0))]
        return best_constant(lambda c: self.loss(c.expand(len(targets), *self.shape), targets).mean(), starts)

    def link(self, mean: Tensor) -> Tensor:
        """Outputs that stand for these mean targets."""
        return mean


class MultiLabel(Values):
    """Several labels per example, each there or not: one logit each, under binary cross-entropy."""

    what = "0 or 1 for every label"

    def kept(self, z: Tensor) -> Tensor:
        return z.float()

    def link(self, mean: Tensor) -> Tensor:
        return torch.logit(mean, eps=1e-6)


def best_constant(loss: Callable[[Tensor], Tensor], starts: Sequence[Tensor]) -> float:
    """The least mean loss of a constant answer, sought from several; infinite where none is finite."""
    found = [math.inf]

    for start in starts:
        answer = start.detach().clone().requires_grad_(True)
        search = torch.optim.LBFGS([answer], max_iter=50, line_search_fn="strong_wolfe")

        def value(answer: Tensor = answer, search: torch.optim.Optimizer = search) -> float:
            search.zero_grad()
            mean = loss(answer)
            mean.backward()
            found.append(float(mean.detach()))
            return found[-1]

        with torch.enable_grad():
            search.step(value)
    return min(value for value in found if not math.isnan(value))
