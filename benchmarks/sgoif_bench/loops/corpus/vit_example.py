"""A small vision transformer with a class token: AdamW, a linear warm-up, then half a cosine, batch by batch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.study import Study, Trained

WARMUP = 0.1


class ViT(nn.Module):
    """Patches of 2×2 pixels, a class token, learned positions, encoder layers of PyTorch, a head on the class token."""

    def __init__(self, width: int = 64, depth: int = 3, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=2, stride=2)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, dim_feedforward=2 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1) + self.positions
        logits: Tensor = self.head(self.norm(self.encoder(tokens))[:, 0])
        return logits


def train(study: Study) -> Trained:
    """Cross-entropy."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = study.epochs * len(loader)

    def rate(step: int) -> float:
        warm = WARMUP * steps
        return min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * max(0.0, step - warm) / (steps - warm)))

    scheduler = LambdaLR(optimizer, rate)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        model.train()
        for images, labels, index in loader:
            with monitor.step(index):
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return Trained(model, monitor)
