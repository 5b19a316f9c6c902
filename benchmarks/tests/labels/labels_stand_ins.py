"""Stand-ins for the methods of `sgoif-bench labels`.

`start` runs the command with the stand-ins in place of the real methods in a process of its own. This file is what that
process names as its program, so that its workers import it too and find the same stand-ins.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from warm_processes import WarmProcess, python

from sgoif_bench import journal
from sgoif_bench.labels import kept
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.labels.grid import KIND
from sgoif_bench.labels.problem import Outcome, Problem
from sgoif_bench.labels.registry import FAMILIES, METHODS, Method
from sgoif_bench.labels.run import main

SMALL = ("--limit", "60", "--epochs", "2", "--noises", "symmetric-20")


def guess(problem: Problem, name: str) -> np.ndarray:
    """Scores that depend on seed, labels and method, and on nothing else. Every call leaves a trace."""
    labels = zlib.crc32(problem.labels.tobytes())
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{name} {problem.seed} {labels} {os.getpid()}\n")
    for number, line in enumerate(Path(os.environ["CALLS"]).read_text().splitlines(), start=1):
        if os.environ.get("DIE_AT") == str(number) and line.startswith(f"{name} {problem.seed} {labels}"):
            os.kill(os.getpid(), signal.SIGKILL)
    return np.random.default_rng([labels, problem.seed, len(name)]).random(len(problem))


def alpha(problem: Problem, tell: Any) -> Outcome:
    tell("working")
    scores = guess(problem, "alpha")
    return Outcome(scores, flagged=scores > 0.8, trainings=2.0, details={"curvature_products_per_step": 0.5})


def beta(problem: Problem, tell: Any) -> Outcome:
    scores = guess(problem, "beta")
    if "WAIT" in os.environ:
        time.sleep(120)
    return Outcome(scores)


def broken(problem: Problem, tell: Any) -> Outcome:
    scores = guess(problem, "broken")
    if "REPAIRED" not in os.environ:
        raise RuntimeError("broken on purpose")
    return Outcome(scores)


def first(problem: Problem, tell: Any) -> Outcome:
    return Outcome(guess(problem, "first"))


def second(problem: Problem, tell: Any) -> Outcome:
    return Outcome(guess(problem, "second"))


def duo(problem: Problem, tell: Any) -> dict[str, Outcome]:
    scores = guess(problem, "duo")
    ranks = np.stack([scores, scores**2, -scores])
    epochs = [{"epoch": number, "residual": 1 / number, "confidence": 0.1 * number} for number in (1, 2, 3)]
    return {
        "first": Outcome(scores, details={"ranks over epochs": ranks, "epochs": epochs}),
        "second": Outcome(1 - scores),
        "first-no-gate": Outcome(scores[::-1]),
    }


STAND_INS = [
    Method("alpha", "labels_stand_ins:alpha", "Alpha", "a paper", trains_robustly=True),
    Method("beta", "labels_stand_ins:beta", "Beta", "a paper"),
    Method("broken", "labels_stand_ins:broken", "Broken", "a paper"),
    Method("first", "labels_stand_ins:first", "First", "a paper", family="duo"),
    Method("second", "labels_stand_ins:second", "Second", "a paper", family="duo"),
]
WORKING = "alpha,beta,first,second"


def install() -> None:
    METHODS.clear()
    METHODS.update({method.name: method for method in STAND_INS})
    FAMILIES.clear()
    FAMILIES["duo"] = "labels_stand_ins:duo"


def bench(*arguments: str, methods: str = WORKING) -> int:
    return main(["--methods", methods, "--out", "r.jsonl", *SMALL, *arguments], program="sgoif-bench labels")


def calls() -> list[str]:
    """The methods that were run, in this process or another, since this was last asked."""
    path = Path(os.environ["CALLS"])
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.split()[0] for line in lines]


def results() -> dict[str, Any]:
    return {f"{line['method']}-{line['seed']}": line for line in KIND.read([Path("r.jsonl")])}


def expected(place: Path) -> dict[str, Any]:
    """What an undisturbed run finds."""
    assert main(["--methods", WORKING, "--out", "whole.jsonl", *SMALL, "--seeds", "0,1"]) == 0
    calls()
    return {f"{line['method']}-{line['seed']}": line["metrics"] for line in KIND.read([place / "whole.jsonl"])}


def found() -> dict[str, Any]:
    return {name: line["metrics"] for name, line in results().items()}


def tiny(name: str, root: str | None, *, limit: int, **options: Any) -> LabelledData:
    """A data set that needs no scikit-learn, whose import takes longer than the test."""
    images = torch.arange(limit * 64).remainder(251).to(torch.uint8).view(limit, 1, 8, 8)
    return LabelledData(name, images, np.arange(limit) % 10, tuple("0123456789"), np.arange(limit))


def start(*arguments: str, methods: str = WORKING, **changed: str) -> WarmProcess:
    program = "import labels_stand_ins; labels_stand_ins.run()"
    return python(program, "--methods", methods, "--out", "r.jsonl", *SMALL, *arguments, **changed)


def run() -> None:
    vars(sys.modules["__main__"])["__file__"] = __file__
    prepare()
    if "DIE_IN_WRITE" in os.environ:
        die_in_write(int(os.environ["DIE_IN_WRITE"]))
    sys.exit(main(sys.argv[1:], program="sgoif-bench labels"))


def die_in_write(number: int) -> None:
    """Make the n-th write to the result file stop half way, with the process."""
    writes, real = [], os.write

    def write(file: int, content: bytes) -> int:
        writes.append(content)
        if len(writes) == number:
            real(file, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(file, content)

    journal.os.write = write  # type: ignore[attr-defined]


def prepare() -> None:
    install()
    kept.load = tiny  # type: ignore[assignment]


if __name__ == "__mp_main__":
    prepare()
