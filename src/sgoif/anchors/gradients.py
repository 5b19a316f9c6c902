"""Gradients of held-out examples at the model as it is: of the anchors in the bank, or of any others.

Gradients of a watched head are kept as factors until they are needed, which are smaller than the gradients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sgoif.anchors.bank import AnchorBank
from sgoif.core.batches import batch_size, filled, taken
from sgoif.core.data import isolated_random_state
from sgoif.core.interrupts import autocast_set, guarded
from sgoif.core.losses import Loss
from sgoif.core.objective import Objective
from sgoif.core.parameter_layout import Layout
from sgoif.core.precision import full_precision
from sgoif.curvature.base import Factors
from sgoif.errors import SettingError
from sgoif.tracking.capture import Capture
from sgoif.tracking.evaluation import evaluation, forward
from sgoif.tracking.layers.base import WatchedLayer
from sgoif.tracking.pass_record import PassRecord

Gradients = Tensor | list[Factors]
"""Of some examples, [B, P]; factors where the head alone is watched."""
LEAST_BATCH = 64


class ExamplePass(NamedTuple):
    """What a pass over examples gave."""

    gradients: Gradients
    losses: Tensor
    logits: Tensor


class ExampleGradients:
    """Runs held-out examples through the model, in the precision of training."""

    def __init__(
        self,
        model: nn.Module,
        capture: Capture,
        layers: Sequence[WatchedLayer],
        layout: Layout,
        objective: Objective,
        bank: AnchorBank,
        batch: int | None,
        only_batch: int | None = None,
    ) -> None:
        self._only_batch = only_batch
        """The one batch size that the model takes: passes are filled up to it."""
        convolves = any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in model.modules())
        self._costly_sizes = bank.device.type == "cuda" and convolves
        self.model, self.capture, self.layers, self.layout = model, capture, layers, layout
        self.objective, self.loss = objective, objective.loss
        self.bank, self.device, self._batch = bank, bank.device, batch
        self.training_batch = 0
        """Examples of the largest training step."""
        self.autocast: torch.dtype | None = None
        """Of training, as the last scored step had it."""

    @property
    def batch_size(self) -> int:
        """Examples a pass: that of training, or twice it where no graph is kept."""
        given = self._one_size or self._batch
        return given or max(LEAST_BATCH, self.training_batch * (2 if len(self.layers) == 1 else 1))

    @property
    def _one_size(self) -> int:
        """What passes are filled up to; 0: they are not.

        A GPU takes some 50 ms for each convolution to find out how to compute batches of a size it has not seen, so it
        is given those of training alone.
        """
        return self._only_batch or (self.training_batch if self._costly_sizes and self._batch is None else 0)

    def of_bank(self, capture: Capture | None = None) -> ExamplePass:
        """Gradients of this rank's anchors, the losses and logits of all anchors."""
        bank, communicator, size = self.bank, self.bank.communicator, self.batch_size
        losses, logits = [], []
        factored: list[Factors] = []
        gradients = torch.empty_like(bank.phi) if len(self.layers) > 1 else None
        done, mine = 0, bank.own.stop - bank.own.start
        # A sharded model runs on all ranks or on none, so one without anchors left looks at any of them once more.
        for _ in range(communicator.turns(len(bank), size)):
            kept = min(size, mine - done)
            first = bank.own.start + done if kept else 0
            found, loss, output = self.of(*bank.member_batch(slice(first, first + max(kept, 1))), capture)
            if gradients is not None:
                _clean(self.joined(found)[:kept], gradients[done : done + kept])
            elif kept and not isinstance(found, Tensor):
                factored += found
            losses.append(loss[:kept])
            logits.append(output[:kept])
            done += kept
        whole = factored if gradients is None else gradients
        return ExamplePass(whole, communicator.gathered(torch.cat(losses)), communicator.gathered(torch.cat(logits)))

    @guarded
    @full_precision
    def of_anchors(self, capture: Capture | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Fresh g_v of this rank's anchors, [own, P]; the losses [K] and logits [K, C] of all anchors.

        With hooks of one's own, `captured`, the monitor may be closed.
        """
        found = self.of_bank(capture)
        return self.whole(found.gradients), found.losses, found.logits

    @guarded
    @full_precision
    def of_strangers(self, inputs: Any, targets: Any, loss: Loss | None = None) -> Tensor:
        """Gradients [B, P] of examples from outside, with hooks of their own; raises where targets are wrong.

        `loss` takes the place of the usual one.
        """
        with self.captured() as capture:
            count = batch_size(inputs)
            if not count:
                raise SettingError("there are no examples; give at least one")
            known = self.objective.check_strangers(targets, count, self.device)
            return self.joined(self.of(inputs, known, capture, loss).gradients)

    def of(self, inputs: Any, labels: Tensor, capture: Capture | None = None, loss: Loss | None = None) -> ExamplePass:
        """What one pass over examples in evaluation mode gives, in the form that is least.

        No parameter gradient, buffer or random state is touched, and nothing before the first watched layer is
        differentiated.
        """
        if self._one_size and len(labels) != self._one_size:
            return self._of_filled(self._one_size, inputs, labels, capture, loss)
        record, parts = PassRecord(differentiate=False), list[Any]()
        try:
            with evaluation(self.model), (capture or self.capture).open(record), torch.no_grad():
                with autocast_set(labels.device.type, self.autocast):
                    logits = self.objective.held_out_answer(forward(self.model, inputs), len(labels))
                with torch.enable_grad():
                    losses = (loss or self.loss)(logits.float(), labels)
                deltas = record.output_gradients(losses.sum(), [layer.name for layer in self.layers])
                for layer, delta in zip(self.layers, deltas, strict=True):
                    factors = layer.factors(record.inputs[layer.name], delta)
                    parts.append(factors if len(self.layers) == 1 else factors.gradient())
                    del factors  # those of convolutions are large: they go before the next layer's are made
        except RuntimeError as error:
            self.capture.conversions.explain(error)
            raise
        gradients = parts if len(self.layers) == 1 else self.layout.join(parts)
        return ExamplePass(gradients, losses.detach().float(), self.objective.kept(logits.detach()))

    def _of_filled(
        self, size: int, inputs: Any, labels: Tensor, capture: Capture | None, loss: Loss | None
    ) -> ExamplePass:
        """The same in passes over exactly so many examples, the last of them repeated as often as it takes."""
        passes = []
        for rows in torch.arange(len(labels)).split(size):
            chosen = filled(rows, size)
            found = self.of(taken(inputs, chosen), labels[chosen.to(labels.device)], capture, loss)
            part = found.gradients
            kept = slice(len(rows))
            if isinstance(part, Tensor):
                part = part[kept]
            else:
                part = [Factors(f.inputs[kept], f.delta[kept], f.elementwise) for f in part]
            passes.append(ExamplePass(part, found.losses[: len(rows)], found.logits[: len(rows)]))
        losses, logits = (torch.cat([getattr(each, name) for each in passes]) for name in ("losses", "logits"))
        joined = torch.cat([self.joined(each.gradients) for each in passes]) if len(passes) > 1 else passes[0].gradients
        return ExamplePass(joined, losses, logits)

    def whole(self, found: Gradients) -> Tensor:
        """What `of_bank` found as gradients, [own, P]."""
        if isinstance(found, Tensor):
            return found
        gradients, done = torch.empty_like(self.bank.phi), 0
        for factors in found:
            count = len(factors.delta)
            _clean(self.joined([factors]), gradients[done : done + count])
            done += count
        return gradients

    def joined(self, found: Gradients) -> Tensor:
        """Gradients of one batch, [B, P]."""
        return found if isinstance(found, Tensor) else self.layout.join([factors.gradient() for factors in found])

    @contextmanager
    def captured(self) -> Iterator[Capture]:
        """Hooks for a look at examples that are not trained on; a monitor that is closed has none of its own."""
        capture = Capture(self.model, self.layers)
        try:
            with isolated_random_state(self.bank.device):
                yield capture
        finally:
            capture.close()

    def state_dict(self) -> dict[str, Any]:
        autocast = str(self.autocast).removeprefix("torch.") if self.autocast else ""
        return {"batch": self.training_batch, "autocast": autocast}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.autocast = getattr(torch, state["autocast"]) if state["autocast"] in ("float16", "bfloat16") else None
        self.training_batch = int(state["batch"])


def _clean(gradients: Tensor, out: Tensor) -> None:
    """Zero where they are not finite."""
    torch.nan_to_num(gradients, posinf=0, neginf=0, out=out)
