"""A backdoor in CIFAR-10 and a ResNet-9, planted, found and removed; made for a GPU.

    python examples/poisoning_cifar10.py --data ROOT [--attack badnets-1] [--epochs N] [--device cuda] [--known 50]

ROOT holds cifar-10-batches-bin/ or cifar-10-batches-py/. Attacks are those of `sgoif-bench poisoning`: badnets-1 and
blended-1 poison one percent of the images. On a CPU, try --limit 3000 --epochs 6 --width 8.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.audit.networks import ResNet9
from sgoif.errors import SettingError
from sgoif.tasks import PoisonTrace, PoisonWatch
from sgoif_bench.batches import LabelledImages, normalise
from sgoif_bench.labels.datasets import load
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.recipes import training_for
from sgoif_bench.metrics import average_precision
from sgoif_bench.poisoning.attacks.attack import Scene
from sgoif_bench.poisoning.attacks.naming import make_attack

HOLDOUT = 1000
SHOWN_AT_ONCE = 1000


@torch.no_grad()
def answers(problem: Problem, model: nn.Module, images: Tensor) -> np.ndarray[Any, Any]:
    """What the network calls these images."""
    model.eval()
    parts = []
    for some in images.split(SHOWN_AT_ONCE):
        x = normalise(some.to(problem.device), problem.mean, problem.spread)
        with problem.autocast():
            parts.append(model(x).argmax(1).cpu())
    found: np.ndarray[Any, Any] = torch.cat(parts).numpy()
    return found


def main() -> dict[str, Any]:
    """Plant, train, trace, remove, train again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that holds CIFAR-10")
    parser.add_argument("--attack", default="badnets-1", help="badnets-1, blended-1, ...: kind and percent")
    parser.add_argument("--folder", type=Path, default=Path("runs/poisoning-cifar10"), help="where the table goes")
    parser.add_argument("--known", type=int, default=50, help="triggered test images that are given as victims")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--limit", type=int, help="train on only so many images")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    cifar = load("cifar10", given.data, limit=given.limit)
    test = load("cifar10", given.data, train=False)
    attack = make_attack(given.attack, "cifar10")
    if attack is None:
        raise SettingError("there is nothing to trace without an attack; choose badnets-1 or blended-1")
    poisoned = attack.poison(Scene(cifar.images, cifar.labels, 10, np.random.default_rng(given.seed)))
    if poisoned.trigger is None or poisoned.wanted is None:
        raise SettingError(f"{given.attack} has no trigger; choose badnets-1 or blended-1")
    recipe = training_for("cifar10", limit=given.limit, epochs=given.epochs).recipe(32)
    recipe = replace(recipe, model=partial(ResNet9, width=given.width), batch_size=min(512, len(cifar) // 16))
    problem = Problem(poisoned.images, poisoned.labels, 10, recipe, torch.device(given.device), given.seed)
    count = min(HOLDOUT, len(test) // 2)
    held, rest = test.images[:count], slice(count, None)
    others = np.flatnonzero(test.labels[rest] != poisoned.wanted)
    triggered = poisoned.trigger(test.images[rest][torch.from_numpy(others)])

    def measured(model: nn.Module) -> tuple[float, float]:
        success = (answers(problem, model, triggered[given.known :]) == poisoned.wanted).mean()
        right = (answers(problem, model, test.images[rest]) == test.labels[rest]).mean()
        return float(success), float(right)

    model, batches = problem.new_model(), problem.batches()
    optimizer = problem.optimizer(model, given.epochs * len(batches))
    anchors = LabelledImages(held, torch.from_numpy(test.labels[:count]), problem.mean, problem.spread)
    with InfluenceMonitor(model, optimizer[0], anchors=anchors, size=len(problem), seed=given.seed) as monitor:
        watch = PoisonWatch(monitor)
        problem.fit(
            model,
            batches,
            optimizer=optimizer,
            watching=monitor.step,
            on_epoch=lambda epoch: print(f"epoch {epoch} of {given.epochs}", flush=True),
        )
        watch.finish()
    before = measured(model)
    truth = poisoned.is_poison
    print(
        f"{truth.sum()} of {len(truth)} images are poisoned. Attack success {before[0]:.1%}, accuracy {before[1]:.1%}."
    )

    trace = PoisonTrace.fit(model, problem.plain_batches(), watch=watch)
    victims = triggered[: given.known]
    fooled = torch.from_numpy(answers(problem, model, victims) == poisoned.wanted)
    victims = normalise((victims[fooled] if fooled.any() else victims).to(problem.device), problem.mean, problem.spread)
    culprits = trace.culprits(victims, poisoned.wanted)
    found = {"known": culprits, "nothing known": trace.suspects()}
    aupr = {name: average_precision(truth, answer.score) for name, answer in found.items()}
    for name, answer in found.items():
        hits = int(truth[answer.selected].sum())
        print(f"{name}: AUPR {aupr[name]:.1%}; {len(answer.selected)} selected, {hits} of them poison.")
        for family in answer.families:
            print(f"  {family.described(cifar.classes)}")
    print(f"How many to remove: {culprits.to_restore}")
    culprits.table().to_csv(given.folder / "culprits.csv")

    kept = np.setdiff1d(problem.rows(), culprits.selected)
    after = measured(problem.fit(problem.new_model(), problem.batches(kept)))
    print(f"Without the {len(culprits.selected)} culprits: attack success {after[0]:.1%}, accuracy {after[1]:.1%}.")
    return {"before": before, "after": after, "aupr": aupr}


if __name__ == "__main__":
    main()
