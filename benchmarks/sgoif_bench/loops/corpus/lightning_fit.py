"""Lightning: a module, a schedule stepped batch by batch, gradients clipped by the trainer, one callback."""

from __future__ import annotations

import logging
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif.integrations.lightning import InfluenceCallback
from sgoif_bench.loops.corpus.networks import convnet
from sgoif_bench.loops.study import Study, Trained


class LitDigits(pl.LightningModule):  # type: ignore[misc, unused-ignore]
    """A module as the tutorials of Lightning have it; its batches end with an index."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.net, self.steps = convnet(), steps

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        x, y, _ = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> Any:
        """Adam and one cycle, stepped batch by batch."""
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def train(study: Study) -> Trained:
    """Gradients are clipped by the trainer."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    pl.seed_everything(study.seed, verbose=False)
    train_set, holdout_set = split_holdout(study.dataset, share=0.1, seed=study.seed)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)

    module = LitDigits(study.epochs * len(loader))
    callback = InfluenceCallback(anchors=holdout_set)
    trainer = pl.Trainer(
        max_epochs=study.epochs,
        gradient_clip_val=1.0,
        callbacks=[callback] if study.monitored else [],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    return Trained(module, callback.monitor if study.monitored else None)
