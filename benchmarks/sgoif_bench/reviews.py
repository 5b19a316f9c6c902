"""What a few dozen looks of a person tell about a list: simulated from the truth, over runs and random rankings.

    sgoif-bench reviews --data out_of_fold.npz --runs runs/ --out FILE.jsonl

Every repetition draws another plan. A run brings a list (v, the most suspicious first), a prior p and the truth; for
the random ranking the truth is shuffled, while the prior stays where it was, so that it is wrong as well. What the
file already holds is not computed again.

- `close`: share of repetitions in which the estimated share of errors is within 8 points (40 looks) or 5 points.
- `covered`, `width`: of the 95% interval of that share; `plain_width`: median width from as many plain random looks,
  with the interval of Clopper and Pearson. The same of two other intervals (`review_rivals`).
- `f1`: share of repetitions in which the list of best expected F1 has at least 95% of the best F1 of any length.
- `stop`, from 200 looks on: the first that the report says to look through are looked through; share of repetitions in
  which the interval of the share found, stated afterwards, holds the truth; `foretold`: that of what was stated before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sgoif.core.provenance import versions
from sgoif.errors import SettingError
from sgoif.tasks.review import ReviewEstimate, ReviewPlan, estimate
from sgoif.tasks.review.inversion import interval_of_errors
from sgoif.tasks.review.recalibration import recalibrated
from sgoif_bench.command import Say, listed, run_grid, say, setting
from sgoif_bench.journal import Journal, Kind, Line
from sgoif_bench.judgement.corpus import corpus
from sgoif_bench.judgement.judges import answer, verdict_of
from sgoif_bench.judgement.runs import expression
from sgoif_bench.review_rivals import RIVALS

PROGRAM = "python -m sgoif_bench.reviews"
Array = np.ndarray[Any, Any]
KIND: Kind[tuple[Any, ...]] = Kind(
    "sgoif-bench reviews", lambda line: (line["run"], line["ranking"], line["looks"], tuple(line["recipe"].values()))
)
RANKINGS = ("own", "random")
CLOSE = {40: 0.08}
CLOSE_ELSE = 0.05
F1_SHARE = 0.95
STOPPING, COMPARED = 200, 100
"""From so many looks on the stopping rule is tried; in so many repetitions other intervals are computed as well."""
DRAWS = 201


@dataclass(frozen=True)
class ReviewSettings:
    """Runs and repetitions."""

    data: str = setting("", help="out_of_fold.npz: published probabilities with the truth")
    evidence: str = setting("", help="the folder that `sgoif-bench corpus` filled: its runs, ranked by their judgement")
    runs: str = setting("", help="a folder of .npz files, each with arrays v (suspicion), p (prior) and wrong")
    only: str = setting("", help="regular expression for names of runs; unset: all")
    looks: str = setting("40,100,200", help="numbers of looks, separated by commas")
    repetitions: int = setting(200, help="plans drawn for each run and number of looks")
    seed: int = setting(0, help="of the random rankings and of the first plan")

    def __post_init__(self) -> None:
        if not self.data and not self.evidence and not self.runs:
            raise SettingError("nothing to review: give --data FILE.npz, --evidence FOLDER or --runs FOLDER")
        if self.repetitions < 1:
            raise SettingError(f"repetitions = {self.repetitions} must be at least 1")
        if not all(word.isdecimal() and int(word) for word in listed(self.looks, "looks")):
            raise SettingError(f"--looks takes whole numbers from 1 up, separated by commas; got {self.looks!r}")


class Run(NamedTuple):
    """A ranked list with its truth, the most suspicious first."""

    name: str
    prior: Array
    wrong: Array


def run_reviews(settings: ReviewSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Simulate looks at ranked lists from the truth; what --out already holds is not computed again."""
    recipe = {"repetitions": settings.repetitions, "seed": settings.seed}
    results = []
    with Journal(out, KIND, tell) as journal:
        for run in read_runs(settings):
            for ranking in RANKINGS:
                for looks in map(int, listed(settings.looks, "looks")):
                    key = (run.name, ranking, looks, tuple(recipe.values()))
                    if key not in journal.done:
                        start = time.perf_counter()
                        metrics = simulate(run, ranking == "random", looks, settings.repetitions, settings.seed)
                        line: Line = {"run": run.name, "ranking": ranking, "looks": looks, "recipe": recipe}
                        line |= {"examples": len(run.wrong), "rate": float(run.wrong.mean()), "metrics": metrics}
                        line |= {"command": command, "versions": versions(), "seconds": time.perf_counter() - start}
                        journal.append([line])
                        tell(_told(line))
                    results.append(journal.done[key])
    if not results:
        raise SettingError(f"no run has a name in which {settings.only!r} is found")
    return {"results": results, "failed": []}


def read_runs(settings: ReviewSettings) -> Iterator[Run]:
    """The runs that are asked for, one after the other."""
    wanted = expression("only", settings.only)
    for kept in corpus(Path(settings.evidence), pattern=settings.only) if settings.evidence else ():
        run = kept.load()
        told = answer(verdict_of(run))
        yield ranked(kept.name, told.probability, told.probability, (run["true"] != run["given"])[told.index])
    if settings.data:
        with np.load(settings.data) as packed:
            for name in filter(wanted.search, sorted(key[:-6] for key in packed.files if key.endswith("|wrong"))):
                p = np.exp(packed[f"{name}|logp"].astype(np.float64) / -16)
                given = packed[f"{name}|given"].astype(np.int64)
                suspicion = 1 - p[np.arange(len(p)), given] / p.sum(axis=1)
                yield ranked(name, suspicion, suspicion, packed[f"{name}|wrong"])
    for path in sorted(Path(settings.runs).glob("*.npz")) if settings.runs else ():
        if not wanted.search(path.stem):
            continue
        with np.load(path) as packed:
            missing = [name for name in ("v", "p", "wrong") if name not in packed.files]
            if missing:
                raise SettingError(f"{path} lacks the arrays {', '.join(missing)}; expected are v, p and wrong")
            yield ranked(path.stem, packed["v"], packed["p"], packed["wrong"])


def ranked(name: str, suspicion: Array, prior: Array, wrong: Array) -> Run:
    """A run in the order of its list."""
    order = np.argsort(-np.nan_to_num(suspicion), kind="stable")
    return Run(name, np.asarray(prior, dtype=np.float64)[order], np.asarray(wrong, dtype=bool)[order])


def simulate(run: Run, shuffled: bool, looks: int, repetitions: int, seed: int) -> dict[str, float]:
    """The measures of one run with so many looks."""
    draws = np.random.default_rng(seed)
    size, ends = len(run.wrong), ReviewPlan.of(len(run.wrong), run.prior).ends
    rate = float(run.wrong.mean())
    found: dict[str, list[float]] = {}
    for repetition in range(repetitions):
        wrong = run.wrong[draws.permutation(size)] if shuffled else run.wrong
        plan = ReviewPlan(size, ends, seed + repetition)
        seen = estimate(plan, _decisions(plan.looks(looks), wrong), run.prior)
        measures = _measures(seen, run.prior, wrong, rate, looks)
        if repetition < COMPARED:
            measures |= _rivals(seen, run.prior, wrong, rate)
        for name, value in measures.items():
            found.setdefault(name, []).append(value)
    middle = {name: float(np.median(values)) for name, values in found.items() if name.endswith("width")}
    return {**{name: float(np.mean(values)) for name, values in found.items()}, **middle} | {
        "plain_width": plain_width(draws.binomial(looks, rate, DRAWS), looks, size)
    }


def plain_width(errors: Array, looks: int, size: int) -> float:
    """Median width of the interval from plain random looks that show so many errors."""
    widths = {}
    for count in np.unique(errors).tolist():
        one = np.array([[size], [looks], [count], [count], [size - looks + count]], dtype=np.float64)
        low, high = interval_of_errors(*one)
        widths[count] = (high - low) / size
    return float(np.median([widths[count] for count in errors.tolist()]))


def _measures(seen: ReviewEstimate, prior: Array, wrong: Array, rate: float, looks: int) -> dict[str, float]:
    share = seen.share
    measures = {
        "error": abs(share.estimate - rate),
        "close": abs(share.estimate - rate) <= CLOSE.get(looks, CLOSE_ELSE),
        **_covering("", (share.low, share.high), rate),
    }
    hits = np.cumsum(wrong)
    f1 = 2 * hits / (np.arange(1, len(wrong) + 1) + max(hits[-1], 1))
    measures["f1"] = not hits[-1] or f1[seen.best_length() - 1] >= F1_SHARE * f1.max()
    if looks >= STOPPING:
        measures |= _stopping(seen, prior, wrong, hits)
    return {name: float(value) for name, value in measures.items()}


def _rivals(seen: ReviewEstimate, prior: Array, wrong: Array, rate: float) -> dict[str, float]:
    expected = recalibrated(prior, seen.looks, wrong[seen.looks])
    measures: dict[str, float] = {}
    for name, interval in RIVALS.items():
        measures |= _covering(f"{name}_", interval(seen, expected), rate)
    return measures


def _stopping(seen: ReviewEstimate, prior: Array, wrong: Array, hits: Array) -> dict[str, float]:
    """Whether what is said about the share found is true, before and after somebody looks that far."""
    stop = seen.stop()
    foretold = seen.recall_of_first(stop)
    true = hits[stop - 1] / hits[-1] if stop and hits[-1] else float(not hits[-1])
    before = foretold.low - 1e-9 <= true <= foretold.high + 1e-9
    after = estimate(seen.plan, _decisions(np.union1d(np.arange(stop), seen.looks), wrong), prior)
    true = after.found / hits[-1] if hits[-1] else 1.0
    held = after.recall.low - 1e-9 <= true <= after.recall.high + 1e-9
    return {"foretold": before, "stop": held, "stop_at": stop, "stop_width": after.recall.high - after.recall.low}


def _covering(name: str, ends: tuple[float, float], rate: float) -> dict[str, float]:
    low, high = ends
    return {f"{name}covered": float(low - 1e-9 <= rate <= high + 1e-9), f"{name}width": high - low}


def _decisions(positions: Array, wrong: Array) -> dict[int, bool]:
    return dict(zip(positions.tolist(), wrong[positions].tolist(), strict=True))


def _told(line: Mapping[str, Any]) -> str:
    m = line["metrics"]
    return (
        f"{line['run']}, {line['ranking']}, {line['looks']} looks: covered {m['covered']:.3f}, width {m['width']:.3f}"
        f" ({m['plain_width']:.3f} plain), close {m['close']:.2f}, F1 {m['f1']:.2f}"
    )


def show(whole: Mapping[str, Any]) -> str:
    """One row for every run, ranking and number of looks."""
    names: tuple[str, ...] = ("close", "covered", "width", "plain_width", "f1", "stop", "foretold")
    names += tuple(f"{rival}_{what}" for rival in RIVALS for what in ("covered", "width"))
    rows = ["| run | ranking | looks | rate | " + " | ".join(names) + " |", "|---" * (4 + len(names)) + "|"]
    for line in whole["results"]:
        figures = " | ".join(f"{line['metrics'][name]:.3f}" if name in line["metrics"] else "" for name in names)
        rows.append(f"| {line['run']} | {line['ranking']} | {line['looks']} | {line['rate']:.3f} | {figures} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the benchmark from the command line; returns the exit code."""
    return run_grid(program, ReviewSettings, run_reviews, show, arguments, "runs/reviews.jsonl")


if __name__ == "__main__":
    raise SystemExit(main())
