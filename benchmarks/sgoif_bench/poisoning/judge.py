"""How well a finding tells poison from the rest, and what is removed because of it.

    aupr, auroc          over all training examples
    p_at_poison          share of poison among as many examples as there are poisoned ones
    selected             how many examples the method would remove, with the share of poison among them (precision) and
                         the share of the poison that they are (recall)

A method without a rule of its own is made to remove as spectral signatures do: 1.5 times as many examples as are
poisoned, the most suspicious ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SettingError
from sgoif_bench.labels.problem import Rows
from sgoif_bench.metrics import auroc, average_precision, flag_metrics, precision_at, precision_recall_curve
from sgoif_bench.poisoning.case import Finding

MARGIN = 1.5
OWN_RULE, SHARED_RULE = "own rule", "1.5 × the number of poisoned examples"


def removed(finding: Finding, poison: int) -> tuple[Rows, str]:
    """The rows that are removed, in order, and by which rule."""
    if finding.selected is not None:
        return np.unique(finding.selected), OWN_RULE
    first = np.argsort(-finding.suspicion, kind="stable")[: round(MARGIN * poison)]
    return np.sort(first), SHARED_RULE


def judged(is_poison: NDArray[np.bool_], finding: Finding) -> dict[str, Any]:
    """The part of a line that says how well a finding finds the poison."""
    suspicion = np.asarray(finding.suspicion, dtype=np.float64)
    if suspicion.shape != is_poison.shape:
        raise SettingError(f"scores of shape {suspicion.shape} came back for {len(is_poison)} examples")
    if np.isnan(suspicion).any():
        raise SettingError(f"{int(np.isnan(suspicion).sum())} of {len(suspicion)} scores are not numbers")
    poison = int(is_poison.sum())
    rows, rule = removed(finding, poison)
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(is_poison)):
        raise SettingError(f"example {rows[-1]} was selected; there are {len(is_poison)}, counted from 0")
    flags = np.zeros(len(is_poison), dtype=bool)
    flags[rows] = True
    caught = flag_metrics(is_poison, flags)
    metrics: dict[str, Any] = {
        **dict.fromkeys(("aupr", "auroc", "p_at_poison")),
        "selected": len(rows),
        "selected_share": len(rows) / len(is_poison),
        "precision": caught["precision"],
        "recall": caught["recall"],
        "poison_left": int((is_poison & ~flags).sum()),
    }
    if poison:
        metrics |= {
            "aupr": average_precision(is_poison, suspicion),
            "auroc": auroc(is_poison, suspicion),
            "p_at_poison": precision_at(is_poison, suspicion, poison / len(is_poison)),
        }
    curve = precision_recall_curve(is_poison, suspicion) if poison else None
    return {"metrics": metrics, "removed_by": rule, "curve": curve, "details": finding.details}
