"""Tables of the page about training despite wrong labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from filling.cells import Line, marked, number, read_lines, table
from sgoif.bench.curriculum.registry import METHODS, in_order, title_of

PAGE = "curriculum.md"
NOISES = {
    "class-dependent-20": "class-dependent 20%",
    "symmetric-40": "symmetric 40%",
    "human-aggregate": "CIFAR-10N aggregate, 9%",
    "none": "no noise",
}
OURS, PLAIN = "curriculum", "plain"


class Results:
    """The lines of a result file with one tail, by method and noise, in the order of their seeds; defaults only."""

    def __init__(self, name: str, tail: float | None) -> None:
        self._found: dict[tuple[str, str], list[Line]] = {}
        for line in sorted(read_lines(name), key=lambda line: line["seed"]):
            if line["recipe"]["tail"] == tail and "curriculum" not in line["recipe"]:
                self._found.setdefault((line["method"], line["noise"]), []).append(line)
        self.methods = in_order({method for method, _ in self._found})
        self.noises = [noise for noise in NOISES if any(noise == found for _, found in self._found)]

    def values(self, method: str, noise: str, metric: str) -> list[float]:
        found = (line["metrics"][metric] for line in self._found.get((method, noise), []))
        return [100 * value for value in found if value is not None]

    def gains(self, noise: str, metric: str) -> list[float]:
        """What the curriculum has above plain training, seed by seed."""
        ours, plain = (
            {line["seed"]: 100 * line["metrics"][metric] for line in self._found.get((method, noise), [])}
            for method in (OURS, PLAIN)
        )
        return [ours[seed] - plain[seed] for seed in ours if seed in plain]

    def seeds(self, method: str) -> str:
        counts = {len(self._found.get((method, noise), [])) for noise in self.noises}
        return "–".join(map(str, sorted({min(counts), max(counts)})))

    def trainings(self, method: str) -> str:
        """The same for every noise, but for the ceiling, which trains on what is right."""
        if METHODS[method].knows_truth:
            return "–"
        return f"{next(lines[0]['trainings'] for (name, _), lines in self._found.items() if name == method):.2f}"


def compared(name: str, tail: float | None, metric: str) -> str:
    """A row for every method, a column for every noise; the ceiling is not compared."""
    results = Results(name, tail)
    rivals = [method for method in results.methods if not METHODS[method].knows_truth]
    columns = {
        noise: dict(
            zip(rivals, marked([results.values(method, noise, metric) for method in rivals], digits=2), strict=True)
        )
        for noise in results.noises
    }

    def cell(method: str, noise: str) -> str:
        return columns[noise].get(method) or number(results.values(method, noise, metric), digits=2)

    rows = [
        [
            title_of(method),
            *(cell(method, noise) for noise in results.noises),
            results.trainings(method),
            results.seeds(method),
        ]
        for method in results.methods
    ]
    gains = [number(results.gains(noise, metric), digits=2).replace("-", "−") for noise in results.noises]
    rows.append(["curriculum − plain, seed by seed", *gains, "", ""])
    return table(["method", *(NOISES[noise] for noise in results.noises), "trainings", "seeds"], rows)


def weight(name: str) -> str:
    """Share of the total weight that wrong labels have in the last epoch, of the methods that give weights."""
    results = Results(name, None)
    noises = [noise for noise in results.noises if noise != "none"]
    rows = [
        [title_of(method), *(number(results.values(method, noise, "wrong_weight")) for noise in noises)]
        for method in results.methods
        if not METHODS[method].knows_truth and any(results.values(method, noise, "wrong_weight") for noise in noises)
    ]
    return table(["% of the weight", *(NOISES[noise] for noise in noises)], rows)


def _tables(data: str) -> dict[str, Callable[[], str]]:
    file = f"curriculum-{data}.jsonl"
    return {
        f"curriculum-{data}": partial(compared, file, None, "accuracy"),
        f"curriculum-{data}-weight": partial(weight, file),
        f"curriculum-{data}-tail": partial(compared, file, 50.0, "minority_recall"),
        f"curriculum-{data}-tail-accuracy": partial(compared, file, 50.0, "accuracy"),
    }


TABLES: dict[str, Callable[[], str]] = {
    name: make for data in ("cifar10", "fashion-mnist", "mnist", "digits") for name, make in _tables(data).items()
}
