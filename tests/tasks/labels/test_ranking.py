"""Evidence, its rows dense and in slots, the fused ranking and the way from one scale to another."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sgoif.scoring.ledger import DENSE_CLASSES, Ledger
from sgoif.tasks.curriculum.assessment import appended
from sgoif.tasks.deviations import aligned, standard
from sgoif.tasks.labels.channel import SMALLEST, posterior
from sgoif.tasks.labels.evidence import Evidence, Rows, from_ledger
from sgoif.tasks.labels.ranking import (
    Weights,
    channel_of,
    logit,
    suspicion,
    weights,
    wrong_by_joint,
)

CPU = torch.device("cpu")
FINITE = st.floats(-1e6, 1e6)


def evidence(count: int = 50, width: int = 4, seed: int = 0, **changes: Any) -> Evidence:
    random = np.random.default_rng(seed)
    columns = {name: random.normal(size=count) for name in ("influence", "margin", "logit_margin", "loss")}
    values: dict[str, Any] = {
        "index": np.arange(count),
        "given": random.integers(width, size=count),
        **columns,
        "groups": Rows(random.normal(size=(count, width)).astype(np.float32)),
        "classes": Rows(random.dirichlet(np.full(width, 0.4), count).astype(np.float16)),
    }
    return Evidence(**{**values, **changes})


def in_slots(dense: np.ndarray[Any, Any], slots: int, seed: int = 0) -> Rows:
    """The largest columns of each row in slots, in no particular order."""
    order = np.argsort(-dense, axis=1, kind="stable")[:, :slots]
    order = np.random.default_rng(seed).permuted(order, axis=1)
    return Rows(np.take_along_axis(dense, order, 1), order.astype(np.int32))


# --- rows -------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(1, 12))
def test_slots_that_hold_everything_are_dense_rows(seed: int, columns: int, count: int) -> None:
    random = np.random.default_rng(seed)
    mean = random.normal(size=(count, columns))
    excluded = random.integers(-1, columns, size=count)
    dense, slots = Rows(mean), in_slots(mean, columns, seed)
    np.testing.assert_array_equal(slots.dense(columns, -9.0), dense.dense(columns, -9.0))
    for found, expected in zip(slots.largest(excluded), dense.largest(excluded), strict=True):
        np.testing.assert_array_equal(found, expected)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(1, 5))
def test_the_largest_other_column_by_brute_force(seed: int, columns: int, slots: int) -> None:
    random = np.random.default_rng(seed)
    mean = random.normal(size=(20, columns))
    rows = in_slots(mean, min(slots, columns), seed)
    assert rows.slots is not None
    rows.slots[random.random(rows.slots.shape) < 0.3] = -1
    excluded = random.integers(-1, columns, size=20)
    column, value = rows.largest(excluded)
    for i in range(20):
        kept = {int(c): m for c, m in zip(rows.slots[i], rows.mean[i], strict=True) if c >= 0 and c != excluded[i]}
        expected = max(kept, key=lambda c: kept[c]) if kept else -1
        assert column[i] == expected
        assert value[i] == (kept[expected] if kept else -np.inf)


def test_columns_outside_the_slots_get_the_filling() -> None:
    rows = Rows(np.array([[0.7, 0.2], [0.9, 5.0]]), np.array([[3, 1], [0, -1]]))
    np.testing.assert_array_equal(rows.dense(4, 0.5), [[0.5, 0.2, 0.5, 0.7], [0.9, 0.5, 0.5, 0.5]])
    found = evidence(2, given=np.zeros(2, dtype=np.int64), classes=rows).probabilities(4)
    assert found[1, 1:] == pytest.approx([SMALLEST] * 3)


def test_taking_and_joining_undo_each_other() -> None:
    for slots in (False, True):
        whole = _with_slots(evidence(30, 6)) if slots else evidence(30, 6)
        first, rest = whole.take(np.arange(10)), whole.take(np.arange(10, 30))
        again = appended(first, rest)
        assert (len(first), len(rest), len(again)) == (10, 20, 30)
        for f in fields(Evidence):
            mine, theirs = getattr(whole, f.name), getattr(again, f.name)
            if isinstance(mine, Rows):
                np.testing.assert_array_equal(mine.mean, theirs.mean)
                assert (mine.slots is None) == (theirs.slots is None)
                np.testing.assert_array_equal(mine.dense(6, 0), theirs.dense(6, 0))
            else:
                np.testing.assert_array_equal(mine, theirs)


def _with_slots(whole: Evidence) -> Evidence:
    return evidence(len(whole), 6, classes=in_slots(whole.classes.mean, 3), groups=in_slots(whole.groups.mean, 4))


@pytest.mark.parametrize("classes", [5, DENSE_CLASSES, DENSE_CLASSES + 10])
def test_evidence_is_what_the_ledger_saw(classes: int) -> None:
    ledger = Ledger(classes, classes, CPU)
    index = torch.tensor([2, 0, 5])
    ledger.reserve(5)
    values = torch.tensor([[1.0, 0.5, -0.2, -1.0, 3.0, 0.0], [2.0, 0.5, 0.9, 2.0, 0.1, 0.0], [3.0] * 6])
    groups, p = torch.randn(3, classes), torch.softmax(4 * torch.randn(3, classes), 1)
    label = torch.tensor([1, 0, 3])
    for _ in range(2):
        ledger.add(index, values, groups, p, label, torch.tensor([True, True, False]), 0.5)
    found = from_ledger(ledger)
    assert found.index.tolist() == [0, 2]
    assert found.given.tolist() == [0, 1]
    np.testing.assert_allclose(found.influence, [2, 1])
    np.testing.assert_allclose(found.margin, [0.9, -0.2], rtol=1e-6)
    np.testing.assert_allclose(found.logit_margin, [2, -1])
    np.testing.assert_allclose(found.loss, [0.1, 3], rtol=1e-6)
    likeliest, value = found.classes.largest()
    assert likeliest.tolist() == p[[1, 0]].argmax(1).tolist()
    np.testing.assert_allclose(value, p[[1, 0]].max(1).values, rtol=2e-3)
    harmed, _ = found.groups.largest()
    assert harmed.tolist() == groups[[1, 0]].argmax(1).tolist()
    assert (found.classes.slots is None) == (classes <= DENSE_CLASSES)
    assert found.probabilities(classes).shape == (2, classes)
    renamed = from_ledger(ledger, np.array([70, 71, 72, 73, 74, 75]))
    assert renamed.index.tolist() == [70, 72]


# --- the ranking ------------------------------------------------------------------------------------------------------


@given(hnp.arrays(np.float64, st.integers(1, 30), elements=FINITE), st.floats(0.1, 100), FINITE)
@settings(deadline=None)
def test_standard_values_have_no_unit(values: np.ndarray[Any, Any], scale: float, shift: float) -> None:
    found = standard(values)
    if np.ptp(values) < 1e-3:
        return
    assert np.median(found) == pytest.approx(0, abs=1e-6)
    assert found.std() == pytest.approx(1, rel=1e-6)
    np.testing.assert_allclose(standard(scale * values + shift), found, atol=1e-3)


def test_equal_values_say_nothing() -> None:
    assert standard(np.full(7, 3.0)).tolist() == [0.0] * 7


@pytest.mark.parametrize(("structure", "structured"), [(0.0, 0.0), (0.25, 0.125), (1.0, 1.0)])
def test_influence_and_channel_count_as_far_as_noise_is_structured(structure: float, structured: float) -> None:
    some = evidence()
    assert weights(some, some, structure, 4).structured == pytest.approx(structured)


@pytest.mark.parametrize(("each", "influence"), [(4, 0.5), (16, 1.0), (64, 2.0), (400, 5.0)])
def test_influence_counts_more_with_more_held_out_examples_of_each_class(each: int, influence: float) -> None:
    held_out = evidence(4 * each)
    assert weights(held_out, held_out, 0.3, 4).influence == pytest.approx(influence)


@pytest.mark.parametrize(("ratio", "logits"), [(0.0, 0.0), (0.35, 0.5), (0.7, 1.0), (2.0, 1.0)])
def test_logit_margins_count_while_the_model_has_not_memorised(ratio: float, logits: float) -> None:
    some = evidence()
    held_out = replace(some, loss=np.full(len(some), 0.8))
    training = replace(some, loss=np.full(len(some), 0.8 * ratio))
    assert weights(training, held_out, 0.1, 4).logits == pytest.approx(logits)


def agreeing(share: float, count: int = 100) -> Evidence:
    """Examples of which this share is given the label that the model finds likeliest."""
    likeliest = np.arange(count) % 4
    classes = np.where(np.arange(4) == likeliest[:, None], 0.7, 0.1).astype(np.float16)
    given = np.where(np.arange(count) < share * count, likeliest, (likeliest + 1) % 4)
    return evidence(count, given=given, classes=Rows(classes))


@pytest.mark.parametrize("share", [0.0, 0.37, 1.0])
def test_agreement_counts_labels_that_are_the_likeliest_class(share: float) -> None:
    assert agreeing(share).agreement() == pytest.approx(share)


@pytest.mark.parametrize("trust", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("structured", "logits"), [(0.0, 0.3), (0.4, 1.0), (1.0, 0.0)])
def test_the_ranking_goes_from_margins_to_influence_and_channel(structured: float, logits: float, trust: float) -> None:
    some, weigh = evidence(), Weights(structured, 2.0, logits).believing(trust)
    joint = np.full((4, 4), 0.02) + np.diag(np.full(4, 0.17))
    wrong = 1 - posterior(some.probabilities(4), some.given, joint)[np.arange(len(some)), some.given]
    np.testing.assert_allclose(wrong_by_joint(some, joint), wrong, rtol=1e-9)  # type: ignore[arg-type]
    np.testing.assert_allclose(logit(np.array([0, 0.2, 1])), np.log([SMALLEST, 0.25, 1 / SMALLEST]), atol=2e-4)
    channel, margin = standard(logit(wrong)), standard(-some.margin)
    plain = (1 - logits) * margin + logits * standard(-some.logit_margin)
    believed = (1 - structured) * plain + structured * (margin + channel + 2 * standard(some.influence))
    np.testing.assert_allclose(suspicion(some, wrong, weigh), trust * believed + (1 - trust) * channel, atol=1e-9)
    np.testing.assert_allclose(suspicion(some, None, Weights(0.0, 2.0, logits)), plain)


def test_a_channel_needs_enough_held_out_examples_and_not_too_many_classes() -> None:
    assert channel_of(evidence(20), 4) is not None
    assert channel_of(evidence(19), 4) is None
    assert channel_of(evidence(500, 100), 100) is not None
    assert channel_of(evidence(1000, 101), 101) is None
    joint = channel_of(evidence(200), 4)
    assert joint is not None
    assert joint.shape == (4, 4)
    assert joint.sum() == pytest.approx(1)


# --- from one scale to another ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 200))
def test_a_bent_scale_is_bent_back(seed: int, count: int) -> None:
    own = np.random.default_rng(seed).normal(size=count)
    np.testing.assert_allclose(aligned(own, own, np.exp(own) - 3), np.exp(own) - 3, rtol=1e-9)


def test_quantiles_are_carried_over() -> None:
    random = np.random.default_rng(2)
    own, target = random.normal(size=5000), random.gamma(2.0, size=20_000)
    for share in (0.02, 0.3, 0.5, 0.9, 0.99):
        moved = aligned(np.quantile(own, [share]), own, target)[0]
        assert (target <= moved).mean() == pytest.approx(share, abs=2e-3)


@settings(deadline=None)
@given(
    hnp.arrays(np.float64, st.integers(1, 40), elements=FINITE),
    hnp.arrays(np.float64, st.integers(1, 40), elements=FINITE),
    hnp.arrays(np.float64, st.integers(1, 40), elements=FINITE),
)
def test_order_ties_and_range_survive(
    values: np.ndarray[Any, Any], own: np.ndarray[Any, Any], target: np.ndarray[Any, Any]
) -> None:
    moved = aligned(values, own, target)
    assert moved.min() >= target.min()
    assert moved.max() <= target.max()
    order = np.argsort(values, kind="stable")
    assert (np.diff(moved[order]) >= -1e-9 * max(1.0, np.abs(target).max())).all()
    same = values[:, None] == values[None]
    assert (np.abs(moved[:, None] - moved[None])[same] == 0).all()
