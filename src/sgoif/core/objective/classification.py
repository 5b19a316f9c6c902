"""One class per example: class numbers, or mixtures of classes.

A *mixture* (mixup, cutmix, distillation, smoothed labels) is either the probabilities [B, C] or
`(labels_a, labels_b, weight)`, weight being the share of labels_a, one number or one per example. The loss of
cross-entropy is linear in it. The index of a row is that of the example labelled labels_a, so that is its class in
every column. Of probabilities the most probable class is taken, the first of several: whose input a row shows most of
cannot be told from them, so mixups are better given as the pair.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.core.data import as_label
from sgoif.core.logits import is_single, two_classes
from sgoif.core.losses import Loss, cross_entropy, gradient_of, is_cross_entropy, is_plain, per_example
from sgoif.core.objective.base import Columns, Objective, Target
from sgoif.errors import AnchorError, StepError

LEAST_SHARE = 1e-2
"""What a label counts at least, so that an example that was only seen beneath others has a score all the same."""
ROUNDING = 1e-2
"""How far the sum of probabilities may be from one, in half precision."""


class Classification(Objective):
    """One class per example: logits [B, C], or one logit for two classes."""

    def __init__(self, classes: int, loss: Loss | None = None, *, single_logit: bool = False) -> None:
        self.classes, self.single_logit = classes, single_logit
        self.readable = is_plain(loss)
        self._mixable = self.readable or is_cross_entropy(loss)
        self.loss = per_example(None if self.readable else loss)

    def read(self, raw: Any) -> Any:
        numbers = torch.as_tensor(raw) if isinstance(raw, (float, Tensor, np.generic, np.ndarray)) else torch.zeros(1)
        if numbers.is_floating_point() and bool((numbers != numbers.round()).any()):
            raise AnchorError(
                f"the targets of the anchors look continuous ({float(numbers.flatten()[0]):.4g}, say). For regression"
                " give the loss, loss=nn.MSELoss() for example, and the targets of every step, monitor.step(index,"
                " target=y); for classes each has to be one class number (of probabilities y.argmax())"
            )
        return as_label(raw)

    def check_anchors(self, targets: Tensor) -> None:
        least, most = int(targets.min()), int(targets.max())
        if least < 0 or most >= self.classes:
            values = ". For regression give loss=nn.MSELoss(), say, and monitor.step(index, target=y)"
            raise AnchorError(
                f"anchors have labels from {least} to {most}, but the model has {self.classes} classes"
                f" (0 to {self.classes - 1}). Use the same label numbers as in training{values * self.single_logit}"
            )

    def group_keys(self, targets: Sequence[Any]) -> list[Hashable]:
        return list(targets)

    def guess(self, targets: Tensor) -> float:
        """ln C, the loss of a guess among C classes: of balanced ones the best constant answer."""
        return math.log(max(self.classes, 2))

    def kept(self, z: Tensor) -> Tensor:
        return z.float()

    def stack(self, targets: Sequence[Any]) -> Tensor:
        return torch.tensor(targets)

    def answer(self, output: Tensor, count: int) -> Tensor | None:
        if output.dim() not in (1, 2):
            return None
        if output.shape[1:] == (self.classes,):
            return output
        return two_classes(output) if is_single(output) and self.classes == 2 else None

    def gradient_of_answer(self, delta: Tensor, count: int) -> Tensor:
        if delta.shape[1:] == (self.classes,):
            return delta
        delta = delta.reshape(-1, 1)
        return torch.cat([-delta, delta], dim=1)

    def check(self, target: Any, shape: torch.Size, device: torch.device) -> Target | None:
        if target is None:
            if not self.readable:
                self.require(target)
            return None
        if isinstance(target, (tuple, list)) and len(target) == 3 and np.ndim(target[0]):
            return self._mixed(*target, batch=shape[0], device=device)
        target = torch.as_tensor(target)
        if target.is_floating_point() and self._mixture_of(target, shape[0]):
            if self._mixable or not self.single_logit:
                return self._probable(target, shape[0], device)
            target = target.reshape(-1).long()  # of a loss of its own, which takes whole labels
        return Target(check_labels(target, shape[0], self.classes, device))

    def check_strangers(self, targets: Any, count: int, device: torch.device) -> Tensor:
        return check_labels(targets, count, self.classes, device)

    def columns(self, z: Tensor, label: Tensor) -> Columns:
        column = label.unsqueeze(1)
        best, rival = z.scatter(1, column, float("-inf")).max(dim=1, keepdim=True)
        logarithms = torch.log_softmax(z, dim=1)
        probabilities = logarithms.exp()
        given = probabilities.gather(1, column)
        return Columns(
            label=label,
            rival=rival.squeeze(1),
            margin=(given - probabilities.gather(1, rival)).squeeze(1),
            logit_margin=(z.gather(1, column) - best).squeeze(1),
            probabilities=probabilities,
            surprise=-logarithms.gather(1, column).squeeze(1),
        )

    def losses(self, z: Tensor, target: Tensor, columns: Columns) -> Tensor:
        if self.loss is cross_entropy and not target.is_floating_point():
            return columns.surprise
        return self.loss(z, target).float()

    def comparable(self, z: Tensor, delta: Tensor, target: Tensor, columns: Columns) -> tuple[Tensor, Tensor]:
        if self.loss is not cross_entropy:
            return delta, gradient_of(self.loss, z, target)
        # The probabilities, less one at the label. A model may answer with their logarithms; what moves all logits
        # alike, which changes no probability, is in the gradient of those alone.
        p = columns.probabilities
        if target.is_floating_point():
            exact = p - target
        else:
            column = target.unsqueeze(1)
            exact = p.scatter(1, column, p.gather(1, column) - 1)
        return delta - p * delta.sum(1, keepdim=True, dtype=torch.float32), exact

    def share(self, target: Tensor, label: Tensor) -> Tensor | None:
        if not target.is_floating_point():
            return None
        return target.gather(1, label.unsqueeze(1)).squeeze(1).clamp_min(LEAST_SHARE)

    def as_mixture(self, labels: Tensor) -> Tensor:
        """Class numbers as probabilities [B, C]."""
        return torch.nn.functional.one_hot(labels, self.classes).float()

    def _mixture_of(self, target: Tensor, batch: int) -> bool:
        """Whether this has the shape of probabilities; of a single logit that of the second class is enough."""
        shapes = [(batch, self.classes)] + ([(batch,), (batch, 1)] if self.single_logit else [])
        return tuple(target.shape) in shapes

    def _probable(self, target: Tensor, batch: int, device: torch.device) -> Target:
        """Probabilities [B, C], looked through for mistakes."""
        self._require_mixable()
        q = target.detach().float()
        if q.shape != (batch, self.classes):
            q = torch.stack([1 - q.reshape(-1), q.reshape(-1)], dim=1)
        if q.device.type == "cpu" and not (bool((q >= 0).all()) and bool(((q.sum(1) - 1).abs() <= ROUNDING).all())):
            raise StepError(
                "target holds floating-point numbers that are no probabilities: every row must be at least 0 and add up"
                " to 1 over the classes. Give class numbers as whole numbers, y.long()"
            )
        q = q.to(device, non_blocking=True)
        return Target(q, q.argmax(1))

    def _mixed(self, first: Any, second: Any, weight: Any, *, batch: int, device: torch.device) -> Target:
        """The mixture of two labels as probabilities [B, C]; the first is the example's own."""
        self._require_mixable()
        labels = [self._whole(part, batch, device) for part in (first, second)]
        share = torch.as_tensor(weight, dtype=torch.float32).detach()
        if share.dim() and tuple(share.shape) not in ((batch,), (batch, 1)):
            raise StepError(
                f"the weight in target=(labels_a, labels_b, weight) must be one number or one per example, shape"
                f" ({batch},); got shape {tuple(share.shape)}"
            )
        if share.device.type == "cpu" and not bool(((share >= 0) & (share <= 1)).all()):
            raise StepError(
                "the weight in target=(labels_a, labels_b, weight) is the share of labels_a, from 0 to 1; got"
                f" {share.flatten()[0].item() if share.numel() == 1 else 'others'}"
            )
        share = share.to(device, non_blocking=True).reshape(-1, 1)
        q = share * self.as_mixture(labels[0]) + (1 - share) * self.as_mixture(labels[1])
        return Target(q, labels[0])

    def _whole(self, labels: Any, batch: int, device: torch.device) -> Tensor:
        """One of two labels; a single logit is trained with floating-point ones."""
        labels = torch.as_tensor(labels)
        if self.single_logit and labels.is_floating_point():
            labels = labels.reshape(-1).long()
        return check_labels(labels, batch, self.classes, device)

    def _require_mixable(self) -> None:
        if not self._mixable:
            raise StepError(
                "a mixture of labels as target= is understood for cross-entropy alone, and this monitor was made with"
                " another loss=; give class numbers, target=y"
            )


def check_labels(labels: Any, batch: int, classes: int, device: torch.device) -> Tensor:
    """Class numbers of a batch on the right device."""
    target: Tensor = torch.as_tensor(labels)
    if target.shape != (batch,) or target.is_floating_point() or target.dtype == torch.bool:
        raise StepError(
            f"target must hold one class number per example, shape ({batch},), or the probabilities of a mixture, shape"
            f" ({batch}, {classes}), or (labels_a, labels_b, weight); got {target.dtype} of shape {tuple(target.shape)}"
        )
    if target.device.type == "cpu" and batch and (int(target.min()) < 0 or int(target.max()) >= classes):
        raise StepError(f"target has labels from {int(target.min())} to {int(target.max())}; the model has {classes}")
    return target.long().to(device, non_blocking=True)
