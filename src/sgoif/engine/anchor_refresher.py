"""Refreshing the anchors: gradients g_v at the model as it is, then directions, confidences, group directions.

    φ_v ← φ_v refined towards H⁻¹ g_v, r_v = g_v − H φ_v                 solvers
    τ = κ β̃ Γ,  c_v = clip(1 − ‖r_v‖ / τ, 0, 1)                          stability
    ψ_g = Σ_{v∈g} w_v c_v φ_v,  w_v = c_v / Σ_{u∈g} c_u

`collect` needs the model at that moment. `complete` may come later: on a GPU the results are then there when the host
asks for them, while the device has other work.
"""

from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgoif.analysis.intervals import half_width
from sgoif.anchors.gradients import ExampleGradients, Gradients
from sgoif.core.data import isolated_random_state
from sgoif.core.precision import full_precision
from sgoif.curvature.base import Curvature
from sgoif.device.timing import Clock, aside, moment
from sgoif.engine import refresh_log
from sgoif.engine.block_scorer import BlockScorer
from sgoif.engine.group_directions import GroupDirections
from sgoif.engine.held_out import HeldOutScorer
from sgoif.engine.refinement import doubtful_groups, refine
from sgoif.engine.refresh_schedule import RefreshSchedule
from sgoif.solvers.base import Solution, Solver, row_norm, select_rows
from sgoif.solvers.conjugate import ConjugateGradient
from sgoif.stability.bounds import coverage, solver_error_bound
from sgoif.stability.controller import StabilityController
from sgoif.stability.gates import anomalies, find_gate, group_tolerance
from sgoif.stability.signals import observe_signals
from sgoif.tracking.capture import Capture

REPLACED_EVERY = 4
"""Refreshes between two replacements where no number of steps is given."""


class AnchorPass(NamedTuple):
    """What a pass over the anchors gave, and what training was like then."""

    step: int
    gradients: Gradients
    losses: Tensor
    logits: Tensor
    learning_rate: float
    weight_decay: float
    examples: int
    """That the ledger knew."""
    epochs: float
    """Of training so far."""
    clock: Clock
    seconds: float
    """That it took the host."""
    after: torch.cuda.Event | None
    """Where a GPU has finished it; None: the rest of the refresh comes at once."""


class AnchorRefresher:
    """Owns the bank, the solver and the history of refreshes; writes the directions of the groups."""

    def __init__(
        self,
        gradients: ExampleGradients,
        curvature: Curvature,
        solver: Solver,
        controller: StabilityController,
        scorer: BlockScorer,
        held_out: HeldOutScorer,
        schedule: RefreshSchedule,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.gradients, self.bank, self.communicator = gradients, gradients.bank, gradients.bank.communicator
        self.curvature, self.solver, self.controller = curvature, solver, controller
        self.scorer, self.directions, self.step_weight = scorer, scorer.directions, scorer.step_weight
        self.held_out, self.schedule, self.optimizer = held_out, schedule, optimizer
        self.settings, self.device = scorer.settings, scorer.device
        self.gate = find_gate(self.settings.gate)
        self.history: list[dict[str, float]] = []

    @full_precision
    def collect(self, step: int, later: bool, capture: Capture | None = None) -> AnchorPass:
        """The part that needs the model as it is now; `later`: the rest does not come at once.

        `capture` has hooks of its own, for a monitor that may be closed.
        """
        start, clock = perf_counter(), Clock(self.device)
        with isolated_random_state(self.device):
            found = self.gradients.of_bank(capture)
        after = moment(self.device) if later and self.device.type == "cuda" else None
        seconds = perf_counter() - start
        known = self.scorer.ledger.used
        return AnchorPass(step, *found, *self._pace(), known, self.schedule.seen / max(known, 1), clock, seconds, after)

    def complete(self, found: AnchorPass) -> GroupDirections:
        """The rest of a refresh, and an entry in the history."""
        start = perf_counter()
        with aside(self.device, found.after, self):
            entry = self.complete_refresh(found)
        seconds = found.clock.seconds() if found.after is None else found.seconds + perf_counter() - start
        self.schedule.time.refreshed(seconds)
        self.history.append({**entry, "seconds": seconds})
        return self.directions

    @full_precision
    def complete_refresh(self, found: AnchorPass) -> dict[str, float]:
        """Everything that follows from the gradients of the anchors; what there is to say about it."""
        bank, s = self.bank, self.settings
        gradient = self.gradients.whole(found.gradients)
        self.communicator.run_and_sync_errors(self.scorer.raise_if_faulty)
        self.step_weight.refresh(found.losses)
        spectrum = self.curvature.spectrum()
        beta = self.controller.proxy(found.learning_rate, found.weight_decay, found.examples)
        self.step_weight.observe_proxy(beta)
        control = self.controller.control(beta, spectrum.condition)
        solution = self.solver.solve(self.curvature, gradient, bank.phi, control)
        residual = solution.norms.residual
        odd = anomalies(solution.norms.phi, residual)
        bank.phi = select_rows(~odd, solution.phi, 0.0)
        bank.residual = self.communicator.gathered(torch.where(odd, torch.inf, residual))

        tolerance = self.controller.tolerance(bank.residual, beta, spectrum.condition, found.epochs)
        bank.average_residual()
        bank.confidence = self._confidence(tolerance.tau).to(self.device)
        replacing = self._replacing(found.step)
        if s.refine and s.gate == "stability" and replacing:
            self._refine(gradient, solution, tolerance.tau)

        covered = self._set_directions(solution.residual, spectrum.smallest)
        self.held_out.score_bank(gradient, found.losses, found.logits)
        looked = self.curvature, self.solver, gradient, s.seed, self.communicator, s.rank
        probes = observe_signals(self.controller, *looked)
        seen = covered, self.step_weight, self.controller, probes, found.learning_rate, gradient
        entry = refresh_log.entry(found.step, bank, solution, tolerance, *seen)
        thin = covered < s.coverage_floor
        if replacing or (thin and s.coverage_of == "anchors"):
            bank.replace(s.replace_share)
        self.schedule.urgent = thin and s.coverage_of == "groups"
        return entry

    def _replacing(self, step: int) -> bool:
        """Whether T_a steps are over since the refresh before."""
        every = self.settings.replace_every
        if every is None:
            return (len(self.history) + 1) % REPLACED_EVERY == 0
        before = self.history[-1]["step"] if self.history else 0
        return every > 0 and step // every > before // every

    def _pace(self) -> tuple[float, float]:
        """Learning rate and weight decay of the head at this moment."""
        head = self.directions.layers[-1].module
        weights = [p for name, p in head.named_parameters() if name != "bias"]  # also if parametrized
        groups = self.optimizer.param_groups
        group = next((g for g in groups if any(p is w for p in g["params"] for w in weights)), {})
        return float(group.get("lr", 0.0)), float(group.get("weight_decay", 0.0))

    def _confidence(self, tau: float, rows: Tensor | slice = slice(None)) -> Tensor:
        """Confidences of these anchors, on the host."""
        bank, limit = self.bank, self._limit(tau)
        tolerance = limit[rows] if isinstance(limit, Tensor) else limit
        return self.gate(bank.residual[rows], bank.average[rows], tolerance)

    def _limit(self, tau: float) -> float | Tensor:
        """The tolerance, of every anchor where it differs by group."""
        bank, s = self.bank, self.settings
        if not s.tolerance_by_group:
            return tau
        groups = bank.groups[bank.members]
        return group_tolerance(bank.residual, groups, len(bank.group_names), s.pass_quantile, tau)

    def _refine(self, gradient: Tensor, solution: Solution, tau: float) -> None:
        """Short conjugate gradients for the anchors behind large but doubtful scores."""
        ledger = self.scorer.record()
        groups = doubtful_groups(ledger, half_width(ledger, self.settings.level, self.scorer.scaling.bound))
        s = self.settings
        solver = ConjugateGradient(iterations=s.refine_steps, sketch=s.sketch)
        rows = refine(self.bank, gradient, self.curvature, solution, groups, solver, outside=s.refine_outside)
        self.bank.confidence[rows] = self._confidence(tau, rows).to(self.device)

    def _set_directions(self, residual: Tensor, smallest: float) -> float:
        """Take the directions of the groups from those of the anchors; the coverage."""
        bank, directions = self.bank, self.directions
        weights = bank.weights()
        psi = bank.group_sums(bank.phi, weights)
        directions.support.zero_().index_add_(0, bank.member_groups, weights)
        # ψ_g leaves the residual Σ w_v c_v r_v. A plain sum over groups errs by their sum; with help weighed less the
        # groups are bent one by one, and their errors can only be added up.
        left = bank.group_sums(torch.nan_to_num(residual), weights)
        norm = row_norm(left).sum() if self.settings.help_weight < 1 else row_norm(left.sum(0))
        directions.error_bound.copy_(solver_error_bound(norm, norm.new_tensor(smallest)))
        directions.put(psi)
        return coverage(psi if self.settings.coverage_of == "groups" else self.communicator.gathered(bank.phi))

    def state_dict(self) -> dict[str, Any]:
        return {"history": [dict(entry) for entry in self.history]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history[:] = [dict(entry) for entry in state["history"]]
