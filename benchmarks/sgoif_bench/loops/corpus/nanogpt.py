"""nanoGPT's habits: several small batches to a step, bfloat16 autocast, clipped gradients, decay for matrices alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif_bench.loops.study import Study, Trained

ACCUMULATED = 4


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(-2))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """Reads the rows of an image from top to bottom, and names the digit at the last of them."""

    def __init__(self, width: int = 64, depth: int = 3, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.rows = nn.Linear(8, width, bias=False)
        self.wpe = nn.Embedding(8, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.rows(images.squeeze(1)) + self.wpe(torch.arange(8))
        logits: Tensor = self.lm_head(self.ln_f(self.blocks(x))[:, -1])
        return logits


def configure_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Weight decay for what has two dimensions."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": 0.1},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95))


def train(study: Study) -> Trained:
    """Cross-entropy over a number of small batches, of which the last steps."""
    torch.manual_seed(study.seed)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=8, shuffle=True, drop_last=True)

    model = GPT()
    optimizer = configure_optimizer(model)
    monitor = study.monitor(model, optimizer, anchors=holdout_set)
    for _ in range(study.epochs):
        for micro_step, (x, y, index) in enumerate(loader, start=1):
            with monitor.step(index):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    logits = model(x)
                    loss = F.cross_entropy(logits, y) / ACCUMULATED
                loss.backward()
            if micro_step % ACCUMULATED == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    return Trained(model, monitor)
