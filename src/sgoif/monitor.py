"""The algorithm: score every training example while the model trains.

At every training step, for the examples i of the batch:

    1. read inputs a and output gradients δ of the watched layers              tracking.capture
    2. H ← running curvature of the training gradients                         engine.curvature_learner
    3. now and then, refresh the anchors                                       engine.anchor_refresher
           g_v ← gradients of the held-out examples                            anchors.gradients
           φ_v ← φ_v refined towards H⁻¹ g_v, r_v = g_v − H φ_v                 solvers
           τ = κ β̃ Γ,  c_v = clip(1 − ‖r_v‖/τ, 0, 1)                           stability
           ψ_g = Σ_{v∈g} w_v c_v φ_v,  w_v = c_v / Σ_{u∈g} c_u                  anchors.bank
    4. Î(z_i) = −Σ_g ψ_gᵀ g_i = −Σ_layers ⟨δ_i, layer(a_i; Σ_g ψ_g)⟩            engine.block_scorer
    5. fold Î, squashed at the step's scale and weighted by stability, into the ledger

`engine.pipeline` says what happens in a step, and lets steps wait for 4 and 5 until a block of them can be scored at
once. `execution` says when: at the end of each step, or, on a GPU, for many steps in a row. Where several processes
train the model (DistributedDataParallel, fully_shard), each does this for its part of the batch, and
`distributed.communicator` says what they exchange.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.analysis import attribution, certificates
from sgoif.analysis.error_budget import ErrorBudget, ErrorView
from sgoif.analysis.health import Health
from sgoif.analysis.lemmas import InfluenceTerms, terms_of_anchors
from sgoif.anchors.grouping import Grouping
from sgoif.core.interrupts import guarded
from sgoif.core.losses import Loss
from sgoif.core.score_table import ScoreTable
from sgoif.core.serialization import load_state, save_state
from sgoif.core.types import Indices
from sgoif.engine.build import build, prepare
from sgoif.execution.base import TrainingStep
from sgoif.execution.choose import choose_executor
from sgoif.scoring.influence import StepScores
from sgoif.scoring.ledger import Ledger
from sgoif.settings import Settings


class InfluenceMonitor:
    """Watches a training loop and scores its examples; the module docstring says what happens in a step.

    `anchors` is the hold-out (labels may be noisy), `groups` assigns anchors to groups (by default their class), `size`
    is the number of training examples if known. `loss` is that of training where it is not cross-entropy of one class
    per example (`core.objective`): every step is then given its target. `group` is the process group of the training,
    where no wrapper says so. All else is a field of `sgoif.Settings`.

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
        self.settings = Settings.make(options, settings)
        self._prepared = p = prepare(model, optimizer, anchors, loss, groups, size, group, self.settings)
        self.model, self.optimizer, self.anchors, self.capture = p.model, p.optimizer, p.bank, p.capture
        self.device, self.classes, self.group_names = p.setup.device, p.setup.classes, p.bank.group_names
        self.objective, self.loss = p.setup.objective, p.setup.objective.loss
        self.layers, self.layout, self.head = p.setup.layers, p.setup.layout, p.setup.layers[-1]
        try:
            self._assemble()
        except BaseException:
            self.capture.close()
            raise

    def _assemble(self) -> None:
        """Make the parts, each of which is described where its class is."""
        self.pipeline, self.held_out, self.checkpoint, self.views = build(self._prepared)
        self.executor = choose_executor(self.pipeline)
        self.communicator, self.scorer = self.anchors.communicator, self.pipeline.scorer
        self.refresher = r = self.pipeline.refresher
        self.ledger, self.scaling, self.observers = self.scorer.ledger, self.scorer.scaling, self.scorer.observers
        self.anchor_ledger, self.gradients = self.held_out.ledger, r.gradients
        self.curvature, self.controller, self.schedule = r.curvature, r.controller, r.schedule
        self.step_weight, self.directions, self.history = r.step_weight, r.directions, r.history

    def __enter__(self) -> InfluenceMonitor:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None or self.communicator.size == 1:
            self.close()
        else:
            self.capture.close()  # other ranks may not be on their way here

    def close(self) -> None:
        """Remove every hook, also where the last steps cannot be scored. Scores stay readable."""
        try:
            self.flush()
        finally:
            self.capture.close()

    @property
    def closed(self) -> bool:
        """Whether the hooks are gone."""
        return self.capture.closed

    # --- training -----------------------------------------------------------------------------------------------

    def step(self, index: Any, target: Any = None, weights: Any = None) -> AbstractContextManager[None]:
        """Wrap the forward and backward pass of one batch, whose examples have these indices.

        Give `target` what the loss is given, unless that is plain cross-entropy with one label each: class numbers,
        values, labels that are there or not, tokens; of mixed labels the probabilities [B, C] or `(labels_a, labels_b,
        weight)`, the index naming the example of labels_a. Give `weights` where every loss is multiplied with
        a number of its own: scores are those of the plain losses.
        """
        return TrainingStep(self.executor, index, target, weights)

    def weights(self, index: Any) -> Tensor:
        """What to multiply the losses of a batch with so that wrong labels count less: ones at first, mean one."""
        return self.pipeline.weights(index)

    @guarded
    def refresh(self) -> None:
        """Refresh the bank: gradients, directions, confidences, group directions, and the anchors' own scores."""
        self.executor.drain()
        self.pipeline.begin_refresh()
        self.pipeline.complete_refresh()

    @guarded
    def flush(self) -> None:
        """Score the steps that were only collected so far."""
        self.executor.drain()
        self.pipeline.score_queue()

    # --- results ------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Training steps so far."""
        return self.pipeline.steps

    @property
    def last(self) -> StepScores | None:
        """Raw scores of the last step."""
        self.flush()
        return self.scorer.last

    @guarded
    def scores(self, anchors: bool | None = None, *, label: int | None = None) -> ScoreTable:
        """The table of scores. Anchors are included when they came from `split_holdout`, unless told otherwise.

        `label` asks about one of several labels per example. A `HealthWarning` says, once, what is not well.
        """
        self.flush()
        return self.views.scores(label).scores(anchors)

    @guarded
    def health(self) -> Health:
        """Whether the run supports influence, and what to change if not; of one process `print(monitor)` shows it."""
        self.flush()
        return self.views.health().examine()

    def __str__(self) -> str:
        return repr(self) if self.communicator.size > 1 else f"{self.steps} steps\n{self.health()}"

    @guarded
    def anchor_scores(self, *, label: int | None = None) -> ScoreTable:
        """Scores of the whole hold-out, `index` being the position in it."""
        self.flush()
        return self.views.scores(label).anchor_scores()

    def record(self, label: int | None = None) -> Ledger:
        """What is remembered about every training example, by all ranks together, or about one label of each."""
        return self.scorer.record(label)

    @guarded
    def anchor_record(self, label: int | None = None) -> Ledger:
        """What is remembered about every held-out example, those scored that were never an anchor."""
        self.flush()
        return self.held_out.record(label)

    def held_out_indices(self) -> Indices | None:
        """Indices of the hold-out in the data set it was split off; None where it is numbered apart."""
        return self.held_out.indices

    def most_harmed(self, inputs: Any, labels: Tensor, count: int = 4) -> Tensor:
        """Positions in the hold-out of the examples that training on these would hurt most, [B, count]; −1: no more."""
        self.executor.drain()
        return attribution.most_harmed(self.anchors, self.gradients.of_strangers(inputs, labels), count)

    def expected_error(self, inputs: Any, labels: Tensor) -> Tensor:
        """How far predicted changes of the margin of these examples will be off, [B], up to a factor all share."""
        self.executor.drain()
        return attribution.expected_error(self.curvature, self.gradients, inputs, labels)

    @guarded
    def error_budget(self) -> ErrorBudget:
        """Measured parts of the error of a score; see `ErrorBudget`."""
        self.flush()
        return ErrorView(self.gradients, self.curvature, self.ledger.used).measure()

    @guarded
    def influence_terms(self) -> InfluenceTerms:
        """The terms of the paper's lemma 1 for the anchors' own gradients, the bound that holds, and the error seen."""
        self.flush()
        return terms_of_anchors(self.gradients, self.curvature)

    def misranking_bound(self, higher: int, lower: int, bias: float = 0.0) -> float:
        """Estimated chance that `higher` only seems more harmful than `lower`: measured variances put into a bound."""
        self.flush()
        return certificates.misranking(self.record(), higher, lower, bias)

    def certificate(self, k: int) -> certificates.Certificate:
        """Whether the k most harmful examples are the true ones under the curvature surrogate."""
        self.flush()
        return certificates.certificate(self.record(), k, head_alone=len(self.layers) == 1)

    # --- states -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: tensors and plain values, no code."""
        self.executor.drain()
        return self.checkpoint.collect()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; one that does not fit raises and changes nothing."""
        self.executor.drain()
        self.executor.reset()
        self.checkpoint.restore(state)
        self.scorer.forget_last()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, atomically and without pickle; of several ranks the first writes it."""
        state = self.state_dict()
        self.communicator.run_and_sync_errors(lambda: save_state(path, state) if self.communicator.rank == 0 else None)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a state that `save` wrote."""
        self.load_state_dict(load_state(path))

    def unite(self) -> None:
        """Give every rank what all of them know; each can then read scores alone. Training is over by then."""
        state, observers, weighting = self.state_dict(), self.observers, self.pipeline.weighting
        self.anchors.allocate(self.layout)
        self._assemble()
        self.load_state_dict(state)
        self.observers[:], self.pipeline.weighting = observers, weighting
