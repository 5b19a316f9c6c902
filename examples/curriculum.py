"""Training despite wrong labels, on handwritten digits of which a fifth have the label of a digit that looks alike.

    python examples/curriculum.py [--epochs N] [--rate R] [--seed N]

The same network is trained in three ways, each for as many epochs: plainly on everything, with weights from
`monitor.weights`, and afresh on the labels that the weighed network revised. scikit-learn carries the digits, so
nothing is downloaded. About a minute on one core.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.tasks import Curriculum

LOOKS_LIKE = {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}
BATCH, LEARNING_RATE = 64, 0.1
WATCHED = 0.75
"""Share of the epochs after which the hold-out joins the training."""


def digits(rate: float, seed: int) -> tuple[TensorDataset, TensorDataset, np.ndarray[Any, Any]]:
    """Training digits with wrong labels, test digits with right ones, and which labels are wrong."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    is_test = np.arange(len(labels)) % 5 == 4
    true = labels[~is_test]
    candidates = np.flatnonzero(np.isin(true, list(LOOKS_LIKE)))
    chosen = np.random.default_rng(seed).choice(candidates, size=round(rate * len(true)), replace=False)
    given = true.copy()
    given[chosen] = [LOOKS_LIKE[int(label)] for label in true[chosen]]
    train_set = TensorDataset(images[~is_test], torch.tensor(given))
    return train_set, TensorDataset(images[is_test], torch.tensor(labels[is_test])), given != true


def network() -> nn.Module:
    """Two convolutions and two linear layers; it can learn wrong labels by heart."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, kernel_size=3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def accuracy(model: nn.Module, data: Dataset[Any]) -> float:
    """Share of right answers."""
    model.eval()
    with torch.no_grad():
        right = [model(x).argmax(1) == y for x, y in DataLoader(data, batch_size=500)]
    model.train()
    return float(torch.cat(right).double().mean())


def optimizer_for(model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """SGD under a one-cycle schedule."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=steps)


def plain(data: Dataset[Any], epochs: int, labels: Tensor | None = None) -> nn.Module:
    """An ordinary training loop on everything, with other labels where they are given."""
    model = network()
    loader = DataLoader(indexed(data), batch_size=BATCH, shuffle=True)
    optimizer, schedule = optimizer_for(model, epochs * len(loader))
    for _ in range(epochs):
        for x, y, index in loader:
            nn.functional.cross_entropy(model(x), y if labels is None else labels[index]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model


def with_a_curriculum(data: Dataset[Any], epochs: int, seed: int) -> tuple[nn.Module, Curriculum]:
    """The same with a hold-out, a monitor and weights; the hold-out joins for the last quarter of the epochs."""
    model = network()
    train_set, holdout_set = split_holdout(data, share=0.2, seed=seed)
    watched = DataLoader(indexed(train_set), batch_size=BATCH, shuffle=True)
    everything = DataLoader(indexed(data), batch_size=BATCH, shuffle=True)
    first = round(WATCHED * epochs)
    optimizer, schedule = optimizer_for(model, first * len(watched) + (epochs - first) * len(everything))
    criterion = nn.CrossEntropyLoss(reduction="none")

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    with InfluenceMonitor(model, optimizer, anchors=holdout_set, size=len(train_set) + len(holdout_set)) as monitor:
        curriculum = Curriculum(monitor)
        for _ in range(first):
            for x, y, index in watched:
                weights = monitor.weights(index)
                with monitor.step(index, weights=weights):
                    loss = (criterion(model(x), y) * weights).mean()
                    loss.backward()
                update()
        curriculum.finish()
    for _ in range(first, epochs):
        for x, y, index in everything:
            (criterion(model(x), y) * curriculum.weights(index)).mean().backward()
            update()
    return model, curriculum


def main() -> dict[str, Any]:
    """Train in three ways and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rate", type=float, default=0.2, help="share of wrong labels")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data, test, is_wrong = digits(given.rate, given.seed)
    print(f"{int(is_wrong.sum())} of {len(data)} labels are wrong; {len(test)} test digits have right ones.")

    torch.manual_seed(given.seed)
    before = accuracy(plain(data, given.epochs), test)
    print(f"Plain training:    {before:.1%} of the test digits right.")
    torch.manual_seed(given.seed)
    model, curriculum = with_a_curriculum(data, given.epochs, given.seed)
    after = accuracy(model, test)
    print(f"With a curriculum: {after:.1%}.")
    revised = accuracy(plain(data, given.epochs, curriculum.revised(data)), test)
    print(f"A second time:     {revised:.1%}, a fresh network on revised labels.\n\n{curriculum.report()}")

    weights = Tensor(curriculum.values(len(data)))
    share = float(weights[torch.from_numpy(is_wrong)].sum() / weights.sum())
    print(f"\nWrong labels were {is_wrong.mean():.1%} of the examples; they are {share:.1%} of the weight.")
    return {
        "plain": before,
        "curriculum": after,
        "revised": revised,
        "wrong": float(is_wrong.mean()),
        "wrong_weight": share,
    }


if __name__ == "__main__":
    main()
