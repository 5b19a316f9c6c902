"""Scores: from what training steps left behind to values for the ledger.

Steps are collected and scored several at a time: on a GPU the cost of scoring is the number of operations, not their
size. The result does not depend on how many are taken together, since every step keeps its own scale.

    raw influence on group g    s_ig = −ψ_gᵀ g_i / s                   s: scale of the batch loss, positive = harmful
    raw influence               s_i  = Σ_g s_ig
    weighed                     u_i  = Σ_g max(s_ig, 0) + h min(s_ig, 0)     h = 1: the plain sum
    squashed                    x_i  = T tanh(u_i / T q)

An example that harms one class and helps its own is harmful, so help counts less than harm (h = ½). q is the running
mean size of u, so x is measured in typical influences of its own step and no single step can dominate an average.
Everything stays on the device; nothing here waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.checks import Flags, Indices
from sgoif.curvature.base import Factors
from sgoif.ledger import TINY, Ledger
from sgoif.losses import Loss, cross_entropy, gradient_of, read_labels_off
from sgoif.ranks import ALONE, Ranks
from sgoif.solvers.base import row_norm
from sgoif.stability.means import finite_or_zero

SCALE_DECAY = 0.9
SETTLED = 200
"""Steps after which the correction for a short history is one in single precision."""
BLOCK_STEPS, BLOCK_BYTES = 64, 24 * 2**20
"""Steps that are scored together, and the most memory that may wait for it."""
RECORDED_STEPS, RECORDED_BYTES = 24, 14 * 2**20
"""The same for blocks that a GPU repeats from a recording, which holds them a second time."""
SHELF_BYTES = 2**20
"""The most memory on the host, where single operations are cheap, so that small blocks cost little more."""
RESPONSE_ENTRIES = 2**24
"""Largest intermediate result of scoring, in numbers (64 MiB)."""


@dataclass
class StepScores:
    """Raw scores of one or more steps; `monitor.last` shows those of the last one."""

    index: Tensor
    influence: Tensor
    """[B], in units of loss per unit of up-weighting; positive = harmful."""
    groups: Tensor
    """[B, G], the watched head's share of it by group."""
    margin: Tensor
    logit_margin: Tensor
    loss: Tensor
    label: Tensor
    probabilities: Tensor
    """[B, C], the softmax of the logits."""

    def tail(self, count: int) -> StepScores:
        """A copy of the last `count` examples; later steps may be scored in the same place."""
        return StepScores(*(getattr(self, f.name)[-count:].clone() for f in fields(self)))


@dataclass
class Observation:
    """What one step leaves behind for scoring: small tensors, nothing computed yet."""

    indices: Indices
    logits: Tensor
    logits_delta: Tensor
    inputs: Tensor
    """Of the head."""
    delta: Tensor
    """Of the head."""
    response: Tensor | None
    """Σ over the layers below the head, those whose turn it is, of ⟨δ_i, layer(a_i; ψ)⟩, [B]."""
    target: Tensor | None
    version: int | None = None
    """How often the logits had been written to when the step ended; None: they are not the training loop's."""

    @property
    def overwritten(self) -> bool:
        """Whether the training loop has written into the logits since, as `logits.sigmoid_()` does."""
        return self.version is not None and self.logits._version != self.version

    def copied(self) -> Observation:
        """The same with tensors of its own."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        changes: dict[str, Any] = {name: value.clone() for name, value in mine.items() if isinstance(value, Tensor)}
        return replace(self, **changes, version=None)

    @property
    def bytes_per_example(self) -> int:
        kept = (self.logits, self.logits_delta, self.inputs, self.delta)
        return sum(t.shape[1:].numel() * t.element_size() for t in kept)


TENSORS = tuple(f.name for f in fields(Observation) if f.name not in ("indices", "version"))
"""What a step leaves behind on the device."""


def make_alike(steps: Sequence[Observation]) -> None:
    """Have every step leave behind what one of them does.

    A loop may give targets now and then, and a layer below the head may be left out of a step.
    """
    if any(step.response is not None for step in steps):
        for step in steps:
            if step.response is None:
                step.response = step.logits.new_zeros(len(step.logits), dtype=torch.float32)
    if any(step.target is not None for step in steps):
        for step in steps:
            if step.target is None:
                step.target = read_labels_off(step.logits_delta, step.logits.float())


def lined_up(steps: Sequence[Observation]) -> tuple[dict[str, int], list[list[Tensor]]]:
    """The tensors of several steps, one list of them for each that is to be put together, and where each name stands.

    The gradient of the logits and that of the head are often the same, and then stand in one place.
    """
    places: dict[str, int] = {}
    parts: dict[tuple[int, ...], list[Tensor]] = {}
    for name in TENSORS:
        if getattr(steps[0], name) is not None:
            part = [getattr(step, name) for step in steps]
            parts.setdefault(same := tuple(map(id, part)), part)
            places[name] = list(parts).index(same)
    return places, list(parts.values())


def together(places: dict[str, int], tensors: Sequence[Tensor], indices: Indices) -> Observation:
    """Several steps as one: their tensors, put together, and where each name stands among them."""
    found: dict[str, Any] = {name: tensors[places[name]] if name in places else None for name in TENSORS}
    return Observation(indices, **found)


def named(steps: Sequence[Observation]) -> Indices:
    """The examples of several steps."""
    return np.concatenate([step.indices for step in steps])


class Shelf:
    """Room for the tensors of a block in one place.

    On the host, small tensors that outlive a step lie between what the steps after it need, and make a process grow by
    many times their size.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Tensor] = {}
        self.used = 0

    def put(self, step: Observation) -> Observation:
        """The same step with its tensors on the shelf, or as it is where there is no room."""
        size = len(step.logits)
        held = {name: tensor for name in TENSORS if (tensor := getattr(step, name)) is not None}
        if not self.used:
            room = min(BLOCK_STEPS * size, SHELF_BYTES // max(step.bytes_per_example, 1) + size)
            self._make(held, room)
        rows = slice(self.used, self.used + size)
        if not all(self._fits(name, tensor, rows.stop) for name, tensor in held.items()):
            return step.copied()
        placed: dict[int, Tensor] = {}  # one tensor may stand for two names
        for name, tensor in held.items():
            if id(tensor) not in placed:
                placed[id(tensor)] = self._rows[name][rows].copy_(tensor)
        self.used = rows.stop
        found: dict[str, Any] = {name: placed[id(tensor)] for name, tensor in held.items()}
        return replace(step, **found, version=None)

    def _make(self, held: dict[str, Tensor], room: int) -> None:
        for name, tensor in held.items():
            if not self._fits(name, tensor, room):
                self._rows[name] = tensor.new_empty(room, *tensor.shape[1:])

    def _fits(self, name: str, tensor: Tensor, rows: int) -> bool:
        there = self._rows.get(name)
        alike = there is not None and there.dtype == tensor.dtype and there.shape[1:] == tensor.shape[1:]
        return alike and there is not None and len(there) >= rows


class WaitingSteps:
    """Steps that wait to be scored together; no example waits twice.

    `shelved`: they are copied to a place of their own, and otherwise kept where they are.
    """

    def __init__(self, shelved: bool = False) -> None:
        self._shelf = Shelf() if shelved else None
        self.steps: list[Observation] = []
        self._named: list[Indices] = []
        self._examples = np.zeros(0, dtype=bool)
        self._bytes = 0
        self._bytes_per_example = 0
        self.copying = not shelved
        """Whether logits are copied: a loop may overwrite them, but for one that never does a copy is a waste."""
        self._trial: Observation | None = None

    def reserve(self, count: int) -> None:
        """Make room for so many examples."""
        if count > len(self._examples):
            self._examples = np.concatenate([self._examples, np.zeros(2 * count - len(self._examples), dtype=bool)])

    def held(self, indices: Indices) -> Flags:
        """Which of these examples are waiting."""
        return self._examples[indices]

    def meets(self, indices: Indices) -> bool:
        """Whether one of these examples is waiting."""
        return bool(np.count_nonzero(self.held(indices)))

    def differs(self, examples: int) -> bool:
        """Whether steps with another number of examples are waiting."""
        return bool(self.steps) and len(self.steps[-1].logits) != examples

    def add(self, step: Observation, everyone: Indices | None = None) -> None:
        """Let a step wait; its examples, and those of the other ranks (`everyone`), must not be waiting yet."""
        if self.copying:
            self._trial, step = step, replace(step, logits=step.logits.clone(), version=None)
        elif self._shelf is not None:
            step = self._shelf.put(step)
        named = step.indices if everyone is None else everyone
        if not self.steps:
            self._bytes, self._bytes_per_example = 0, step.bytes_per_example
        self._bytes += self._bytes_per_example * len(named)
        self.steps.append(step)
        self._named.append(named)
        self._examples[named] = True

    def add_together(self, steps: Sequence[Observation], indices: Indices, sizes: Sequence[int]) -> bool:
        """Let steps of so many examples wait, unless one of these is named twice or waiting; whether they do."""
        held = sum(map(len, self._named))
        self._examples[indices] = True
        if np.count_nonzero(self._examples) != held + len(indices):
            self._examples[indices] = False
            for named in self._named:
                self._examples[named] = True
            return False
        if not self.steps:
            self._bytes, self._bytes_per_example = 0, steps[0].bytes_per_example
        self._bytes += self._bytes_per_example * len(indices)
        end = 0
        for step, size in zip(steps, sizes, strict=True):
            end += size
            step.indices = indices[end - size : end]
        self.steps.extend(steps)
        self._named.append(indices)
        return True

    def watch(self) -> None:
        """Learn from the step before whether this loop overwrites its logits."""
        if self._trial is not None:
            self.copying, self._trial = self._trial.overwritten, None
        elif self.steps and self.steps[-1].overwritten:
            self.copying = True

    def whole(self) -> list[Observation]:
        """The waiting steps whose logits are still what they were."""
        return [step for step in self.steps if not step.overwritten]

    def full(self, recorded: bool) -> bool:
        """Whether a block is complete, by the number of steps or by memory, which grows with the whole batch."""
        steps, size = self._limits(recorded)
        return len(self.steps) >= steps or self._bytes > size

    def room(self, batch: int, recorded: bool) -> int:
        """Steps with so many examples until a block is complete."""
        steps, size = self._limits(recorded)
        left = steps - len(self.steps)
        each = self._bytes_per_example * batch
        held = self._bytes if self.steps else 0
        return min(left, (size - held) // each + 1) if each else left

    def take(self) -> list[Observation]:
        """All waiting steps; nothing waits afterwards.

        Steps whose logits were overwritten are left out, and from then on logits are copied.
        """
        whole = self.whole()
        self.copying |= len(whole) < len(self.steps)
        self.drop()
        return whole

    def drop(self) -> None:
        """Let nothing wait any longer."""
        for named in self._named:
            self._examples[named] = False
        self.steps, self._named = [], []
        if self._shelf is not None:
            self._shelf.used = 0

    def _limits(self, recorded: bool) -> tuple[int, int]:
        if recorded:
            return min(RECORDED_STEPS, BLOCK_STEPS), RECORDED_BYTES
        return BLOCK_STEPS, BLOCK_BYTES if self._shelf is None else SHELF_BYTES


def alike(sizes: Sequence[int]) -> bool:
    """Whether all steps have the same number of examples."""
    return min(sizes) == max(sizes)


def per_step(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Sum of the values [R] of each step, [M]; the order of summation never varies."""
    if alike(sizes):
        return values.view(len(sizes), -1).sum(1)
    return torch.stack([part.sum() for part in values.split(list(sizes))])


def for_examples(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """The value of each step [M] for all of its examples, [R]."""
    if alike(sizes):
        return values.repeat_interleave(sizes[0])
    return torch.cat([value.expand(size) for value, size in zip(values.unbind(), sizes, strict=True)])


@dataclass
class Outputs:
    """What the logits say: labels, margins, losses, and the scale of the batch loss each example was part of."""

    label: Tensor
    rival: Tensor
    margin: Tensor
    logit_margin: Tensor
    loss: Tensor
    scale: Tensor
    probabilities: Tensor


def read_outputs(
    logits: Tensor, delta: Tensor | None, target: Tensor | None, loss: Loss, reduction: str, sizes: Sequence[int]
) -> Outputs:
    """Margins and losses of one or more steps, labels read off the gradient when no target is given."""
    z = logits.float()
    if target is None:
        assert delta is not None
        label = read_labels_off(delta, z)
    else:
        label = target
    column = label.unsqueeze(1)
    best, rival = z.scatter(1, column, float("-inf")).max(dim=1, keepdim=True)
    logarithms = torch.log_softmax(z, dim=1)
    probabilities = logarithms.exp()
    given = probabilities.gather(1, column)
    if reduction == "auto" and delta is not None:
        if loss is cross_entropy:
            # The probabilities, less one at the label. A model may answer with their logarithms; what moves all logits
            # alike, which changes no probability, is in the gradient of those alone.
            exact = probabilities.scatter(1, column, given - 1)
            delta = delta - probabilities * delta.sum(1, keepdim=True, dtype=torch.float32)
        else:
            exact = gradient_of(loss, z, label)
        scale = scales_of(delta, exact, sizes)
    else:
        scale = torch.tensor([1.0 / n if reduction == "mean" else 1.0 for n in sizes], device=z.device)
    own = -logarithms.gather(1, column).squeeze(1) if loss is cross_entropy else loss(z, label).float()
    return Outputs(
        label=label,
        rival=rival.squeeze(1),
        margin=(given - probabilities.gather(1, rival)).squeeze(1),
        logit_margin=(z.gather(1, column) - best).squeeze(1),
        loss=own,
        scale=for_examples(scale, sizes),
        probabilities=probabilities,
    )


def held_out_scores(
    positions: Tensor, groups: Tensor, losses: Tensor, logits: Tensor, labels: Tensor, loss: Loss
) -> StepScores:
    """Raw scores of held-out examples from their influences by group, in the form that `remember` takes."""
    outputs = read_outputs(logits, None, labels, loss, "sum", [len(logits)])
    margins = outputs.margin, outputs.logit_margin
    return StepScores(positions, groups.sum(1), groups, *margins, losses, labels, outputs.probabilities)


def scales_of(delta: Tensor, reference: Tensor, sizes: Sequence[int]) -> Tensor:
    """s in δ ≈ s · reference for every step, [M]: 1/B for a mean, 1 for a sum, times what the loss was multiplied with.

    Loss scaling, gradient accumulation and reductions all multiply the loss; dividing by s undoes them. A batch that
    is fitted perfectly says nothing, so it gets 1/B. Stays on the device.
    """
    along = (delta * reference).sum(1, dtype=torch.float32)
    power = (reference * reference).sum(1)
    sound = along * 0 == 0  # where a loss scaler overflows, the scale is read off the other examples
    s = finite_or_zero(per_step(finite_or_zero(along), sizes) / per_step(power * sound, sizes))
    mean: float | Tensor = 1.0 / sizes[0]
    if not alike(sizes):
        mean = torch.tensor([1.0 / size for size in sizes]).to(delta.device, non_blocking=True)
    return torch.where(s > 0, s, mean)


def group_scores(factors: Factors, directions: Tensor) -> Tensor:
    """ψ_gᵀ g_i for directions [G, rows, cols] of one layer, [B, G], summed over the positions of an example."""
    if factors.elementwise:
        return factors.gradient().flatten(1) @ directions.flatten(1).T
    groups, rows, cols = directions.shape
    weights = directions.reshape(groups * rows, cols).T
    positions = factors.delta.shape[1]
    some = max(1, RESPONSE_ENTRIES // (groups * rows * positions))  # with many classes the responses are large
    scores = []
    for a, d in zip(factors.inputs.split(some), factors.delta.split(some), strict=True):
        response = (a.flatten(0, 1) @ weights).reshape(-1, groups, rows)
        found = torch.bmm(response, d.reshape(-1, rows, 1)).squeeze(-1)
        scores.append(found.reshape(-1, positions, groups).sum(1) if positions > 1 else found)
    return scores[0] if len(scores) == 1 else torch.cat(scores)


def gradient_norms(factors: Factors) -> Tensor:
    """‖g_i‖ of one layer's block, [B].

    ‖Σ_t δ_t ⊗ a_t‖² = Σ_{t,u} (δ_t·δ_u)(a_t·a_u), so the gradient is formed only where that is smaller than the table
    of all pairs of positions.
    """
    positions, rows = factors.delta.shape[1:]
    if positions == 1 and not factors.elementwise:
        return row_norm(factors.inputs[:, 0]) * row_norm(factors.delta[:, 0])
    if factors.elementwise or positions**2 > rows * factors.inputs.shape[-1]:
        return row_norm(factors.gradient().flatten(1))
    pairs = (factors.delta @ factors.delta.mT) * (factors.inputs @ factors.inputs.mT)
    return pairs.sum((1, 2)).clamp_min(0).sqrt()


class Squash:
    """Running scale q and the squashing of one step's scores."""

    def __init__(self, temperature: float | None, device: torch.device, ranks: Ranks = ALONE) -> None:
        self.temperature = temperature
        self._ranks = ranks
        self.mean = torch.zeros((), device=device)
        self.updates = 0
        self._mixings: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def bound(self) -> float:
        """Largest size of a squashed score."""
        return self.temperature if self.temperature is not None else float("inf")

    def observe(self, raw: Tensor, sizes: Sequence[int]) -> Tensor:
        """Fold steps in, one after the other, and return q of the step for every example, [R]."""
        summed = per_step(torch.nan_to_num(raw, posinf=0, neginf=0).abs(), sizes)
        if self._ranks.size == 1 and alike(sizes):
            size = summed / sizes[0]
        else:
            counts = torch.tensor(sizes, dtype=torch.float32).to(raw.device, non_blocking=True)
            size = torch.div(*self._ranks.total(torch.stack([summed, counts])).unbind())
        old, new = self._mixing(len(sizes))
        means = new @ size + old * self.mean
        if self.updates < SETTLED:
            unbiased = 1 - SCALE_DECAY ** (self.updates + np.arange(1, len(sizes) + 1))
            q = means / torch.from_numpy(unbiased.astype(np.float32)).to(raw.device, non_blocking=True)
        else:
            q = means
        self.mean = means[-1]
        self.updates += len(sizes)
        return for_examples(q.clamp_min(TINY), sizes)

    def _mixing(self, steps: int) -> tuple[Tensor, Tensor]:
        """What the old mean [M] and the sizes of steps 0 … t [M, M] count for in the mean after step t, in row t."""
        if steps not in self._mixings:
            lag = np.subtract.outer(np.arange(steps), np.arange(steps))
            weights = np.where(lag >= 0, (1 - SCALE_DECAY) * SCALE_DECAY ** np.maximum(lag, 0), 0)
            old = SCALE_DECAY ** np.arange(1, steps + 1)
            tables = (torch.from_numpy(table.astype(np.float32)).to(self.mean.device) for table in (old, weights))
            self._mixings[steps] = next(tables), next(tables)
        return self._mixings[steps]

    def apply(self, raw: Tensor, q: Tensor) -> Tensor:
        """Scores [R, ...] in units of q [R], bent towards ±T."""
        if self.temperature is None:
            return raw
        return self.temperature * torch.tanh(raw / (self.temperature * q.view(-1, *[1] * (raw.dim() - 1))))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"].to(self.mean.device).clone()
        self.updates = int(state["updates"])


def remember(
    ledger: Ledger,
    squash: Squash,
    scores: StepScores,
    support: Tensor,
    weight: float,
    help_weight: float,
    error: Tensor | None = None,
    sizes: Sequence[int] | None = None,
) -> None:
    """Weigh and squash raw scores step by step, gate anomalies out, and fold the rest into a ledger.

    `support` [G] is the mean confidence behind each group's direction, `error` [R] a bound on the solver's error where
    there is one.
    """
    if error is None:
        error = torch.full_like(scores.loss, torch.inf)
    raw = scores.influence
    if help_weight < 1:
        raw = raw - (1 - help_weight) * scores.groups.clamp_max(0).sum(1)
    q = squash.observe(raw, sizes or [len(raw)])
    squashed = squash.apply(torch.cat([raw.unsqueeze(1), scores.groups], dim=1), q)
    size = scores.groups.abs()
    trust = (size @ support) / size.sum(1).clamp_min(TINY)
    bound = error if squash.temperature is None else error / q
    valid = (raw + scores.loss) * 0 == 0  # false for infinite values and for those that are not numbers
    columns = [squashed[:, 0], trust, scores.margin, scores.logit_margin, scores.loss, bound]
    values = torch.stack(columns, dim=1)
    ledger.add(scores.index, values, squashed[:, 1:], scores.probabilities, scores.label, valid, weight)
