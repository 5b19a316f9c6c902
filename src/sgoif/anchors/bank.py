"""The anchor bank: held-out examples, their gradients g_v and directions φ_v ≈ H⁻¹ g_v.

The hold-out is a pool of candidates. Anchors belong to groups: their class, unless the user says otherwise. The bank
holds at most `max_anchors` candidates, the same number from every group as far as the pool allows; the others stand by
to replace anchors that are not trusted. The direction of a group is the confidence-weighted mean of its anchors:

    ψ_g = Σ_{v∈g} w_v c_v φ_v ,    w_v = c_v / Σ_{u∈g} c_u .

Where several processes train the model, each keeps the φ_v of its own share of the anchors; everything else about an
anchor is a number and is known to all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sgoif.anchors.grouping import Grouping, balanced, given_groups, group_candidates
from sgoif.core.batches import collate, nbytes, read_items, stacked, to_device
from sgoif.core.data import Indexed, drawn_from, isolated_random_state, split_target
from sgoif.core.objective import Classification, Objective
from sgoif.core.parameter_layout import Layout
from sgoif.distributed.communicator import SINGLE_PROCESS, Communicator
from sgoif.errors import AnchorError, StateError

CACHE_BYTES = 256 * 2**20
DEVICE_CACHE_BYTES = 32 * 2**20
AVERAGE_DECAY = 0.7
"""Memory of an anchor's residual norm, per refresh (for the moving-average gate)."""
LOOK_AT = 2
"""Candidates looked at per anchor wanted: a hold-out of a million images is sampled, not read."""
OTHERS = 1e-3
"""Least share of a group's confidence that has to remain when an anchor is left out; ψ_g is nearly zero below it."""


def as_dataset(anchors: Any) -> Dataset[Any]:
    """The hold-out as a data set: a data set, a loader, or a pair of tensors (inputs, labels)."""
    if isinstance(anchors, DataLoader):
        anchors = drawn_from(anchors)
    if isinstance(anchors, Indexed):
        anchors = anchors.dataset
    if isinstance(anchors, (tuple, list)) and len(anchors) == 2 and all(isinstance(t, Tensor) for t in anchors):
        if len(anchors[0]) != len(anchors[1]):
            raise AnchorError(f"{len(anchors[0])} anchor inputs but {len(anchors[1])} labels were given")
        anchors = TensorDataset(*anchors)
    indexable = hasattr(anchors, "__getitem__") and hasattr(anchors, "__len__")
    if not indexable or isinstance(anchors, (IterableDataset, Mapping, str)):
        raise AnchorError(
            f"anchors must be a data set of (input, label) pairs or two tensors; got {type(anchors).__name__}."
            " Hold some labelled examples out of training: train_set, anchors = split_holdout(train_set)"
        )
    if len(anchors) == 0:
        raise AnchorError("anchors is empty. Hold out labelled examples: train_set, anchors = split_holdout(train_set)")
    return anchors  # type: ignore[no-any-return]


class AnchorBank:
    """Candidates, the anchors among them, and what is known about each anchor."""

    def __init__(
        self,
        dataset: Dataset[Any],
        grouping: Grouping,
        max_anchors: int,
        seed: int,
        device: torch.device,
        objective: Objective | None = None,
    ) -> None:
        self.dataset = dataset
        self.objective = objective or Classification(2)
        self.device = device
        self.seed = seed
        total = len(dataset)  # type: ignore[arg-type]
        looked_at = min(total, LOOK_AT * max_anchors)
        generator = np.random.default_rng(seed)
        order = generator.permutation(total)
        keys = given_groups(grouping, total)
        self.pool = np.sort(order[:looked_at] if keys is None else balanced(order, keys, looked_at))
        """Positions of the candidates in the hold-out."""
        targets: list[Any] = []
        items: list[Any] = []
        room = CACHE_BYTES
        with isolated_random_state():
            for position in self.pool:
                inputs, target = split_target(dataset[int(position)])
                targets.append(self.objective.read(target))
                room -= nbytes(inputs)
                if room >= 0:
                    items.append(inputs)
        self._cache = stacked(items) if room >= 0 else None
        """Inputs of all candidates, when they fit; otherwise they are read again at every refresh."""
        self.labels = self.objective.stack(targets)
        """Target of every candidate: its class, or what else the objective reads."""
        self.group_names, self.groups = group_candidates(grouping, targets, keys, self.pool, self.objective)

    def select(self, count: int) -> None:
        """Fill the bank with `count` candidates, as many from every group as the pool allows."""
        generator = np.random.default_rng(self.seed + 1)
        order = generator.permutation(len(self.pool))
        self.members = torch.tensor(sorted(balanced(order, self.groups.tolist(), count)))
        """Candidates in the bank, as rows of the pool."""

    def allocate(
        self, layout: Layout, *, channels_last: bool = False, communicator: Communicator = SINGLE_PROCESS
    ) -> None:
        """Room for the direction of every member of this rank's share; images are laid out as the model wants them."""
        count, device = len(self.members), self.device
        self.communicator, self.own = communicator, communicator.share(count)
        if isinstance(self._cache, Tensor):
            if channels_last and self._cache.dim() == 4:
                self._cache = self._cache.contiguous(memory_format=torch.channels_last)
            if nbytes(self._cache) <= DEVICE_CACHE_BYTES:
                self._cache = self._cache.to(device)
        self.phi = torch.zeros(self.own.stop - self.own.start, layout.size, device=device)
        """φ_v of this rank's anchors."""
        self.confidence = torch.zeros(count, device=device)
        self.residual = torch.zeros(count)
        """Residual norm of each anchor. It and what follows stay on the host, where the gate decides."""
        self.average = torch.zeros(count)
        """Moving average of each anchor's residual norm."""
        self.fresh = torch.ones(count, dtype=torch.bool)
        """Anchors that have not been through a refresh yet."""
        self.replaced = 0
        self._place_members()

    def __len__(self) -> int:
        return len(self.members)

    def _place_members(self) -> None:
        """What is asked about the anchors at every refresh, on the device: to send it there is to wait for it."""
        self.member_groups = self.groups[self.members].to(self.device)
        self.member_labels = self.labels[self.members].to(self.device)
        self.member_positions = self.positions().to(self.device)
        self._member_rows = self.members.to(self.device)

    def member_batch(self, which: slice) -> tuple[Any, Tensor]:
        """Inputs and labels of some anchors, collated, on the bank's device."""
        if isinstance(self._cache, Tensor) and self._cache.device == self._member_rows.device:
            return self._cache[self._member_rows[which]], self.member_labels[which]
        return self.batch(self.members[which])

    def batch(self, rows: Sequence[int] | Tensor) -> tuple[Any, Tensor]:
        """Inputs and labels of some candidates, collated, on the bank's device."""
        rows = torch.as_tensor(rows)
        if isinstance(self._cache, Tensor):
            inputs: Any = self._cache[rows.to(self._cache.device)]
        else:
            with isolated_random_state():
                items = [self._read(int(r)) for r in rows]
            inputs = collate(items)
        return to_device(inputs, self.device), self.labels[rows].to(self.device)

    def _read(self, row: int) -> Any:
        return self._cache[row] if self._cache is not None else split_target(self.dataset[int(self.pool[row])])[0]

    def read(self, positions: Tensor) -> tuple[Any, Tensor]:
        """Inputs and labels of any held-out examples, by position."""
        return read_items(self.dataset, positions, self.device, self.objective)

    def positions(self) -> Tensor:
        """Positions of the anchors in the hold-out, [K]."""
        return torch.from_numpy(self.pool)[self.members]

    def average_residual(self) -> None:
        """Fold the newest residual norms into each anchor's moving average, which begins anew after an anomaly."""
        decayed = AVERAGE_DECAY * self.average + (1 - AVERAGE_DECAY) * self.residual
        self.average = torch.where(self.fresh | ~torch.isfinite(self.average), self.residual, decayed)
        self.fresh.zero_()

    def weights(self) -> Tensor:
        """w_v c_v: the share of each anchor in its group's direction, [K]."""
        c = self.confidence
        total = torch.zeros(len(self.group_names), device=c.device).index_add_(0, self.member_groups, c)
        return c * c / total[self.member_groups].clamp_min(torch.finfo(c.dtype).tiny)

    def group_sums(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Σ_{v∈g} w_v c_v row_v for every group, [G, P], from the rows of this rank's anchors; ψ_g for rows φ_v."""
        weighted = weights[self.own].unsqueeze(1) * rows
        out = torch.zeros(len(self.group_names), rows.shape[1], device=rows.device)
        return self.communicator.total(out.index_add_(0, self.member_groups[self.own], weighted))

    def own_scores(self, directions: Tensor, gradient: Tensor, columns: slice = slice(None)) -> Tensor:
        """Influence of every anchor on every group with its own part left out, [K, G], through these weights.

        `gradient` holds the g_v of this rank's anchors.
        """
        directions, gradient, phi = directions[:, columns], gradient[:, columns], self.phi[:, columns]
        scores = self.communicator.gathered(-(gradient @ directions.T))
        c, groups = self.confidence, self.member_groups
        total = torch.zeros(len(self.group_names), device=c.device).index_add_(0, groups, c)[groups]
        own = c * c * self.communicator.gathered((phi * gradient).sum(1))
        rows = torch.arange(len(c), device=c.device)
        # ψ_g without v: the numerator loses c_v² φ_v and the denominator c_v.
        others = total - c
        without = (scores[rows, groups] * total + own) / others.clamp_min(torch.finfo(c.dtype).tiny)
        scores[rows, groups] = torch.where(others > OTHERS * total, without, 0.0)
        return scores

    def replace(self, share: float) -> int:
        """Exchange the least trusted anchors for candidates of the same group; returns how many."""
        wanted = int(share * len(self.members))
        if wanted == 0 or len(self.members) == len(self.pool):
            return 0
        generator = np.random.default_rng((self.seed, 2, self.replaced, len(self.members)))
        idle = np.setdiff1d(np.arange(len(self.pool)), self.members.numpy())
        queues: dict[int, list[int]] = {}
        for slot in generator.permutation(idle):
            queues.setdefault(int(self.groups[slot]), []).append(int(slot))
        changed = 0
        for row in torch.argsort(self.confidence.cpu(), stable=True)[:wanted].tolist():
            queue = queues.get(int(self.groups[self.members[row]]))
            if not queue:
                continue
            self.members[row] = queue.pop()
            if self.own.start <= row < self.own.stop:
                self.phi[row - self.own.start] = 0
            self.fresh[row] = True
            changed += 1
        self.replaced += changed
        self._place_members()
        return changed

    def state_dict(self) -> dict[str, Any]:
        return {
            "members": self.members,
            "pool": torch.from_numpy(self.pool),
            "labels": self.labels,
            "groups": self.groups,
            "names": [repr(name) for name in self.group_names],
            "phi": self.communicator.gathered(self.phi),
            "confidence": self.confidence,
            "residual": self.residual,
            "average": self.average,
            "fresh": self.fresh,
            "replaced": torch.tensor(self.replaced),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        same = state["labels"].shape == self.labels.shape and bool((state["labels"] == self.labels).all())
        if not same or not np.array_equal(state["pool"].numpy(), self.pool):
            raise StateError(
                "the saved state belongs to other anchors: the hold-out has other examples or labels than the one the"
                " state was saved with. Pass the same hold-out, max_anchors and seed"
            )
        names = [repr(name) for name in self.group_names]
        if state["names"] != names or not torch.equal(state["groups"], self.groups):
            raise StateError("the saved state has other groups of anchors than this monitor; pass the same groups=...")
        wanted = (len(self.members), self.phi.shape[1])
        if state["phi"].shape != wanted:
            raise StateError(
                f"the saved directions have shape {tuple(state['phi'].shape)}, this model needs {wanted}: the state is"
                " from another model or other watched layers"
            )
        parts = {name: getattr(self, name) for name in ("confidence", "residual", "average", "fresh")}
        if any(state[name].shape != part.shape for name, part in [*parts.items(), ("members", self.members)]):
            raise StateError("the saved state of the anchors is damaged: its parts differ in length")
        self.members = state["members"].clone()
        self.phi.copy_(state["phi"][self.own])
        for name, part in parts.items():
            part.copy_(state[name])
        self.replaced = int(state["replaced"])
        self._place_members()
