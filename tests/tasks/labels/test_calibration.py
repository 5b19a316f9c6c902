"""From a ranking to probabilities: on simulated runs whose truth is known, and the selection against brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from calibration_cases import CLASSES, mixture
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sgoif.tasks.labels.calibration import LEAST_DECOYS, Calibration, calibrate, selected_at
from sgoif.tasks.labels.channel import Array
from sgoif.tasks.labels.likelihood import NoiseRate
from sgoif.tasks.labels.named import Named
from sgoif.tasks.labels.rates import HALF, UNCERTAIN, UNSEEN


def calibration_error(p: Array, wrong: np.ndarray[Any, Any]) -> float:
    bins = np.minimum((p * 15).astype(int), 14)
    return sum(abs(p[bins == b].mean() - wrong[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins))


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.4])
def test_a_mixture_with_decoys(rate: float) -> None:
    v, wrong, decoys = mixture(rate)
    found = calibrate(v, decoys, {"confident joint": 0.9 * rate}, anchors=2000, classes=CLASSES)
    assert found.rate.estimate == pytest.approx(rate, abs=0.04)
    assert found.rate.low <= rate <= found.rate.high
    p = found.probability(v)
    assert calibration_error(p, wrong) < 0.05
    chosen = selected_at(p, 0.1)
    assert 0.01 < 1 - wrong[chosen].mean() < 0.2
    assert wrong[chosen].sum() > 0.6 * wrong.sum()


def test_without_decoys_the_held_out_examples_speak_alone() -> None:
    v, wrong, decoys = mixture(0.3)
    estimates = {"confident joint": 0.27, "posterior": 0.31}
    alone = calibrate(v, None, estimates, anchors=2000, classes=CLASSES)
    assert alone.rate.estimate == pytest.approx(np.sqrt(0.27 * 0.31))
    assert alone.rate.low < 0.27
    assert alone.rate.high > 0.31
    assert alone.probability(v).mean() == pytest.approx(alone.rate.estimate, abs=0.01)
    assert calibration_error(alone.probability(v), wrong) < 0.1
    few = calibrate(v, decoys[: LEAST_DECOYS - 1], estimates, anchors=2000, classes=CLASSES)
    assert few == alone
    enough = calibrate(v, decoys[:LEAST_DECOYS], estimates, anchors=2000, classes=CLASSES)
    assert enough.estimates.keys() != alone.estimates.keys()


def test_a_small_set_without_decoys_is_sure_of_half_its_rate() -> None:
    """A model that knows few images is wrong about some of them, which looks like wrong labels."""
    v, _, _ = mixture(0.3, count=200)
    few, some, many = (
        calibrate(v, None, {"confident joint": 0.4}, anchors=anchors, classes=CLASSES) for anchors in (40, 100, 150)
    )

    def sure(one: Calibration, anchors: int) -> float:
        return one.rate.low + 1.64 * float(np.sqrt(0.4 * 0.6 / anchors))

    assert sure(few, 40) == pytest.approx(0.2)
    assert sure(some, 100) == pytest.approx(0.3)
    assert sure(many, 150) == pytest.approx(0.4)
    assert few.rate.estimate == many.rate.estimate == pytest.approx(0.4)
    assert few.caution < 0.1 < many.caution


def test_a_rate_by_naming_takes_the_place_of_the_likelihood_as_far_as_it_is_believed() -> None:
    v, _, decoys = mixture(0.2)

    def found(naming: Named | None, looks: float = 0.0) -> float:
        rates = {"confident joint": 0.2}
        one = calibrate(v, decoys, rates, anchors=2000, classes=CLASSES, naming=naming, looks=looks)
        return one.estimates["decoys"]

    assert found(Named(0.1, 1.0)) == pytest.approx(0.1)
    assert found(Named(0.1, 0.0)) == found(Named(0.1, 1.0), looks=1.0) == pytest.approx(found(None))
    assert found(Named(0.1, 0.5)) == pytest.approx(np.sqrt(0.1 * found(None)))
    assert 0 < found(Named(0.0, 1.0)) < 1e-4


@pytest.mark.parametrize("with_decoys", [False, True])
def test_where_nothing_is_wrong_nearly_nothing_is_selected(with_decoys: bool) -> None:
    v, _, decoys = mixture(0.0, count=50_000)
    estimates = {"confident joint": 0.001} | ({} if with_decoys else {"posterior": 0.001})
    found = calibrate(v, decoys if with_decoys else None, estimates, anchors=2000, classes=CLASSES)
    assert found.rate.estimate < 0.01
    assert found.rate.low == 0
    assert len(selected_at(found.probability(v), 0.1)) <= 10


def test_probabilities_rise_with_suspicion_and_keep_the_rate() -> None:
    v, _, decoys = mixture(0.2)
    found = calibrate(v, decoys, {"confident joint": 0.2}, anchors=2000, classes=CLASSES)
    assert found.caution == 1
    p = found.probability(np.sort(v))
    assert (np.diff(p) >= 0).all()
    assert p.min() >= 0
    assert p.max() <= 1
    assert p.mean() == pytest.approx(found.rate.estimate, rel=0.03)


def test_noise_that_follows_looks_has_errors_that_are_not_seen() -> None:
    v, _, decoys = mixture(0.2)
    plain, people = (
        calibrate(v, decoys, {"confident joint": 0.2}, anchors=2000, classes=CLASSES, looks=looks) for looks in (0, 1)
    )
    assert people.rate.estimate == pytest.approx((1 + UNSEEN) * plain.rate.estimate)
    assert people.sure == pytest.approx(plain.rate.estimate)
    assert people.rate.high > plain.rate.high
    assert people.rate.low == pytest.approx(plain.rate.low, abs=0.005)
    before, after = plain.probability(np.sort(v)), people.probability(np.sort(v))
    assert after.mean() == pytest.approx(people.rate.estimate, rel=0.03)
    gained = after - before
    assert (np.diff(after) >= 0).all()
    assert gained[before < 0.5].sum() > 2 * gained[before > 0.5].sum()


def test_a_rate_that_can_hardly_be_told_from_none_is_not_raised() -> None:
    v, _, decoys = mixture(0.0, count=50_000)
    plain, people = (
        calibrate(v, decoys, {"confident joint": 0.001}, anchors=2000, classes=CLASSES, looks=looks) for looks in (0, 1)
    )
    assert people == plain


def test_less_is_asked_of_a_model_whose_joint_counts_what_decoys_count() -> None:
    """Errors that logit margins do not see, at an agreement in the passage: the joint decides who is believed."""
    v, wrong, decoys = mixture(0.2)
    random = np.random.default_rng(1)
    margins = np.where(wrong, random.normal(size=len(v)), v), decoys
    near, far = (
        calibrate(
            v,
            decoys,
            {"confident joint": joint, "posterior": 0.2},
            anchors=2000,
            classes=CLASSES,
            agreement=0.61,
            margins=margins,
        )
        for joint in (0.21, 0.4)
    )
    assert near.doubt == 0
    assert near.rate.high - near.rate.low < 0.1
    assert far.rate.estimate < 0.25
    assert far.rate.high - far.rate.low > 0.15


def test_a_ranking_has_no_unit() -> None:
    v, _, decoys = mixture(0.2, count=2000, decoys=60)
    plain = calibrate(v, decoys, {"confident joint": 0.2}, anchors=500, classes=CLASSES)
    moved = calibrate(50 * v - 7, 50 * decoys - 7, {"confident joint": 0.2}, anchors=500, classes=CLASSES)
    np.testing.assert_allclose(moved.probability(50 * v - 7), plain.probability(v), atol=1e-6)


def test_more_held_out_examples_make_the_interval_narrower() -> None:
    v, _, _ = mixture(0.2)
    few, many = (
        calibrate(v, None, {"confident joint": 0.2, "posterior": 0.21}, anchors=n, classes=CLASSES).rate
        for n in (50, 5000)
    )
    assert few.high - few.low > 3 * (many.high - many.low)
    assert few.low <= few.estimate <= few.high


def test_equal_scores_and_extreme_rates_give_numbers() -> None:
    same = calibrate(np.ones(100), None, {"confident joint": 0.3, "posterior": 0.3}, anchors=500, classes=2)
    assert same.probability(np.ones(3)) == pytest.approx([0.3] * 3, abs=1e-6)
    for rate in (0.0, 1.0):
        v, _, decoys = mixture(min(rate, 0.9), count=500, decoys=50)
        for some in (None, decoys if rate == 0 else decoys[:5]):
            found = calibrate(v, some, {"confident joint": rate, "posterior": rate}, anchors=100, classes=2)
            p = found.probability(v)
            assert np.isfinite(p).all()
            assert ((p >= 0) & (p <= 1)).all()
            assert 0 <= found.rate.low <= found.rate.estimate <= found.rate.high <= 1


def curve(low: float, estimate: float, trust: float = 1.0) -> Calibration:
    return Calibration(0.0, 1.0, 0.0, 1.0, NoiseRate(estimate, low, 0.3), trust)


def test_the_posterior_takes_part_in_the_rate_as_the_joint_does() -> None:
    v, _, decoys = mixture(0.2)
    joint = {"confident joint": 0.2}
    without = calibrate(v, decoys, joint, anchors=2000, classes=CLASSES)
    lower = calibrate(v, decoys, {**joint, "posterior": 0.1}, anchors=2000, classes=CLASSES)
    assert lower.rate.estimate == pytest.approx(without.rate.estimate * 0.5**0.25)
    assert lower.estimates["held out"] == pytest.approx(np.sqrt(0.2 * 0.1))
    assert lower.estimates["decoys"] == without.estimates["decoys"]
    assert lower.rate.low <= lower.rate.estimate < without.rate.estimate


def test_caution_lowers_odds_and_trust_lowers_them_further() -> None:
    v = np.array([-3.0, 0.0, 3.0])
    sure = curve(0.2, 0.2)
    assert sure.caution == 1
    assert sure.probability(v) == pytest.approx(1 / (1 + np.exp(-v)))
    odds = sure.probability(v) / (1 - sure.probability(v))
    for doubtful in (curve(0.01, 0.2), curve(0.0, 0.2), curve(0.2, 0.2, trust=0.5), curve(0.2, 0.2, trust=0.0)):
        assert 0 < doubtful.caution < 1
        p = doubtful.probability(v)
        lowered = doubtful.caution * odds
        assert p == pytest.approx(lowered / (1 + lowered) * (1 + doubtful.trust) / 2)
    assert curve(0.0, 0.2).caution < curve(0.01, 0.2).caution
    assert curve(0.2, 0.2, trust=0.0).caution < curve(0.2, 0.2, trust=0.5).caution
    assert curve(0.2, 0.2, trust=0.0).probability(v).max() < 0.05


# --- the selection ----------------------------------------------------------------------------------------------------

SHARES = st.floats(0, 1)


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(0, 25), elements=SHARES), SHARES)
def test_the_longest_list_within_the_rate_by_brute_force(probability: Array, fdr: float) -> None:
    chosen = selected_at(probability, fdr)
    ordered = sorted(probability, reverse=True)
    allowed = [k for k in range(1, len(ordered) + 1) if (np.cumsum(1 - np.array(ordered[:k]))[-1]) / k <= fdr]
    assert len(chosen) == max(allowed, default=0)
    assert probability[chosen].tolist() == ordered[: len(chosen)]
    assert len(set(chosen.tolist())) == len(chosen)


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(0, 25), elements=SHARES), SHARES, SHARES)
def test_a_looser_rate_only_adds(probability: Array, one: float, other: float) -> None:
    strict, loose = selected_at(probability, min(one, other)), selected_at(probability, max(one, other))
    assert loose[: len(strict)].tolist() == strict.tolist()


# --- the judgement ----------------------------------------------------------------------------------------------------


def test_trust_grows_from_none_to_full() -> None:
    v = np.random.default_rng(0).normal(size=2000)

    def trusted(agreement: float) -> float:
        return calibrate(v, None, {"confident joint": 0.2}, anchors=400, classes=4, agreement=agreement).trust

    assert trusted(0.1) == trusted(-0.3) == 0
    assert trusted(0.25) == pytest.approx(0.5)
    assert trusted(0.4) == 1


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
def test_a_model_that_has_learned_nothing_leaves_every_rate_open(rate: float) -> None:
    """Right labels look like decoys to it, and a likelihood that takes some for certainly wrong says that most are."""
    v, _, decoys = mixture(rate, apart=0.2)
    found = calibrate(v, decoys, {"confident joint": 0.85}, anchors=200, classes=CLASSES, agreement=0.03)
    assert found.rate.low > 0.3
    assert found.known == 0
    assert found.stated.low == 0
    assert found.stated.high >= 0.9 * (1 - 0.03)
    assert found.stated.estimate == pytest.approx(found.stated.high / 2)
    assert len(selected_at(found.probability(v), 0.1)) == 0


def test_what_is_stated_passes_over_to_the_rate() -> None:
    v, _, decoys = mixture(0.2)
    found = [
        calibrate(v, decoys, {"confident joint": 0.4}, anchors=2000, classes=CLASSES, agreement=a)
        for a in (0.2, 0.25, 0.3, 0.4, 0.7)
    ]
    known, low = [one.known for one in found], [one.stated.low for one in found]
    assert known[0] == 0 < known[1] < known[2] < known[3] == 1
    assert low[0] == 0 < low[1] < low[2] < low[3]
    assert all(one.stated == one.rate for one in found[3:])
    assert all(one.stated.low <= one.stated.estimate <= one.stated.high for one in found)


def test_few_held_out_examples_cannot_show_that_a_model_knows_anything() -> None:
    """Of nine a third may agree by chance. The lower end is the share with which so many agree once in twenty times."""
    few, many = (
        calibrate(np.arange(100.0), None, {"confident joint": 0.3}, anchors=n, classes=CLASSES, agreement=a)
        for n, a in ((9, 0.3), (900, 0.4))
    )
    assert (few.trust, many.trust) == (1, 1)
    assert few.known == 0 < many.known == 1
    sure = np.ones(5)
    assert (len(few.selected(0.99 * sure, 0.1)), len(many.selected(0.99 * sure, 0.1))) == (0, 5)
    share = CLASSES / (CLASSES - 1) * (1 - 1 / CLASSES - many.room) * (1 - 1 / CLASSES) + 1 / CLASSES
    deviation = np.sqrt(share * (1 - share) / 900)
    assert (0.46 - share) / deviation == pytest.approx(1.64, abs=0.01)


def test_a_model_of_little_competence_leaves_the_rate_to_the_decoys() -> None:
    """Right labels that the model does not understand make the joint too high; decoys know better."""
    rng = np.random.default_rng(1)
    wrong = rng.random(20_000) < 0.1
    v = rng.normal(np.where(wrong, 2.5, 0.0), 1.0)
    decoys = rng.normal(2.5, 1.0, 400)
    joint = {"confident joint": 0.25}
    weak = calibrate(v, decoys, joint, anchors=2000, classes=10, agreement=0.6)
    strong = calibrate(v, decoys, joint, anchors=2000, classes=10, agreement=0.9)
    assert abs(weak.rate.estimate - 0.1) < 0.03
    assert strong.rate.estimate > weak.rate.estimate


def muddled(seed: int = 0, rate: float = 0.1) -> tuple[Array, Array, np.ndarray[Any, Any], Array, Array]:
    """A weak model: v takes a sixth of the right labels for wrong ones, logit margins tell them apart.

    v and logit margins of examples, which are wrong, and both of decoys.
    """
    random = np.random.default_rng(seed)
    wrong = random.random(20_000) < rate
    unclear = ~wrong & (random.random(20_000) < 1 / 6)
    v = random.normal(np.where(wrong, 2.8, np.where(unclear, 1.3, 0.0)), 1.0)
    margins = random.normal(np.where(wrong, 4.5, np.where(unclear, 1.0, 0.0)), 1.0)
    return v, margins, wrong, random.normal(2.8, 1.0, 400), random.normal(4.5, 1.0, 400)


def test_right_labels_of_unclear_images_are_not_taken_for_errors() -> None:
    v, margins, wrong, decoys, own = muddled()
    estimates = {"confident joint": 0.25, "posterior": 0.2}
    weak, strong, blind = (
        calibrate(v, decoys, estimates, anchors=1000, classes=10, agreement=agreement, margins=seen)
        for agreement, seen in ((0.62, (margins, own)), (0.97, (margins, own)), (0.97, None))
    )
    for found in (weak, strong):
        assert found.rate.estimate == pytest.approx(0.1, abs=0.02)
        assert found.rate.low <= 0.1 <= found.rate.high
        assert found.doubt == 0
        assert found.rate.estimate < blind.rate.estimate - 0.03
    chosen, too_many = (selected_at(curve.probability(v), 0.1) for curve in (weak, blind))
    assert 1 - wrong[chosen].mean() < 0.2 < 1 - wrong[too_many].mean() - 0.2


def test_errors_with_structure_are_doubtful_to_a_weak_model() -> None:
    """Logit margins see none of them: they may be errors, or right labels that the model does not understand."""
    v, _, wrong, decoys, own = muddled()
    v = np.where(wrong, v - 0.6, v)
    blind = np.random.default_rng(1).normal(size=len(v))
    weak, strong = (
        calibrate(v, decoys, estimates, anchors=1000, classes=10, agreement=a, margins=(blind, own))
        for a, estimates in (
            (0.6, {"confident joint": 0.3, "posterior": 0.24}),
            (0.89, {"confident joint": 0.1, "posterior": 0.08}),
        )
    )
    assert weak.sure < 0.05
    assert weak.rate.estimate == pytest.approx(HALF * 0.24, abs=0.02)
    assert weak.rate.low <= weak.sure < 0.1 < weak.rate.high
    assert weak.probability(v).mean() == pytest.approx(weak.rate.estimate, abs=0.02)
    assert len(selected_at(weak.probability(v), 0.1)) <= 0.1 * len(selected_at(strong.probability(v), 0.1))
    assert strong.doubt == 0
    assert strong.sure == strong.rate.estimate


@pytest.mark.parametrize("seed", [0, 2])
def test_what_decoys_hardly_see_are_mistakes_of_the_model(seed: int) -> None:
    """All labels are right, and one image in six is unclear to a model that is right about most of the others."""
    v, margins, wrong, decoys, own = muddled(seed, rate=0.0)
    estimates = {"confident joint": 0.06, "posterior": 0.04}
    found = calibrate(v, decoys, estimates, anchors=1000, classes=10, agreement=0.83, margins=(margins, own), looks=1)
    assert not wrong.any()
    assert len(found.selected(found.probability(v), 0.1)) <= 10
    assert found.rate.low < 0.005 < 0.06 < found.rate.high


def test_a_set_too_small_for_decoys_is_judged_by_a_model_that_makes_few_mistakes() -> None:
    v, wrong, decoys = mixture(0.1, count=400, decoys=LEAST_DECOYS - 10, apart=5)
    estimates = {"confident joint": 0.11, "posterior": 0.1}
    good, poor = (calibrate(v, decoys, estimates, anchors=150, classes=CLASSES, agreement=a) for a in (0.87, 0.75))
    chosen = good.selected(good.probability(v), 0.1)
    assert wrong[chosen].mean() > 0.85
    assert wrong[chosen].sum() > 0.7 * wrong.sum()
    assert good.most == 1
    assert not len(poor.selected(poor.probability(v), 0.1))
    assert poor.rate.low == 0
    assert poor.most == UNCERTAIN


@pytest.mark.parametrize("known", [{"fitted": 0.0}, {"looks": 1.0}])
def test_what_decoys_alone_say_is_for_weak_models_where_they_do_not_look_like_errors(known: dict[str, float]) -> None:
    """Memorised ones do not, nor evenly drawn ones where people were wrong."""
    v, margins, _, decoys, own = muddled()
    joint = {"confident joint": 0.1}
    plain = calibrate(v, decoys, joint, anchors=1000, classes=10, agreement=0.98, **known)
    finer = calibrate(v, decoys, joint, anchors=1000, classes=10, agreement=0.98, margins=(margins, own), **known)
    assert replace(finer, competence=plain.competence) == plain
    assert finer.most == 1


@pytest.mark.parametrize("held_out", [0.3, 0.5])
def test_noise_without_structure_is_counted_by_decoys_whatever_held_out_examples_say(held_out: float) -> None:
    v, wrong, decoys = mixture(0.4)
    estimates = {"confident joint": held_out, "posterior": held_out}
    plain, finer = (
        calibrate(v, decoys, estimates, anchors=200, classes=CLASSES, agreement=0.57, margins=seen)
        for seen in (None, (v, decoys))
    )
    assert abs(plain.rate.estimate - wrong.mean()) > 0.03
    assert finer.rate.estimate == pytest.approx(wrong.mean(), abs=0.015)
    assert finer.rate.low <= min(held_out, finer.rate.estimate) <= max(held_out, finer.rate.estimate)


def test_naming_counts_half_beside_it_unless_the_model_makes_many_mistakes() -> None:
    v, _, decoys = mixture(0.4)

    def rate(agreement: float, trust: float) -> float:
        naming = Named(0.5, trust)
        estimates = {"confident joint": 0.4}
        found = calibrate(
            v, decoys, estimates, anchors=200, classes=CLASSES, agreement=agreement, margins=(v, decoys), naming=naming
        )
        return found.rate.estimate

    alone = rate(0.57, 0.0)
    assert rate(0.57, 1.0) == pytest.approx((alone * 0.5) ** 0.5)
    assert rate(0.57, 0.5) == pytest.approx(alone**0.75 * 0.5**0.25)
    assert rate(0.2, 1.0) == pytest.approx(alone)


def test_nothing_named_is_a_small_rate_and_no_division_by_zero() -> None:
    v, _, decoys = mixture(0.4)
    estimates, naming = {"confident joint": 0.4}, Named(0.0, 1.0)
    found = calibrate(
        v, decoys, estimates, anchors=200, classes=CLASSES, agreement=0.57, margins=(v, decoys), naming=naming
    )
    assert 0 < found.rate.estimate < 0.01
    assert np.isfinite(found.probability(v)).all()


def test_a_rate_that_decoys_leave_open_is_that_of_all_estimates() -> None:
    """Clusters that are far apart: a curve that calls some of the wrong ones right explains few decoys as well."""
    random = np.random.default_rng(0)
    v = np.concatenate([random.normal(0, 0.1, 850), random.normal(2, 0.1, 150)])
    decoys = random.normal(2, 0.1, 60)
    estimates = {"confident joint": 0.15, "posterior": 0.15}
    plain, finer = (
        calibrate(v, decoys, estimates, anchors=200, classes=CLASSES, agreement=0.84, margins=seen)
        for seen in (None, (v, decoys))
    )
    assert finer.rate.estimate == plain.rate.estimate


def test_a_model_of_very_little_competence_is_never_certain() -> None:
    v, margins, _, decoys, own = muddled()
    found = [
        calibrate(v, decoys, {"confident joint": 0.5}, anchors=1000, classes=10, agreement=a, margins=(margins, own))
        for a in (0.35, 0.46, 0.6)
    ]
    assert [curve.trust for curve in found] == [1, 1, 1]
    assert found[0].most == UNCERTAIN < found[1].most < found[2].most == 1
    assert found[0].probability(v).max() <= UNCERTAIN
    assert len(selected_at(found[0].probability(v), 0.1)) == 0 < len(selected_at(found[2].probability(v), 0.1))


def test_memorised_decoys_do_not_count() -> None:
    v, _, decoys = mixture(0.2)
    estimates = {"confident joint": 0.3, "posterior": 0.27}
    none, half, full = (
        calibrate(v, decoys, estimates, anchors=2000, classes=CLASSES, fitted=fitted).rate.estimate
        for fitted in (0.0, 0.5, 1.0)
    )
    assert none == pytest.approx(np.sqrt(0.3 * 0.27))
    assert full < half < none
    assert half == pytest.approx(np.sqrt(none * full))


def test_a_small_rate_with_a_high_upper_end_is_not_certain() -> None:
    narrow, wide = (Calibration(0.0, 1.0, 0.0, 5.0, NoiseRate(0.006, 0.003, high)) for high in (0.01, 0.024))
    assert narrow.caution == 1
    assert wide.caution == pytest.approx(0.5**3)


def test_without_decoys_competence_is_that_of_the_smallest_rate() -> None:
    """The larger rate may be made of the model's own mistakes, which would then excuse themselves."""
    rates = {"confident joint": 0.36, "posterior": 0.18}
    found = calibrate(np.linspace(-1, 1, 500), None, rates, anchors=500, classes=10, agreement=0.6)
    assert found.competence == pytest.approx(0.6 / (1 - 0.18 / 0.9))
