"""The noise rate by the classes that the model is surest of: on made-up examples whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sgoif.tasks.labels.calibration import Calibration, calibrate
from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif.tasks.labels.judgement import judge
from sgoif.tasks.labels.likelihood import NoiseRate
from sgoif.tasks.labels.sure import PARTS, Sure, _largest, by_sure_classes, contradicted, unswallowed

CLASSES, RATE = 10, 0.4
DENSE = (1 - RATE) * np.eye(CLASSES) + RATE * (
    0.8 * np.roll(np.eye(CLASSES), 1, 1) + 0.2 * np.roll(np.eye(CLASSES), 3, 1)
)
"""T[y, ỹ]: most errors of a class go to the next one, the others to the third."""


def drawn(count: int, seed: int, channel: Array = DENSE) -> tuple[Labels, Labels, np.random.Generator]:
    """True and given labels."""
    random = np.random.default_rng(seed)
    true = random.integers(CLASSES, size=count)
    given = (random.random((count, 1)) < channel[true].cumsum(1)).argmax(1)
    return true, given, random


def believed(true: Labels, sureness: Array, mistaken: np.ndarray[Any, Any]) -> Array:
    """q: so sure of the true class, or of the fifth from there where mistaken."""
    q = np.repeat(((1 - sureness) / (CLASSES - 1))[:, None], CLASSES, 1)
    q[np.arange(len(true)), np.where(mistaken, (true + 5) % CLASSES, true)] = sureness
    return q


def test_mistakes_among_the_unsure_are_not_counted() -> None:
    true, given, random = drawn(4000, 0)
    sureness = random.uniform(0.3, 1.0, size=4000)
    found = contradicted(believed(true, sureness, sureness < 0.45), given)
    assert (given != believed(true, sureness, sureness < 0.45).argmax(1)).mean() > RATE + 0.08
    assert found.low < found.estimate < found.high
    assert found.estimate == pytest.approx(RATE, abs=0.03)


def test_classes_count_alike_however_sure_the_model_is_of_them() -> None:
    true, given, random = drawn(6000, 1)
    half = true < CLASSES // 2
    given = np.where(half, true, given)  # half of the classes have no noise, and the model is surer of them
    sureness = random.uniform(0.3, 0.6, size=6000) + 0.4 * half
    found = contradicted(believed(true, sureness, sureness < 0), given)
    assert found.estimate == pytest.approx((given != true).mean(), abs=0.02)


def test_the_largest_part_is_taken_that_smaller_ones_confirm() -> None:
    counts = [int(2000 * part) for part in PARTS]
    assert _largest([(0.4, n) for n in counts]) == 0
    assert _largest(list(zip([0.44, 0.40, 0.40, 0.41, 0.39], counts, strict=True))) == 1
    assert _largest(list(zip([0.6, 0.5, 0.4, 0.3, 0.2], counts, strict=True))) == len(PARTS) - 1


def test_no_example_contradicted_has_an_interval_all_the_same() -> None:
    true, _, random = drawn(300, 2)
    found = contradicted(believed(true, random.uniform(0.5, 1, size=300), np.zeros(300, dtype=bool)), true)
    assert found.estimate == found.low == 0
    assert 0 < found.high < 0.05


def test_a_class_that_is_given_and_not_believed_is_swallowed() -> None:
    true, given, random = drawn(4000, 6)
    sureness = random.uniform(0.5, 1.0, size=4000)
    assert unswallowed(believed(true, sureness, sureness < 0), given) == 1
    instead = np.where(true == 3, 4, true)
    assert unswallowed(believed(instead, sureness, sureness < 0), given) == 0
    some = np.where(random.random(4000) < 0.6, instead, true)
    assert 0 < unswallowed(believed(some, sureness, sureness < 0), given) < 1
    absent = given != 3
    assert unswallowed(believed(instead, sureness, sureness < 0)[absent], given[absent]) == 1


def dense_run(
    count: int, decoys: int, seed: int, first: int = 0, mistaken: float = 0.0, channel: Array = DENSE
) -> tuple[Evidence, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A model that has learned the names of such noise, decoys in its training, and which labels came wrong."""
    true, given, random = drawn(count, seed, channel)
    wrong = given != true
    planted = np.arange(count) < decoys
    given[planted] = (given[planted] + random.integers(1, CLASSES, size=decoys)) % CLASSES
    rows, clear = np.arange(count), random.beta(6, 1.5, size=(count, 1))
    taken = np.where(random.random(count) < mistaken, (true + random.integers(1, CLASSES, size=count)) % CLASSES, true)
    p = clear * channel[taken] + (1 - clear) * channel[(taken + random.integers(1, CLASSES, size=count)) % CLASSES]
    logits = np.log(np.maximum(p, 0.01)) + 0.3 * random.normal(size=p.shape)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    other = p.copy()
    other[rows, given] = 0
    margin = p[rows, given] - other.max(1)
    loss = -np.log(p[rows, given])
    flat = Rows(np.zeros((count, CLASSES)))
    return Evidence(first + rows, given, loss, margin, -loss, loss, flat, Rows(p)), planted, wrong


@pytest.mark.parametrize("mistaken", [0.0, 0.05])
def test_both_rates_are_those_of_names_that_were_learned(mistaken: float) -> None:
    training, planted, wrong = dense_run(30_000, 600, 3, mistaken=mistaken)
    held_out, _, _ = dense_run(2000, 0, 4, first=30_000, mistaken=mistaken)
    found = by_sure_classes(training, planted, held_out, CLASSES, DENSE.T / CLASSES)
    assert found.held_out.estimate == pytest.approx(wrong.mean(), abs=0.04 + mistaken)
    assert found.decoys == pytest.approx(wrong.mean(), abs=0.04 + mistaken)


def stood_out(structured: bool) -> tuple[Array, Array, np.ndarray[Any, Any], tuple[Array, Array]]:
    """Decoys that stand above errors on v; logit margins that see the noise or, where it has structure, none of it."""
    random = np.random.default_rng(5)
    wrong = random.random(20_000) < RATE
    v = random.normal(3.0 * wrong, 1.0)
    own = random.normal(4.0, 0.8, 100)
    return v, own, wrong, (random.normal(size=len(v)), own) if structured else (v, own)


def test_a_model_that_is_sure_of_its_classes_is_not_taken_for_weak() -> None:
    v, decoys, wrong, margins = stood_out(structured=True)
    estimates, sure = {"confident joint": 0.41, "posterior": 0.34}, Sure(NoiseRate(0.4, 0.38, 0.42), 0.39)
    before, now = (
        calibrate(v, decoys, estimates, anchors=2000, classes=10, agreement=0.5, margins=margins, sure=found)
        for found in (None, sure)
    )
    assert before.rate.estimate < RATE - 0.1
    assert now.rate.estimate == pytest.approx(RATE, abs=0.02)
    assert now.rate.low < RATE < now.rate.high
    assert (now.estimates["held out"], now.estimates["decoys"]) == pytest.approx((0.4, 0.39))
    found, missed = now.selected(now.probability(v), 0.1), before.selected(before.probability(v), 0.1)
    assert 1 - wrong[found].mean() < 0.15
    assert wrong[found].sum() > 0.8 * wrong.sum() > 2 * wrong[missed].sum()


def test_what_a_weak_model_is_sure_of_changes_nothing_nor_do_classes_that_are_swallowed() -> None:
    v, decoys, _, margins = stood_out(structured=True)
    estimates = {"confident joint": 0.41, "posterior": 0.34}
    weak, swallowed = Sure(NoiseRate(0.3, 0.28, 0.32), 0.45), Sure(NoiseRate(0.4, 0.38, 0.42), 0.39, trust=0.0)
    before, *now = (
        calibrate(v, decoys, estimates, anchors=2000, classes=10, agreement=0.5, margins=margins, sure=found)
        for found in (None, weak, swallowed)
    )
    assert now == [before, before]


@pytest.mark.parametrize(("structured", "agreement", "joint"), [(False, 0.5, 0.41), (True, 0.9, 0.1)])
def test_noise_without_structure_and_strong_models_are_judged_as_before(
    structured: bool, agreement: float, joint: float
) -> None:
    v, decoys, _, margins = stood_out(structured)
    estimates, sure = {"confident joint": joint, "posterior": 0.8 * joint}, Sure(NoiseRate(0.5, 0.48, 0.52), 0.55)
    before, now = (
        calibrate(v, decoys, estimates, anchors=2000, classes=10, agreement=agreement, margins=margins, sure=found)
        for found in (None, sure)
    )
    assert now == before


def test_no_example_that_is_contradicted_is_a_rate_too() -> None:
    v, decoys, _, margins = stood_out(structured=True)
    estimates, sure = {"confident joint": 0.41, "posterior": 0.34}, Sure(NoiseRate(0.4, 0.38, 0.42), 0.0)
    found = calibrate(v, decoys, estimates, anchors=2000, classes=10, agreement=0.5, margins=margins, sure=sure)
    assert 0 < found.rate.estimate < 1
    assert np.isfinite(found.probability(v)).all()


def middling(
    agreement: float, sure: Sure | None, rate: float = 0.1, **more: float
) -> tuple[Calibration, Array, np.ndarray[Any, Any]]:
    """A model whose own mistakes look like errors, but not among what it is surest of."""
    random = np.random.default_rng(6)
    wrong = random.random(20_000) < rate
    mistaken = random.random(20_000) < 0.08
    v, own = random.normal(np.where(wrong, 4.0, 3.4 * mistaken), 1.0), random.normal(4.0, 1.0, 80)
    margins = random.normal(size=len(v)), own
    estimates = {"confident joint": rate + 0.08, "posterior": rate + 0.05}
    found = calibrate(
        v, own, estimates, anchors=1000, classes=10, agreement=agreement, margins=margins, sure=sure, **more
    )
    return found, v, wrong


def test_what_a_middling_model_is_sure_of_bounds_the_rate() -> None:
    sure = Sure(NoiseRate(0.1, 0.08, 0.12), 0.15)
    (before, v, wrong), (now, _, _) = (middling(0.72, found) for found in (None, sure))
    assert before.rate.estimate > 0.15
    assert before.rate.low > wrong.mean()
    assert now.rate.estimate == pytest.approx(0.11)
    assert now.rate.low < wrong.mean() < now.rate.high == pytest.approx(before.rate.high, abs=0.01)
    shorter, longer = (c.selected(c.probability(v), 0.1) for c in (now, before))
    assert 1 - wrong[shorter].mean() < (1 - wrong[longer].mean()) - 0.1


def test_the_bound_fades_with_competence_and_is_looser_where_the_sure_know_less() -> None:
    sure = Sure(NoiseRate(0.1, 0.08, 0.12), 0.15)
    middle, surer, strong, free = (
        middling(a, found)[0].rate.estimate for a, found in ((0.72, sure), (0.78, sure), (0.82, sure), (0.82, None))
    )
    assert middle < surer < strong == free
    memorised, alone = (middling(0.77, found, fitted=0.0)[0].rate.estimate for found in (sure, None))
    assert memorised == alone
    follows, plain = (middling(0.77, sure, looks=looks)[0] for looks in (1.0, 0.0))
    assert follows.sure > plain.sure
    dense = Sure(NoiseRate(0.35, 0.33, 0.37), 0.4, trust=0.0)
    bounded, unbounded = (middling(0.5, found, rate=0.4)[0].rate.estimate for found in (dense, None))
    assert bounded == unbounded > 0.4


def test_a_dense_run_is_judged_by_its_sure_classes() -> None:
    training, planted, wrong = dense_run(20_000, 400, 3)
    held_out, _, _ = dense_run(2000, 0, 4, first=20_000)
    verdict = judge(training, held_out, CLASSES, np.flatnonzero(planted))
    assert verdict.calibration.rate.estimate == pytest.approx(wrong.mean(), abs=0.03)
    assert verdict.calibration.rate.low < wrong.mean() < verdict.calibration.rate.high
    chosen = verdict.calibration.selected(verdict.probability, 0.1)
    assert len(chosen) > 1000
    assert wrong[~planted][chosen].mean() > 0.9
