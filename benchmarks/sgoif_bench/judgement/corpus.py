"""What is judged: the runs that were kept, and out-of-fold probabilities that others published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SettingError
from sgoif.tasks.labels.channel import SMALLEST
from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif_bench.judgement.archive import load, published
from sgoif_bench.judgement.runs import expression

PUBLISHED, PUBLISHED_SET = "published", "cifar10"
"""What the cases of others are called, and the data set of all of them."""
HELD_OUT = 0.04


@dataclass(frozen=True)
class Kept:
    """One run of the corpus; `load` reads what it knew."""

    path: Path
    about: Mapping[str, Any]
    case: str | None = None
    """Of a file with several published ones."""

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def set(self) -> str:
        """The data set, which is what is left out."""
        return str(self.about["set"])

    def load(self) -> dict[str, Any]:
        """As `archive.load` has it; of a published case only what probabilities tell."""
        return load(self.path) if self.case is None else out_of_fold(published(self.path, self.case)[self.case])


def corpus(folder: Path, others: Path | None = None, pattern: str = "") -> list[Kept]:
    """The runs in a folder and the cases in a file of others whose names a regular expression finds."""
    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder; give the one that `collect --evidence` filled")
    found = [Kept(path, _about(path)) for path in sorted(folder.glob("*.npz"))]
    if others is not None:
        found += [Kept(others, described(name, case), name) for name, case in published(others).items()]
    wanted = expression("runs", pattern)
    found = [run for run in found if wanted.search(run.name)]
    if not found:
        raise SettingError(f"{folder} holds no run whose name has {pattern!r}; `collect` makes some")
    return found


def _about(path: Path) -> Mapping[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        if "about" not in archive:
            raise SettingError(f"{path} was not kept by `python -m sgoif_bench.judgement.collect`")
        about: Mapping[str, Any] = json.loads(str(archive["about"]))
    return about


def described(name: str, case: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """A published case in the words of a run."""
    p, given, wrong = case["probabilities"], case["given"], case["wrong"]
    noise, _, model = name.partition("_")
    return {
        "name": f"{PUBLISHED}-{name}",
        "set": PUBLISHED_SET,
        "noise": noise,
        "model": model,
        "examples": len(p),
        "classes": p.shape[1],
        "rate": float(wrong.mean()),
        "agreement": float((p.argmax(1) == given).mean()),
    }


def out_of_fold(case: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Out-of-fold probabilities as a run: a part is taken for held out, influence is unknown and 0 for all.

    The right label is not published; where the given one is wrong, any other stands for it.
    """
    p, given, wrong = case["probabilities"], case["given"], case["wrong"]
    log = np.log(np.maximum(p, SMALLEST))
    everything = np.arange(len(p))
    y = given[:, None]

    def margin(values: NDArray[np.float64]) -> NDArray[np.float64]:
        others = values.copy()
        np.put_along_axis(others, y, -np.inf, 1)
        found: NDArray[np.float64] = np.take_along_axis(values, y, 1)[:, 0] - others.max(1)
        return found

    loss = -np.take_along_axis(log, y, 1)[:, 0]
    evidence = Evidence(
        index=everything,
        given=given,
        influence=np.zeros(len(p)),
        margin=margin(p),
        logit_margin=margin(log),
        loss=loss,
        groups=Rows(np.zeros((len(p), 1)), np.full((len(p), 1), -1)),
        classes=Rows(p),
    )
    apart = np.random.default_rng(0).random(len(p)) < HELD_OUT
    rows = np.flatnonzero(~apart)
    return {
        "training": evidence.take(rows),
        "anchors": evidence.take(np.flatnonzero(apart)),
        "true": np.where(wrong, (given + 1) % p.shape[1], given),
        "given": given,
        "rows": rows,
        "signal_loss": loss[rows],
        "signal_margin": -evidence.logit_margin[rows],
        "signal_prob_margin": -evidence.margin[rows],
    }


def left_out(runs: Sequence[Kept], name: str) -> list[Kept]:
    """The runs of all other data sets."""
    return [run for run in runs if run.set != name]
