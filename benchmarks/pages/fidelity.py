"""The table of the page about scores and retraining: a row for every data set and network, one setting in all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pages.cells import Line, read_lines, table
from sgoif_bench.fidelity.registry import steps_of

PAGE = "fidelity.md"
OURS, MONITOR, EKFAC, TRAK = "sgoif-factored-5-epochs", "sgoif-monitor", "ekfac", "trak-1"


@dataclass(frozen=True)
class Study:
    """One row: what was trained, and the files that have its figures."""

    title: str
    name: str
    wrong_share: float
    scores: Sequence[str]
    """LDS and time; of a seed that was judged twice the line in the later file counts."""
    trust: Sequence[str]
    """Expected error, confidence and a user's monitor."""
    selection: str
    beside: Sequence[str] = ()
    """TRAK and SG-OIF on the same halves, where the files of the scores have no TRAK."""
    timed: Sequence[str] = ()
    """Times, where those beside the scores are of a busy machine."""


QUERIES, CNN, RIVALS = ("fidelity-queries.jsonl",), ("fidelity-cnn.jsonl",), ("fidelity-digits-rivals.jsonl",)
STUDIES = (
    Study(
        "CIFAR-10, ResNet-9",
        "cifar10",
        0.0,
        ("fidelity-cifar10.jsonl", "fidelity-cifar10-again.jsonl"),
        ("fidelity-cifar10-queries.jsonl",),
        "dev",
    ),
    Study("MNIST, MLP, 10% wrong", "mnist", 0.1, QUERIES, QUERIES, "dev", ("fidelity-mnist.jsonl",)),
    Study("digits, MLP, 10% wrong", "digits", 0.1, RIVALS, RIVALS, "dev", timed=QUERIES),
    Study("digits, MLP", "digits", 0.0, RIVALS, RIVALS, "dev", timed=QUERIES),
    Study("digits, CNN, 10% wrong", "digits", 0.1, CNN, CNN, "held-out"),
    Study("MNIST, CNN, 10% wrong", "mnist", 0.1, CNN, CNN, "held-out"),
)
HEAD = (
    "data, network, labels",
    "SG-OIF",
    "EK-FAC",
    "TRAK",
    "TRAK, best ridge",
    "time / EK-FAC's",
    "monitor",
    "expected error",
    "of the monitor",
    "confidence",
    "selection",
)


def found(files: Sequence[str], study: Study) -> dict[str, dict[int, Line]]:
    """The lines of a study that have figures, by method and seed; of several the last one counts."""
    lines: dict[str, dict[int, Line]] = {}
    for file in files:
        for line in read_lines(file):
            if (line["set"], line["wrong_share"]) == (study.name, study.wrong_share) and line["error"] is None:
                lines.setdefault(line["method"], {})[line["seed"]] = line
    return {method: dict(sorted(by_seed.items())) for method, by_seed in lines.items()}


def listed(values: Sequence[float | None], digits: int) -> str:
    """One figure for every seed that has one."""
    return ", ".join(f"{value:.{digits}f}" for value in values if value is not None) or "–"


def lds(lines: dict[int, Line], seeds: Sequence[int]) -> str:
    """The linear datamodeling score with these seeds."""
    return listed([lines[seed]["metrics"]["lds"] for seed in seeds if seed in lines], 3)


def trak(study: Study) -> str:
    """TRAK's score, and in brackets that of SG-OIF where both were judged on other halves than the row is."""
    lines = found(study.beside or study.scores, study)
    rival, own = lines.get(TRAK, {}), lines.get(OURS, {})
    shown = lds(rival, list(rival))
    return f"{shown} ({lds(own, list(rival))})" if study.beside else shown


def ridge(study: Study) -> str:
    """TRAK's score with the ridge that did best on these figures; a dash for a seed that was not tried with it."""
    steps = found(study.beside or study.scores, study)
    ridges = [name for name in steps_of(TRAK) if name != TRAK and name in steps]
    if not ridges:
        return "–"
    best = max(ridges, key=lambda name: fmean(line["metrics"]["lds"] for line in steps[name].values()))
    return ", ".join(lds(steps[best], [seed]) for seed in steps.get(TRAK, steps[best]))


def row(study: Study) -> list[str]:
    """The figures of one study, seed by seed."""
    lines, trust = found(study.scores, study), found(study.trust, study)
    own, rival = lines[OURS], lines[EKFAC]
    both = [seed for seed in own if seed in rival]
    timed = found(study.timed or study.scores, study)
    pairs = [(timed[OURS][seed]["seconds"], timed[EKFAC][seed]["seconds"]) for seed in both]
    shares = [mine / theirs for mine, theirs in pairs if mine is not None]

    def stated(method: str, part: str) -> str:
        return listed([line["metrics"].get(part) for line in trust.get(method, {}).values()], 2)

    monitor = trust.get(MONITOR, {})
    return [
        study.title,
        lds(own, both),
        lds(rival, both),
        trak(study),
        ridge(study),
        listed(shares, 3),
        lds(monitor, list(monitor)),
        stated(OURS, "error_spearman"),
        stated(MONITOR, "error_spearman"),
        stated(OURS, "confidence_spearman"),
        study.selection,
    ]


def summary() -> str:
    """Every study, with one setting of SG-OIF."""
    return table(HEAD, [row(study) for study in STUDIES])


TABLES: dict[str, Callable[[], str]] = {"fidelity": summary}
