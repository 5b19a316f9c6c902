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
from sgoif.tasks.labels.channel import SMALLEST, posterior
from sgoif.tasks.labels.evidence import Evidence, Rows, from_ledger
from sgoif.tasks.labels.fusion import (
    BELIEVED,
    Weights,
    aligned,
    balanced_loss,
    channel_logit,
    class_balance,
    has_channel,
    joint_of,
    standard,
    steady_weights,
    suspicion,
    weights,
)
from sgoif_bench.metrics import detection_metrics
from sgoif_bench.noise import noise_matrix_from_trace

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
    for found, expected in zip(slots.largest_but(excluded), dense.largest_but(excluded), strict=True):
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
    column, value = rows.largest_but(excluded)
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
        again = first.joined(rest)
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
    likeliest, value = found.classes.largest_but(np.array([-1, -1]))
    assert likeliest.tolist() == p[[1, 0]].argmax(1).tolist()
    np.testing.assert_allclose(value, p[[1, 0]].max(1).values, rtol=2e-3)
    harmed, _ = found.groups.largest_but(np.array([-1, -1]))
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


@pytest.mark.parametrize(
    ("structure", "influence", "channel"), [(0.0, 0.1, 0.1), (0.1, 0.4, 0.3), (0.3, 1.0, 0.5), (1.0, 1.5, 0.5)]
)
def test_influence_and_channel_count_more_where_noise_is_structured(
    structure: float, influence: float, channel: float
) -> None:
    some = replace(agreeing(0.9), loss=np.ones(100))
    found = weights(some, some, structure)
    assert found.influence == pytest.approx(influence)
    assert found.channel == pytest.approx(channel)
    assert steady_weights(structure).logits == 0


@pytest.mark.parametrize(("ratio", "logits"), [(0.1, 0.0), (0.4, 0.0), (0.65, 0.5), (0.9, 1.0), (2.0, 1.0)])
def test_logit_margins_count_while_the_model_has_not_memorised(ratio: float, logits: float) -> None:
    some = evidence()
    held_out = replace(some, loss=np.full(len(some), 0.8))
    training = replace(some, loss=np.full(len(some), 0.8 * ratio))
    assert weights(training, held_out, 0.1).logits == pytest.approx(logits)


def agreeing(share: float, count: int = 100) -> Evidence:
    """Examples of which this share is given the label that the model finds likeliest."""
    likeliest = np.arange(count) % 4
    classes = np.where(np.arange(4) == likeliest[:, None], 0.7, 0.1).astype(np.float16)
    given = np.where(np.arange(count) < share * count, likeliest, (likeliest + 1) % 4)
    return evidence(count, given=given, classes=Rows(classes))


@pytest.mark.parametrize("share", [0.0, 0.37, 1.0])
def test_agreement_counts_labels_that_are_the_likeliest_class(share: float) -> None:
    assert agreeing(share).agreement() == pytest.approx(share)


@pytest.mark.parametrize(
    ("structure", "margin", "logits"), [(0.0, 1, 1), (0.15, 1, 1), (0.225, 0.75, 0.5), (0.6, 0.5, 0)]
)
def test_margins_count_less_where_noise_is_structured(structure: float, margin: float, logits: float) -> None:
    some = replace(agreeing(0.9), loss=np.ones(100))
    found = weights(some, some, structure)
    assert found.margin == pytest.approx(margin)
    assert found.logits == pytest.approx(logits)


@pytest.mark.parametrize(
    ("share", "margin", "channel", "balanced"), [(0.9, 0.5, 0.5, 0.0), (0.46, 0.25, 0.25, 0.5625), (0.3, 0, 0, 1.125)]
)
def test_names_that_most_held_out_labels_contradict_are_not_believed(
    share: float, margin: float, channel: float, balanced: float
) -> None:
    training, held_out = (replace(agreeing(agreed), loss=np.ones(100)) for agreed in (0.9, share))
    found = weights(training, held_out, 0.6)
    assert (found.margin, found.channel, found.balanced) == pytest.approx((margin, channel, balanced))
    assert (found.balance is None) == (balanced == 0)
    unstructured = weights(training, held_out, 0.05)
    assert (unstructured.margin, unstructured.channel, unstructured.balanced) == pytest.approx((1.0, 0.2, 0.0))


def swallowing(count: int = 600) -> Evidence:
    """Three kinds of things that all are called 0 most often, as labels and as the model's probabilities have it."""
    names = np.array([[0.5, 0.35, 0.15], [0.5, 0.1, 0.4], [0.6, 0.2, 0.2]])
    given = np.concatenate([np.repeat([0, 1, 2], np.round(row * count / 3).astype(int)) for row in names])
    return evidence(count, 3, given=given, classes=Rows(names.repeat(count // 3, axis=0)), loss=np.ones(count))


def test_a_model_that_agrees_with_a_name_that_swallowed_others_is_not_believed() -> None:
    some = swallowing()
    assert some.agreement() > BELIEVED
    assert weights(some, some, 0.6).balanced > 0.2
    kept = replace(some, given=np.arange(600) // 200, classes=Rows(np.eye(3).repeat(200, axis=0)))
    assert weights(kept, kept, 0.6).balanced == 0


def test_all_classes_are_equally_frequent_once_they_are_balanced() -> None:
    some = swallowing()
    q = some.classes.mean * class_balance(some)
    np.testing.assert_allclose((q / q.sum(1, keepdims=True)).mean(0), 1 / 3, rtol=1e-3)
    np.testing.assert_allclose(
        class_balance(replace(some, classes=in_slots(some.classes.mean, 3))), class_balance(some)
    )
    wider = replace(some, classes=Rows(np.pad(some.classes.mean, ((0, 0), (0, 2)))))
    found = class_balance(wider)
    assert found[3:].tolist() == [1, 1]
    np.testing.assert_allclose(found[:3] / found[0], class_balance(some) / class_balance(some)[0], rtol=1e-2)


@pytest.mark.parametrize("slots", [2, 5])
def test_the_balanced_loss_of_dense_rows_and_of_slots(slots: int) -> None:
    whole, balance = evidence(60, 5), np.array([1.0, 0.3, 2.0, 5.0, 0.7])
    p = np.maximum(whole.classes.mean.astype(np.float64), SMALLEST)
    kept = p >= np.sort(p, axis=1)[:, -slots][:, None]
    q, rows = np.where(kept, p, 0) * balance, np.arange(60)
    own = np.where(kept, p, SMALLEST)[rows, whole.given] * balance[whole.given]
    found = balanced_loss(replace(whole, classes=in_slots(whole.classes.mean, slots)), balance)
    np.testing.assert_allclose(found, np.log(np.maximum(q.sum(1), own) / own), atol=1e-9)
    if slots == 5:
        np.testing.assert_allclose(balanced_loss(whole, balance), found, atol=1e-9)


@pytest.mark.parametrize("sparsity", [0.0, 0.2, 0.4, 0.6])
def test_the_balanced_loss_finds_errors_where_classes_lost_their_names(sparsity: float) -> None:
    """With the channel of 70% noise known, and nothing of the names, margins see less than balanced losses."""
    random = np.random.default_rng(0)
    names = noise_matrix_from_trace(10, 3, sparsity, seed=0).T
    true = np.arange(5000) % 10
    given = (random.random((5000, 1)) > names[true].cumsum(1)).sum(1).clip(max=9)
    p = 0.9 * names[true] + 0.1 * random.dirichlet(np.ones(10), 5000)
    some = evidence(5000, 10, given=given, classes=Rows(p))
    own = p[np.arange(5000), given]
    margin = own - np.where(np.arange(10) == given[:, None], 0, p).max(1)
    by_margin, by_balance = (
        float(detection_metrics(given != true, score)["aupr"])
        for score in (-margin, balanced_loss(some, class_balance(some)))
    )
    assert by_balance > by_margin + 0.03
    assert by_balance > 0.8


def test_the_balanced_loss_counts_as_far_as_its_weight_says() -> None:
    some = swallowing()
    weigh = Weights(0.7, 0.4, 0.2, 0.5, 0.6, class_balance(some))
    without = replace(weigh, balance=None)
    added = suspicion(some, None, weigh) - suspicion(some, None, without)
    np.testing.assert_allclose(added, 0.6 * standard(balanced_loss(some, class_balance(some))), atol=1e-9)
    assert weigh.believing(0.5).balanced == pytest.approx(0.3)


@pytest.mark.parametrize(("structure", "left"), [(0.0, 0.2), (0.15, 0.2), (0.225, 0.6), (0.5, 1.0)])
def test_influence_and_channel_fade_where_unstructured_noise_was_memorised(structure: float, left: float) -> None:
    held_out = replace(agreeing(0.9), loss=np.ones(100))
    learning = weights(held_out, held_out, structure)
    memorised = weights(replace(held_out, loss=np.full(100, 0.1)), held_out, structure)
    assert memorised.influence == pytest.approx(left * learning.influence)
    assert memorised.channel == pytest.approx(left * learning.channel)


@pytest.mark.parametrize("weigh", [Weights(0.7, 0.4, 0.0), Weights(1.5, 0.5, 0.3), Weights(0.1, 0.1, 1.0)])
def test_the_ranking_is_the_weighted_sum_of_standard_signals(weigh: Weights) -> None:
    some = evidence()
    margins = (1 - weigh.logits) * standard(-some.margin) + weigh.logits * standard(-some.logit_margin)
    plain = weigh.influence * standard(some.influence) + margins
    np.testing.assert_allclose(suspicion(some, None, weigh), plain)
    joint = np.full((4, 4), 0.02) + np.diag(np.full(4, 0.17))
    belief = posterior(some.probabilities(4), some.given, joint)[np.arange(len(some)), some.given]
    belief = np.clip(belief, SMALLEST, 1 - SMALLEST)
    np.testing.assert_allclose(channel_logit(some, joint), np.log((1 - belief) / belief), rtol=1e-9)
    with_channel = suspicion(some, joint, weigh) - suspicion(some, None, weigh)
    np.testing.assert_allclose(with_channel, weigh.channel * standard(channel_logit(some, joint)), atol=1e-9)


def test_a_channel_needs_enough_held_out_examples_and_not_too_many_classes() -> None:
    assert has_channel(evidence(20), 4)
    assert not has_channel(evidence(19), 4)
    assert has_channel(evidence(500, 100), 100)
    assert not has_channel(evidence(1000, 101), 101)
    joint = joint_of(evidence(200), 4)
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
