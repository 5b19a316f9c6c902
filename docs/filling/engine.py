"""Tables of the page about what the engine finds and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from filling.cells import number, read_result, table
from filling.cost import ALL, DEEP, HEAD, cost_table

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
COSTS = (
    (f"{GPU}, 9.4 to 9.5 ms a plain step", "overhead-cuda-fetched.json", ALL),
    (f"{GPU}, a machine started anew (9.1 to 9.5)", "overhead-cuda-fetched-2.json", ALL),
    (f"{GPU}, again (9.4)", "overhead-cuda-head-fetched.json", HEAD),
    (f"{GPU}, again, a host as quick as the card (9.2)", "overhead-cuda-head-fetched-2.json", HEAD),
    (f"{GPU}, again, a slow host (11.3)", "overhead-cuda-head-fetched-slow.json", HEAD),
    ("H200, ResNet-18, batch 1024: the card alone counts", "overhead-cuda-head-large-batch.json", HEAD),
    ("two CPU cores, small CNN, batch 128", "overhead-cpu.json", HEAD),
    ("the same, the version before", "overhead-cpu-before.json", HEAD),
    ("the same, the version before", "overhead-cpu-again.json", HEAD),
    ("the same, `body_share=1`", "overhead-cpu-deep.json", DEEP),
    ("the same, `body_share=0.25`", "overhead-cpu-deep-quarter.json", DEEP),
    ("two CPU cores, a batch of 128 shared by two processes", "overhead-cpu-2-ranks.json", HEAD),
)
"""What the engine costs as it is."""


INTERVALS = {
    "two layers, images moved by a pixel": "intervals-mlp.json",
    "two layers, images always the same": "intervals-mlp-fixed-images.json",
    "three convolutions, images moved": "intervals-digits-net.json",
}


def _listed(values: Sequence[float]) -> str:
    return " / ".join(f"{100 * value:.1f}" for value in values)


def detection() -> str:
    """Every score of the runs with class-dependent wrong labels."""
    runs = [read_result(f"detection-class-dependent-seed{seed}.json") for seed in SEEDS]
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
    return cost_table(COSTS)


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
        found = read_result(file)
        monitor = found["monitors"]["influence"]
        figures = (100 * found["methods"]["influence"]["aupr"], monitor["mean_observations"])
        link = f"[`{file}`](../../results/{file})"
        rows.append([title, *(number([value]) for value in figures), str(len(monitor["history"])), link])
    return table(["`budget`", "AUPR", "scored, of 20 times", "refreshes", "file"], rows)


def intervals() -> str:
    """How often intervals cover, by the number of epochs they rest on."""
    rows = []
    for title, file in INTERVALS.items():
        runs = read_result(file)["runs"]
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
        for name, points in read_result("scaling-cpu.json")["sweeps"].items()
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
    "engine-intervals": intervals,
    "engine-scaling": scaling,
}
