"""The training run of an audit: one model, one pass of SGD with the engine attached, resumable after any step.

Nothing in it remembers anything outside `state_dict`: batches, augmentation, dropout and learning rate are functions of
the seed and the number of the step.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.audit.batches import DROPOUT, Batches, LabelledPixels, Normalisation, stream
from sgoif.audit.errors import AuditError
from sgoif.audit.finetuning import features_of, load_pretrained, normalisation_of, rates, tuned_network
from sgoif.audit.models import make_model
from sgoif.audit.networks import fit_whitening
from sgoif.audit.plan import Plan
from sgoif.audit.preview import Estimate, Look, estimated
from sgoif.audit.settings import AuditSettings
from sgoif.audit.stopping import EarlyStop
from sgoif.backbones import Backbone
from sgoif.backbones.weights import load_weights
from sgoif.core.data import Part
from sgoif.core.serialization import nest, unnest
from sgoif.core.types import Array, Indices
from sgoif.distributed.communicator import SINGLE_PROCESS, Communicator
from sgoif.errors import NonFiniteError, StateError
from sgoif.monitor import InfluenceMonitor

MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
WARM_UP, FIRST_RATE, LAST_RATE = 0.2, 0.1, 0.01
"""Share of the steps in which the learning rate rises, and its first and last value as parts of the peak."""
LARGEST_GRADIENT = 5.0
"""Gradients are clipped at this norm, so that one odd batch does not ruin a run that nobody watches."""
ESTIMATES = 5
"""How often in a run all labels are judged for whoever watches it."""
VERSION = 1
LONGEST_REASON = 200
"""Characters of what torch says about weights that do not fit; it lists all of them."""


class Images(Protocol):
    """What a run needs of prepared images."""

    @property
    def array(self) -> NDArray[np.uint8]: ...
    @property
    def labels(self) -> Indices: ...
    @property
    def class_names(self) -> Any: ...


def learning_rate(step: int, steps: int, peak: float) -> float:
    """One cycle: up in a straight line, down in half a cosine."""
    rise = max(1, round(WARM_UP * steps))
    if step < rise:
        return peak * (FIRST_RATE + (1 - FIRST_RATE) * step / rise)
    turn = (step - rise) / max(1, steps - rise)
    return peak * (LAST_RATE + (1 - LAST_RATE) * (1 + float(np.cos(np.pi * min(turn, 1.0)))) / 2)


class Course:
    """A model that is trained to the end of its plan and nothing else."""

    def __init__(
        self,
        images: Images,
        settings: AuditSettings,
        plan: Plan,
        rows: Indices,
        communicator: Communicator = SINGLE_PROCESS,
        backbone: Backbone | None = None,
    ) -> None:
        if settings.finetune and backbone is None:
            backbone = load_pretrained(settings.backbone)
        self.settings, self.plan, self.communicator, self.backbone = settings, plan, communicator, backbone
        self.step = 0
        self.stopped = ""
        """Why the run ended: "", "memorising", "settled" or "all epochs done"."""
        self.loss = float("nan")
        """Running mean of the training loss."""
        pixels, given = images.array, np.asarray(images.labels, dtype=np.int64)
        channels, size = pixels.shape[1], pixels.shape[-1]
        torch.manual_seed(stream(settings.seed, 0, 0))
        self.model: nn.Module = make_model(plan.model, channels, len(images.class_names), size, backbone)
        self.fresh_head = load_weights(self.model, settings.weights) if settings.weights else []
        """Entries of the head that the file of weights did not have or that have another number of classes."""
        layout = torch.channels_last if plan.device.type == "cuda" or backbone is not None else torch.contiguous_format
        self.model.to(plan.device, memory_format=layout)  # type: ignore[call-overload]
        normalise = Normalisation.of(pixels) if backbone is None else normalisation_of(backbone)
        if not settings.weights and backbone is None:
            fit_whitening(self.model, normalise.some(pixels))
        self.dataset = LabelledPixels(pixels, given, normalise)
        self.batches = Batches(
            pixels,
            given,
            rows,
            plan.batch_size,
            normalise,
            seed=settings.seed,
            augment=settings.augment,
            device=plan.device,
            communicator=communicator,
        )
        self.optimizer = torch.optim.SGD(
            rates(self.model, backbone is not None),
            lr=plan.learning_rate,
            momentum=MOMENTUM,
            nesterov=True,
            weight_decay=WEIGHT_DECAY,
        )
        self.network = self.model if communicator.size == 1 else nn.parallel.DistributedDataParallel(self.model)
        """The model, with the gradients of all processes averaged."""

    def advance(self) -> None:
        """One step of training and, after the last step of an epoch, the question whether to go on."""
        try:
            self._advance()
        except NonFiniteError as error:
            raise AuditError(
                f"training diverged at step {self.step}: the loss is not a number. Start again with a smaller"
                f" --learning-rate (it was {self.plan.learning_rate:g}) and another --out"
            ) from error

    def _advance(self) -> None:
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = group["share"] * learning_rate(self.step, self.plan.steps, self.plan.learning_rate)
        x, y, index = self.batches.at(self.step)
        device = self.plan.device.type
        draw = self.step * self.communicator.size + self.communicator.rank
        torch.manual_seed(stream(self.settings.seed, DROPOUT, draw))
        with self._watched(index):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                loss = F.cross_entropy(self.network(x).float(), y)
            (loss * self.batches.weight() if self.communicator.size > 1 else loss).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), LARGEST_GRADIENT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self._note(loss)
        if self.step % len(self.batches) == 0:
            self._end_epoch()

    def _note(self, loss: Tensor) -> None:
        if self.step % 10 == 1 or self.plan.device.type == "cpu":  # elsewhere a look makes the host wait
            value = float(loss.detach())
            self.loss = value if self.loss != self.loss else 0.95 * self.loss + 0.05 * value

    def _watched(self, index: Tensor) -> AbstractContextManager[object]:
        """What the forward and backward pass of a step happen in."""
        return nullcontext()

    def _end_epoch(self) -> None:
        if self.step >= self.plan.steps:
            self.stopped = "all epochs done"

    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return bool(self.stopped)

    @property
    def epoch(self) -> int:
        """Epochs begun."""
        return min(self.plan.epochs, self.step // len(self.batches) + 1)


class Training(Course):
    """Model, optimizer, monitor and counters of a run."""

    def __init__(
        self,
        images: Images,
        settings: AuditSettings,
        plan: Plan,
        rows: Indices,
        held: Indices,
        communicator: Communicator = SINGLE_PROCESS,
        backbone: Backbone | None = None,
    ) -> None:
        super().__init__(images, settings, plan, rows, communicator, backbone)
        self.seconds = 0.0
        """What the run had taken when its checkpoint was written; the audit writes it there."""
        self.look: Look | None = None
        """The worst images after the last whole epoch."""
        self.estimate: Estimate | None = None
        self.monitor = InfluenceMonitor(
            self.network,
            self.optimizer,
            anchors=Part(self.dataset, held.tolist()),
            size=len(self.dataset),
            seed=settings.seed,
            budget=settings.budget,
            max_anchors=len(held),
        )
        self.early_stop = EarlyStop(plan.steps)

    def _watched(self, index: Tensor) -> AbstractContextManager[object]:
        return self.monitor.step(index)

    def _end_epoch(self) -> None:
        scores = self.monitor.scores(anchors=False)
        self.look = Look.at(self.step, scores)
        if self.step // len(self.batches) % max(1, self.plan.epochs // ESTIMATES) == 0:
            self.estimate = estimated(self.step, self.monitor) or self.estimate
        super()._end_epoch()
        if not self.stopped and self.settings.early_stop:
            self.stopped = self.early_stop.after_epoch(self.step, self.monitor.history, scores["influence"])

    def features(self) -> list[Array]:
        """Of all images by the network as it is and as it was before it was trained further, if it was pretrained."""
        if self.backbone is None:
            return []
        device, pixels, batch = self.plan.device, self.dataset.pixels, self.batches.size
        began = tuned_network(self.plan.model, 1, self.backbone).to(device)
        parts = range(0, len(pixels), batch)

        def images() -> Iterator[Tensor]:
            return (self.dataset.normalise(torch.from_numpy(np.array(pixels[k : k + batch]))) for k in parts)

        return [features_of(network, images(), device) for network in (self.model, began)]

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly: tensors and plain values."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        momentum = {
            names[id(p)]: kept["momentum_buffer"]
            for p, kept in self.optimizer.state.items()
            if kept.get("momentum_buffer") is not None
        }
        counters = {"version": VERSION, "step": self.step, "stopped": self.stopped, "loss": self.loss}
        return {
            **counters,
            **nest("model", _tensors(self.model.state_dict())),
            **nest("momentum", momentum),
            **nest("early_stop", self.early_stop.state_dict()),
            **nest("monitor", self.monitor.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same settings and data."""
        if state.get("version") != VERSION:
            raise StateError(f"the checkpoint has version {state.get('version')!r}; this release reads {VERSION}")
        try:
            self.model.load_state_dict(unnest("model", state))
            parameters = dict(self.model.named_parameters())
            for name, value in unnest("momentum", state).items():
                parameter = parameters[name]
                # Laid out like the weights, or the next update would run through another kernel.
                self.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(value)
            self.early_stop.load_state_dict(unnest("early_stop", state))
            self.monitor.load_state_dict(unnest("monitor", state))
            self.step, self.stopped, self.loss = int(state["step"]), str(state["stopped"]), float(state["loss"])
            self.seconds = float(state.get("seconds", 0.0))
        except StateError:
            raise
        except (KeyError, IndexError, RuntimeError, TypeError, ValueError, OverflowError, AttributeError) as error:
            reason = " ".join(str(error).split())[:LONGEST_REASON]
            raise StateError(f"the checkpoint does not fit this run ({type(error).__name__}: {reason})") from error

    def close(self) -> None:
        """Take the engine's hooks off the model; scores stay readable."""
        self.monitor.close()


def _tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    other = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if other:
        raise AuditError(f"the model keeps {', '.join(other)} beside its tensors, which a checkpoint cannot hold")
    return dict(state)
