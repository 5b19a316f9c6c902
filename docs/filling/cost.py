"""Tables of the page about the cost of earlier versions of the engine, and the form of all tables of its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev

from filling.cells import read_result, table

PAGE = "cost.md"
HEAD = {"head": "head"}
DEEP = {"last-stage": "last stage", "all": "all layers"}
ALL = HEAD | DEEP
GOAL_BATCHES = (128, 512)
"""The batches that goals were set for, on a CPU and on a GPU."""
Setting = tuple[str, str, Mapping[str, str]]
"""What was measured, in which file, and what was watched in it."""
COSTS: Sequence[Setting] = (
    ("D, a host as quick as the card (9.2 ms a plain step)", "overhead-cuda-sparing.json", ALL),
    ("D, the same", "overhead-cuda-head-sparing.json", HEAD),
    ("D, another such (9.3)", "overhead-cuda-head-sparing-2.json", HEAD),
    ("D, the same, slices of 28 steps", "overhead-cuda-deep-sparing-short-slices.json", DEEP),
    ("D, the same, slices of 14 steps (9.5)", "overhead-cuda-head-sparing-short-slices.json", HEAD),
    ("D, 9.5 ms", "overhead-cuda-head-sparing-3.json", HEAD),
    ("D, a slower and busy host (10.2 to 11.2)", "overhead-cuda-sparing-noisy.json", ALL),
    ("C, 9.6 to 9.9 ms", "overhead-cuda-before-sparing.json", ALL),
    ("C, a very slow host (11.8 to 12.2)", "overhead-cuda-before-sparing-slow-1.json", ALL),
    ("C, the same (12.1 to 13.7)", "overhead-cuda-before-sparing-slow-2.json", ALL),
    ("C, the same (11.8)", "overhead-cuda-head-before-sparing-slow.json", HEAD),
    ("C, a host as quick as the card (9.1)", "overhead-cuda-head-joined.json", HEAD),
    ("C, the same", "overhead-cuda-head-joined-2.json", HEAD),
    ("C, the same", "overhead-cuda-head-joined-3.json", HEAD),
    ("C, the same", "overhead-cuda-head-joined-4.json", HEAD),
    ("C, the same, small decompositions on the host", "overhead-cuda-deep-joined.json", DEEP),
    ("C, a slower and busier host (9.3 to 10.2)", "overhead-cuda-head-joined-slow.json", HEAD),
    ("C, the same, small decompositions on the host", "overhead-cuda-deep-joined-slow.json", DEEP),
    ("B, a busy host (9.7)", "overhead-cuda-head-glimpse-noisy-1.json", HEAD),
    ("B, the same three minutes later (9.8)", "overhead-cuda-head-glimpse-noisy-2.json", HEAD),
    ("B, the same (9.6 to 10.2)", "overhead-cuda-deep-glimpse-noisy.json", DEEP),
    ("B, a slow host (10.7)", "overhead-cuda-head-glimpse-slow.json", HEAD),
    ("B, 9.8 ms", "overhead-cuda-head-glimpse.json", HEAD),
    ("B, the same", "overhead-cuda-deep-glimpse.json", DEEP),
    ("B, batch 64: the host alone counts", "overhead-cuda-host-glimpse.json", HEAD),
    ("A, 9.9 ms", "overhead-cuda-turns-all-before.json", ALL),
    ("A, a slow host (11.0)", "overhead-cuda-head-booked-slow.json", HEAD),
    ("A, a quick host (9.2)", "overhead-cuda-head-booked.json", HEAD),
    ("A, the same", "overhead-cuda-deep-booked.json", DEEP),
    ("A, batch 64", "overhead-cuda-host-booked.json", HEAD),
)
ACCOUNT = {
    "entering a step": ("enter",),
    "hooks of the head and of the model": ("hook._observe", "hook.root"),
    "leaving a step": ("exit", "_observed", "put_off"),
    "booking late steps": ("backlog.settle", "_joined", "_book_together", "patience", "book_late", "_finish"),
    "blocks and updates of the curvature": ("_score_waiting", "Recording.run", "_upload", "_learn"),
    "looking at the anchors": ("_look_at_anchors", "at_anchors"),
    "decomposing the curvature": ("KFAC._decompose",),
}
REST = "the rest of a refresh"


PIECES = {
    "plain": "none",
    "quiet": "no refresh",
    "quiet, not recorded": "no refresh, `recorded=False`",
    "refresh": "one refresh",
    "refresh, cpu eigh": "one refresh, decomposed on the host",
    "refresh, no eigh": "one refresh, nothing decomposed",
    "refresh at once": "one refresh, nothing put off",
}


def cost_table(settings: Sequence[Setting]) -> str:
    """Time and memory with the monitor over those without."""
    rows = []
    for setting, file, layers in settings:
        result = read_result(file)
        measured, aimed = result["layers"], result["plan"]["batch_size"] in GOAL_BATCHES
        for name, title in layers.items():
            found = measured[name]
            low, high = found["time_ratio_low"], found["time_ratio_high"]
            target = found.get("time_target") if aimed else None
            ratios = found["time_ratios"]
            error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
            rows.append(
                [
                    setting,
                    title,
                    f"{found['time_ratio']:.3f} ({low:.3f}–{high:.3f})",
                    f"{mean(ratios):.3f} ± {error:.3f}",
                    _ratio(found.get("processor_time_ratio")),
                    _ratio(found.get("memory_ratio")),
                    "–" if target is None else f"{target:.2f}",
                ]
            )
    head = ["setting", "watched", "time", "mean", "processor time", "peak memory", "time meant to be at most"]
    return table(head, rows)


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def before() -> str:
    """The same of earlier versions."""
    return cost_table(COSTS)


def account() -> str:
    """Milliseconds of the host in the parts of the monitor between two refreshes."""
    found = read_result("overhead-cuda-account.json")
    runs = [found[name]["own_ms"] for name in ("before", "after", "now", "fetched")]
    rows = [
        [part, *(f"{sum(run.get(name, 0) for name in names):.1f}" for run in runs)] for part, names in ACCOUNT.items()
    ]
    named = {name for names in ACCOUNT.values() for name in names}
    rows.append([REST, *(f"{sum(ms for name, ms in run.items() if name not in named):.1f}" for run in runs)])
    rows.append(["together", *(f"{sum(run.values()):.1f}" for run in runs)])
    head = ["milliseconds of the host in 196 steps", "A", "B", "C", "E"]
    return table(head, rows)


def pieces() -> str:
    """What parts of the monitor add to slices of a training, on two hosts."""
    hosts = [read_result(f"overhead-cuda-pieces-{name}.json")["variants"] for name in ("quick", "slow")]
    rows = []
    for name, title in PIECES.items():
        cells = []
        for host in hosts:
            found = host.get(name)
            cells.append("–" if found is None else f"{found['added_ms_median']:.1f}")
            error = "" if found is None else f"{found['added_ms_trimmed']:.1f} ± {found['added_ms_trimmed_error']:.1f}"
            cells.append(error or "–")
        rows.append([title, *cells])
    head = ["monitor of the head", "quick host: median", "trimmed mean", "slow host: median", "trimmed mean"]
    return table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "cost-before": before,
    "engine-account": account,
    "engine-pieces": pieces,
}
