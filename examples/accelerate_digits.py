"""Wrong labels among handwritten digits, found in a loop with Accelerate; under a minute.

    python examples/accelerate_digits.py [--epochs N] [--seed N]
    accelerate launch --multi_gpu examples/accelerate_digits.py

The monitor needs no callback here: it is made after `accelerator.prepare`, and `accelerator.backward` stands inside its
step. scikit-learn carries the digits, so nothing is downloaded. A tenth of the labels is made wrong first.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from digits import hits, network, noisy_digits
from torch import nn
from torch.utils.data import DataLoader

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.tasks import LabelErrors


def main() -> float:
    """Train, look at what is found; returns the share of wrong labels at the top of the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    data, wrong = noisy_digits(given.seed)
    train_set, holdout = split_holdout(data, share=0.1, seed=given.seed)
    loader = DataLoader(indexed(train_set), batch_size=64, shuffle=True)

    accelerator = Accelerator()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    monitor = InfluenceMonitor(model, optimizer, anchors=holdout)
    for _ in range(given.epochs):
        for x, y, index in loader:
            with monitor.step(index):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    monitor.close()
    return hits(LabelErrors(monitor, dataset=data), wrong)


if __name__ == "__main__":
    main()
