"""Judging the labels of training and held-out examples: agreement, suggestions, what is surely wrong."""

from __future__ import annotations

import numpy as np
import pytest
from calibration_cases import known

from sgoif.errors import SgoifError
from sgoif.tasks.deviations import standard
from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif.tasks.labels.judgement import judge, suggestions


def test_the_label_that_is_harmed_most_is_suggested_and_never_the_given_one() -> None:
    some = known(40, 0.5)
    wrong = np.arange(40) >= 20
    for by_group in (True, False):
        found = suggestions(some, by_group=by_group)
        assert (found != some.given).all()
        assert (found[wrong] == (some.given[wrong] + 1) % 4).all()
    single = Rows(np.ones((40, 1)), some.given[:, None].copy())
    nothing = Evidence(**{**{f: getattr(some, f) for f in some.__dataclass_fields__}, "groups": single})
    assert (suggestions(nothing, by_group=True) == suggestions(nothing, by_group=False)).all()


def test_training_and_held_out_examples_are_judged_alike() -> None:
    training, anchors = known(1000, 0.8, seed=1), known(400, 0.8, first=1000)
    found = judge(training, anchors, 4)
    assert len(found.training) == len(found.probability) == len(found.suspicion) == 1000
    assert len(found.anchor_probability) == 400
    wrong = found.training.index >= 800
    assert found.probability[wrong].min() > found.probability[~wrong].max()
    assert found.anchor_probability[320:].mean() > 0.5 > found.anchor_probability[:320].mean()
    assert found.rate.low < wrong.mean() < found.rate.high
    surely = found.selected(found.suspicion, 0.2)
    assert len(surely) > 0
    assert wrong[surely].mean() >= 0.8


def test_nothing_is_surely_wrong_to_a_model_that_knows_too_little() -> None:
    for right, knows in ((0.45, False), (0.6, True)):
        found = judge(known(1000, right, seed=1), known(400, right, first=1000), 4)
        assert found.knows == knows
        assert (found.rate.low > 0) == knows
        assert (len(found.selected(found.suspicion, 0.5)) > 0) == knows


def test_the_list_is_the_beginning_of_the_ranking_and_a_looser_rate_only_adds() -> None:
    found = judge(known(1000, 0.8, seed=1), known(400, 0.8, first=1000), 4)
    v, before = np.random.default_rng(0).permutation(found.suspicion), 0
    for fdr in (0.01, 0.1, 0.3, 0.9):
        chosen = found.selected(v, fdr)
        assert chosen.tolist() == np.argsort(-v, kind="stable")[: len(chosen)].tolist()
        assert len(chosen) >= before
        before = len(chosen)


def test_too_early_is_said() -> None:
    with pytest.raises(SgoifError, match="19 training and 400 held-out examples"):
        judge(known(19, 1.0), known(400, 1.0), 4)
    with pytest.raises(SgoifError, match="at least one epoch"):
        judge(known(100, 1.0), known(0, 1.0), 4)


def test_what_else_is_known_moves_training_and_held_out_examples_alike() -> None:
    training, anchors = known(1000, 0.8, seed=1), known(400, 0.8, first=1000)
    plain = judge(training, anchors, 4)
    against = np.zeros(1400)
    against[[3, 1003]] = 10.0  # both with a right label
    found = judge(training, anchors, 4, beside=against)
    assert found.probability.argmax() == 3 != plain.probability.argmax()
    assert found.anchor_probability.argmax() == 3 != plain.anchor_probability.argmax()
    np.testing.assert_allclose(judge(training, anchors, 4, beside=np.zeros(1400)).suspicion, standard(plain.suspicion))
    assert found.rate.low == pytest.approx(plain.rate.low, abs=0.02)
