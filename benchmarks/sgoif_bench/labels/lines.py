"""What a line of a result file says about finding wrong labels: its figures, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sgoif_bench.labels.registry import title_of
from sgoif_bench.tables.lines import Metric

METRICS: Mapping[str, Metric] = {
    "aupr": Metric("AUPR"),
    "auroc": Metric("AUROC"),
    "p_at_1": Metric("P@1%"),
    "recall_at_1": Metric("R@1%"),
    "recall_at_5": Metric("R@5%"),
    "recall_at_10": Metric("R@10%"),
    "precision": Metric("precision of the flags"),
    "recall": Metric("recall of the flags"),
    "f1": Metric("F1 of the flags"),
    "flagged_share": Metric("flagged, % of all"),
    "top_kendall": Metric("top-1% Kendall τ between epochs", scale=1, digits=3),
    "calibration_error": Metric("expected calibration error", 1, 3, higher_is_better=False),
    "suggested_right": Metric("right label suggested, % of the wrong"),
    "noise_rate_error": Metric("error of the noise rate, points", higher_is_better=False),
    "test_accuracy": Metric("test accuracy after removal, %"),
    "curvature_products_per_step": Metric("curvature products per step", 1, 2, higher_is_better=False),
    "seconds": Metric("seconds", 1, 1, higher_is_better=False, is_cost=True),
    "trainings": Metric("trainings", 1, 2, higher_is_better=False, is_cost=True),
    "memory": Metric("peak memory, MiB", 2**-20, 0, higher_is_better=False, is_cost=True),
}


def value_of(line: Mapping[str, Any], metric: str) -> float | None:
    """A figure of a result line; None where it has none."""
    places: dict[str, Callable[[], Any]] = {
        "seconds": lambda: line.get("seconds"),
        "trainings": lambda: line.get("trainings"),
        "memory": lambda: (line.get("memory") or {}).get("peak_bytes"),
        "test_accuracy": lambda: (line.get("removal") or {}).get("test_accuracy"),
    }
    found = places[metric]() if metric in places else line["metrics"].get(metric)
    return None if found is None else float(found)


def shown_label(name: str, value: Any) -> str:
    """A value of a field as a person reads it."""
    if name == "method":
        return title_of(value)
    if name == "metric":
        return METRICS[value].title
    if isinstance(value, bool) or value is None:
        return f"{name}: {'none' if value is None else 'yes' if value else 'no'}"
    return str(value) if name in ("set", "noise") else f"{name} {value}"
