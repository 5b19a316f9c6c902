"""`LabelErrors` of models that have learned too little, or not all classes: what is said and what is left open."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np
import pytest
from label_cases import Problem, watch

from sgoif import split_holdout
from sgoif.errors import SettingError, SgoifError
from sgoif.reports import label_report as page
from sgoif.tasks import LabelErrors
from sgoif.tasks.labels.confused import Limits
from sgoif.tasks.labels.evidence import Rows
from sgoif.tasks.labels.judgement import unknown_classes


def test_a_model_that_knows_nothing_says_so(ignorant: LabelErrors) -> None:
    assert ignorant.judgement.calibration.trust == 0
    (note,) = ignorant.notes()
    assert "too little" in note
    assert f"{ignorant.judgement.anchors.agreement():.0%} of {len(ignorant.judgement.anchors)} held-out" in note
    assert "a guess would with 25%" in note
    assert "from 0% to" in note
    assert "unknown share" in repr(ignorant)
    assert "%" in repr(ignorant)


def test_a_class_that_the_model_does_not_know_is_named(plain: LabelErrors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its right labels look wrong, all of them, and the list is full of them."""
    held_out = plain.judgement.anchors
    assert plain.notes() == []
    p = held_out.probabilities(4).copy()
    own = held_out.given == 2
    p[own] = np.where(np.arange(4) == 1, 0.97, 0.01)
    confused = replace(plain.judgement, anchors=replace(held_out, classes=Rows(p)))
    monkeypatch.setattr(plain, "judgement", confused)
    (note,) = plain.notes()
    assert "few held-out labels of '2' (0%): either most of these are wrong" in note
    few = confused.anchors.take(np.flatnonzero(own)[:9])
    assert unknown_classes(few, 4) == {}
    assert unknown_classes(confused.anchors.take(np.flatnonzero(own)[:10]), 4) == {2: 0.0}
    nowhere = [np.zeros(0)] * 4
    monkeypatch.setattr(plain, "judgement", replace(confused, limits=Limits(nowhere, nowhere, np.array([2]))))
    (note,) = plain.notes()
    assert "takes right labels for wrong ones" in note
    assert "of '2' (0%) hardly any label is listed" in note


@pytest.mark.parametrize(
    ("structured", "competence", "told"), [(1.0, 0.85, True), (1.0, 0.95, False), (0.2, 0.85, False)]
)
def test_errors_that_the_model_may_have_made_itself_are_told(
    structured: float, competence: float, told: bool, plain: LabelErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(plain.judgement.calibration, structured=structured, competence=competence)
    monkeypatch.setattr(plain, "judgement", replace(plain.judgement, calibration=changed))
    said = [note for note in plain.notes() if "follow classes that the model itself still confuses" in note]
    assert len(said) == told
    monkeypatch.setattr(plain, "select", lambda fdr: np.zeros(0, dtype=np.int64))
    assert not any("still confuses" in note for note in plain.notes())


def test_limits_by_class_hold_for_whatever_is_stated(plain: LabelErrors) -> None:
    verdict = plain.judgement
    assert verdict.limits is None
    v = np.array([verdict.scale.max()] * 4)
    free = verdict.stated(np.arange(4), v)
    low = Limits([np.array([verdict.scale.min()])] * 4, [np.array([1.0]), np.array([0.25])] * 2, np.zeros(0, dtype=int))
    assert free.min() > 0.25
    assert np.allclose(replace(verdict, limits=low).stated(np.arange(4), v), np.where([0, 1, 0, 1], 0.25, free))


def test_the_stated_rate_is_what_limits_leave(plain: LabelErrors) -> None:
    calibration = plain.judgement.calibration
    whole, less = calibration.stated, replace(calibration, kept=0.5).stated
    assert less.estimate == pytest.approx(whole.estimate / 2)
    assert less.low == pytest.approx(whole.low / 2)
    assert less.high == whole.high


def test_a_model_that_knows_nothing_leaves_every_rate_open(ignorant: LabelErrors, plain: LabelErrors) -> None:
    assert not ignorant.rate_told
    rate = ignorant.noise_rate()
    assert rate.low == 0
    assert rate.high > 0.7
    assert rate.estimate == pytest.approx(rate.high / 2)
    assert plain.rate_told
    assert plain.noise_rate() == plain.judgement.calibration.rate


def test_a_model_that_knows_nothing_selects_nothing(ignorant: LabelErrors) -> None:
    assert len(ignorant.select(0.1)) == 0


def test_a_model_that_knows_nothing_expects_no_precision(ignorant: LabelErrors, plain: LabelErrors) -> None:
    assert np.isnan(ignorant.expected_precision(10))
    assert page.precision(ignorant, ignorant.table()) == []
    assert [k for k, _ in page.precision(plain, plain.table())] == [20, 50, 100, 200, 500, 1000]
    with pytest.raises(SettingError, match="from 1 to"):
        ignorant.expected_precision(0)


def test_too_early_is_said(problem: Problem) -> None:
    _, held_out = split_holdout(problem.dataset, share=0.2)
    with pytest.raises(SgoifError, match="0 training and 0 held-out examples"):
        LabelErrors(watch(held_out))


def test_without_decoys_mistakes_of_the_model_may_pass_for_noise(
    plain: LabelErrors, with_decoys: LabelErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    for errors, said in ((plain, True), (with_decoys, False)):
        before = errors.notes()
        weaker = replace(errors.judgement.calibration, competence=0.8)
        monkeypatch.setattr(errors, "judgement", replace(errors.judgement, calibration=weaker))
        more = [note for note in errors.notes() if note not in before]
        assert [("without decoys" in note) for note in more] == [True] * said
    held_out = plain.judgement.anchors
    note = plain.notes()[-1]
    assert f"disagrees with {1 - held_out.agreement():.0%} of the held-out labels" in note
    assert plain.summary()["notes"] == plain.notes()
    assert str(plain).splitlines()[-1] == f"Note: {note}."
    assert f"<br>Note: {html.escape(note)}." in plain._repr_html_()
