"""Tables of the page about deletions."""

from __future__ import annotations

from collections.abc import Callable

from filling.cells import number, read_lines, table
from sgoif.bench.unlearning.table import PREDICTION_HEAD, TITLES, WHAT, figure, over, prediction_rows

PAGE = "unlearning.md"
FILES = {
    "digits": "unlearning-digits.jsonl",
    "MNIST": "unlearning-mnist.jsonl",
    "CIFAR-10": "unlearning-cifar10.jsonl",
}


def predictions() -> str:
    """How well each way predicts what retraining the head does."""
    rows = [
        row
        for name, file in FILES.items()
        for lines in [read_lines(file)]
        for row in prediction_rows(f"{name} ({len(lines)})", lines)
    ]
    return table(PREDICTION_HEAD, rows)


def bounds() -> str:
    """Whether what is stated as certain ever was wrong, and what a removal costs."""
    rows = []
    for name, file in FILES.items():
        lines = read_lines(file)
        timed = [line for line in lines if line["machine"]["device_type"] == "cpu"]
        for what, shown in WHAT.items():
            for method in ("newton", "removal"):
                broken = sum(int(value or 0) for value in over(lines, what, "certificate", method, "broken"))
                wrong = sum(int(value or 0) for value in over(lines, what, "flips", method, "certain_but_wrong"))
                covered = figure(over(lines, what, "interval", method, "coverage"), 1, 100)
                beyond = figure(over(lines, what, "interval", method, "population_coverage"), 1, 100)
                cost = [figure(over(timed, what, "seconds", entry), 0, 1000) for entry in (method, "retraining")]
                rows.append([name, shown, TITLES[method], str(broken), str(wrong), covered, beyond, *cost])
    head = [
        "data set",
        "deletion",
        "prediction",
        "certificates broken",
        "certain flips that were none",
        "interval covers %",
        "with sampling, test set %",
        "ms",
        "ms of retraining",
    ]
    return table(head, rows)


def whole_network() -> str:
    """The head's answer beside whole networks trained again, on digits."""
    lines = [line["full"] for line in read_lines(FILES["digits"])]
    titles = {"held_out": "held-out examples", "deleted": "the deleted examples"}
    rows = []
    for key, title in titles.items():
        cells = [
            [line[key][entry] for line in lines]
            for entry in ("spearman", "ceiling", "network_size", "spread_between_seeds")
        ]
        rows.append([f"change of the loss on {title}", *(number(values, digits=3) for values in cells)])
    return table(
        [
            "whole network trained again",
            "Spearman",
            "most that could be reached",
            "mean change",
            "spread between seeds",
        ],
        rows,
    )


TABLES: dict[str, Callable[[], str]] = {
    "unlearning-predictions": predictions,
    "unlearning-bounds": bounds,
    "unlearning-network": whole_network,
}
