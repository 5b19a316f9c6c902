"""Tables of the page about what the engine finds and costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from filling.cells import RESULTS, number, table

PAGE = "engine.md"
SEEDS = (0, 1, 2)
SCORES = {
    "influence": "**influence** (default)",
    "plain_sum": "influence, plain sum (`help_weight=1`)",
    "influence_no_gate": 'influence without the gate (`gate="none"`)',
    "one_pool_no_gate": 'the paper\'s sum without the gate (`gate="none", groups="one", help_weight=1`)',
    "loss": "mean loss",
    "margin": "margin of logits (AUM)",
    "prob_margin": "margin of probabilities",
}
GPU = "H200, ResNet-18, batch 512, bfloat16"
HEAD = {"head": "head"}
DEEP = {"last-stage": "last stage", "all": "all layers"}
ALL = HEAD | DEEP
GOAL_BATCHES = (128, 512)
"""The batches that goals were set for, on a CPU and on a GPU."""
COSTS = (
    (f"{GPU}, a host as quick as the card (9.1 ms a plain step)", "overhead-cuda-head-joined.json", HEAD),
    (f"{GPU}, the same", "overhead-cuda-head-joined-2.json", HEAD),
    (f"{GPU}, the same", "overhead-cuda-head-joined-3.json", HEAD),
    (f"{GPU}, the same", "overhead-cuda-head-joined-4.json", HEAD),
    (f"{GPU}, the same, small decompositions on the host", "overhead-cuda-deep-joined.json", DEEP),
    (f"{GPU}, a slower and busier host (9.3 to 10.2)", "overhead-cuda-head-joined-slow.json", HEAD),
    (f"{GPU}, the same, small decompositions on the host", "overhead-cuda-deep-joined-slow.json", DEEP),
    ("H200, ResNet-18, batch 1024: the card alone counts", "overhead-cuda-head-large-batch.json", HEAD),
    (f"{GPU}, before, a busy host (9.7)", "overhead-cuda-head-glimpse-noisy-1.json", HEAD),
    (f"{GPU}, before, the same three minutes later (9.8)", "overhead-cuda-head-glimpse-noisy-2.json", HEAD),
    (f"{GPU}, before, the same (9.6 to 10.2)", "overhead-cuda-deep-glimpse-noisy.json", DEEP),
    (f"{GPU}, before, a slow host (10.7)", "overhead-cuda-head-glimpse-slow.json", HEAD),
    (f"{GPU}, before, 9.8 ms", "overhead-cuda-head-glimpse.json", HEAD),
    (f"{GPU}, before, the same", "overhead-cuda-deep-glimpse.json", DEEP),
    ("H200, ResNet-18, batch 64, before: the host alone counts", "overhead-cuda-host-glimpse.json", HEAD),
    (f"{GPU}, before that, 9.9 ms", "overhead-cuda-turns-all-before.json", ALL),
    (f"{GPU}, before that, a slow host (11.0)", "overhead-cuda-head-booked-slow.json", HEAD),
    (f"{GPU}, before that, a quick host (9.2)", "overhead-cuda-head-booked.json", HEAD),
    (f"{GPU}, before that, the same", "overhead-cuda-deep-booked.json", DEEP),
    ("H200, ResNet-18, batch 64, before that", "overhead-cuda-host-booked.json", HEAD),
    ("two CPU cores, small CNN, batch 128", "overhead-cpu.json", HEAD),
    ("the same, `body_share=1`", "overhead-cpu-deep.json", DEEP),
    ("the same, `body_share=0.25`", "overhead-cpu-deep-quarter.json", DEEP),
    ("two CPU cores, a batch of 128 shared by two processes", "overhead-cpu-2-ranks.json", HEAD),
)


INTERVALS = {
    "two layers, images moved by a pixel": "intervals-mlp.json",
    "two layers, images always the same": "intervals-mlp-fixed-images.json",
    "three convolutions, images moved": "intervals-digits-net.json",
}


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def _listed(values: Sequence[float]) -> str:
    return " / ".join(f"{100 * value:.1f}" for value in values)


def detection() -> str:
    """Every score of the runs with class-dependent wrong labels."""
    runs = [_read(f"detection-class-dependent-seed{seed}.json") for seed in SEEDS]
    rows = [
        [title, *(_listed([run["methods"][name][metric] for run in runs]) for metric in ("aupr", "p_at_1", "auroc"))]
        for name, title in SCORES.items()
    ]
    monitors = [run["monitors"]["influence"] for run in runs]
    rows.append(
        ["of the anchors, each without its own part", _listed([m["anchors_only"]["aupr"] for m in monitors]), "", ""]
    )
    named = _listed([monitor["group_is_true_class"] for monitor in monitors])
    return table(["score", "AUPR", "P@1%", "AUROC"], rows) + (
        f"\nThe most harmed group is the true class for {named}% of the wrong labels.\n"
    )


def cost() -> str:
    """Time and memory with the monitor over those without."""
    rows = []
    for setting, file, layers in COSTS:
        result = _read(file)
        measured, aimed = result["layers"], result["plan"]["batch_size"] in GOAL_BATCHES
        for name, title in layers.items():
            found = measured[name]
            low, high = found["time_ratio_low"], found["time_ratio_high"]
            memory = found.get("memory_ratio")
            target = found.get("time_target") if aimed else None
            ratios = found["time_ratios"]
            error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
            busy = found.get("processor_time_ratio")
            rows.append(
                [
                    setting,
                    title,
                    f"{found['time_ratio']:.3f} ({low:.3f}–{high:.3f})",
                    f"{mean(ratios):.3f} ± {error:.3f}",
                    "–" if busy is None else f"{busy:.3f}",
                    "–" if memory is None else f"{memory:.3f}",
                    "–" if target is None else f"{target:.2f}",
                ]
            )
    head = ["setting", "watched", "time", "mean", "processor time", "peak memory", "time meant to be at most"]
    return table(head, rows)


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


BUDGETS = {
    "none": "none",
    "cold": "0.02, first steps paid off",
    "host": "0.02, time of the host",
    "": "0.02, as it is now",
    "5": "0.05, as it is now",
}
"""Runs with a budget, as the result files call them and as the page does."""


def budget() -> str:
    """What is found with a share of training time to spend."""
    rows = []
    for name, title in BUDGETS.items():
        file = f"detection-budget{'-' if name else ''}{name}.json"
        found = _read(file)
        monitor = found["monitors"]["influence"]
        figures = (100 * found["methods"]["influence"]["aupr"], monitor["mean_observations"])
        link = f"[`{file}`](../../results/{file})"
        rows.append([title, *(number([value]) for value in figures), str(len(monitor["history"])), link])
    return table(["`budget`", "AUPR", "scored, of 20 times", "refreshes", "file"], rows)


def account() -> str:
    """Milliseconds of the host in the parts of the monitor between two refreshes."""
    found = _read("overhead-cuda-account.json")
    runs = [found[name]["own_ms"] for name in ("before", "after", "now")]
    rows = [
        [part, *(f"{sum(run.get(name, 0) for name in names):.1f}" for run in runs)] for part, names in ACCOUNT.items()
    ]
    named = {name for names in ACCOUNT.values() for name in names}
    rows.append([REST, *(f"{sum(ms for name, ms in run.items() if name not in named):.1f}" for run in runs)])
    rows.append(["together", *(f"{sum(run.values()):.1f}" for run in runs)])
    return table(["milliseconds of the host in 196 steps", "two versions before", "one before", "now"], rows)


def pieces() -> str:
    """What parts of the monitor add to slices of a training, on two hosts."""
    hosts = [_read(f"overhead-cuda-pieces-{name}.json")["variants"] for name in ("quick", "slow")]
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


def intervals() -> str:
    """How often intervals cover, by the number of epochs they rest on."""
    rows = []
    for title, file in INTERVALS.items():
        runs = _read(file)["runs"]
        by_length = zip(*(run["windows"] for run in runs), strict=True)
        for same in by_length:
            shares = [
                number([100 * row[key] for row in same]) for key in ("covered", "covered_bernstein", "covered_normal")
            ]
            ratio = number([row["variance_ratio"] for row in same], digits=2)
            rows.append([title, str(same[0]["epochs"]), *shares, ratio])
    head = ["run", "epochs", "covered", "empirical Bernstein", "normal", "variance of the mean over V/n"]
    return table(head, rows)


def scaling() -> str:
    """Cost by the number of examples, anchors and watched weights."""
    titles = {"examples": "training examples", "anchors": "anchors", "parameters": "watched weights"}
    rows = [
        [
            titles[name],
            f"{point[name]:,}",
            f"{point['scoring_ms']:.2f}",
            f"{point['refresh_ms']:.0f}",
            f"{point['steps_between_refreshes']:,.0f}",
            f"{point['added_ms']:.2f}",
            f"{100 * point['added_share']:.1f}",
            f"{point['kept_mb']:.1f}",
        ]
        for name, points in _read("scaling-cpu.json")["sweeps"].items()
        for point in points
    ]
    head = [
        "swept",
        "size",
        "scoring, ms a step",
        "a refresh, ms",
        "steps between",
        "added, ms a step",
        "% of a step",
        "MB",
    ]
    return table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "engine-detection": detection,
    "engine-cost": cost,
    "engine-budget": budget,
    "engine-account": account,
    "engine-pieces": pieces,
    "engine-intervals": intervals,
    "engine-scaling": scaling,
}
