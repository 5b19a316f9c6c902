"""A backdoor in handwritten digits, from planting it to removing it; under two minutes on one core.

    python examples/poisoning.py [--folder FOLDER] [--epochs N] [--rate R] [--seed N]

A few training images of many digits get a small bright mark and one wrong label. The network learns to answer any digit
with the mark by that label. It is traced twice: from five marked digits that were answered wrongly, and from nothing
but the run, which may rank the planted ones first and yet find that too little to remove any. Then the images found are
removed and the network is trained again. scikit-learn carries the digits, so nothing is downloaded. The table of
culprits is left in FOLDER for a look.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif import InfluenceMonitor, indexed
from sgoif.core.data import Part
from sgoif.tasks import PoisonTrace, PoisonWatch

CLASSES, TEST_EVERY, HOLDOUT = 10, 4, 100


@dataclass(frozen=True)
class Planted:
    """Digits of which some are poisoned, and what the attacker wants."""

    x: Tensor
    y: Tensor
    is_poison: np.ndarray[Any, np.dtype[np.bool_]]
    target: int
    test_x: Tensor
    test_y: Tensor

    @property
    def marked(self) -> Tensor:
        """Test digits of other classes with the mark."""
        return mark(self.test_x[self.test_y != self.target])


def mark(images: Tensor) -> Tensor:
    """The trigger: a small checkerboard in the lower right corner."""
    marked = images.clone()
    marked[:, :, -2:, -2:] = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    return marked


def plant(rate: float, seed: int) -> Planted:
    """Digits, a share of them marked and called by one wrong name."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1, torch.tensor(labels)
    test = torch.arange(len(y)) % TEST_EVERY == 0
    generator = np.random.default_rng(seed)
    target = int(generator.integers(CLASSES))
    train_x, train_y = x[~test], y[~test].clone()
    others = np.flatnonzero(train_y.numpy() != target)
    rows = generator.choice(others, size=max(10, round(rate * len(train_y))), replace=False)
    train_x[rows], train_y[rows] = mark(train_x[rows]), target
    is_poison = np.zeros(len(train_y), dtype=bool)
    is_poison[rows] = True
    return Planted(train_x, train_y, is_poison, target, x[test], y[test])


def network() -> nn.Module:
    """Two convolutions and a linear head."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, kernel_size=3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, CLASSES)),
    )


def train(
    planted: Planted, rows: list[int], epochs: int, seed: int, watched: bool
) -> tuple[nn.Module, PoisonWatch | None]:
    """An ordinary loop on some of the images, with the monitor and, where asked for, the watch attached."""
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    data = TensorDataset(planted.x, planted.y)
    loader = DataLoader(indexed(Part(data, rows)), batch_size=32, shuffle=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(loader))
    held = planted.test_x[:HOLDOUT], planted.test_y[:HOLDOUT]
    monitor = InfluenceMonitor(model, optimizer, anchors=held, size=len(planted.y), seed=seed)
    watch = PoisonWatch(monitor) if watched else None
    for _ in range(epochs):
        for x, y, index in loader:
            with monitor.step(index):
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    if watch is not None:
        watch.finish()
    monitor.close()
    return model.eval(), watch


@torch.no_grad()
def measured(model: nn.Module, planted: Planted) -> tuple[float, float]:
    """Attack success on marked digits, and accuracy on clean ones that took no part in anything."""
    success = (model(planted.marked).argmax(1) == planted.target).double().mean()
    right = model(planted.test_x[HOLDOUT:]).argmax(1) == planted.test_y[HOLDOUT:]
    return float(success), float(right.double().mean())


def told(name: str, found: Any, planted: Planted) -> dict[str, float]:
    """Say what was found, and how much of it is poison."""
    hits, count = int(planted.is_poison[found.selected].sum()), int(planted.is_poison.sum())
    first = int(planted.is_poison[np.argsort(-found.score, kind="stable")[:count]].sum())
    print(
        f"  {name}: {len(found.selected)} selected, {hits} of them poison; of the {count} highest scores {first} are."
    )
    for family in found.families:
        print(f"    {family.description}")
    return {"selected": float(len(found.selected)), "poison": float(hits), "first": float(first)}


def main() -> dict[str, Any]:
    """Plant, train, trace, remove, train again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/poisoning"), help="where the table goes")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.02, help="share of the training images that is poisoned")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    planted = plant(given.rate, given.seed)
    everyone = list(range(len(planted.y)))
    model, watch = train(planted, everyone, given.epochs, given.seed, watched=True)
    before = measured(model, planted)
    print(f"Trained on {len(everyone)} digits, {planted.is_poison.sum()} of them poisoned.")
    print(f"Marked digits called {planted.target}: {before[0]:.1%}; clean digits called rightly: {before[1]:.1%}.")

    trace = PoisonTrace.fit(model, TensorDataset(planted.x, planted.y), watch=watch)
    answers = model(planted.marked).argmax(1)
    victims = planted.marked[answers == planted.target][:5]
    print("\nWho did it?")
    culprits = trace.culprits(victims, planted.target)
    known = told("from five victims", culprits, planted)
    unknown = told("from nothing but the run", trace.suspects(), planted)
    restore = culprits.to_restore
    if restore is not None:
        print(
            f"  Removing {restore.count} should be enough: the victims' probability of {planted.target} falls from"
            f" {restore.before:.2f} to {restore.after:.2f} (refitted at {restore.level!r})."
        )
    culprits.table().to_csv(given.folder / "culprits.csv")

    left = sorted(set(everyone) - set(culprits.selected.tolist()))
    again, _ = train(planted, left, given.epochs, given.seed, watched=False)
    after = measured(again, planted)
    print(f"\nTrained again on the {len(left)} that are left.")
    print(f"Marked digits called {planted.target}: {after[0]:.1%}; clean digits called rightly: {after[1]:.1%}.")
    return {"before": before, "after": after, "known": known, "unknown": unknown, "restore": restore}


if __name__ == "__main__":
    main()
