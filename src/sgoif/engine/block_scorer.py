"""Scoring blocks of training steps into the ledger.

    Î(z_i) = −Σ_g ψ_gᵀ g_i = −Σ_layers ⟨δ_i, layer(a_i; Σ_g ψ_g)⟩

The sum over the layers below the head was formed by hooks while the step ran (`Observation.response`); the head, which
carries the groups, is scored here.
"""

from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor

from sgoif.core.objective import Objective
from sgoif.core.precision import full_precision
from sgoif.core.types import Indices
from sgoif.curvature.base import Factors
from sgoif.distributed.communicator import Communicator
from sgoif.engine.group_directions import GroupDirections
from sgoif.scoring.finite_check import FiniteCheck
from sgoif.scoring.influence import StepScores, gradient_norms, group_scores, remember
from sgoif.scoring.label_scores import LabelScores, check_label, scores_by_row
from sgoif.scoring.ledger import Ledger, merged
from sgoif.scoring.mixture_check import MixtureCheck
from sgoif.scoring.outputs import Outputs, read_outputs
from sgoif.scoring.score_scaling import ScoreScaling
from sgoif.scoring.step_batch import Observation, group_tensors, make_alike, named, stack_steps
from sgoif.settings import Settings
from sgoif.stability.step_weight import StepWeight

Observer = Callable[[Observation, StepScores], None]


class BlockScorer:
    """Owns the ledger of training examples and the scale of their scores; reads the directions of the groups."""

    def __init__(
        self,
        ledger: Ledger,
        scaling: ScoreScaling,
        directions: GroupDirections,
        step_weight: StepWeight,
        finite: FiniteCheck,
        objective: Objective,
        settings: Settings,
        communicator: Communicator,
    ) -> None:
        self.ledger, self.scaling, self.directions = ledger, scaling, directions
        self.step_weight, self.finite, self.communicator = step_weight, finite, communicator
        self.objective, self.settings = objective, settings
        self.mixtures = MixtureCheck(ledger.device)
        self.device, self.head = ledger.device, directions.layers[-1]
        self.head_alone = len(directions.layers) == 1
        self.observers: list[Observer] = []
        self.labels: LabelScores | None = None
        """Scores by label, where examples have several."""
        self._last: StepScores | None = None  # of the last block, whose last step has `_last_size` examples; 0: cut
        self._last_size = 0

    def read(self, steps: Observation, sizes: Sequence[int]) -> tuple[Outputs, Factors]:
        """What logits and head say, gradients brought to the scale of single losses."""
        seen = steps.logits, steps.logits_delta, steps.target, steps.label
        outputs = read_outputs(self.objective, *seen, self.settings.reduction, sizes)
        scale = outputs.scale.view(-1, *[1] * (steps.delta.dim() - 1))
        return outputs, self.head.factors(steps.inputs, steps.delta.float() / scale)

    def score(self, waited: list[Observation]) -> None:
        """Score steps and fold them into the ledger, those together whose inputs have one shape: tokens may vary."""
        while waited:
            shapes = [(step.logits.shape[1:], step.inputs.shape[1:]) for step in waited]
            count = next((n for n, shape in enumerate(shapes) if shape != shapes[0]), len(shapes))
            some = waited[:count]
            del waited[:count]  # nothing is kept longer than it must be
            self._score_together(some)

    @full_precision
    def _score_together(self, waited: list[Observation]) -> None:
        """Score steps together."""
        sizes, indices = [len(step.indices) for step in waited], named(waited)
        make_alike(waited, self.objective)
        places, parts = group_tensors(waited)
        waited.clear()  # once put together, single steps are not kept any longer
        steps = stack_steps(places, [torch.cat(parts.pop(0)) for _ in range(len(parts))], indices)
        scores = self._fold(steps, self.upload(indices), sizes)
        self.finite.send()
        self.ledger.autocorrelation.observe(self.ledger, len(sizes))
        if self.labels is not None:
            self.labels.ledger.autocorrelation.observe(self.labels.ledger, len(sizes))
        for observe in self.observers:
            observe(steps, scores)
        self._last, self._last_size = scores, sizes[-1]

    def _fold(self, steps: Observation, index: Tensor, sizes: Sequence[int]) -> StepScores:
        """Score steps that are put together, and fold them into the ledger."""
        if not self.finite.at_once:
            self.finite.note(steps.logits, steps.logits_delta)
        outputs, head = self.read(steps, sizes)
        directions, settings = self.directions, self.settings
        assert directions.psi is not None
        groups = -group_scores(head, directions.layout.split(directions.psi)[-1])
        influence = groups.sum(1)
        if steps.response is not None:
            influence = influence - steps.response * directions.turns / outputs.scale
        scores = StepScores.of(index, influence, groups, outputs.loss, outputs.columns, outputs.share)
        # Norms below the head are never formed, so only a watched head has a bound.
        error = directions.error_bound * gradient_norms(head) if self.head_alone else None
        scaling, weight = copy(self.scaling), self.step_weight.factor
        remember(self.ledger, scaling, scores, directions.support, weight, settings.help_weight, error, sizes)
        self.scaling.mean, self.scaling.updates = scaling.mean, scaling.updates
        if self.labels is not None and steps.target is not None:
            by_label = -scores_by_row(head, directions.layout.split(directions.psi)[-1])
            told = index, by_label, steps.logits, steps.target, directions.support
            self.labels.remember(*told, weight, settings.help_weight, sizes)
        return scores

    def raise_if_faulty(self) -> None:
        """Raise if a step so far was not finite, or its labels mixed; waits for the device."""
        self.finite.raise_if_set()
        self.mixtures.raise_if_set()

    def upload(self, indices: Indices) -> Tensor:
        """Indices on the device. From ordinary memory a copy of this size would wait for a GPU."""
        index = torch.from_numpy(indices)
        return index if self.device.type == "cpu" else index.pin_memory().to(self.device, non_blocking=True)

    @property
    def last(self) -> StepScores | None:
        """Raw scores of the last step that was scored."""
        if self._last is not None and self._last_size:
            self._last, self._last_size = self._last.tail(self._last_size), 0  # cut when asked for: a block seldom is
        return self._last

    def forget_last(self) -> None:
        """No step was scored yet."""
        self._last = None

    def record(self, label: int | None = None) -> Ledger:
        """What is remembered about every training example, or about one label of each, by all ranks together."""
        if label is None:
            return self._whole(self.ledger)
        return check_label(self.labels, label).of(label, self.label_record())

    def label_record(self) -> Ledger:
        """The same about every label of every example."""
        assert self.labels is not None
        return self._whole(self.labels.ledger)

    def _whole(self, ledger: Ledger) -> Ledger:
        return ledger if self.communicator.size == 1 else merged(ledger, self.communicator)
