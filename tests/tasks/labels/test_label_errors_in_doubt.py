"""`LabelErrors` of models that have learned too little, or not all classes: what is said and what is left open."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np
import pytest
from label_cases import Problem, watch

from sgoif import split_holdout
from sgoif.errors import SgoifError
from sgoif.reports import label_report as page
from sgoif.tasks import LabelErrors
from sgoif.tasks.labels.evidence import Rows
from sgoif.tasks.labels.noise_rate import NoiseRate


def test_a_model_that_knows_nothing_says_so(ignorant: LabelErrors) -> None:
    (note,) = ignorant.notes()
    assert "too little" in note
    assert f"{ignorant.judgement.anchors.agreement():.0%} of {len(ignorant.judgement.anchors)} held-out" in note
    assert "a guess would with 25%" in note
    assert "anything up to" in note
    assert "it cannot be told how many of 1,000 labels are wrong" in repr(ignorant)
    assert str(ignorant).splitlines()[-1] == f"Note: {note}."
    assert f"<br>Note: {html.escape(note)}." in ignorant._repr_html_()


def test_a_class_that_the_model_does_not_know_is_named(plain: LabelErrors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its right labels look wrong, all of them, and the list is full of them."""
    held_out, before = plain.judgement.anchors, plain.notes()
    p = held_out.probabilities(4).copy()
    own = held_out.given == 2
    p[own] = np.where(np.arange(4) == 1, 0.97, 0.01)
    confused = replace(plain.judgement, anchors=replace(held_out, classes=Rows(p)))
    monkeypatch.setattr(plain, "judgement", confused)
    (note,) = [said for said in plain.notes() if said not in before]
    assert "few held-out labels of '2' (0%): either most of these are wrong" in note
    few = confused.anchors.take(np.flatnonzero(own)[:4])
    monkeypatch.setattr(plain, "judgement", replace(confused, anchors=few))
    assert not any("few held-out labels" in said for said in plain.notes())


@pytest.mark.parametrize(("rate", "wide"), [(NoiseRate(0.05, 0.0, 0.3), True), (NoiseRate(0.2, 0.15, 0.22), False)])
def test_an_interval_that_leaves_much_open_asks_for_looks(
    rate: NoiseRate, wide: bool, plain: LabelErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "judgement", replace(plain.judgement, rate=rate))
    said = [note for note in plain.notes() if "from labels and a model alone" in note]
    assert len(said) == wide
    if wide:
        assert "0.0% to 30.0%" in said[0]
        assert "review_plan" in said[0]


def test_a_model_that_knows_nothing_leaves_the_rate_open(ignorant: LabelErrors, plain: LabelErrors) -> None:
    assert not ignorant.rate_told
    rate = ignorant.noise_rate()
    assert rate.low == 0
    assert rate.high > 0.7
    assert plain.rate_told
    assert plain.noise_rate() == plain.judgement.rate


def test_a_model_that_knows_nothing_selects_nothing(ignorant: LabelErrors) -> None:
    assert len(ignorant.select(0.1)) == 0


def test_a_model_that_knows_nothing_expects_no_precision(ignorant: LabelErrors, plain: LabelErrors) -> None:
    assert page.precision(ignorant, ignorant.table()) == []
    assert [k for k, _ in page.precision(plain, plain.table())] == [20, 50, 100, 200, 500, 1000]


def test_too_early_is_said(problem: Problem) -> None:
    _, held_out = split_holdout(problem.dataset, share=0.2)
    with pytest.raises(SgoifError, match="0 training and 0 held-out examples"):
        LabelErrors(watch(held_out))
