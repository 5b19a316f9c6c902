"""Weights for the losses of a training run, from what its monitor knows.

    curriculum = Curriculum(monitor)
    weights = monitor.weights(index)                      # or curriculum.weights(index)

All weights are one during the warm-up. After it, once an epoch, every label is judged (`tasks.labels`)
and the weights move part of the way, `speed`, to where `weights.weigh` puts them:

    w ← w + speed (target − w)

A model that still learns takes right labels for wrong ones, fewer from epoch to epoch, and the estimated noise rate
falls. What it fell by since the last judgement is therefore taken off once more, and the first judgement, which has
none before it, moves nothing.

Targets have mean one over the examples seen so far, so w has, and the learning rate means what it meant. In the mean
over a batch, weights differ from one as batches differ; nothing is normalised there, for that would weigh an example by
its company.

*Why it does not run away.* An example that counts less is fitted less, and then looks more wrong. Three things bound
that. How many labels are wrong in all is estimated on held-out examples, which no weight touches, and fixes the sum of
all probabilities: an example can only be pushed down in another's place. Evidence is an average over many epochs. And
the floor leaves every example a gradient: it goes on being scored, as if it were held out, and comes back if the model
agrees with its label after all. The floor is low, but only what is judged wrong time and again gets there: after k
judgements in a row (1 − speed)^k of its weight is left, and more where the judgements were in doubt.

*The end.* The hold-out joins the training for the last epochs (`finish`) and can then no longer say how many labels are
wrong, or which examples hurt it; that stays as it was. But what the network answers to an example gets better as the
learning rate falls. As far as its answers are trusted (`assessment`), d, the training examples are judged on, once an
epoch, while steps are watched:

    w ← w + d (target − w)

Where it does not, d = 0, what it says of examples it is trained on is not worth asking, and weights stay as they are.

*What it costs.* A judgement refreshes the monitor's held-out side, which counts as the monitor's time, asks the anchors
once more, reads the ledger and sorts it a few times, on the CPU; `report()` says how long that took. Between judgements
a batch costs one gather, and a second ledger (`fading_ledgers`) is kept beside the monitor's.
"""

import os
import warnings
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.core.objective import check_labels
from sgoif.core.serialization import load_state, nest, save_state, unnest
from sgoif.core.types import NO_INDICES, Indices
from sgoif.distributed.communicator import StepDecision
from sgoif.errors import SettingError, SgoifError, StateError
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.argument_checks import check_classes
from sgoif.tasks.curriculum.assessment import Assessment, InfluenceSnapshot, assess_labels
from sgoif.tasks.curriculum.epoch_counter import EpochCounter
from sgoif.tasks.curriculum.fading_ledgers import FadingLedgers
from sgoif.tasks.curriculum.robust_loss import RobustWeighting, robustness, symmetric_cross_entropies
from sgoif.tasks.curriculum.settings import CurriculumSettings
from sgoif.tasks.curriculum.summary import CurriculumReport, changes, summarise
from sgoif.tasks.curriculum.targets import blend_targets, doubt_by_index, one_hot_answers, revise
from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tracking.validation import check_index

VERSION = 5
NOT_ASKED = (
    "this curriculum is robust, but its loss was not asked for. Train with curriculum.loss(index, labels, logits): its"
    " weights alone, multiplied with another loss, leave wrong labels most of their pull"
)


class Curriculum:
    """Weights for the losses of a training: examples that are probably mislabelled count less.

    The curriculum that was made last is the one that `monitor.weights` asks. Among several ranks everything here is
    called by all of them. The module docstring says where the weights come from.

    Args:
        monitor: the monitor of the training.
        settings: a `CurriculumSettings`; or give its fields as keywords.
        **options: fields of `CurriculumSettings`.

    Example:
        ```python
        from sgoif.tasks import Curriculum

        curriculum = Curriculum(monitor, warm_up=2)
        for x, y, index in loader:                          # as many epochs as you like
            weights = curriculum.weights(index)
            with monitor.step(index, target=y, weights=weights):
                losses = nn.functional.cross_entropy(model(x), y, reduction="none")
                (weights * losses).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        print(curriculum.report())
        ```
    """

    def __init__(
        self, monitor: InfluenceMonitor, *, settings: CurriculumSettings | None = None, **options: Any
    ) -> None:
        self.settings = CurriculumSettings.make(options, settings)
        check_classes(monitor, "a curriculum")
        self.monitor = monitor
        if isinstance(before := monitor.pipeline.weighting, Curriculum):
            before.ledgers.detach()
        monitor.pipeline.weighting = self
        self.ledgers: FadingLedgers = FadingLedgers(monitor)
        self.epoch_counter = EpochCounter()
        self.finished = False
        """Whether the hold-out may join; see `finish`."""
        self.influences: InfluenceSnapshot | None = None
        """As they were when the hold-out joined, where labels are judged after that."""
        self.history: list[dict[str, Any]] = []
        """A few figures of every judgement."""
        self._loss_used = not self.settings.robust  # whether the robust loss was asked for, or need not be
        self.doubt: Tensor | None = None
        """By example, how far its label is replaced in `targets`: float32 on the monitor's device, after `finish`."""
        self._weights = np.ones(0, dtype=np.float32)
        self._on_device: tuple[Tensor, Tensor] | None = None  # what cross entropy and the robust loss are weighed with

    # --- in the loop --------------------------------------------------------------------------------------------

    def weights(self, index: Any) -> Tensor:
        """What the losses of a batch are to be multiplied with: float32 [B] on the monitor's device, all positive."""
        communicator = self.monitor.communicator
        indices = communicator.capture_error(lambda: self._checked(index), NO_INDICES)
        everyone, _ = communicator.exchange_step_header(indices, StepDecision(in_time=True, stride=1))
        self.advance(everyone)
        usual, robust = self._loss_weights(indices)
        return usual if robust is None else usual + robust

    def targets(self, index: Any, labels: Tensor, logits: Tensor) -> Tensor:
        """What the network should answer to a batch of the last epochs: float32 [B, C], rows sum to one.

        Most are the given label [B]; where that is probably wrong, what the network answers now, by its logits [B, C],
        takes its place (module `targets`). They stand instead of weights, and only once the curriculum is finished.
        """
        if self.doubt is None:
            raise SgoifError(
                "targets are for the last epochs: call finish() first. Until then, multiply losses with weights(index)"
            )
        known = len(self.doubt)
        indices, given = self._checked_batch(index, labels, logits)
        if int(indices.max()) >= known:
            self.doubt = torch.nn.functional.pad(self.doubt, (0, int(indices.max()) + 1 - known))
        return blend_targets(given, self.doubt[self.monitor.scorer.upload(indices)], one_hot_answers(logits))

    def revised(self, dataset: Dataset[Any]) -> Tensor:
        """Labels for a second training, of a fresh network on everything: float32 [N, C] on the CPU, rows sum to one.

        Most are the label of the item; where that is probably wrong, what the network that was trained here answers
        takes its place (module `targets`). The data set is the whole one, numbered as in training, without
        random transforms. Held-out examples are judged by `finish`; without it, or with a hold-out of its own, they are
        not.
        """
        if not self.history:
            raise SgoifError("no label was judged yet, so none can be revised: train with this curriculum first")
        self.monitor.flush()
        doubt = self.doubt
        if doubt is None:
            assessment = assess_labels(self.ledgers, self.settings, self._rate_before)
            assert assessment is not None, "there was one before"
            doubt = self._doubt_by_index(assessment)
        return revise(self.monitor, doubt.cpu(), dataset)

    def loss(self, index: Any, labels: Tensor, logits: Tensor) -> Tensor:
        """The mean loss of a batch, with labels [B], whose `weights` were asked for before; logits are [B, C].

        Tell the monitor both, `monitor.step(index, target=labels, weights=weights)`. It is the weighed cross entropy,
        and where the settings ask for a `robust_loss` loss, that takes its place as far as labels seem wrong at random.
        """
        indices, given = self._checked_batch(index, labels, logits)
        self._loss_used = True
        (usual, robust), answers = self._loss_weights(indices), logits.float()
        losses = usual * torch.nn.functional.cross_entropy(answers, given, reduction="none")
        if robust is not None:
            losses = losses + robust * symmetric_cross_entropies(answers, given)
        return losses.mean()

    @property
    def robust(self) -> RobustWeighting:
        """What part of `loss` is robust at this moment; none unless the settings ask for it."""
        return _robust(self.history[-1]) if self.settings.robust and self.history else RobustWeighting()

    def _loss_weights(self, indices: Indices) -> tuple[Tensor, Tensor | None]:
        """What the cross entropy of these examples is multiplied with, and their robust loss, if there is one."""
        monitor, share = self.monitor, self.robust.share
        if self._on_device is None:
            return torch.ones(len(indices), dtype=torch.float32, device=monitor.device), None
        usual, robust = self._on_device
        missing = int(indices.max()) + 1 - len(usual)
        if missing > 0:
            pad = torch.nn.functional.pad
            usual, robust = pad(usual, (0, missing), value=1 - share), pad(robust, (0, missing), value=share)
            self._on_device = usual, robust
        chosen = monitor.scorer.upload(indices)
        return usual[chosen], robust[chosen] if share else None

    def _checked_batch(self, index: Any, labels: Tensor, logits: Tensor) -> tuple[Indices, Tensor]:
        """The indices of a batch and its labels on the monitor's device; raises where the logits are not of them."""
        indices, classes = self._checked(index), self.monitor.classes
        given = check_labels(labels, len(indices), classes, self.monitor.device)
        assert given is not None
        if not isinstance(logits, Tensor) or logits.shape != (len(indices), classes):
            found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise SettingError(
                f"logits must be what the network answers to these {len(indices)} examples, a tensor of shape"
                f" {(len(indices), classes)}; got {found}"
            )
        return indices, given

    def _checked(self, index: Any) -> Indices:
        return check_index(index, self.monitor.ledger.fixed_size, self.monitor.settings.allow_duplicates)

    def advance(self, indices: Indices) -> None:
        """Take note that these examples come next, on all ranks together, and judge if it is time."""
        s = self.settings
        if self.goes_on and self.epoch_counter.is_due(indices, s.warm_up, s.every):
            if not self._loss_used:
                self._loss_used = True
                warnings.warn(NOT_ASKED, stacklevel=3)
            if self.influences is None:
                self.update()
            else:
                self._continue_judging(self.influences)
        self.epoch_counter.add(indices)

    def update(self) -> bool:
        """Judge every example now and move the weights; False where too little is known yet."""
        if self.finished:
            raise SgoifError(
                "this curriculum is finished: its hold-out has joined. Make a new one with another hold-out"
            )
        self.epoch_counter.mark_judgement()
        self._refresh()
        start = perf_counter()
        self.ledgers.ask_held_out()
        assessment = assess_labels(self.ledgers, self.settings, self._rate_before)
        self.ledgers.fade(self.settings.fade / (1 if self.history else max(1.0, self.epoch_counter.epochs)))
        if assessment is None:
            return False
        self._move_weights(assessment, self.settings.speed, start)
        return True

    def finish(self) -> None:
        """Judge the held-out examples too, and keep their weights from then on.

        The hold-out can then join the training, with weights like everything else, for the last epochs: it has done its
        work. The weights of the others are final, too, unless this curriculum `goes_on`. Needs a hold-out made with
        `split_holdout`, whose examples have indices of the same data set.
        """
        if self.finished:
            return
        if self.monitor.held_out_indices() is None:
            raise SgoifError(
                "the held-out examples have no indices in the training set, so they cannot join it: make both with"
                " train_set, holdout_set = split_holdout(dataset)"
            )
        self._refresh()
        start = perf_counter()
        self.ledgers.ask_held_out(everything=True)
        assessment = assess_labels(self.ledgers, self.settings, self._rate_before, joining=True)
        self.ledgers.fade(self.settings.fade)
        self.epoch_counter.mark_judgement()
        self.finished = True
        self.doubt = torch.zeros(0, device=self.monitor.device)
        if assessment is None:
            self.ledgers.detach()
            return
        self.doubt = self._doubt_by_index(assessment)
        # The weights of training examples have been under way for some time; those of held-out ones catch up at once.
        usual, answer_trust = self.settings.speed, self._answer_trust(assessment)
        speed = np.full(len(assessment.index), usual + (1 - usual) * answer_trust)
        speed[assessment.training :] = max(speed[0], 1 - (1 - usual) ** len(self.history))
        self._move_weights(assessment, speed, start)
        if answer_trust > 0:
            self.influences = assessment.influences
        else:
            self.ledgers.detach()

    @property
    def goes_on(self) -> bool:
        """Whether labels are still judged, so that steps are worth watching."""
        return not self.finished or self.influences is not None

    def _continue_judging(self, influences: InfluenceSnapshot) -> None:
        """Judge the training examples again, by the hold-out as it was when it joined; not where nothing is watched."""
        self.epoch_counter.mark_judgement()
        self.monitor.flush()
        if self.monitor.steps == self.history[-1]["step"]:
            return
        start = perf_counter()
        assessment = assess_labels(self.ledgers, self.settings, self._rate_before, joined=influences)
        self.ledgers.fade(self.settings.fade)
        if assessment is not None:
            answer_trust, judged = self._answer_trust(assessment), self.monitor.scorer.upload(assessment.index)
            assert self.doubt is not None, "the hold-out has joined"
            self.doubt[judged] += answer_trust * (self._doubt_by_index(assessment)[judged] - self.doubt[judged])
            self._move_weights(assessment, answer_trust, start)

    # --- a look -------------------------------------------------------------------------------------------------

    def values(self, size: int | None = None) -> Array:
        """The weights of examples 0 … size − 1, by default of all that were ever asked for."""
        usual, robust = self.robust.parts(torch.from_numpy(self._weights))
        return _padded((usual + robust).numpy(), self.epoch_counter.size if size is None else size)

    def report(self) -> CurriculumReport:
        """What the weights do to the data set at this moment; print it, or take its fields."""
        monitor = self.monitor
        monitor.flush()
        ledger, held = monitor.record(), monitor.held_out_indices()
        labels = ledger.label[: ledger.used].cpu().numpy().astype(np.int64)
        if self.finished and held is not None:
            labels = np.pad(labels, (0, max(0, int(held.max()) + 1 - len(labels))), constant_values=-1)
            labels[held[monitor.anchors.pool]] = monitor.anchors.labels.numpy()
        return summarise(self.values(len(labels)), labels, monitor.classes, self.history, self.epoch_counter.epochs)

    # --- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What is needed, beside the monitor's own state, to go on exactly: tensors and plain values."""
        return {
            "version": VERSION,
            "settings": asdict(self.settings),
            "finished": self.finished,
            "history": [dict(entry) for entry in self.history],
            "weights": torch.from_numpy(self._weights.copy()),
            "doubt": None if self.doubt is None else self.doubt.cpu(),
            **self.epoch_counter.state_dict(),
            **nest("memory", self.ledgers.state_dict()),
            **({} if self.influences is None else nest("influences", self.influences.state_dict())),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of a curriculum with the same settings; a state that does not fit changes nothing."""
        if "weights" not in state or "settings" not in state:
            raise StateError("this is not the state of a curriculum; give the file that its save(...) wrote")
        if state.get("version") != VERSION:
            raise StateError(f"the curriculum's state has version {state.get('version')!r}; expected is {VERSION}")
        if state.get("settings") != (expected := asdict(self.settings)):
            raise StateError(
                f"the state was saved with {state.get('settings')}, this curriculum has {expected}. Resume"
                " with the settings that the run was started with"
            )
        try:
            weights = state["weights"].cpu().numpy().astype(np.float32)
            history, finished = [dict(entry) for entry in state["history"]], bool(state["finished"])
            epoch_counter = EpochCounter.from_state(state)
            if self.settings.robust:
                _ = [_robust(entry) for entry in history]
            doubt = None if state["doubt"] is None else state["doubt"].to(self.monitor.device, torch.float32)
            known = unnest("influences", state)
            influences = InfluenceSnapshot.from_state(known) if known else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the curriculum's state is damaged or incomplete: {error!r}") from error
        if weights.ndim != 1 or not (np.isfinite(weights) & (weights > 0)).all():
            raise StateError("the curriculum's state is damaged: its weights are no list of positive numbers")
        if doubt is not None and (doubt.ndim != 1 or not bool(((doubt >= 0) & (doubt <= 1)).all())):
            raise StateError("the curriculum's state is damaged: its doubts are no list of shares")
        self.ledgers.load_state_dict(unnest("memory", state))
        self.history, self.finished, self.epoch_counter, self.doubt = history, finished, epoch_counter, doubt
        self.influences = influences
        self._loss_used = True
        if self.goes_on and self.monitor.pipeline.weighting is self:
            self.ledgers.attach()
        else:
            self.ledgers.detach()
        self._set(weights)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, atomically and without pickle; of several ranks the first writes it."""
        communicator, state = self.monitor.communicator, self.state_dict()
        communicator.run_and_sync_errors(lambda: save_state(path, state) if communicator.rank == 0 else None)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a state that `save` wrote."""
        self.load_state_dict(load_state(path))

    # --- inside -------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Let the held-out examples say what the model knows now: their last word may be two epochs old."""
        monitor = self.monitor
        monitor.flush()
        if monitor.directions.psi is not None and monitor.settings.budget is None and not monitor.capture.closed:
            monitor.refresh()

    @property
    def _rate_before(self) -> float | None:
        return self.history[-1]["noise_rate"] if self.history else None

    def _answer_trust(self, assessment: Assessment) -> float:
        """d: the smaller of what this assessment and the last say."""
        return min(assessment.answer_trust, self.history[-1].get("frank", 0.0)) if self.history else 0.0

    def _doubt_by_index(self, assessment: Assessment) -> Tensor:
        """What examples give up by an assessment, by index; of several ranks that of the first counts."""
        doubt = doubt_by_index(assessment.index, assessment.weighed.taken)
        return self.monitor.communicator.gathered(doubt)[: len(doubt)].to(self.monitor.device)

    def _move_weights(self, assessment: Assessment, speed: float | Array, start: float) -> None:
        """Move the weights of the judged examples so far on their way, and write down what changed."""
        index = assessment.index
        before = _padded(self._weights, max(len(self._weights), int(index.max()) + 1))
        after = before.copy()
        after[index] += speed * (assessment.weighed.weights - before[index])
        # Different speeds leave the mean a little off what it was; and a hold-out that has joined keeps its weights.
        after[index] *= before[index].mean() / after[index].mean()
        # Ranks that round differently must not train with different weights: those of the first count.
        weighed = after[self._with_joined(index)]
        robust = robustness(self._answer_trust(assessment), assessment.caution, assessment.weighed.sizes, weighed)
        agreed = self.monitor.communicator.gathered(torch.from_numpy(np.append(after, robust)))
        after, robust = agreed[: len(after)].numpy(), RobustWeighting(*agreed[len(after) :][:3].tolist())
        self.history.append(
            {
                "epochs": self.epoch_counter.epochs,
                "step": self.monitor.steps,
                "examples": len(index),
                "noise_rate": assessment.noise_rate,
                "trust": assessment.trust,
                "caution": assessment.caution,
                "frank": assessment.answer_trust,
                **{f"robust_{name}": value for name, value in robust._asdict().items()},
                "given_up": float(assessment.weighed.taken.mean()),
                **changes(before[index], after[index]),
                "seconds": perf_counter() - start,
            }
        )
        self._set(after)

    def _with_joined(self, index: Labels) -> Labels:
        """These examples and, once it has joined, the hold-out."""
        held = self.monitor.held_out_indices() if self.finished else None
        return index if held is None else np.union1d(index, held)

    def _set(self, weights: Array) -> None:
        self._weights = weights.astype(np.float32)
        usual, robust = self.robust.parts(torch.from_numpy(self._weights))
        device = self.monitor.device
        self._on_device = (usual.to(device), robust.to(device)) if len(weights) else None


def _robust(entry: dict[str, Any]) -> RobustWeighting:
    """As the history has it."""
    return RobustWeighting(*(float(entry[f"robust_{name}"]) for name in RobustWeighting._fields))


def _padded(known: NDArray[np.float32], size: int) -> Array:
    """Of examples 0 … size − 1, one where nothing is known."""
    return np.pad(known, (0, max(0, size - len(known))), constant_values=1)[:size].astype(float)
