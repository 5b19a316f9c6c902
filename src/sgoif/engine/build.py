"""The parts of a monitor, made and connected."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from sgoif.anchors.bank import AnchorBank
from sgoif.anchors.gradients import ExampleGradients
from sgoif.anchors.grouping import Grouping
from sgoif.core.losses import Loss
from sgoif.core.objective import MultiLabel
from sgoif.distributed.communicator import find_communicator, unwrapped
from sgoif.engine.anchor_refresher import AnchorRefresher
from sgoif.engine.block_scorer import BlockScorer
from sgoif.engine.checkpoint import Checkpoint, LedgerState, QueueState, Stateful
from sgoif.engine.curvature_learner import CurvatureLearner
from sgoif.engine.group_directions import GroupDirections
from sgoif.engine.held_out import HeldOutScorer
from sgoif.engine.pipeline import StepPipeline
from sgoif.engine.refresh_schedule import RefreshSchedule
from sgoif.engine.setup import Setup, choose_curvature, choose_solver, fit_bank, probe, trained_by, warn_of_untrained
from sgoif.engine.time_budget import TimeBudget
from sgoif.engine.views import Views
from sgoif.scoring.finite_check import FiniteCheck
from sgoif.scoring.label_scores import MOST_LABELS, LabelScores
from sgoif.scoring.ledger import Ledger
from sgoif.scoring.score_queue import ScoreQueue
from sgoif.scoring.score_scaling import ScoreScaling
from sgoif.settings import Settings
from sgoif.stability.controller import StabilityController
from sgoif.stability.step_weight import StepWeight
from sgoif.tracking.capture import Capture
from sgoif.tracking.layers.base import WatchedLayer


class Engine(NamedTuple):
    """What a monitor is made of."""

    pipeline: StepPipeline
    held_out: HeldOutScorer
    checkpoint: Checkpoint
    views: Views


@dataclass(frozen=True)
class Prepared:
    """What the parts are made from: the model, probed and with its hooks, and its bank of anchors."""

    setup: Setup
    model: nn.Module
    capture: Capture
    optimizer: torch.optim.Optimizer
    bank: AnchorBank
    size: int | None
    settings: Settings


def prepare(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    anchors: Any,
    loss: Loss | None,
    groups: Grouping,
    size: int | None,
    group: Any,
    settings: Settings,
) -> Prepared:
    """Probe the model, draw its anchors and put the hooks on it."""
    communicator, inner = find_communicator(model, group), unwrapped(model)
    trained = trained_by(optimizer, inner)
    setup = probe(inner, anchors, settings, loss)
    warn_of_untrained(setup.layers, trained)
    bank = fit_bank(setup, groups, settings, communicator)
    return Prepared(setup, inner, Capture(model, setup.layers), optimizer, bank, size, settings)


def build(prepared: Prepared) -> Engine:
    """Make the parts and connect them."""
    setup, bank, s = prepared.setup, prepared.bank, prepared.settings
    device, layers, layout, communicator = setup.device, setup.layers, setup.layout, bank.communicator
    groups, objective = len(bank.group_names), setup.objective
    classes = objective.classes
    turns = s.turns(len(layers) - 1)
    directions = GroupDirections(groups, layers, layout, device, turns, s.seed)
    step_weight = StepWeight(objective.guess(bank.labels.to(device)), device, applied=s.weigh_steps)
    curvature, solver = choose_curvature(s, layout, device), choose_solver(s)
    controller = StabilityController(
        kappa=s.kappa,
        pass_quantile=s.pass_quantile,
        gamma=s.gamma,
        device=device,
        memory=s.kappa_memory,
        residual_budget=s.residual_budget,
        steer=s.steer,
    )
    price = 1 if len(layers) == 1 else 3  # with layers below the head an anchor needs a backward pass too
    schedule = RefreshSchedule(s.refresh_every, TimeBudget(s.budget, device), len(bank), price)

    finite = FiniteCheck(device, s.skip_nonfinite)
    ledger = Ledger(groups, classes, device, prepared.size, duplicates=s.allow_duplicates)
    scaling = ScoreScaling(s.temperature, device, communicator)
    scorer = BlockScorer(ledger, scaling, directions, step_weight, finite, objective, s, communicator)
    learner = CurvatureLearner(curvature, controller, scorer)
    batches = s.anchor_batch, setup.only_batch
    gradients = ExampleGradients(prepared.model, prepared.capture, layers, layout, objective, bank, *batches)
    own_ledger, own_scaling = Ledger(groups, classes, device, setup.holdout_size), ScoreScaling(s.temperature, device)
    held_out = HeldOutScorer(own_ledger, own_scaling, directions, gradients, step_weight, s.help_weight)
    solving = curvature, solver, controller
    refresher = AnchorRefresher(gradients, *solving, scorer, held_out, schedule, prepared.optimizer)
    queue = ScoreQueue(buffered=device.type == "cpu")
    pipeline = StepPipeline(prepared.capture, scorer, learner, refresher, queue)
    parts: dict[str, Stateful] = {
        "anchors": bank,
        "curvature": curvature,
        "solver": solver,
        "controller": controller,
        "step_weight": step_weight,
        "schedule": schedule,
        "scaling": scaling,
        "anchor_scaling": own_scaling,
        "ledger": LedgerState(ledger, scorer.record, communicator),
        "anchor_ledger": own_ledger,
    }
    if isinstance(objective, MultiLabel) and _splits_by_label(objective, layers[-1]):
        labels, most = objective.shape.numel(), setup.holdout_size
        scorer.labels = LabelScores(
            labels, groups, device, prepared.size, s.temperature, communicator, duplicates=s.allow_duplicates
        )
        held_out.labels = LabelScores(labels, groups, device, most, s.temperature)
        parts |= {
            "label_ledger": LedgerState(scorer.labels.ledger, scorer.label_record, communicator),
            "label_scaling": scorer.labels.scaling,
            "anchor_label_ledger": held_out.labels.ledger,
            "anchor_label_scaling": held_out.labels.scaling,
        }
    top = pipeline, gradients, refresher, finite, directions, QueueState(queue, communicator, device)
    views = Views(pipeline, held_out, step_weight.guess)
    return Engine(pipeline, held_out, Checkpoint(parts, top, layout, s), views)


def _splits_by_label(objective: MultiLabel, head: WatchedLayer) -> bool:
    """Whether every label has a row of the head to itself, and there are few enough of them."""
    labels = objective.shape.numel()
    return labels <= MOST_LABELS and head.rows == labels and head.projection is None and not head.elementwise
