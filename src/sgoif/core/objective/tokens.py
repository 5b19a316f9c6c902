"""Sequences: one class per token, one index per example."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.core.losses import Loss, one_at_a_time, per_token
from sgoif.core.objective.base import Objective, Target
from sgoif.core.objective.values import GUESSED_ENTRIES, best_constant
from sgoif.errors import AnchorError, StepError


class Tokens(Objective):
    """Logits [B, T, V], or [B T, V] of a model that flattens them; targets are whole numbers [B, T]."""

    what = "whole numbers for tokens"

    def __init__(self, loss: Loss, output: Tensor, tokens: int) -> None:
        self.flattened = output.dim() == 2
        self.vocabulary = output.shape[-1]
        self._given = loss
        self.summed = isinstance(loss, nn.Module) and hasattr(loss, "reduction")
        self.ignored = int(getattr(loss, "ignore_index", -100)) if self.summed else None
        self.loss = per_token(loss) if self.summed else one_at_a_time(loss, batched=not self.flattened, loops=True)
        if self.summed and not self.flattened and output.shape[1] != tokens:
            raise AnchorError(
                f"the targets of an anchor have {tokens} tokens, the model's outputs {output.shape[1]}; they must be"
                " [batch, tokens, classes] and [batch, tokens]. Of shifted targets pass what the loss compares, or a"
                " function as loss= that does the shifting"
            )

    def read(self, raw: Any) -> Any:
        target = torch.as_tensor(raw).detach()
        if target.dim() != 1 or target.is_floating_point() or target.dtype == torch.bool:
            raise AnchorError(
                f"the target of an anchor must be one whole number per token; got {target.dtype} of shape"
                f" {tuple(target.shape)}"
            )
        return target.long()

    def stack(self, targets: Sequence[Any]) -> Tensor:
        if len({len(target) for target in targets}) > 1:
            raise AnchorError(
                "the targets of the anchors have different numbers of tokens. Pad inputs and targets of the hold-out to"
                f" one length, targets with the ignored number ({-100 if self.ignored is None else self.ignored})"
            )
        return torch.stack(list(targets))

    def answer(self, output: Tensor, count: int) -> Tensor | None:
        rows = output.dim() == 2 and count and len(output) % count == 0
        if output.shape[-1:] != (self.vocabulary,) or not (rows or (output.dim() == 3 and len(output) == count)):
            return None
        return output.reshape(count, -1, self.vocabulary)

    def gradient_of_answer(self, delta: Tensor, count: int) -> Tensor:
        return delta.reshape(count, -1, self.vocabulary)

    def check(self, target: Any, shape: torch.Size, device: torch.device) -> Target | None:
        self.require(target)
        given = self.check_strangers(target, shape[0], device)
        if self.summed and given.shape[1] != shape[1]:
            raise StepError(
                f"target must hold one whole number per token, shape ({shape[0]}, {shape[1]}); got {tuple(given.shape)}"
            )
        return Target(given)

    def check_strangers(self, targets: Any, count: int, device: torch.device) -> Tensor:
        given: Tensor = torch.as_tensor(targets).detach()
        if given.is_floating_point() or given.dtype == torch.bool or given.numel() % count or not given.numel():
            raise StepError(
                f"target must hold one whole number per token, shape ({count}, tokens); got {given.dtype} of shape"
                f" {tuple(given.shape)}"
            )
        return given.reshape(count, -1).long().to(device, non_blocking=True)

    def entries(self, target: Tensor) -> Tensor | None:
        return target.ne(self.ignored).sum(1).float() if self.ignored is not None else None

    def guess(self, targets: Tensor) -> float:
        if self.ignored is None:
            some = targets[: max(1, GUESSED_ENTRIES // (targets.shape[1] * self.vocabulary))]
            shape = (len(some), targets.shape[1], self.vocabulary)
            start = self._frequencies(targets[(targets >= 0) & (targets < self.vocabulary)]).log()
            return best_constant(lambda c: self.loss(c.expand(shape), some).mean(), [start, torch.zeros_like(start)])
        seen, counts = torch.unique(targets[targets.ne(self.ignored)], return_counts=True)
        answer = self._frequencies(seen.repeat_interleave(counts)).log()
        total, size = 0.0, max(1, GUESSED_ENTRIES // self.vocabulary)
        for token, count in zip(seen.split(size), counts.split(size), strict=True):
            each = self.loss(answer.expand(len(token), 1, self.vocabulary), token.unsqueeze(1))
            total += float((each * count).sum())
        return total / len(targets)

    def _frequencies(self, tokens: Tensor) -> Tensor:
        """The distribution of tokens that a constant answer to cross-entropy with these weights would give."""
        share = torch.bincount(tokens, minlength=self.vocabulary).float()
        share = (share / share.sum().clamp_min(1)).clamp_min(torch.finfo(torch.float32).tiny)
        if isinstance(self._given, nn.CrossEntropyLoss):
            share = share + self._given.label_smoothing * (1 / self.vocabulary - share)
            if self._given.weight is not None:
                share = share * self._given.weight.to(share.device)
        return share / share.sum()
