"""Findings without a monitor: several heads that each held out other examples, simulated, judged and shown."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from calibration_cases import known
from sklearn.metrics import average_precision_score

from sgoif.core.score_table import ScoreTable
from sgoif.errors import SettingError
from sgoif.reports.label_report import ReportExtras, page_data
from sgoif.reports.page import write_page
from sgoif.tasks import LabelFindings
from sgoif.tasks.deviations import standard
from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif.tasks.labels.judgement import Judgement, judge

COUNT, CLASSES, HEADS, RATE = 1500, 4, 4, 0.2
NAMES = ["cat", "dog", "<b>bird", "fish"]


def scored(true: Labels, given: Labels, learned: Array, seed: int) -> Evidence:
    """What one head says of all examples: their true class, the given one as far as it was learned, and noise."""
    random, rows = np.random.default_rng(seed), np.arange(len(true))
    noise = 1.8 * random.normal(size=(len(true), CLASSES))
    logits = 3 * np.eye(CLASSES)[true] + learned[:, None] * np.eye(CLASSES)[given] + noise
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    others = np.eye(CLASSES)[given] == 0
    rival, largest = (np.where(others, values, -np.inf).max(1) for values in (logits, p))
    own = p[rows, given]
    influence = 0.3 * random.normal(size=len(true)) - own
    return Evidence(rows, given, influence, own - largest, logits[rows, given] - rival, -np.log(own), Rows(p), Rows(p))


def averaged(heads: list[Evidence]) -> Evidence:
    """The mean of what several heads say of the same examples."""
    means = {}
    for f in fields(Evidence):
        said = [getattr(head, f.name) for head in heads]
        means[f.name] = Rows(np.mean([s.mean for s in said], 0)) if isinstance(said[0], Rows) else np.mean(said, 0)
    return Evidence(**{**means, "index": heads[0].index, "given": heads[0].given})


@pytest.fixture(scope="module")
def wrong() -> Labels:
    return np.random.default_rng(0).random(COUNT) < RATE


@pytest.fixture(scope="module")
def crossed(wrong: Labels) -> tuple[Evidence, Evidence]:
    """Training evidence of all examples by the heads that saw them, and that of the one that did not, in any order."""
    random = np.random.default_rng(1)
    true = random.integers(CLASSES, size=COUNT)
    given = np.where(wrong, (true + random.integers(1, CLASSES, size=COUNT)) % CLASSES, true)
    learned = random.exponential(1.0, COUNT)  # some labels are learned by heart, by every head alike
    training = averaged([scored(true, given, learned, seed) for seed in range(2, 1 + HEADS)])
    return training, scored(true, given, np.zeros(COUNT), 9).take(random.permutation(COUNT))


@pytest.fixture(scope="module")
def judgement(crossed: tuple[Evidence, Evidence]) -> Judgement:
    return judge(*crossed, CLASSES, beside=np.zeros(COUNT), cross_fitted=True)


def scores(count: int) -> ScoreTable:
    """A table as a monitor gives it, of examples about which nothing else is known."""
    names = ("confidence", "influence", "interval_low", "interval_high")
    columns = {name: np.linspace(-1, 1, count) for name in names}
    return ScoreTable({"index": np.arange(count), **columns, "n_observations": np.full(count, HEADS)})


@pytest.fixture(scope="module")
def findings(judgement: Judgement) -> LabelFindings:
    return LabelFindings(judgement, scores(COUNT), NAMES)


def quality(v: Array, wrong: Labels) -> float:
    return float(average_precision_score(wrong, v))


def test_both_sides_together_rank_better_than_either(
    judgement: Judgement, crossed: tuple[Evidence, Evidence], wrong: Labels
) -> None:
    alone = judge(*crossed, CLASSES)
    apart = quality(alone.anchor_suspicion, wrong[crossed[1].index])
    assert quality(judgement.suspicion, wrong) > max(quality(alone.suspicion, wrong), apart) + 0.005
    assert np.array_equal(judgement.anchor_suspicion, judgement.suspicion[crossed[1].index])
    training, held_out = standard(alone.suspicion)[crossed[1].index], alone.anchor_suspicion
    assert np.corrcoef(judgement.anchor_suspicion, training)[0, 1] > 0.8
    assert np.corrcoef(judgement.anchor_suspicion, held_out)[0, 1] > 0.8


def test_the_rate_and_the_list_are_sensible(judgement: Judgement, wrong: Labels) -> None:
    rate = judgement.rate
    assert 0 < rate.low < wrong.mean() < rate.high
    assert rate.low <= rate.estimate <= rate.high < 0.45
    assert judgement.probability.mean() == pytest.approx(rate.estimate, abs=0.01)
    surely = judgement.selected(judgement.suspicion, 0.1)
    assert len(surely) > 40
    assert wrong[surely].mean() > 0.9


def test_the_curve_is_that_of_the_sum(judgement: Judgement, crossed: tuple[Evidence, Evidence]) -> None:
    """P(wrong) and held-out v share their noise, so that a curve on held-out v alone would be steeper."""
    assert judgement.curve.centre == np.median(judgement.suspicion)
    assert judgement.curve.slope < judge(*crossed, CLASSES).curve.slope


def test_the_rate_rests_on_what_was_held_out(judgement: Judgement, crossed: tuple[Evidence, Evidence]) -> None:
    memorised = replace(known(COUNT, 1.0, seed=1), index=np.arange(COUNT))
    assert judge(memorised, crossed[1], CLASSES).rate.low == 0
    assert (
        judge(memorised, crossed[1], CLASSES, beside=np.zeros(COUNT), cross_fitted=True).rate.low
        == judgement.rate.low
        > 0
    )


def test_an_example_that_no_head_held_out_counts_its_training_twice(crossed: tuple[Evidence, Evidence]) -> None:
    training, held_out = crossed
    fewer = held_out.take(np.flatnonzero(held_out.index >= 100))
    found, alone = (
        judge(training, fewer, CLASSES, beside=np.zeros(COUNT), cross_fitted=True),
        judge(training, fewer, CLASSES),
    )
    np.testing.assert_allclose(found.suspicion[:100], 2 * standard(alone.suspicion)[:100])


def test_what_speaks_beside_is_added(crossed: tuple[Evidence, Evidence], wrong: Labels) -> None:
    told = judge(*crossed, CLASSES, beside=wrong.astype(float), cross_fitted=True)
    untold = judge(*crossed, CLASSES, beside=np.zeros(COUNT), cross_fitted=True)
    np.testing.assert_allclose(told.suspicion - untold.suspicion, wrong)


def test_every_example_has_one_row(findings: LabelFindings, judgement: Judgement, wrong: Labels) -> None:
    table = findings.table()
    assert table["index"].tolist() == list(range(COUNT))
    np.testing.assert_array_equal(table["given_label"], judgement.training.given)
    np.testing.assert_array_equal(table["probability_wrong"], judgement.probability)
    assert sum(part.size for part in findings.tiers()) == COUNT
    assert findings.confusion().sum() == pytest.approx(COUNT)
    assert wrong[findings.select()].mean() > 0.9
    assert repr(findings).startswith("LabelFindings: ")
    assert set(findings.to_check().tolist()) <= set(range(COUNT))


def test_examples_that_were_never_scored(judgement: Judgement) -> None:
    beyond = {COUNT: 3, COUNT + 1: 0}
    told = LabelFindings(judgement, scores(COUNT + 2), NAMES, labels=lambda some: [beyond[i] for i in some]).table()
    untold = LabelFindings(judgement, scores(COUNT + 2), NAMES).table()
    assert told["given_label"][COUNT:].tolist() == told["predicted_label"][COUNT:].tolist() == [3, 0]
    assert untold["given_label"][COUNT:].tolist() == [-1, -1]
    assert np.isnan(told["probability_wrong"][COUNT:]).all()
    with pytest.raises(SettingError, match="no row among the scores"):
        LabelFindings(judgement, scores(COUNT - 1), NAMES)


def test_a_page_needs_no_monitor(findings: LabelFindings, tmp_path: Path) -> None:
    def hurt(index: Labels) -> Labels:
        return np.stack([(index + 1) % COUNT, np.full(len(index), -1)], 1)

    for extras in (ReportExtras("heads"), ReportExtras("heads", harmed=hurt)):
        page = page_data(findings, findings.table(), 0.1, extras)
        assert page.history == ()
        assert page.harmed.shape == (COUNT, 0 if extras.harmed is None else 2)
        assert not any("hurts" in note for note in page.notes)
        if extras.harmed is not None:
            index = page.table["index"]
            np.testing.assert_array_equal(index[page.harmed[:, 0]], (index + 1) % COUNT)
        write_page(tmp_path / "report.html", page)
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert '"history":{}' in text
        assert "<b>bird" not in text
        assert re.search(r'"names":\["\d+",', text)
