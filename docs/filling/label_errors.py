"""Tables of the page about wrong labels and how far the answer can be believed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from filling import labels
from filling.cells import Line, read_lines, table

PAGE = "label-errors.md"
FILE = "label-errors.jsonl"
NOISES = {**labels.NOISES, "none": "none injected"}
SIGNALS = {"loss": "mean loss", "margin": "AUM", "prob_margin": "probability margin", "influence": "influence"}
NAME = re.compile(r"(?P<noise>.+)-(?P<kind>augmented|plain)-seed(?P<seed>\d+)")


def runs(kind: str) -> dict[str, list[Line]]:
    """Lines by noise, in the order of the page and of their seeds."""
    found: dict[str, dict[int, Line]] = {noise: {} for noise in NOISES}
    for line in read_lines(FILE):
        match = NAME.fullmatch(line["name"])
        if match is not None and match["kind"] == kind:
            found[match["noise"]][int(match["seed"])] = line
    return {noise: [by_seed[seed] for seed in sorted(by_seed)] for noise, by_seed in found.items() if by_seed}


def several(values: Sequence[float | None], digits: int = 1, scale: float = 100) -> str:
    """One value per seed."""
    return " / ".join("–" if value is None else f"{scale * value:.{digits}f}" for value in values)


def best_single(lines: Sequence[Line]) -> str:
    """AUPR of the best single signal of each seed, and which it is."""
    names = list(dict.fromkeys(SIGNALS[line["best_single"]["name"]] for line in lines))
    return f"{several([line['best_single']['aupr'] for line in lines])} ({', '.join(names)})"


def ranking() -> str:
    """Quality of the order, with augmentation."""
    rows = []
    for noise, lines in runs("augmented").items():
        if noise == "none":
            continue
        own = [line["methods"]["label_errors"] for line in lines]
        rows.append(
            [
                NOISES[noise],
                f"**{several([found['aupr'] for found in own])}**",
                best_single(lines),
                several([found["p_at_1"] for found in own]),
                several([line["calibration"]["suggested_right"] for line in lines]),
                several([line["found_at_share"] for line in lines], digits=0),
            ]
        )
    return table(["noise", "**AUPR**", "best single signal", "P@1%", "suggested right", "found at"], rows)


def memorised() -> str:
    """The same for networks that have memorised."""
    rows = [
        [
            NOISES[noise],
            several([line["methods"]["label_errors"]["aupr"] for line in lines]),
            best_single(lines),
            several([line["methods"]["label_errors"]["p_at_1"] for line in lines]),
            several([line["calibration"]["false_discovery_rate"] for line in lines], digits=3, scale=1),
        ]
        for noise, lines in runs("plain").items()
    ]
    return table(["noise", "AUPR", "best single signal", "P@1%", "FDR"], rows)


def calibration() -> str:
    """What is stated against what is so, with decoys and without."""
    rows = []
    for noise, lines in runs("augmented").items():
        stated = [line["calibration"] for line in lines]
        alone = [line["calibration_without_decoys"] for line in lines]
        rows.append(
            [
                NOISES[noise],
                several([c["expected_calibration_error"] for c in stated], digits=3, scale=1),
                f"{several([c['noise_rate'] for c in stated])} ({100 * stated[0]['noise_rate_true']:.1f})",
                false_discoveries(stated, noise == "none"),
                f"{top_100(stated, 'expected')} ({top_100(stated, 'real')})",
                several([c["noise_rate"] for c in alone]),
                false_discoveries(alone, noise == "none"),
            ]
        )
    head = ["noise", "ECE", "noise rate, %", "FDR", "top 100, %", "noise rate, no decoys", "FDR, no decoys"]
    return table(head, rows)


def top_100(stated: Sequence[dict[str, Any]], which: str) -> str:
    """Precision of the first hundred, `expected` or `real`."""
    return several([c[f"top_100_{which}"] for c in stated], digits=0)


def false_discoveries(stated: Sequence[dict[str, Any]], clean: bool) -> str:
    """FDR of the selection, or how many were selected where nothing is wrong."""
    if clean:
        return " / ".join(str(c["selected"]) for c in stated) + " selected"
    return several([c["false_discovery_rate"] for c in stated], digits=3, scale=1)


TABLES: dict[str, Callable[[], str]] = {
    "label-errors-ranking": ranking,
    "label-errors-memorised": memorised,
    "label-errors-calibration": calibration,
}
