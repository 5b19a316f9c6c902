"""Wrong labels among handwritten digits, found while Lightning trains; under a minute.

    python examples/lightning_digits.py [--epochs N] [--seed N]

scikit-learn carries the digits, so nothing is downloaded. A tenth of the labels is made wrong first.
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning.pytorch as pl
import torch
from digits import hits, network, noisy_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif import indexed, split_holdout
from sgoif.integrations.lightning import InfluenceCallback


class Digits(pl.LightningModule):
    """An ordinary module; only its batches end with an index."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        x, y, _ = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Gradient descent with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


def main() -> float:
    """Train, look at what is found; returns the share of wrong labels at the top of the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    data, wrong = noisy_digits(given.seed)
    train_set, holdout = split_holdout(data, share=0.1, seed=given.seed)
    callback = InfluenceCallback(anchors=holdout)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=given.epochs, callbacks=[callback], accelerator="cpu", devices=1, **quiet)
    trainer.fit(Digits(), DataLoader(indexed(train_set), batch_size=64, shuffle=True))
    return hits(callback.errors(dataset=data), wrong)


if __name__ == "__main__":
    main()
