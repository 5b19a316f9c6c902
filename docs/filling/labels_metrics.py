"""Wrong labels by every metric at once: means over the kinds of noise on CIFAR-10, a row for each method."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from filling.cells import Line, marked, table
from filling.labels import CIFAR, NOISES, Results
from sgoif.bench.labels.lines import value_of
from sgoif.bench.labels.registry import choose, title_of

PERCENT = {
    "p_at_1": "P@1%",
    "recall_at_1": "R@1%",
    "recall_at_5": "R@5%",
    "recall_at_10": "R@10%",
    "aupr": "AUPR",
    "auroc": "AUROC",
}


def all_metrics() -> str:
    """Methods that were run on every kind of noise; the first row is what a list without a mistake would have."""
    results = Results(CIFAR)
    whole = [name for name in choose("all") if all(results.lines(name, noise) for noise in NOISES)]
    rates = [line["wrong"] / line["examples"] for noise in NOISES for line in results.lines(whole[0], noise)[:1]]
    bounds = (f"{100 * best_recall(rates, share):.1f}" for share in (0.01, 0.05, 0.1))
    perfect = ["a list without a mistake", "", "100.0", *bounds]
    rows = [[*perfect, "100.0", "100.0", "", "", ""]]
    columns = [marked([[100 * _mean(results, name, metric)] for name in whole]) for metric in PERCENT]
    for name, *means in zip(whole, *columns, strict=True):
        seeds = {line["seed"] for noise in NOISES for line in results.lines(name, noise)}
        steady = f"{_mean(results, name, 'top_kendall'):.2f}" if _is_ranked(results, name) else "–"
        memory = f"{_mean(results, name, 'memory') / 2**20:.0f}"
        trainings = f"{_mean(results, name, 'trainings'):.2f}"
        rows.append([title_of(name), str(len(seeds)), *means, steady, trainings, memory])
    return table(["method", "seeds", *PERCENT.values(), "Kendall τ", "trainings", "peak memory, MiB"], rows)


def best_recall(rates: Sequence[float], share: float) -> float:
    """Mean share of the wrong labels that the first `share` of a list can hold, where so many labels are wrong."""
    return statistics.mean(min(1.0, share / rate) for rate in rates)


def _is_ranked(results: Results, name: str) -> bool:
    """Whether a method has a list after every epoch."""
    return all(line["metrics"]["top_kendall"] is not None for noise in NOISES for line in results.lines(name, noise))


def _mean(results: Results, name: str, metric: str) -> float:
    """The mean over kinds of noise of the mean over seeds."""
    return statistics.mean(
        statistics.mean(_value(line, metric) for line in results.lines(name, noise)) for noise in NOISES
    )


def _value(line: Line, metric: str) -> float:
    value = value_of(line, metric)
    if value is None:
        raise SystemExit(f"{line['method']} on {line['noise']} has no {metric}")
    return value


TABLES: dict[str, Callable[[], str]] = {"cifar10-metrics": all_metrics}
