"""A number of the judge that is chosen on other runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif_bench.judgement.judges import LeftOut, Product


def simulated(seed: int, rate: float = 0.2, count: int = 1500) -> dict[str, Any]:
    """A run whose model knows most labels; the errors are at random."""
    random = np.random.default_rng(seed)
    true = random.integers(4, size=count)
    given = np.where(random.random(count) < rate, (true + random.integers(1, 4, count)) % 4, true)
    seen = np.where(random.random(count) < 0.9, true, random.integers(4, size=count))
    p = random.dirichlet(np.ones(4), count) * 0.4
    p[np.arange(count), seen] += 0.6
    rest = p.copy()
    rest[np.arange(count), given] = 0
    margin = p[np.arange(count), given] - rest.max(1)
    whole = Evidence(np.arange(count), given, -margin, margin, 5 * margin, -margin, Rows(p), Rows(p))
    held = np.arange(count) % 5 == 0
    parts = {"training": whole.take(np.flatnonzero(~held)), "anchors": whole.take(np.flatnonzero(held))}
    return {**parts, "true": true, "given": given}


@pytest.fixture(scope="module")
def runs() -> list[Any]:
    known = [simulated(seed) for seed in range(3)]
    return [SimpleNamespace(name=str(i), case=None, load=lambda run=run: run) for i, run in enumerate(known)]


def test_a_steeper_slope_lists_more_and_changes_nothing_else(runs: list[Any]) -> None:
    judge, run = LeftOut(), runs[0].load()
    answers = [judge.judge(run, slope) for slope in LeftOut.SLOPES]
    sizes = [len(told.listed) for told in answers]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert len({told.rate for told in answers}) == 1
    usual = Product().judge(run, None)
    assert len(usual.listed) == sizes[LeftOut.SLOPES.index(1.25)]


def test_the_longest_lists_that_keep_the_rate_are_chosen(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    judge = LeftOut()
    assert judge.fit(runs) in LeftOut.SLOPES
    found = {1.25: (0.0, 0.3), 1.5: (0.1, 0.5), 1.75: (0.14, 0.4), 2.0: (0.3, 0.9)}
    monkeypatch.setattr(LeftOut, "_tried", lambda self, run: found)
    assert LeftOut().fit(runs) == 1.5
    worse = {slope: (0.5 - slope / 10, 0.5) for slope in LeftOut.SLOPES}
    monkeypatch.setattr(LeftOut, "_tried", lambda self, run: worse)
    assert LeftOut().fit(runs) in LeftOut.SLOPES
