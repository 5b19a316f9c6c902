"""The tables of the page that sets the paper's numbers beside measured ones."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from pages.cells import Line, number, read_lines, table
from pages.labels import SEED
from pages.ood import OURS, SETTINGS, by_method, percent
from sgoif_bench.labels.registry import in_order, title_of

PAGE = "paper-numbers.md"
RATES, SPARSITIES = (20, 40, 70), ("0", "0.2", "0.4", "0.6")
LABELS = {
    20: ((91.1, 78.4), (90.9, 79.2), (91.1, 79.0), (91.3, 78.2)),
    40: ((87.1, 60.2), (86.9, 60.8), (86.7, 59.6), (87.2, 57.3)),
    70: ((41.1, 27.0), (41.8, 29.7), (39.1, 28.2), (36.4, 26.8)),
}
"""What the paper prints as P@1% of SG-OIF and of Confident Learning, by noise rate and sparsity."""
OUTLIERS = {"CIFAR-10, ResNet-18": ("CIFAR-10", "93.1 / 96.7"), "MNIST, LeNet": ("MNIST", "96.8 / 99.8")}
"""Its pair of figures for the settings that are measured here too."""
PARTS = {
    "everything": (91.1, 90.2, "sgoif", "influence"),
    "without the gate": (59.8, 73.4, "without-gate", "without-gate-influence"),
    "moving average as gate": (60.7, 74.6, "moving-average-gate", "moving-average-gate-influence"),
    "without the sketch": (59.9, 73.2, "without-sketch", "without-sketch-influence"),
    "without confidences": (60.4, 74.5, "without-calibration", "without-calibration-influence"),
    "without temperature": (58.9, 73.0, "without-temperature", "without-temperature-influence"),
}
"""AUPR and P@1% that it prints without a part, and the methods here: the label score, and influence alone."""

INFLUENCE = "-influence"
MEASURES = {"aupr": 1, "auroc": 1, "p_at_1": 1, "top_kendall": 0}
"""Of the settings of the engine, with so many digits."""


def labels() -> str:
    """A row for every noise matrix."""
    found = {line["noise"]: line for line in read_lines("labels-cifar10.jsonl") if _ours(line)}
    rows = []
    for rate in RATES:
        for sparsity, (ours, baseline) in zip(SPARSITIES, LABELS[rate], strict=True):
            metrics = found[f"matrix-{rate}-sparsity-{sparsity}"]["metrics"]
            seen = f"{100 * metrics['p_at_1']:.1f}", f"{100 * metrics['aupr']:.1f}"
            rows.append([f"{rate}%, sparsity {sparsity}", f"{ours:.1f}", f"{baseline:.1f}", *seen])
    return table(("noise matrix", "printed, SG-OIF", "printed, “CL”", "P@1% here", "AUPR here"), rows)


def outliers() -> str:
    """A row for every set to train on."""
    rows = []
    for setting in SETTINGS:
        if setting.title not in OUTLIERS:
            continue
        name, printed = OUTLIERS[setting.title]
        lines = by_method(setting.files)[OURS]
        seen = [f"{percent(lines, metric):.1f}" for metric in ("near_auroc", "far_auroc", "mean_auroc", "mean_aupr_in")]
        rows.append([name, printed, *seen])
    return table(("trained on", "printed", "near AUROC here", "far AUROC here", "mean AUROC", "mean AUPR"), rows)


def parts() -> str:
    """A row for every part that is left out."""
    noises = ("symmetric-20", "class-dependent-20")
    found = {
        (line["noise"], line["method"]): 100 * line["metrics"]["aupr"]
        for line in read_lines("labels-cifar10-ablations.jsonl")
        if line["seed"] == SEED and line["noise"] in noises
    }
    rows = [
        [title, f"{aupr:.1f}", *(f"{found[noise, method]:.1f}" for noise in noises for method in methods)]
        for title, (aupr, _, *methods) in PARTS.items()
    ]
    head = "AUPR", "printed", "even: label score", "even: influence", "class-dependent: label score", "its influence"
    return table(head, rows)


def ablations() -> str:
    """A row for every setting of the engine: how well its influence alone finds wrong labels, and what it costs."""
    found: dict[str, list[Line]] = {}
    for line in read_lines("labels-ablations.jsonl"):
        if line["method"].endswith(INFLUENCE):
            found.setdefault(line["method"].removesuffix(INFLUENCE), []).append(line["metrics"])
    rows = []
    for name in in_order(found):
        metrics = [number([100 * seed[key] for seed in found[name]], digits=digits) for key, digits in MEASURES.items()]
        recalls = [f"{100 * fmean(seed[f'recall_at_{share}'] for seed in found[name]):.1f}" for share in (1, 5, 10)]
        products = f"{fmean(seed['curvature_products_per_step'] for seed in found[name]):.0f}"
        rows.append([title_of(name).removeprefix("SG-OIF, "), *metrics, " / ".join(recalls), products])
    return table(("setting", "AUPR", "AUROC", "P@1%", "τ", "recall at 1 / 5 / 10%", "products a step"), rows)


def _ours(line: Line) -> bool:
    return bool(line["method"] == "sgoif" and line["seed"] == SEED)


TABLES: dict[str, Callable[[], str]] = {
    "paper-ablations": ablations,
    "paper-labels": labels,
    "paper-outliers": outliers,
    "paper-parts": parts,
}
