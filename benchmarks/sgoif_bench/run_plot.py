"""Pictures of a run, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgoif_bench.drawing import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {
    "influence": ("influence, gated", "#0b6e4f"),
    "influence_no_gate": ("influence, no gate", "#c1443c"),
    "plain_sum": ("influence, gated, plain sum", "#6cae75"),
    "one_pool_no_gate": ("influence, one pool, no gate", "#e0a030"),
    "loss": ("mean loss", "#8a8d91"),
    "margin": ("margin (AUM)", "#3b6ea8"),
    "prob_margin": ("probability margin", "#8e6bbf"),
}
"""What a score is called and its colour; others go by their names."""


def plot_run(result: Mapping[str, Any], path: Path, title: str = "") -> None:
    """Left: how well each score finds the wrong labels, by epoch. Right: solver residual and tolerance of the monitors.

    `result` has `epochs` (records with `epoch`, `steps`, `methods`) and `monitors` (each with a `history`).
    """
    with picture(path, title, (11, 4.2)) as figure:
        left, right = figure.subplots(1, 2)
        _draw_detection(left, result["epochs"])
        last = result["epochs"][-1]
        _draw_residuals(right, result["monitors"], steps_per_epoch=last["steps"] / last["epoch"])


def _draw_detection(axes: Axes, epochs: Sequence[Mapping[str, Any]]) -> None:
    numbers = [record["epoch"] for record in epochs]
    for position, name in enumerate(epochs[-1]["methods"]):
        values = [record["methods"][name]["aupr"] for record in epochs]
        label, colour = STYLES.get(name, (name, f"C{position % 10}"))
        emphasis = 2.4 if name.startswith("influence") else 1.5
        axes.plot(numbers, values, color=colour, linewidth=emphasis, label=label)
    axes.set(xlabel="epoch", ylabel="AUPR", ylim=(0, 1.02), title="finding the wrong labels")
    _finish(axes)


def _draw_residuals(axes: Axes, monitors: Mapping[str, Mapping[str, Any]], steps_per_epoch: float) -> None:
    for position, (name, report) in enumerate(monitors.items()):
        history = [entry for entry in report["history"] if entry.get("residual_median")]
        if not history:
            continue
        when = [entry["step"] / steps_per_epoch for entry in history]
        label, colour = STYLES.get(name, (name, f"C{position % 10}"))
        axes.plot(when, [entry["residual_median"] for entry in history], color=colour, linewidth=2, label=label)
        taus = [entry.get("tau") or 0.0 for entry in history]
        bounded = [(at, tau) for at, tau in zip(when, taus, strict=True) if 0 < tau < float("inf")]
        if bounded and not name.endswith("no_gate"):
            at, tau = zip(*bounded, strict=True)
            axes.plot(at, tau, color=colour, linewidth=1.2, linestyle="--", label=f"tolerance τ ({label})")
    axes.set(xlabel="epoch", ylabel="residual ‖g − Hφ‖", title="solver residual of the anchors (median)")
    if axes.lines:
        axes.set_yscale("log")
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.title.set_fontsize(10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
