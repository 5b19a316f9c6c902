"""What has to be known before the first step: the model's layers and classes, the size of the bank, the solver."""

import re
import warnings
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sgoif.anchors.bank import AnchorBank, as_dataset
from sgoif.anchors.grouping import Grouping
from sgoif.core.batches import collate, taken, to_device
from sgoif.core.data import isolated_random_state, split_target
from sgoif.core.losses import Loss
from sgoif.core.objective import Objective, find_objective
from sgoif.core.parameter_layout import Layout
from sgoif.curvature import Curvature, make_curvature
from sgoif.distributed.communicator import Communicator
from sgoif.errors import AnchorError, LayerError, SettingError
from sgoif.settings import Settings
from sgoif.solvers import Solver, make_solver
from sgoif.tracking.evaluation import evaluation, forward
from sgoif.tracking.head_detection import bare, find_head
from sgoif.tracking.layer_selection import Call, choose_layers, trace
from sgoif.tracking.layers.base import WatchedLayer

HEAD_BLOCK = 2**16
BODY_BLOCK = 2**13
"""Blocks with more weights than this are projected; the head, which carries the groups, stays whole for longer."""
DIRECTION_BYTES = 128 * 2**20
"""Room for one set of directions φ; a bank that would not fit is made smaller."""
ANCHORS, ANCHORS_PER_CLASS, MOST_ANCHORS = 1000, 20, 4096
RICHARDSON_STEPS = 30
TRIAL_BATCHES, LARGEST_TRIAL = (1, 4, 8, 16, 32, 64, 128, 256), 1024
"""Batches tried, and the largest, on a model that cannot run on two examples."""
FAILURES = (RuntimeError, TypeError, ValueError, IndexError)
STEP_OPTION = {"richardson": "steps", "neumann": "max_terms", "subspace": "inner", "conjugate": "iterations"}


@dataclass
class Setup:
    """What a trial run on two held-out examples found."""

    device: torch.device
    objective: Objective
    layers: list[WatchedLayer]
    layout: Layout
    dataset: Dataset[Any]
    channels_last: bool
    """Whether the model's convolutions are laid out that way."""
    only_batch: int | None = None
    """The one batch size that the model takes, if it takes no other."""

    @property
    def classes(self) -> int:
        return self.objective.classes

    @property
    def holdout_size(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


def probe(model: nn.Module, anchors: Any, settings: Settings, loss: Loss | None = None) -> Setup:
    """Run the model on two anchors in evaluation mode and choose the watched layers from what ran."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise LayerError("the model has no parameters, so there is nothing to watch")
    if (default := torch.get_default_dtype()) != torch.float32:
        raise SettingError(
            f"torch's default dtype is {default}, and the monitor keeps its figures in float32. Call"
            f" torch.set_default_dtype(torch.float32) once the model is made, which stays in {default}"
        )
    dataset = as_dataset(anchors)
    with isolated_random_state(parameter.device):
        pairs = [split_target(dataset[i]) for i in range(min(2, len(dataset)))]  # type: ignore[arg-type]
        items = [item for item, _ in pairs]
        inputs = to_device(collate(items), parameter.device)
        size, (calls, output) = _trial_run(model, inputs, len(items), settings.anchor_batch)
    batch = size or len(items)
    targets = [pairs[number % len(pairs)][1] for number in range(batch)]
    objective = find_objective(loss, output, targets)
    layers = choose_layers(calls, settings.layers, output.shape[-1] if output.dim() > 1 else 1, batch)
    for number, layer in enumerate(layers):
        limit = HEAD_BLOCK if number == len(layers) - 1 else BODY_BLOCK
        if layer.rows * layer.cols > limit:
            layer.project(settings.projection, settings.seed + number)
    layout = Layout(tuple(layer.block for layer in layers))
    return Setup(
        device=parameter.device,
        objective=objective,
        layers=layers,
        layout=layout,
        dataset=dataset,
        channels_last=any(_is_channels_last(weight) for weight in model.parameters()),
        only_batch=size,
    )


def _trial_run(
    model: nn.Module, inputs: Any, count: int, wanted: int | None
) -> tuple[int | None, tuple[list[Call], Tensor]]:
    """The layers that ran and the output, and of a model that takes batches of one size alone that size."""

    def run(batch: Any) -> tuple[list[Call], Tensor]:
        with evaluation(model), torch.no_grad():
            calls, output = trace(model, lambda: forward(model, batch))
            return _with_answer(calls, bare(model), batch), output

    try:
        return None, run(inputs)
    except FAILURES as error:
        # A class token that was expanded to the batch of training, say: its size is often part of the complaint.
        named = {int(number) for number in re.findall(r"\d+", str(error)) if int(number) <= LARGEST_TRIAL}
        sizes = dict.fromkeys(([wanted] if wanted else []) + sorted({*TRIAL_BATCHES, *named} - {0, count}))
        for size in sizes:
            try:
                found = run(taken(inputs, torch.arange(size) % count))
            except FAILURES:
                continue
            if found[1].dim() and len(found[1]) and len(found[1]) % size == 0:
                return size, found
        weight = next(model.parameters())
        raise AnchorError(
            f"the model cannot run on the anchors ({_described(inputs)} on {weight.device}; model weights are"
            f" {weight.dtype}), neither on {count} of them nor on batches of {', '.join(map(str, sizes))}. Give anchors"
            " the same transforms as the evaluation data; if the model takes batches of one size alone, give that size"
            f" as anchor_batch=. The cause: {error}"
        ) from error


def trained_by(optimizer: Any, model: nn.Module) -> Set[str]:
    """Names of the model's weights that the optimizer holds; asked before a sharded model runs, which swaps them."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise SettingError(
            f"optimizer must be one torch optimizer; got {type(optimizer).__name__}. Of several give the one that"
            " trains the watched layers, by default the last linear one"
        )
    held = {id(weight) for group in groups for weight in group["params"]}
    return {name for name, weight in model.named_parameters(remove_duplicate=False) if id(weight) in held}


def warn_of_untrained(layers: Sequence[WatchedLayer], trained: Set[str]) -> None:
    """Say which watched layers the optimizer leaves as they are, as it does when it was made before them."""
    untrained = [
        repr(layer.name)
        for layer in layers
        if not any(name.startswith(f"{layer.name}." if layer.name else "") for name in trained)
    ]
    if untrained:
        warnings.warn(
            f"the optimizer holds no weights of the watched layers {', '.join(untrained[:5])}"
            f"{', …' if len(untrained) > 5 else ''}, so they do not learn and scores over them say little. If layers"
            " were replaced after the optimizer was made, make it afterwards; of several optimizers give the one that"
            " trains these layers; or watch others with layers=[...]",
            stacklevel=3,
        )


def _with_answer(calls: list[Call], model: nn.Module, inputs: Any) -> list[Call]:
    """The calls, with the head as what answers where something comes after it."""
    if any(call.answers for call in calls) or sum(isinstance(call.module, nn.Linear) for call in calls) < 2:
        return calls
    head, _ = find_head(model, lambda: forward(model, inputs))
    return [call._replace(answers=call.module is head.layer) for call in calls]


def _is_channels_last(weight: Tensor) -> bool:
    if weight.dim() != 4 or weight.is_contiguous():
        return False
    return weight.is_contiguous(memory_format=torch.channels_last)


def fit_bank(setup: Setup, groups: Grouping, settings: Settings, communicator: Communicator) -> AnchorBank:
    """A bank as large as asked for, or as fits the memory set aside for directions."""
    if groups is None and settings.one_pool:
        groups = "one"
    wanted = settings.max_anchors or min(MOST_ANCHORS, max(ANCHORS, ANCHORS_PER_CLASS * setup.classes))
    bank = AnchorBank(setup.dataset, groups, wanted, settings.seed, setup.device, setup.objective)
    setup.objective.check_anchors(bank.labels)
    fitting = DIRECTION_BYTES // (4 * setup.layout.size)
    bank.select(min(wanted, max(fitting, len(bank.group_names))))
    bank.allocate(setup.layout, channels_last=setup.channels_last, communicator=communicator)
    return bank


def choose_curvature(settings: Settings, layout: Layout, device: torch.device) -> Curvature:
    """The curvature that the settings name, with the options that are its own."""
    s = settings
    own = {"rank": s.rank, "refresh": s.rank_every} if s.curvature == "lowrank" else {}
    return make_curvature(s.curvature, layout, damping=s.damping, decay=s.decay, device=device, **own)


def choose_solver(settings: Settings) -> Solver:
    """The solver that the settings name; its number of iterations is called differently by each."""
    name, steps = settings.solver, settings.solver_steps
    if steps is None and name == "richardson":
        steps = RICHARDSON_STEPS
    own: dict[str, dict[str, Any]] = {
        "richardson": {"decay": settings.step_decay},
        "neumann": {"preconditioner": settings.preconditioner},
        "subspace": {"rank": settings.rank},
    }
    given = {} if steps is None else {STEP_OPTION.get(name, "steps"): steps}
    return make_solver(name, **given, **own.get(name, {}))


def _described(inputs: Any) -> str:
    if isinstance(inputs, Tensor):
        return f"{inputs.dtype} of shape {tuple(inputs.shape)}"
    return type(inputs).__name__
