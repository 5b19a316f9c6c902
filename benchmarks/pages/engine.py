"""The table of the page about what the engine costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pages.cells import read_result, table

PAGE = "engine.md"
WATCHED = {"head": "head", "last-stage": "last stage", "all": "all layers"}
GPU = "H200, ResNet-18, batch 512"
COSTS: Sequence[tuple[str, str, Sequence[str], str]] = (
    (GPU, "head", ("cuda-executor", "cuda-executor-head", "cuda-executor-noisy"), "dev"),
    (GPU, "last-stage", ("cuda-executor", "cuda-executor-noisy"), "dev"),
    (GPU, "all", ("cuda-executor", "cuda-executor-noisy"), "dev"),
    ("the same, batch 1024", "head", ("cuda-head-large-batch",), "held-out"),
    ("two CPU cores, small CNN", "head", ("cpu",), "dev"),
    ("the same, two processes", "head", ("cpu-2-ranks",), "dev"),
    ("the same, `body_share=0.25`", "last-stage", ("cpu-deep-quarter",), "dev"),
    ("the same, `body_share=0.25`", "all", ("cpu-deep-quarter",), "dev"),
    ("the same, `body_share=1`", "all", ("cpu-deep",), "dev"),
)
"""Setting, watched layers, the runs that measured it, and whether choices were made looking at it."""


def cost() -> str:
    """Time and memory of training with the monitor over those without, a figure for each run."""
    rows = []
    for setting, layers, files, selection in COSTS:
        found = [read_result(f"overhead-{file}.json")["layers"][layers] for file in files]
        repeats = [ratio for run in found for ratio in run["time_ratios"]]
        goal, memory = found[0].get("time_target"), found[0].get("memory_ratio")
        rows.append(
            [
                setting,
                WATCHED[layers],
                " / ".join(f"{run['time_ratio']:.3f}" for run in found),
                f"{min(repeats):.2f}–{max(repeats):.2f}",
                "–" if goal is None else f"{goal:.2f}",
                "–" if memory is None else f"{memory:.2f}",
                selection,
            ]
        )
    return table(["setting", "watched", "time", "single repeats", "goal", "peak memory", "selection"], rows)


TABLES: dict[str, Callable[[], str]] = {"engine-cost": cost}
