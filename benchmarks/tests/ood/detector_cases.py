"""A small trained network, images like those it knows, and others."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.tasks.ood.network import Network
from sgoif_bench.models import small_cnn
from sgoif_bench.ood.detector import Bank


class Trained:
    """A small network that tells the quarter of the image with a bright spot, and images of stripes and of noise."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images, self.labels = self.spots(300, generator)
        self.fresh, _ = self.spots(100, generator)
        self.strange = 0.2 * torch.randn(100, 1, 16, 16, generator=generator) + (torch.arange(16) % 4 < 2).float()
        self.loud = torch.randn(100, 1, 16, 16, generator=generator).sign()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = small_cnn(1, 4, width=6)
        steps = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(8):
            for x, y in self.batches():
                F.cross_entropy(model(x), y).backward()
                steps.step()
                steps.zero_grad()
        self.bank = Bank(Network(model, self.images[:1]), self.batches)

    def spots(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.randint(4, (count,), generator=generator)
        images = 0.2 * torch.randn(count, 1, 16, 16, generator=generator)
        for image, label in zip(images, labels.tolist(), strict=True):
            row, column = 8 * (label // 2), 8 * (label % 2)
            image[:, row + 2 : row + 6, column + 2 : column + 6] += 1.5
        return images, labels

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.images.split(50), self.labels.split(50), strict=True)
