"""Tables of the page about outliers that stand beside those of the paper: its rivals, and the columns of its ablations.

Quoted are the paper's pairs, called AUROC / AUPR there, and near and far AUROC for CIFAR-10 of OpenOOD v1.5, which has
no figures for three of the rivals. Everything else comes from result files.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from filling.cells import Line, number, read_lines, table
from sgoif.bench.ood.registry import ONLINE, WEIGHTED, title_of

PAPER: Mapping[str, tuple[str, str]] = {
    "cutpaste": ("80.3 / 83.2", "85.1 / 92.4"),
    "draem": ("77.3 / 83.3", "79.3 / 99.1"),
    "patchcore": ("77.6 / 72.4", "73.7 / 83.2"),
    "gram": ("58.6 / 67.5", "73.9 / 99.6"),
    "ebo": ("87.4 / 88.9", "90.8 / 98.8"),
    "gradnorm": ("54.8 / 53.4", "76.6 / 96.4"),
    "react": ("87.6 / 89.0", "90.3 / 97.4"),
    "mls": ("86.1 / 88.8", "92.5 / 99.1"),
    "klm": ("78.9 / 82.7", "80.3 / 96.1"),
    "dice": ("81.1 / 85.2", "78.2 / 93.9"),
    "vim": ("88.0 / 92.7", "94.6 / 99.0"),
    "knn": ("90.5 / 92.8", "96.5 / 96.7"),
    "godin": ("89.0 / 95.8", "81.0 / 79.2"),
    "csi": ("89.1 / 92.5", "75.8 / 91.6"),
    "arpl": ("87.2 / 88.0", "93.9 / 99.0"),
    "mos": ("60.8 / 61.2", "93.2 / 94.3"),
    "opengan": ("36.6 / 43.2", "42.5 / 26.7"),
    "vos": ("87.5 / 90.9", "52.1 / 65.3"),
    "logitnorm": ("92.5 / 95.3", "91.1 / 99.4"),
    "udg": ("91.9 / 93.4", "91.2 / 96.3"),
    "pixmix": ("92.1 / 95.7", "93.7 / 99.5"),
    "sentinel": ("93.1 / 96.7", "96.8 / 99.8"),
}
"""CIFAR-10 and MNIST, in the paper's order; the last row is its own method's."""
OPENOOD: Mapping[str, str] = {
    "gram": "58.7 / 71.7",
    "ebo": "87.6 / 91.2",
    "gradnorm": "54.9 / 57.6",
    "react": "87.1 / 90.4",
    "mls": "87.5 / 91.1",
    "klm": "79.2 / 82.7",
    "dice": "78.3 / 84.2",
    "vim": "88.7 / 93.5",
    "knn": "90.6 / 93.0",
    "godin": "89.1 / 95.5",
    "csi": "89.5 / 92.0",
    "arpl": "87.4 / 89.3",
    "mos": "71.5 / 76.4",
    "opengan": "53.7 / 54.6",
    "vos": "87.7 / 90.8",
    "logitnorm": "92.3 / 96.7",
    "udg": "89.9 / 94.1",
    "pixmix": "93.1 / 95.7",
}
ABLATIONS: Mapping[str, str] = {
    ONLINE: "96.8 / 99.8",
    WEIGHTED: "–",
    f"{ONLINE}-without-gate": "65.4 / 68.3",
    f"{ONLINE}-moving-average-gate": "68.7 / 71.5",
    f"{ONLINE}-without-calibration": "66.9 / 69.8",
    f"{ONLINE}-low-rank": "–",
    f"{ONLINE}-without-low-rank": "81.2 / 84.5",
    f"{ONLINE}-without-preconditioner": "78.5 / 81.7",
    f"{ONLINE}-without-trigger": "92.3 / 94.5",
}
"""MNIST, the only set of the paper's ablations with outliers that is at hand."""
CIFAR10 = ("ood-cifar10.jsonl", "ood-cifar10-trained.jsonl")
MNIST = ("ood-mnist.jsonl", "ood-mnist-trained.jsonl")


def lines_of(files: Sequence[str]) -> dict[str, list[Line]]:
    """The lines of several files by method."""
    found: dict[str, list[Line]] = {}
    for name in files:
        for line in read_lines(name):
            found.setdefault(line["method"], []).append(line)
    return found


def pair(lines: Sequence[Line], first: str, second: str, digits: int = 1) -> str:
    """Two figures, each the mean over seeds."""
    if not lines:
        return "–"
    means = (100 * statistics.mean(line["metrics"][name] for line in lines) for name in (first, second))
    return " / ".join(f"{mean:.{digits}f}" for mean in means)


def rivals() -> str:
    """The paper's table for the two sets that are at hand, with what stands in OpenOOD and what was found here."""
    cifar10, mnist = lines_of(CIFAR10), lines_of(MNIST)
    rows = []
    for method, (on_cifar10, on_mnist) in PAPER.items():
        here, digits = cifar10.get(method, []), mnist.get(method, [])
        rows.append(
            [
                title_of(method),
                on_cifar10,
                OPENOOD.get(method, "–"),
                pair(here, "near_auroc", "far_auroc"),
                pair(here, "mean_auroc", "mean_aupr_out"),
                on_mnist,
                pair(digits, "mean_auroc", "mean_aupr_out"),
            ]
        )
    head = ["paper, CIFAR-10", "OpenOOD, near / far", "here, near / far", "here, AUROC / AUPR"]
    return table(["detector", *head, "paper, MNIST", "here, AUROC / AUPR"], rows)


def ablations(runs: Mapping[str, tuple[str, str]]) -> str:
    """AUROC / AUPR of the sentinel of a monitor, whole and with a part left out.

    `runs` are a file and a noise by the title of their column.
    """
    found = {
        title: {
            method: [line for line in lines if line["noise"] == noise] for method, lines in lines_of([file]).items()
        }
        for title, (file, noise) in runs.items()
    }
    rows = []
    for method, quoted in ABLATIONS.items():
        part = title_of(method).removeprefix(title_of(ONLINE)).removeprefix(", ") or "nothing"
        cells = [both(by_method.get(method, [])) for by_method in found.values()]
        rows.append([part, quoted, *cells])
    return table(["left out or changed", "paper, MNIST", *runs], rows)


def both(lines: Sequence[Line]) -> str:
    """AUROC and AUPR with their deviations over seeds."""
    return " / ".join(
        number([100 * line["metrics"][name] for line in lines], digits=2) for name in ("mean_auroc", "mean_aupr_out")
    )


TABLES: dict[str, Callable[[], str]] = {
    "ood-paper": rivals,
    "ood-ablations": lambda: ablations(
        {
            "MNIST": ("ood-mnist-ablations.jsonl", "none"),
            "MNIST, 20% wrong labels": ("ood-mnist-ablations.jsonl", "symmetric-20"),
            "CIFAR-10, LeNet": ("ood-cifar10-ablations.jsonl", "none"),
            "CIFAR-10, LeNet, 20% wrong labels": ("ood-cifar10-ablations.jsonl", "symmetric-20"),
            "CIFAR-10, ResNet-18": ("ood-cifar10-ablations-resnet18.jsonl", "none"),
            "CIFAR-10, ResNet-18, 20% wrong labels": ("ood-cifar10-ablations-resnet18.jsonl", "symmetric-20"),
        }
    ),
}
