"""The same for CIFAR-10 and a ResNet-9, with any of the benchmark's label noises; made for a GPU.

    python examples/curriculum_cifar10.py --data ROOT [--noise class-dependent-20] [--epochs N] [--device cuda]

ROOT holds cifar-10-batches-bin/ or cifar-10-batches-py/. For CIFAR-10N give --noise human-aggregate and --human
FILE.npz. On a CPU, try --limit 3000 --epochs 6 --width 8.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.audit.networks import ResNet9
from sgoif.tasks import Curriculum
from sgoif_bench.batches import Batches
from sgoif_bench.labels.datasets import load
from sgoif_bench.labels.noises import make_noise
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.recipes import training_for

WATCHED = 0.75
"""Share of the epochs after which the hold-out joins the training."""


def with_a_curriculum(problem: Problem) -> tuple[nn.Module, Curriculum]:
    """The loop of the README, with the batches, schedule and precision of the benchmarks."""
    model = problem.new_model()
    train_set, holdout_set = problem.split()
    watched, everything = problem.batches(np.asarray(train_set.indices)), problem.batches(number=1)
    epochs = problem.recipe.epochs
    first = round(WATCHED * epochs)
    optimizer, schedule = problem.optimizer(model, first * len(watched) + (epochs - first) * len(everything))
    criterion = nn.CrossEntropyLoss(reduction="none")

    def backward(x: Tensor, y: Tensor, weights: Tensor) -> None:
        with problem.autocast():
            logits = model(x)
        (criterion(logits.float(), y) * weights).mean().backward()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    def epochs_of(batches: Batches, count: int, done: int) -> Any:
        for epoch in range(count):
            model.train()
            yield from batches
            print(f"epoch {done + epoch + 1} of {epochs}", flush=True)

    with InfluenceMonitor(model, optimizer, anchors=holdout_set, size=len(problem), seed=problem.seed) as monitor:
        curriculum = Curriculum(monitor)
        for x, y, index in epochs_of(watched, first, 0):
            weights = monitor.weights(index)
            with monitor.step(index, weights=weights):
                backward(x, y, weights)
            update()
        curriculum.finish()
    for x, y, index in epochs_of(everything, epochs - first, first):
        backward(x, y, curriculum.weights(index))
        update()
    return model, curriculum


def main() -> dict[str, Any]:
    """Train twice and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that holds CIFAR-10")
    parser.add_argument("--noise", default="class-dependent-20", help="as in `sgoif-bench labels`")
    parser.add_argument("--human", help="FILE.npz with human labels, for a noise that starts with human")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--limit", type=int, help="train on only so many images")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()

    data = load("cifar10", given.data, limit=given.limit)
    test = load("cifar10", given.data, train=False, limit=given.limit)
    noise = make_noise(given.noise, data, given.seed, given.human)
    recipe = training_for("cifar10", limit=given.limit, epochs=given.epochs).recipe(32)
    recipe = replace(recipe, model=partial(ResNet9, width=given.width), batch_size=min(512, len(data) // 16))
    problem = Problem(data.images, noise.labels, 10, recipe, torch.device(given.device), given.seed)
    judged = Problem(test.images, test.labels, 10, recipe, problem.device, given.seed)
    judged.mean, judged.spread = problem.mean, problem.spread

    def accuracy(model: nn.Module) -> float:
        return float((judged.predict(model).argmax(1).cpu().numpy() == test.labels).mean())

    print(f"{int(noise.is_wrong.sum())} of {len(data)} labels are wrong ({given.noise}).")
    before = accuracy(problem.fit(problem.new_model(), problem.batches()))
    print(f"Plain training:    {before:.1%} of {len(test)} test images right.")
    model, curriculum = with_a_curriculum(problem)
    after = accuracy(model)
    print(f"With a curriculum: {after:.1%}.\n\n{curriculum.report()}")
    return {"plain": before, "curriculum": after}


if __name__ == "__main__":
    main()
