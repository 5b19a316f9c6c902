"""The same for CIFAR-10 and a ResNet-9; made for a GPU.

    python examples/unlearning_cifar10.py --data ROOT [--folder FOLDER] [--epochs N] [--limit N] [--device cuda]

ROOT holds cifar-10-batches-bin/ or cifar-10-batches-py/. On a CPU, try --limit 3000 --epochs 3 --width 8.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from unlearning import accuracy, story

from sgoif.audit.networks import ResNet9
from sgoif.tasks import Unlearner
from sgoif_bench.labels.datasets import load
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.recipes import training_for


def main() -> dict[str, Any]:
    """Train, ask, remove, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that holds CIFAR-10")
    parser.add_argument("--folder", type=Path, default=Path("runs/unlearning-cifar10"), help="where state and log go")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, help="train on only so many images")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "unlearning.jsonl").unlink(missing_ok=True)  # an example starts anew; a real log never does

    device = torch.device(given.device)
    cifar = load("cifar10", given.data, limit=given.limit)
    recipe = training_for("cifar10", limit=given.limit, epochs=given.epochs).recipe(32)
    recipe = replace(recipe, model=partial(ResNet9, width=given.width), batch_size=min(512, len(cifar) // 16))
    problem = Problem(cifar.images, cifar.labels, 10, recipe, device, given.seed)
    train_set, held = problem.split()
    model = problem.fit(
        problem.new_model(),
        problem.batches(np.array(train_set.indices)),
        on_epoch=lambda epoch: print(f"epoch {epoch} of {given.epochs}", flush=True),
    )
    print(f"Trained on {len(train_set)} images; {accuracy(model, held, device):.1%} of {len(held)} others right.")
    unlearner = Unlearner.fit(
        model, train_set, held_out=held, class_names=cifar.classes, log=given.folder / "unlearning.jsonl"
    )
    return story(unlearner, model, held, given.folder)


if __name__ == "__main__":
    main()
