"""What an audit left behind: how well its ranking and its list find the wrong labels, and which way it took."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.audit.choice import CHOICE
from sgoif.core.serialization import load_state
from sgoif.errors import SgoifError
from sgoif_bench.journal import Line
from sgoif_bench.metrics import flag_metrics
from sgoif_bench.pretrained.grid import measure


def read_left(run: Path, is_wrong: NDArray[np.bool_]) -> Line:
    """What stands in a run directory; `is_wrong` by the number of an image, which is the name of its file.

    The ranking is the order of issues.csv; images that the audit could not read count nowhere.
    """
    with (run / "issues.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = is_wrong[[int(Path(row["path"]).stem) for row in rows]]
    listed = np.array([row["is_label_issue"] == "True" for row in rows])
    probability = np.array([float(row["probability_wrong"]) for row in rows])
    if (np.diff(probability) > 0).any():
        raise SgoifError(f"{run / 'issues.csv'} does not begin with the most suspicious labels")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    flags = flag_metrics(wrong, listed)
    right = None if flags["precision"] is None else 1 - flags["precision"]
    return {
        "classes": summary["classes"],
        "examples": len(rows),
        "skipped": summary["skipped"],
        "wrong": int(wrong.sum()),
        "metrics": measure(wrong, -np.arange(len(rows), dtype=np.float64)),
        "list": {"number": int(listed.sum()), "wrong_found": flags["recall"], "right_in_it": right},
        "noise_rate": summary["noise_rate"],
        **_choice(run),
        "network": summary["plan"]["model"],
        "stopped": summary["stopped"],
    }


def _choice(run: Path) -> dict[str, Any]:
    """The way that an audit chose, and the share of held-out labels that each agreed with; nothing where one was asked
    for.
    """
    if not (run / CHOICE).is_file():
        return {"chosen": None, "agreement": None}
    kept = load_state(run / CHOICE)
    return {"chosen": kept["method"], "agreement": kept["agreement"]}
