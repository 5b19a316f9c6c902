"""Judge every run of a corpus, and compare with the truth; constants are fitted with the judged data set left out.

    sgoif-bench judge --evidence DIR --published out_of_fold.npz --out FILE.jsonl

A judge of one's own, `--judge package.module:factory`, is a function
without arguments that returns a `Judge` (`sgoif_bench.judgement.judges`).
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.core.provenance import plain
from sgoif.core.serialization import atomic_write
from sgoif.core.user_code import own_function
from sgoif.errors import SettingError, SgoifError
from sgoif_bench.command import Say, run_grid, say, sentence, setting
from sgoif_bench.judgement.corpus import Kept, corpus, left_out
from sgoif_bench.judgement.judges import Answer, Judge
from sgoif_bench.judgement.table import shown
from sgoif_bench.metrics import average_precision, expected_calibration_error
from sgoif_bench.result_texts import rounded

PROGRAM = "python -m sgoif_bench.judgement.judge"
PRODUCT = "sgoif_bench.judgement.judges:Product"
SINGLES = {"mean_loss": "signal_loss", "final_loss": "final_loss", "logit_margin": "signal_margin"}
SINGLES |= {"probability_margin": "signal_prob_margin"}
"""Single signals and what they are called in what a run knew; influence is among its evidence."""
DIGITS = 6
"""Of the figures in a result file."""
Line = dict[str, Any]


@dataclass(frozen=True)
class JudgeSettings:
    """Which runs are judged, and by whom."""

    evidence: str = setting(help="folder that `collect` filled")
    published: str | None = setting(None, help="FILE.npz of published out-of-fold probabilities, judged as well")
    runs: str = setting("", help="regular expression for names of runs; unset: all")
    judge: str = setting(PRODUCT, help="package.module:factory of a judge")
    workers: int = setting(1, help="processes that judge at the same time")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers = {self.workers} must be at least 1")


def judged(run: Kept, place: str, constants: Any) -> Line:
    """One run, judged and compared with the truth; an error is an answer too."""
    line: Line = {**run.about, "constants": None if constants is None else repr(constants)}
    try:
        known, judge = run.load(), _made(place)
        wrong = known["given"] != known["true"]
        told = judge.judge(known, constants)
        ranked = areas(known, told, wrong)
    except SgoifError as error:
        return {**line, "error": sentence(error)}
    return {**line, "stated": stated(told, wrong), "aupr": ranked, "error": None}


def stated(answer: Answer, wrong: NDArray[np.bool_]) -> Line:
    """What is stated against what is so; an interval that misses the rate by less than half an example covers it."""
    is_wrong = wrong[answer.index]
    estimate, low, high = map(float, answer.rate)
    found, total = int(is_wrong[answer.listed].sum()), int(is_wrong.sum())
    return {
        "noise_rate": estimate,
        "low": low,
        "high": high,
        "noise_rate_true": total / len(is_wrong),
        "covered": low * len(is_wrong) - 0.5 < total < high * len(is_wrong) + 0.5,
        "width": high - low,
        "listed": len(answer.listed),
        "false_discovery_rate": 1 - found / len(answer.listed) if len(answer.listed) else None,
        "recall": found / total if total else None,
        "expected_calibration_error": expected_calibration_error(answer.probability, is_wrong),
    }


def areas(known: Mapping[str, Any], answer: Answer, wrong: NDArray[np.bool_]) -> dict[str, float] | None:
    """Area under precision and recall of the ranking and of each single signal; None where nothing is wrong."""
    training = known["training"]
    if not np.array_equal(answer.index[: len(answer.suspicion)], training.index):
        raise SettingError("the judge's suspicion is not that of the training examples, in their order")
    is_wrong = wrong[training.index]
    if not is_wrong.any():
        return None
    signals = {name: known[key] for name, key in SINGLES.items() if key in known}
    if np.ptp(training.influence):
        signals["influence"] = training.influence
    ranked = {name: np.nan_to_num(values, nan=-np.inf) for name, values in signals.items()}
    ranked["label_score"] = answer.suspicion
    return {name: average_precision(is_wrong, values) for name, values in ranked.items()}


def judge_corpus(settings: JudgeSettings, out: Path, command: str, tell: Say = say) -> dict[str, Any]:
    """Judge every run of a corpus, constants fitted with its data set left out."""
    others = None if settings.published is None else Path(settings.published)
    runs = corpus(Path(settings.evidence), others, settings.runs)
    judge, lines = _made(settings.judge), list[Line]()
    constants = {name: judge.fit(left_out(runs, name)) for name in dict.fromkeys(run.set for run in runs)}
    with _mapped(settings.workers) as mapped:
        for line in mapped(judged, runs, repeat(settings.judge), [constants[run.set] for run in runs]):
            lines.append({**line, "judge": settings.judge, "command": command})
            tell(f"{line['name']}: {_told(line)}")
    text = "".join(json.dumps(rounded(plain(line), DIGITS), allow_nan=False) + "\n" for line in lines)
    atomic_write(out, lambda file: file.write(text), text=True)
    return {"runs": len(lines), "failed": [line["name"] for line in lines if line["error"]], "table": shown(lines)}


def _made(place: str) -> Judge:
    made: Judge = own_function(place, "judge")()
    return made


@contextmanager
def _mapped(workers: int) -> Iterator[Any]:
    if workers == 1:
        yield map
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield pool.map


def _told(line: Line) -> str:
    if line["error"]:
        return str(line["error"])
    best = line["stated"]
    real = "-" if best["false_discovery_rate"] is None else f"{best['false_discovery_rate']:.2f}"
    return (
        f"{100 * best['noise_rate_true']:.1f}% wrong, stated {100 * best['noise_rate']:.1f}% ({100 * best['low']:.1f}"
        f" to {100 * best['high']:.1f}); {best['listed']} listed, FDR {real}"
    )


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Judge from the command line; returns the exit code."""
    return run_grid(program, JudgeSettings, judge_corpus, lambda whole: str(whole["table"]), arguments, "judged.jsonl")


if __name__ == "__main__":
    raise SystemExit(main())
