"""Draw the pictures of the page on concepts that show measured values.

    python docs/pictures/draw.py

A small network trains on scikit-learn's digits, one label in five wrong by a rule (0 becomes 6, 1 becomes 7, ...).
Nothing is downloaded; the same seed gives the same pictures.

    gate.svg      residual norms of the held-out examples at the last refresh, and what the gate makes of them
    scores.svg    influences of the training examples at the end, with the gate and without
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout

FOLDER = Path(__file__).resolve().parent
SEED, EPOCHS, RATE = 0, 12, 0.2
RIGHT, WRONG, LINE = "#3b6ea5", "#c8553d", "#444444"
Run = tuple[InfluenceMonitor, np.ndarray[Any, Any]]


def digits() -> tuple[TensorDataset, np.ndarray[Any, Any]]:
    """The data with wrong labels, and which labels are wrong."""
    from sklearn.datasets import load_digits

    pixels, truth = load_digits(return_X_y=True)
    labels = truth.copy()
    wrong = np.random.default_rng(SEED).random(len(labels)) < RATE
    labels[wrong] = (labels[wrong] + 6) % 10
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    return TensorDataset(images, torch.tensor(labels)), wrong


def train(gate: str) -> Run:
    """A finished monitor with this gate, and which labels of the whole data set are wrong."""
    torch.manual_seed(SEED)
    dataset, wrong = digits()
    train_set, holdout_set = split_holdout(dataset, share=0.2, seed=SEED)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loader = DataLoader(indexed(train_set), batch_size=64, shuffle=True)
    monitor = InfluenceMonitor(model, optimizer, anchors=holdout_set, gate=gate, replace_every=0)
    for _ in range(EPOCHS):
        for x, y, index in loader:
            with monitor.step(index):
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    monitor.refresh()
    return monitor, wrong


def axes(count: int, height: float = 3.2) -> tuple[Any, Any]:
    """An empty picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "sgoif", "svg.fonttype": "path", "font.size": 9, "axes.spines.top": False,
                            "axes.spines.right": False})  # fmt: skip
    return pyplot.subplots(1, count, figsize=(8, height), layout="constrained")


def save(figure: Any, name: str) -> None:
    """Write the picture without the time at which it was made."""
    figure.savefig(FOLDER / name, metadata={"Date": None})
    print(FOLDER / name)


def draw_gate(run: Run) -> None:
    """Residual norms of right and wrong anchors, and their confidences."""
    monitor, wrong = run
    bank = monitor.anchors
    held = monitor.held_out_indices()
    assert held is not None
    bad = wrong[held[bank.members.cpu().numpy()]]
    residual, confidence = bank.residual.cpu().numpy(), bank.confidence.cpu().numpy()
    tau = monitor.history[-1]["tau"]
    figure, (left, right) = axes(2)
    bins = np.linspace(0, residual.max() * 1.02, 32)
    left.hist([residual[~bad], residual[bad]], bins, stacked=True, color=[RIGHT, WRONG], label=["right", "wrong"])
    left.axvline(tau, color=LINE, linestyle="--", linewidth=1)
    left.text(tau * 1.03, left.get_ylim()[1] * 0.97, "τ", ha="left", va="top")
    left.set(xlabel="residual norm ‖r‖ of a held-out example", ylabel="held-out examples")
    left.legend(title="its label is", frameon=False, loc="upper right")
    shares = [(confidence[part] > 0).mean() for part in (~bad, bad)]
    means = [confidence[part].mean() for part in (~bad, bad)]
    place = np.arange(2)
    right.bar(place - 0.18, shares, 0.34, color=[RIGHT, WRONG])
    right.bar(place + 0.18, means, 0.34, color=[RIGHT, WRONG], alpha=0.5)
    for at, values in ((-0.18, shares), (0.18, means)):
        for x, value in zip(place, values, strict=True):
            right.text(x + at, value + 0.02, f"{value:.2f}", ha="center")
    right.set(xticks=place, xticklabels=["right label", "wrong label"], ylim=(0, 1.12))
    right.set_title("share that passes (dark), mean confidence (light)", fontsize=9)
    save(figure, "gate.svg")


def draw_scores(runs: dict[str, Run]) -> None:
    """Influences of training examples with right and wrong labels."""
    figure, places = axes(len(runs))
    for place, (title, (monitor, wrong)) in zip(places, runs.items(), strict=True):
        table = monitor.scores(anchors=False)
        influence, bad = table["influence"], wrong[table["index"]]
        bins = np.linspace(influence.min(), influence.max(), 40)
        place.hist(influence[~bad], bins, color=RIGHT, alpha=0.75, density=True, label="right")
        place.hist(influence[bad], bins, color=WRONG, alpha=0.75, density=True, label="wrong")
        order = np.argsort(-influence)[: int(bad.sum())]
        place.set_title(f"{title}: {bad[order].mean():.0%} of the top {bad.sum()} are wrong", fontsize=9)
        place.set(xlabel="influence (positive = harmful)", yticks=[])
    places[0].legend(title="label is", frameon=False)
    save(figure, "scores.svg")


def main() -> None:
    """Train twice and draw."""
    torch.set_num_threads(1)
    gated = train("stability")
    draw_gate(gated)
    draw_scores({"with the gate": gated, "without": train("none")})


if __name__ == "__main__":
    main()
