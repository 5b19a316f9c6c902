"""How often what is stated of a corpus is so, by data set.

python -m sgoif_bench.judgement.table FILE.jsonl
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sgoif.errors import SettingError
from sgoif_bench.command import answered

PROGRAM = "python -m sgoif_bench.judgement.table"
Line = Mapping[str, Any]
KNOWS, MOST_FALSE = 0.8, 0.15
"""Agreement with held-out labels from which a model knows its classes, and the largest false discovery rate that is
all right where 0.1 was asked for."""
FORMS = {
    "runs": "{:.0f}",
    "covered": "{:.0%}",
    "width": "{:.2f}",
    "kept": "{:.0%}",
    "recall": "{:.0%}",
    "behind": "{:.1f}",
}
HEAD = ("runs", "rate covered", "median width", "FDR ≤ 0.15", "median recall", "AUPR behind")


def told(line: Line) -> Line:
    """What is stated of a run, beside what is so; earlier files have it with planted errors and without."""
    found: Line = line["stated"] if "stated" in line else line["without_decoys"]
    return found


def summary(lines: Sequence[Line]) -> dict[str, float | None]:
    """Shares and medians over some runs; None where there is nothing to say.

    The width is that of runs whose model agrees with 80% of held-out labels or more. `behind` is by how many points the
    ranking has less area under precision and recall than the best single signal, 0 where it has not. A list with
    nothing in it has no false discoveries.
    """
    lines = [line for line in lines if not line["error"]]
    found = [told(line) for line in lines]
    ranked = [line["aupr"] for line in lines if line["aupr"]]
    return {
        "runs": float(len(found)),
        "covered": _share(item["covered"] for item in found),
        "width": _median(told(line)["width"] for line in lines if line["agreement"] >= KNOWS),
        "kept": _share((item["false_discovery_rate"] or 0) <= MOST_FALSE for item in found),
        "recall": _median(item["recall"] for item in found if item["recall"] is not None),
        "behind": _median(100 * max(best(areas) - areas["label_score"], 0.0) for areas in ranked),
    }


def best(areas: Mapping[str, float]) -> float:
    """The largest area of a single signal."""
    return max(area for name, area in areas.items() if name != "label_score")


def by_set(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines of every data set, published cases apart, and of all."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        name = "published" if line["name"].startswith("published-") else line["set"]
        groups.setdefault(name, []).append(line)
    return {**groups, "all": list(lines)}


def cells(found: Mapping[str, float | None]) -> list[str]:
    """A summary as text."""
    return ["–" if (value := found[name]) is None else form.format(value) for name, form in FORMS.items()]


def shown(lines: Sequence[Line]) -> str:
    """The table for a terminal, the runs that fail, and what could not be judged."""
    judged = [line for line in lines if not line["error"]]
    whole = [("", *HEAD), *((name, *cells(summary(some))) for name, some in by_set(judged).items())]
    width = [max(map(len, column)) for column in zip(*whole, strict=True)]
    parts = ["  ".join(cell.ljust(size) for cell, size in zip(row, width, strict=True)).rstrip() for row in whole]
    parts += ["", *failures(judged), ""]
    parts += [f"{line['name']} was not judged: {line['error']}" for line in lines if line["error"]]
    return "\n".join(parts).rstrip()


def failures(lines: Sequence[Line]) -> list[str]:
    """A sentence about every run whose interval misses the rate, or whose list has too many right labels."""
    found = []
    for line in lines:
        stated = told(line)
        if not stated["covered"]:
            interval = f"{100 * stated['low']:.1f} to {100 * stated['high']:.1f}%"
            found.append(f"{line['name']}: {100 * stated['noise_rate_true']:.1f}% are wrong, stated {interval}")
        if (stated["false_discovery_rate"] or 0) > MOST_FALSE:
            found.append(f"{line['name']}: {100 * stated['false_discovery_rate']:.0f}% of {stated['listed']} are right")
    return found


def _share(values: Iterable[bool]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables of result files; returns the exit code."""
    files = [Path(file) for file in (sys.argv[1:] if arguments is None else arguments)]

    def act() -> int:
        if not files:
            raise SettingError("no result file was given; name one or more that `judge --out` wrote")
        print(shown([json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]))
        return 0

    return answered(PROGRAM, act)


if __name__ == "__main__":
    raise SystemExit(main())
