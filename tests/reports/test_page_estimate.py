"""The page's estimates against those of Python, in a real browser: the same draw, figures and sentences."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import pytest

from sgoif.reports.page import REVIEW_SCRIPTS
from sgoif.reports.templates import read_asset
from sgoif.tasks.review import ReviewEstimate, ReviewPlan, estimate, report

SCRIPT = "\n".join(map(read_asset, ("elements.js", *REVIEW_SCRIPTS)))
ESTIMATE = """([plan, odds, decided, skipped]) => {
  const orders = drawOrders(plan);
  const verdict = new Int8Array(plan.size).fill(UNKNOWN);
  for (const [position, wrong] of decided) verdict[position] = wrong ? WRONG : RIGHT;
  const score = logOdds(Float32Array.from(odds, (p) => p ?? NaN));
  const passed = new Set(skipped);
  const started = performance.now();
  const found = reviewEstimate(plan, orders, verdict, passed, score);
  const sentence = reviewSentence(found);
  const taken = performance.now() - started;
  const middle = Math.ceil(plan.size / 3);
  return {
    draw: [...drawn(orders, passed)], looks: found.looks, reviewed: found.reviewed, found: found.found,
    decided: found.decided, share: found.share, total: found.total, left: found.left, recall: found.recall,
    next: found.next(100), inside: found.errors(7, middle), first: found.recallOfFirst(middle), stop: found.stop(),
    sentence, taken,
  };
}"""


class Case(NamedTuple):
    """A list with its truth, and what of it somebody decided."""

    size: int
    looks: int
    """How many of the draw are decided."""
    top: int = 0
    """How many are decided from the top of the list, in the course of ordinary review."""
    rate: float = 0.1
    skill: float = 2.0
    """How far wrong labels stand apart in the ranking."""
    skipped: int = 0
    stray: int = 0
    """Decisions anywhere."""
    gaps: float = 0.0
    """Share of the top that is left out."""
    seed: int = 0


CASES = [
    Case(5, 3, seed=1),
    Case(57, 20, seed=2, skipped=3),
    Case(300, 9, seed=3),
    Case(300, 40, rate=0.5, skill=0.5, seed=4),
    Case(400, 60, top=120, stray=20, seed=2**32 - 1),
    Case(1000, 40, rate=0.0, seed=5),
    Case(1000, 40, rate=1.0, seed=6),
    Case(2000, 100, top=230, gaps=0.04, skipped=5, seed=7),
    Case(2000, 40, skill=0.0, stray=150, seed=8),
    Case(5000, 40, seed=9),
    Case(5000, 200, top=900, rate=0.3, gaps=0.03, stray=300, skipped=11, seed=10),
    Case(50_000, 100, top=120, rate=0.02, seed=11),
    Case(640, 640, seed=12),
]


def decided(case: Case) -> tuple[ReviewPlan, np.ndarray[Any, Any], dict[int, bool], list[int]]:
    """Plan, probabilities, decisions and skipped positions of a case."""
    random = np.random.default_rng(case.seed)
    wrong = random.uniform(size=case.size) < case.rate
    score = random.normal(size=case.size) + case.skill * wrong
    order = np.argsort(-score)
    wrong = wrong[order]
    probability = (1 / (1 + np.exp(-(score[order] - 2)))).astype(np.float32).astype(np.float64)
    probability[random.uniform(size=case.size) < 0.01] = np.nan
    plan = ReviewPlan.of(case.size, probability, case.seed)
    skipped = plan.looks(case.skipped * 3)[::3].tolist()
    looks = [position for position, _ in zip(plan.draw(skipped), range(case.looks), strict=False)]
    top = np.flatnonzero(random.uniform(size=case.top) >= case.gaps).tolist()
    stray = random.permutation(case.size)[: case.stray].tolist()
    return plan, probability, {i: bool(wrong[i]) for i in (*looks, *top, *stray) if i not in skipped}, skipped


def in_browser(page: Any, case: Case) -> dict[str, Any]:
    plan, probability, decisions, skipped = decided(case)
    record = {"size": plan.size, "ends": plan.ends, "seed": plan.seed}
    known = [None if np.isnan(value) else value for value in probability.tolist()]
    given = json.dumps([record, known, list(decisions.items()), skipped])
    return page.evaluate(f"(text) => {{ {SCRIPT}\nreturn ({ESTIMATE})(JSON.parse(text)); }}", given)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def blank(browser: Any) -> Any:
    page = browser.new_page()
    yield page
    page.close()


def expected(found: ReviewEstimate, middle: int) -> dict[str, Any]:
    return {
        "share": found.share, "total": found.total, "left": found.left, "recall": found.recall,
        "next": found.next(100), "inside": found.errors(7, middle), "first": found.recall_of_first(middle),
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.size}-{case.looks}-{case.seed}")
def test_the_page_says_what_python_says(blank: Any, case: Case) -> None:
    plan, probability, decisions, skipped = decided(case)
    python = estimate(plan, decisions, probability, skipped)
    page = in_browser(blank, case)
    assert page["draw"] == list(plan.draw(skipped))
    assert page["looks"] == python.looks.tolist()
    assert (page["reviewed"], page["found"], page["decided"]) == (python.reviewed, python.found, python.decided)
    for name, interval in expected(python, -(-case.size // 3)).items():
        np.testing.assert_allclose(page[name], interval, rtol=1e-9, atol=1e-9, err_msg=name)
    assert page["stop"] == python.stop()
    assert page["sentence"] == report(python)


def test_an_estimate_of_fifty_thousand_takes_no_time(blank: Any, record_property: Any) -> None:
    """Some 10 ms on a quiet machine; the limit leaves room for a busy one."""
    taken = [in_browser(blank, Case(50_000, 200, top=300, rate=0.1, seed=20))["taken"] for _ in range(3)]
    print(f"estimates of 50,000 rows after 500 decisions: {', '.join(f'{ms:.0f}' for ms in taken)} ms")
    record_property("estimate_ms", round(min(taken)))
    assert min(taken) < 500
