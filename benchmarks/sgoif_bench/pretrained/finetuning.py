"""The whole network trained further, the same way for every method, which is that of an audit.

SGD with Nesterov momentum, one cycle, batches and learning rate as `sgoif audit` chooses them on a GPU, the body at a
tenth of the head's rate. Images lie on the device as bytes at their own size; they are moved, enlarged and normalised
there. On a GPU convolutions run in bfloat16 and channels last. Batches, moves and initial weights follow from the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from sgoif.audit.batches import Moves, batches_per_epoch, stream
from sgoif.audit.finetuning import features_of, normalisation_of, rates, tuned_name, tuned_network
from sgoif.audit.plan import usual_batch
from sgoif.audit.training import LARGEST_GRADIENT, MOMENTUM, WEIGHT_DECAY, learning_rate
from sgoif.backbones import Backbone
from sgoif.core.batches import filled
from sgoif_bench.pretrained.task import Rows, Task

USUAL_BATCH, MOST_RATE = 128, 2.0
"""The batch that the recipe's rate is for, and the most it grows by for larger ones, with the root of their size."""
WEIGHTS, MOVES, ORDER = 11, 12, 13
"""Random streams."""


class Bytes(Dataset[tuple[Tensor, int]]):
    """Images as bytes, with the labels they were given."""

    def __init__(self, images: Tensor, labels: NDArray[np.int64]) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.images[row], int(self.labels[row])


class Enlarging(nn.Module):
    """The network of an audit, for images as bytes at any size."""

    def __init__(self, backbone: Backbone, size: int, classes: int) -> None:
        super().__init__()
        self.network = tuned_network(tuned_name(backbone.name, size), classes, backbone)
        self.normalise = normalisation_of(backbone)

    def forward(self, images: Tensor) -> Tensor:
        x = self.normalise(images).contiguous(memory_format=torch.channels_last)
        out: Tensor = self.network(x)
        return out


@dataclass
class FineTuning:
    """A network, its optimizer and schedule for so many rows of a task."""

    task: Task
    rows: Rows
    number: int = 0
    """Another number draws other weights, batches and moves."""

    def __post_init__(self) -> None:
        recipe, device = self.task.recipe, self.task.device
        torch.manual_seed(stream(self.task.seed, WEIGHTS, self.number))
        model = Enlarging(self.task.pictures.backbone, recipe.size, self.task.classes)
        self.model: Enlarging = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        batch = usual_batch(len(self.rows), torch.device("cuda"))
        self.parts = batches_per_epoch(len(self.rows), batch)
        self.batch = len(self.rows) // self.parts
        self.peak = recipe.rate * min((batch / USUAL_BATCH) ** 0.5, MOST_RATE)
        self.optimizer = torch.optim.SGD(
            rates(model.network, True), lr=self.peak, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
        )

    def train(
        self, watching: Callable[[Tensor], AbstractContextManager[Any]] = lambda index: nullcontext()
    ) -> nn.Module:
        """All epochs; `watching` is entered with the indices of each batch around its forward and backward pass."""
        task, given = self.task, self.task.given
        images = task.pictures.on_device
        order = torch.Generator().manual_seed(stream(task.seed, ORDER, self.number))
        rows = torch.from_numpy(self.rows)
        moves_of = np.random.default_rng([task.seed, MOVES, self.number])
        self.model.train()
        steps = task.recipe.epochs * self.parts
        for epoch in range(task.recipe.epochs):
            shuffled = rows[torch.randperm(len(rows), generator=order)]
            whole = shuffled[: self.parts * self.batch].split(self.batch)
            for step, index in enumerate(whole, start=epoch * self.parts):
                for group in self.optimizer.param_groups:
                    group["lr"] = group["share"] * learning_rate(step, steps, self.peak)
                where = index.to(task.device)
                seed = int(moves_of.integers(2**62))
                moves = Moves.drawn(len(index), tuple(images.shape[-2:]), seed, task.pictures.mirror)
                x, y = moves.applied(images[where]), given[where]
                with watching(index):
                    with self._autocast():
                        logits = self.model(x)
                    F.cross_entropy(logits.float(), y).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), LARGEST_GRADIENT)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self.model

    @torch.inference_mode()
    def predict(self, rows: Rows) -> NDArray[np.float64]:
        """Probabilities of some rows in evaluation mode, float64 [rows, classes]."""
        self.model.eval()
        images, parts = self.task.pictures.on_device, []
        for where in torch.from_numpy(rows).to(self.task.device).split(self.batch):
            with self._autocast():
                logits = self.model(images[filled(where, self.batch)])
            parts.append(logits[: len(where)].double().softmax(1))
        return torch.cat(parts).cpu().numpy()

    def features(self) -> NDArray[Any]:
        """Of all images by the network as it is now, float32 [n, width]."""
        model, images = self.model, self.task.pictures.on_device
        parts = (model.normalise(part) for part in images.split(self.batch))
        return features_of(model.network, parts, self.task.device)

    def _autocast(self) -> AbstractContextManager[Any]:
        cuda = self.task.device.type == "cuda"
        return torch.autocast("cuda", dtype=torch.bfloat16) if cuda else nullcontext()
