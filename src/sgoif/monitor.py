"""The algorithm: score every training example while the model trains.

At every training step, for the examples i of the batch (`_finish`; `stepping` says what comes before it):

    1. read inputs a and output gradients δ of the watched layers              capture
    2. H ← running curvature of the training gradients                         curvature
    3. now and then, refresh the anchors (`refresh`):
           g_v ← gradients of the held-out examples                            anchors
           φ_v ← φ_v refined towards H⁻¹ g_v, r_v = g_v − H φ_v                 solvers
           τ = κ β̃ Γ,  c_v = clip(1 − ‖r_v‖/τ, 0, 1)                           stability
           ψ_g = Σ_{v∈g} w_v c_v φ_v,  w_v = c_v / Σ_{u∈g} c_u
    4. Î(z_i) = −Σ_g ψ_gᵀ g_i = −Σ_layers ⟨δ_i, layer(a_i; Σ_g ψ_g)⟩            scoring
    5. fold Î, squashed at the step's scale and weighted by stability, into the ledger

Steps wait for 4 and 5 until a block of them can be scored at once (`flush`). On a GPU, where training waits for what
the host does, bookkeeping of most steps is put off as well and done for many in a row (`settle`). Where several
processes train the model (DistributedDataParallel, fully_shard), each does this for its part of the batch, and `ranks`
says what they exchange.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgoif.analysis import attribution
from sgoif.anchors.bank import AnchorBank, Grouping
from sgoif.core.data import isolated_random_state
from sgoif.core.interrupts import guarded
from sgoif.core.losses import Loss, per_example
from sgoif.core.score_table import ScoreTable
from sgoif.curvature import make_curvature
from sgoif.curvature.base import Factors, full_precision
from sgoif.device.timing import Clock, aside, moment
from sgoif.distributed.communicator import ALONE, Word, find_ranks, unwrapped
from sgoif.engine import anchor_refresher, checkpoint, pipeline, refresh_log
from sgoif.engine.anchor_refresher import Look
from sgoif.engine.pipeline import NOBODY, Begun, Ended, Step
from sgoif.engine.refinement import doubtful_groups, refine
from sgoif.engine.refresh_schedule import Cadence, turn_of
from sgoif.engine.setup import choose_solver, fit_bank, probe, trained_by, warn_of_untrained
from sgoif.errors import SettingError, StepError
from sgoif.execution import deferred
from sgoif.execution.graph_cache import Recorded
from sgoif.scoring.influence import (
    Outputs,
    Squash,
    StepScores,
    gradient_norms,
    group_scores,
    held_out_scores,
    read_outputs,
    remember,
)
from sgoif.scoring.ledger import Ledger, merged
from sgoif.scoring.step_batch import Observation, WaitingSteps, lined_up, make_alike, named, together
from sgoif.settings import Settings
from sgoif.solvers.base import Solution, row_norm, select_rows
from sgoif.stability.bounds import coverage, solver_error_bound
from sgoif.stability.controller import StabilityController
from sgoif.stability.gates import anomalies, group_tolerance, hard_gate, moving_average_gate, stability_gate
from sgoif.stability.signals import observe_signals
from sgoif.stability.step_weight import Competence
from sgoif.tracking.capture import Capture
from sgoif.tracking.head_snapshot import Glimpse, Rows
from sgoif.tracking.pass_record import Record
from sgoif.tracking.validation import (
    Indices,
    Mail,
    check_finite,
    check_record,
    check_target,
    is_finite,
    raise_if_nonfinite,
)

CURVATURE_EXAMPLES = 64
"""Examples of a batch from which the curvature of layers below the head is read."""
Observer = Callable[[Observation, StepScores], None]


class InfluenceMonitor:
    """Watches a training loop and scores its examples; the module docstring says what happens in a step.

    `anchors` is the hold-out (labels may be noisy), `loss` the loss of the anchors where it is not cross-entropy,
    `groups` assigns anchors to groups (their class by default), `size` is the number of training examples where it is
    known. `group` is the process group that trains the model, where no wrapper around it says so. Everything else
    is a field of `sgoif.Settings`.

    Among several ranks, `refresh`, `flush`, `close`, `last` and everything that reads scores is called by all of them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        anchors: Any,
        *,
        loss: Loss | None = None,
        groups: Grouping = None,
        size: int | None = None,
        group: Any = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        if settings is not None and options:
            raise SettingError("give either settings=Settings(...) or single options, not both")
        self.settings = s = settings or Settings.make(options)
        self.ranks, self.model = find_ranks(model, group), unwrapped(model)
        self.optimizer = optimizer
        trained = trained_by(optimizer, self.model)
        setup = probe(self.model, anchors, s)
        warn_of_untrained(setup.layers, trained)
        if setup.single_logit and isinstance(loss, nn.BCEWithLogitsLoss):
            loss = None  # the same as cross-entropy between the two classes
        self.loss = per_example(loss)
        self.reads_labels = loss is None
        self.device, self.classes = setup.device, setup.classes
        self._on_host = self.device.type == "cpu"
        self.layers, self.layout, self.head = setup.layers, setup.layout, setup.layers[-1]
        self.anchors: AnchorBank = fit_bank(setup, groups, s, self.ranks)
        groups_total = len(self.anchors.group_names)

        self.curvature = make_curvature(s.curvature, self.layout, damping=s.damping, decay=s.decay, device=self.device)
        self.solver = choose_solver(s.solver, s.solver_steps)
        self.controller = StabilityController(
            kappa=s.kappa, pass_quantile=s.pass_quantile, gamma=s.gamma, device=self.device
        )
        self.competence = Competence(self.classes, self.device)
        price = 1 if len(self.layers) == 1 else 3  # with layers below the head an anchor needs a backward pass too
        self.cadence = Cadence(s.refresh_every, s.budget, len(self.anchors), self.device, price)
        self.ledger = Ledger(groups_total, self.classes, self.device, size, duplicates=s.allow_duplicates)
        self.squash = Squash(s.temperature, self.device, self.ranks)
        self.anchor_ledger = Ledger(groups_total, self.classes, self.device, setup.holdout_size)
        self.anchor_squash = Squash(s.temperature, self.device)

        self._held_out = attribution.held_out_flags(self)
        self._head_alone, self._every_layer = frozenset({self.head.name}), frozenset(x.name for x in self.layers)
        self._turns = s.turns(len(self.layers) - 1)
        self._curvature_every = s.curvature_every or (32 if len(self.layers) == 1 else 64)
        self.steps = 0
        self.history: list[dict[str, float]] = []
        self.observers: list[Observer] = []
        """Called with what a block of scored steps left behind and with its raw scores."""
        self.curriculum: Any = None  # the `sgoif.tasks.Curriculum` that `weights` asks
        self._last: StepScores | None = None  # of the last block, whose last step has `_last_size` examples; 0: cut
        self._last_size = 0
        self._waiting, self._recorded = WaitingSteps(self._on_host), Recorded(self)
        self._late: list[Ended | Glimpse] = []  # steps that were put off
        self._rows = Rows(deferred.MOST_LATE)  # their indices
        self._look: Look | None = None  # of a refresh that is not complete
        self._patience = 0  # so many more steps may be late
        self._patient = not self._on_host and self.ranks.size == 1 and s.budget is None and not s.allow_duplicates
        self._batch = self._largest_batch = 0
        self.directions: Tensor | None = None  # ψ_g of every group, [G, P]
        self.support = torch.zeros(groups_total, device=self.device)  # mean confidence behind each ψ_g
        self.direction_error = torch.zeros((), device=self.device)  # bound on the error of a score per ‖g_i‖
        self._lifted: dict[str, Tensor] = {}  # ψ as weight matrices of the layers below the head
        self._nonfinite = torch.zeros((), device=self.device)
        self._mail = Mail()  # the same on its way to the host, where the device is a GPU
        self._autocast: torch.dtype | None = None
        self._capture = Capture(model, self.layers)

    def __enter__(self) -> InfluenceMonitor:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None or self.ranks.size == 1:
            self.close()
        else:
            self._capture.close()  # other ranks may not be on their way here

    def close(self) -> None:
        """Remove every hook, also where the last steps cannot be scored. Scores stay readable."""
        try:
            self.flush()
        finally:
            self._capture.close()

    @property
    def closed(self) -> bool:
        """Whether the hooks are gone."""
        return self._capture.closed

    # --- one training step --------------------------------------------------------------------------------------

    def step(self, index: Any, target: Any = None, weights: Any = None) -> AbstractContextManager[None]:
        """Wrap the forward and backward pass of one batch, whose examples have these indices.

        Give `target` (the labels) where the loss is not a cross-entropy of the logits with them, and `weights` where
        the loss of every example is multiplied with a number of its own: scores are those of the plain losses.
        """
        return Step(self, index, target, weights)

    def _end(self, begun: Begun, target: Any) -> None:
        if begun.scored:
            self._autocast = begun.record.autocast
        if begun.late:
            deferred.put_off(self, begun, target)
            return
        self.settle()
        pipeline.end(self, begun, target)
        if self._patient:
            self._patience = deferred.patience(self)
            plain = not self._capture.compiled
            self._capture.brief = plain and begun.record.is_brief(self.head.name, self.classes)
            self._capture.sparing = plain and self._patience > 0

    def _pass_by(self, glimpse: Glimpse, record: Record | None, target: Any) -> None:
        """End a step of which there is a glimpse, or a record where that was not enough."""
        if record is not None:
            self._end(Begun(record, glimpse.indices, None, True, glimpse.learning, True, 0.0), target)
            return
        if target is not None:
            glimpse.target = check_target(target, glimpse.shape[0], self.classes, self.device)
        deferred.add(self, glimpse)

    @guarded
    def settle(self) -> None:
        """Do what was put off: the bookkeeping of steps, and the rest of a refresh."""
        if self._late:
            deferred.settle(self)
        self._complete_refresh()

    def weights(self, index: Any) -> Tensor:
        """What to multiply the losses of a batch with so that wrong labels count less: ones at first, mean one."""
        if self.curriculum is None:
            from sgoif.tasks.curriculum import Curriculum

            Curriculum(self)
        weights: Tensor = self.curriculum.weights(index)
        return weights

    def _directions_in_turn(self) -> dict[str, Tensor]:
        """Directions of the layers below the head that this step scores: every k-th, from a random first one."""
        if self._turns == 1:
            return self._lifted
        first = turn_of(self.steps, self._turns, self.settings.seed)
        return {name: self._lifted[name] for name in list(self._lifted)[first :: self._turns]}

    def _observed(
        self, record: Record, indices: Indices | Tensor, target: Any, weights: Tensor | None
    ) -> Observation | None:
        """What the forward and backward pass left behind, looked through for mistakes; None: nothing to score."""
        batch = indices.shape[0]
        check_record(record, batch, self.head.name, self.device, self._capture.closed)
        if weights is not None:
            record.unweigh(weights)
        logits, delta = record.classifier_output(self.head.name, self.classes)
        labels = None if target is None else check_target(target, batch, self.classes, self.device)
        if self._on_host:  # elsewhere the look would make the host wait; `flush` takes it
            self._nonfinite.copy_(check_finite(logits, delta, self._nonfinite, self.settings.skip_nonfinite))
            if self.settings.skip_nonfinite and self.ranks.size == 1 and not is_finite(logits, delta):
                return None
        step = Observation(
            NOBODY if isinstance(indices, Tensor) else indices,
            logits,
            delta,
            record.inputs[self.head.name],
            record.deltas[self.head.name],
            record.response,
            labels,
            logits._version,
        )
        return step.copied() if self._capture.compiled else step

    def _finish(self, step: Observation, record: Record | None, everyone: Indices, learning: bool, word: Word) -> None:
        """Learn the curvature, refresh when due, collect, score in blocks; `everyone` names the whole batch."""
        self._batch = -(-len(everyone) // self.ranks.size)
        self._largest_batch = max(self._batch, self._largest_batch)
        if self.ledger.fixed_size is None:  # else there is room for all that `check_index` lets pass
            self.ledger.reserve(int(everyone.max()))
        self._waiting.reserve(self.ledger.used)
        self._waiting.watch()
        # An example is scored once per block, so that its means are updated one by one; a recording knows one size.
        if self._waiting.meets(everyone) or (self._recorded.blocks(self) and self._waiting.differs(len(step.logits))):
            self._score_waiting()
        self.cadence.stride = word.stride
        if learning:
            self._learn(step, record)
        if record is not None and self.directions is None:
            self._look_at_anchors()
            self._complete_refresh()
            step.response = self._late_response(record)
        self._waiting.add(step, everyone)
        self._complete_refresh()  # it says how soon the next is due
        if self.cadence.due(len(everyone), self.ledger.used, word.in_time):
            self._look_at_anchors()
            if not self._completes_later:
                self._complete_refresh()
        elif self._waiting.full(self._recorded.blocks(self)):
            self._score_waiting()

    @full_precision
    def _learn(self, step: Observation, record: Record | None) -> None:
        """Fold one step into the running curvature, the gradient norm and the losses."""
        self._complete_refresh()
        if len(self.layers) == 1 and self.ranks.size == 1:
            self._recorded.learn(self, step, lambda step: self._observe(step)[1])
            return
        outputs, head = self._observe(step)
        # Every block must see the same examples.
        count = min(-(-CURVATURE_EXAMPLES // self.ranks.size), len(step.indices))
        blocks = [record.factors(layer, outputs.scale[0], count) for layer in self.layers[:-1]] if record else []
        blocks.append(head if not blocks else Factors(head.inputs[:count], head.delta[:count], head.elementwise))
        everyone = self.ranks.gathered
        self.curvature.update([Factors(everyone(f.inputs), everyone(f.delta), f.elementwise) for f in blocks])

    def _observe(self, step: Observation) -> tuple[Outputs, Factors]:
        """Read a step and fold in what its outputs say."""
        outputs, head = self._read(step, [len(step.logits)])
        everyone = self.ranks.gathered
        self.controller.observe(everyone(gradient_norms(head)))
        self.competence.observe(*map(everyone, (outputs.loss, outputs.margin, outputs.label, outputs.rival)))
        return outputs, head

    def _read(self, steps: Observation, sizes: Sequence[int]) -> tuple[Outputs, Factors]:
        """What logits and head say, gradients brought to the scale of single losses."""
        reduction = self.settings.reduction
        if reduction == "auto" and steps.target is None and not self.reads_labels:
            reduction = "mean"  # without labels there is no reference for another loss
        outputs = read_outputs(steps.logits, steps.logits_delta, steps.target, self.loss, reduction, sizes)
        scale = outputs.scale.view(-1, *[1] * (steps.delta.dim() - 1))
        return outputs, self.head.factors(steps.inputs, steps.delta.float() / scale)

    @guarded
    def flush(self) -> None:
        """Score the steps that were only collected so far."""
        self.settle()
        self._score_waiting()

    @full_precision
    def _score_waiting(self) -> None:
        if not self._waiting.steps or self.directions is None:
            return
        self._complete_refresh()
        if not (waited := self._waiting.take()):
            return
        sizes, indices = [len(step.indices) for step in waited], named(waited)
        make_alike(waited)
        places, parts = lined_up(waited)
        del waited  # once put together, single steps are not kept any longer

        def work(tensors: list[Tensor]) -> tuple[Observation, StepScores]:
            steps = together(places, tensors, indices)
            return steps, self._score(steps, tensors[-1], sizes)

        steps, scores = self._recorded.score(self, [*parts, [self._upload(indices)]], sizes, work)
        self.squash.updates += len(sizes)
        if not self._on_host:
            self._mail.send(self._nonfinite)
        self.ledger.halves.observe(self.ledger, len(sizes))
        for observe in self.observers:
            observe(steps, scores)
        self._last, self._last_size = scores, sizes[-1]

    def _score(self, steps: Observation, index: Tensor, sizes: Sequence[int]) -> StepScores:
        """Score steps and fold them into the ledger; changes tensors only, as a GPU may repeat it from a recording."""
        if not self._on_host:
            logits, delta, skip = steps.logits, steps.logits_delta, self.settings.skip_nonfinite
            self._nonfinite.copy_(check_finite(logits, delta, self._nonfinite, skip))
        outputs, head = self._read(steps, sizes)
        assert self.directions is not None
        groups = -group_scores(head, self.layout.split(self.directions)[-1])
        influence = groups.sum(1)
        if steps.response is not None:
            influence = influence - steps.response * self._turns / outputs.scale
        margins = outputs.margin, outputs.logit_margin
        scores = StepScores(index, influence, groups, *margins, outputs.loss, outputs.label, outputs.probabilities)
        # Norms below the head are never formed, so only a watched head has a bound.
        error = self.direction_error * gradient_norms(head) if len(self.layers) == 1 else None
        squash = copy(self.squash)
        weight, helping = self._step_weight, self.settings.help_weight
        remember(self.ledger, squash, scores, self.support, weight, helping, error, sizes)
        self.squash.mean.copy_(squash.mean)
        return scores

    @property
    def _step_weight(self) -> float:
        return self.competence.weight if self.settings.competence else 1.0

    def _upload(self, indices: Indices) -> Tensor:
        """Indices on the device. From ordinary memory a copy of this size would wait for the device."""
        index = torch.from_numpy(indices)
        return index if self._on_host else index.pin_memory().to(self.device, non_blocking=True)

    @property
    def last(self) -> StepScores | None:
        """Raw scores of the last step."""
        self.flush()
        if self._last is not None and self._last_size:
            self._last, self._last_size = self._last.tail(self._last_size), 0  # cut when asked for: a block seldom is
        return self._last

    @full_precision
    def _late_response(self, record: Record) -> Tensor | None:
        """The response of the very first step, which ran before there were directions: of all layers, not of a turn."""
        scores = [
            self._capture.layers[name].respond(record.inputs[name], direction).dot(record.deltas[name])
            for name, direction in self._lifted.items()
            if name in record.deltas
        ]
        return torch.stack(scores).sum(0) / self._turns if scores else None

    # --- anchors ------------------------------------------------------------------------------------------------

    @guarded
    def refresh(self) -> None:
        """Refresh the bank: gradients, directions, confidences, group directions, and the anchors' own scores."""
        self.settle()
        self._look_at_anchors()
        self._complete_refresh()

    @full_precision
    def _look_at_anchors(self) -> None:
        """The part of a refresh that needs the model as it is now."""
        if self._capture.closed:
            raise StepError("this monitor is closed: its hooks are gone, so nothing can be refreshed")
        if len(self.layers) > 1:
            self._score_waiting()  # their responses belong to the old directions; the head alone is scored afresh
        start, clock = perf_counter(), Clock(self.device)
        with isolated_random_state(self.device):
            found = anchor_refresher.at_anchors(self)
        after = moment(self.device) if self._completes_later and self.device.type == "cuda" else None
        self._look = Look(self.steps, *found, anchor_refresher.pace(self), clock, perf_counter() - start, after)
        self.cadence.refreshing()

    @property
    def _completes_later(self) -> bool:
        """Whether steps go on before a refresh is complete; responses below the head belong to their directions."""
        return self._patient and len(self.layers) == 1

    def _complete_refresh(self) -> None:
        """The rest of a refresh, if one was begun: before anything else is scored or learned, or looked at."""
        if self._look is None:
            return
        look, self._look = self._look, None
        start = perf_counter()
        self.cadence.overdue = True  # until it is done
        with aside(self.device, look.after):
            entry = self._renew(look)
        self.cadence.overdue = False
        seconds = look.clock.seconds() if look.after is None else look.seconds + perf_counter() - start
        self.cadence.refreshed(seconds)
        self.history.append({**entry, "seconds": seconds})

    @full_precision
    def _renew(self, look: Look) -> dict[str, float]:
        """Everything that follows from the gradients of the anchors; what there is to say about it."""
        bank, s = self.anchors, self.settings
        gradient, losses, logits = anchor_refresher.whole(self, look.gradients), look.losses, look.logits
        self.ranks.agree(self._raise_if_nonfinite)
        self.competence.refresh(losses)
        control = self.controller.control()
        solution = self.solver.solve(self.curvature, gradient, bank.phi, control)
        residual = solution.norms.residual
        odd = anomalies(solution.norms.phi, residual)
        bank.phi = select_rows(~odd, solution.phi, 0.0)
        bank.residual = self.ranks.gathered(torch.where(odd, torch.inf, residual))

        spectrum = self.curvature.spectrum()
        tolerance = self.controller.tolerance(bank.residual, spectrum.condition, *look.pace)
        bank.average_residual()
        bank.confidence = self._gate(tolerance.tau).to(self.device)
        tidying = s.replace_every and (len(self.history) + 1) % s.replace_every == 0
        if s.refine and s.gate == "stability" and tidying:
            self._refine(gradient, solution, tolerance.tau)

        self._set_directions(solution.residual, spectrum.smallest)
        covered = coverage(self.directions) if self.directions is not None else 0.0
        self._score_anchors(gradient, losses, logits)
        probes = observe_signals(self.controller, self.curvature, self.solver, gradient, s.seed, self.ranks)
        entry = refresh_log.entry(look.step, bank, solution, tolerance, covered, self.competence)
        entry["products"] += probes
        if tidying:
            bank.replace(s.replace_share)
        self.cadence.urgent = covered < s.coverage_floor
        return {**entry, **refresh_log.signals(self.controller)}

    def _read_mail(self) -> None:
        if (note := self._mail.arrived()) is not None and bool(note.isnan()):
            self._raise_if_nonfinite()

    def _raise_if_nonfinite(self) -> None:
        note = self._nonfinite.clone()
        self._nonfinite.zero_()
        raise_if_nonfinite(note)

    @property
    def anchor_batch(self) -> int:
        """Batch size of the passes over anchors: that of training, or twice it where no graph is kept."""
        return self.settings.anchor_batch or max(64, self._batch * (2 if len(self.layers) == 1 else 1))

    @guarded
    @full_precision
    def anchor_gradients(self, capture: Capture | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Fresh g_v of this rank's anchors, [own, P]; the losses [K] and logits [K, C] of all anchors.

        With hooks of one's own the monitor may be closed.
        """
        found, losses, logits = anchor_refresher.at_anchors(self, capture)
        return anchor_refresher.whole(self, found), losses, logits

    @guarded
    def anchor_pass(
        self, inputs: Any, labels: Tensor, capture: Capture | None = None, loss: Loss | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients [B, P], losses [B] and logits [B, C] of held-out examples, in the precision of training.

        `loss` takes the place of the monitor's own.
        """
        found, losses, logits = anchor_refresher.at_examples(self, inputs, labels, capture, loss)
        return anchor_refresher.joined(self, found), losses, logits

    def _gate(self, tau: float, rows: Tensor | slice = slice(None)) -> Tensor:
        """Confidences of these anchors, on the host."""
        bank, s = self.anchors, self.settings
        residual = bank.residual[rows]
        if s.gate == "moving-average":
            return moving_average_gate(residual, bank.average[rows])
        if s.gate == "none":
            return torch.isfinite(residual).float()
        limit: float | Tensor = tau
        if s.tolerance_by_group:
            count = len(bank.group_names)
            groups = bank.groups[bank.members]
            limit = group_tolerance(bank.residual, groups, count, s.pass_quantile, tau)[rows]
        return hard_gate(residual, limit) if s.gate == "hard" else stability_gate(residual, limit)

    def _refine(self, gradient: Tensor, solution: Solution, tau: float) -> None:
        """Short conjugate gradients for the anchors behind large but doubtful scores."""
        ledger = self.record()
        groups = doubtful_groups(ledger, attribution.half_width(self, ledger))
        rows = refine(self.anchors, gradient, self.curvature, solution, groups, self.settings.sketch)
        self.anchors.confidence[rows] = self._gate(tau, rows).to(self.device)

    def _set_directions(self, residual: Tensor, smallest: float) -> None:
        bank = self.anchors
        weights = bank.weights()
        directions = bank.group_sums(bank.phi, weights)
        # Recordings know these by where they lie.
        self.directions = directions if self.directions is None else self.directions.copy_(directions)
        self.support.zero_().index_add_(0, bank.member_groups, weights)
        # ψ_g leaves the residual Σ w_v c_v r_v. A plain sum over groups errs by their sum; with help weighed less the
        # groups are bent one by one, and their errors can only be added up.
        left = bank.group_sums(torch.nan_to_num(residual), weights)
        norm = row_norm(left).sum() if self.settings.help_weight < 1 else row_norm(left.sum(0))
        self.direction_error.copy_(solver_error_bound(norm, norm.new_tensor(smallest)))
        self.lift_directions()

    def lift_directions(self) -> None:
        """ψ = Σ_g ψ_g as full weight matrices of the layers below the head."""
        if self.directions is None:
            self._lifted = {}
            return
        blocks = self.layout.split(self.directions.sum(0, keepdim=True))
        self._lifted = {
            layer.name: layer.lift(block[0]) for layer, block in zip(self.layers[:-1], blocks[:-1], strict=True)
        }

    def _score_anchors(self, gradient: Tensor, losses: Tensor, logits: Tensor) -> None:
        """Scores for the anchors themselves, each with its own contribution left out."""
        assert self.directions is not None
        bank = self.anchors
        own = bank.own_scores(self.directions, gradient)
        scores = held_out_scores(bank.member_positions, own, losses, logits, bank.member_labels, self.loss)
        weight, helping = self._step_weight, self.settings.help_weight
        remember(self.anchor_ledger, self.anchor_squash, scores, self.support, weight, helping)

    # --- results ------------------------------------------------------------------------------------------------

    def scores(self, anchors: bool | None = None) -> ScoreTable:
        """The table of scores. Anchors are included when they came from `split_holdout`, unless told otherwise."""
        self.flush()
        return attribution.scores(self, anchors)

    def record(self) -> Ledger:
        """What is remembered about every training example, by all ranks together."""
        return self.ledger if self.ranks.size == 1 else merged(self.ledger, self.ranks)

    def unite(self) -> None:
        """Give every rank what all of them know; each can then read scores alone. Training is over by then."""
        state = self.state_dict()
        self.ranks = ALONE
        self.anchors.allocate(self.layout)
        self.squash = Squash(self.settings.temperature, self.device)
        self.load_state_dict(state)

    def anchor_scores(self) -> ScoreTable:
        """Scores of the whole hold-out, `index` being the position in it."""
        return attribution.anchor_scores(self)

    def anchor_record(self) -> Ledger:
        """What is remembered about every held-out example, those scored that were never an anchor."""
        self.flush()
        return attribution.anchor_record(self)

    def held_out_indices(self) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Indices of the hold-out in the data set it was split off; None where it is numbered apart."""
        return attribution.held_out_indices(self)

    def most_harmed(self, inputs: Any, labels: Tensor, count: int = 4) -> Tensor:
        """Positions in the hold-out of the examples that training on these would hurt most, [B, count]; −1: no more."""
        return attribution.most_harmed(self, inputs, labels, count)

    def expected_error(self, inputs: Any, labels: Tensor) -> Tensor:
        """How far predicted changes of the margin of these examples will be off, [B], up to a factor all share."""
        return attribution.expected_error(self, inputs, labels)

    def error_budget(self) -> attribution.ErrorBudget:
        """Measured parts of the error of a score; see `ErrorBudget`."""
        return attribution.error_budget(self)

    def misranking_bound(self, higher: int, lower: int, bias: float = 0.0) -> float:
        """Estimated chance that `higher` only seems more harmful than `lower`: measured variances put into a bound."""
        return attribution.misranking(self, higher, lower, bias)

    def certificate(self, k: int) -> attribution.Certificate:
        """Whether the k most harmful examples are the true ones under the curvature surrogate."""
        return attribution.certificate(self, k)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: tensors and plain values, no code."""
        return checkpoint.collect(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        checkpoint.restore(self, state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, atomically and without pickle."""
        checkpoint.save(self, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a state that `save` wrote."""
        checkpoint.load(self, path)

    @property
    def group_names(self) -> Sequence[Any]:
        return self.anchors.group_names
