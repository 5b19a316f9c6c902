"""The anchor bank: who is in it, what its directions are, and scores for the anchors themselves."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bank_cases import CPU, Reads, bank_of, monitored, problem, train
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif import indexed, split_holdout
from sgoif.anchors.bank import AnchorBank
from sgoif.anchors.grouping import balanced, group_candidates
from sgoif.errors import AnchorError

# --- selection and groups ---------------------------------------------------------------------------------------


def test_every_group_gives_as_many_anchors_as_it_can() -> None:
    labels = [0] * 50 + [1] * 30 + [2] * 4 + [3] * 20
    bank = bank_of(labels, most=60)
    assert len(bank) == 60
    counts = Counter(bank.member_labels.tolist())
    assert counts[2] == 4, "the small class is in whole"
    assert max(counts[c] for c in (0, 1, 3)) - min(counts[c] for c in (0, 1, 3)) <= 1
    assert len(set(bank.members.tolist())) == 60
    assert bank.members.tolist() == sorted(bank.members.tolist())


def test_selection_repeats_with_its_seed() -> None:
    data = TensorDataset(torch.zeros(100, 1), torch.arange(100) % 4)
    chosen = []
    for seed in (0, 0, 1):
        bank = AnchorBank(data, None, 20, seed, CPU)
        bank.select(20)
        chosen.append(bank.positions().tolist())
    assert chosen[0] == chosen[1] != chosen[2]


def test_fewer_anchors_than_groups_and_more_than_there_are() -> None:
    assert len(bank_of([0, 1, 2, 3], count=2)) == 2
    assert len(bank_of([0, 1, 2], most=1000)) == 3


@pytest.mark.parametrize(
    ("grouping", "names", "groups"),
    [
        (None, [0, 1, 2], [0, 1, 2, 0, 1, 2]),
        ("class", [0, 1, 2], [0, 1, 2, 0, 1, 2]),
        ("one", [0], [0, 0, 0, 0, 0, 0]),
        (lambda label: "even" if label % 2 == 0 else "odd", ["even", "odd"], [0, 1, 0, 0, 1, 0]),
        (["b", "b", "a", "a", "a", "c"], ["a", "b", "c"], [1, 1, 0, 0, 0, 2]),
        (np.array([5, 5, 7, 7, 5, 5]), [5, 7], [0, 0, 1, 1, 0, 0]),
        (torch.tensor([5, 5, 7, 7, 5, 5]), [5, 7], [0, 0, 1, 1, 0, 0]),
        ([1, "x", 1, "x", 1, None], [None, 1, "x"], [1, 2, 1, 2, 1, 0]),
        (lambda label: np.int64(label // 2), [0, 1], [0, 0, 1, 0, 0, 1]),
    ],
)
def test_groupings(grouping, names: list, groups: list[int]) -> None:
    bank = bank_of([0, 1, 2, 0, 1, 2], grouping)
    assert sorted(bank.group_names, key=str) == sorted(names, key=str)
    named = [bank.group_names[g] for g in bank.groups.tolist()]
    assert named == [names[g] for g in groups]
    assert all(type(name) in (int, str, type(None)) for name in bank.group_names), "plain values, not numpy's"


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AnchorError, match="5 entries for 6 anchors"):
        bank_of([0, 1, 2, 0, 1, 2], ["a"] * 5)
    with pytest.raises(AnchorError, match="'superclass' is not known"):
        bank_of([0, 1, 2, 0, 1, 2], "superclass")
    with pytest.raises(AnchorError, match=r"must be names, one for each anchor; \['a'\] is none"):
        bank_of([0, 1], [["a"], ["b"]])
    with pytest.raises(AnchorError, match="not a number"):
        bank_of([0, 1], [0.5, float("nan")])
    values = SimpleNamespace(classes=0)
    with pytest.raises(AnchorError, match="'class' needs classes, and this loss has none"):
        group_candidates("class", [0.5, 0.7], None, np.arange(2), values)  # type: ignore[arg-type]


def test_of_every_group_the_first_of_the_order_are_taken() -> None:
    order, keys = np.array([3, 1, 5, 0, 2, 4]), ["a", "b", "a", "a", "b", "b"]
    assert balanced(order, keys, 4) == [3, 1, 0, 5]
    assert balanced(order, keys, 3) == [3, 1, 0]
    assert sorted(balanced(order, keys, 99)) == list(range(6))


def test_a_rare_group_of_a_large_holdout_is_not_sampled_away() -> None:
    groups = ["common"] * 1000
    groups[123] = "rare"
    bank = bank_of([0] * 1000, groups, most=10)
    assert bank.group_names == ["common", "rare"]
    assert 123 in bank.positions().tolist()


def test_the_table_names_the_groups_of_the_user() -> None:
    inputs, labels = problem()
    groups = [("animal", "thing")[int(label) > 0] for label in labels[90:]]
    monitor = monitored((inputs[90:], labels[90:]), groups=groups)
    train(monitor, inputs, labels, torch.arange(90), steps=9)
    assert list(monitor.group_names) == ["animal", "thing"]
    assert set(monitor.scores()["group"]) == {"animal", "thing"}
    assert set(monitored((inputs, labels), groups="one").group_names) == {0}


# --- directions -------------------------------------------------------------------------------------------------


def slow_directions(bank: AnchorBank, leave_out: int | None = None) -> torch.Tensor:
    """ψ_g = Σ w_v c_v φ_v, w_v = c_v / Σ c_u, one anchor at a time and in float64."""
    out = torch.zeros(len(bank.group_names), bank.phi.shape[1], dtype=torch.float64)
    for group in range(len(bank.group_names)):
        rows = [v for v in range(len(bank)) if int(bank.member_groups[v]) == group and v != leave_out]
        total = sum(float(bank.confidence[v]) for v in rows)
        for v in rows:
            c = float(bank.confidence[v])
            out[group] += (c / total * c if total else 0.0) * bank.phi[v].double()
    return out


def test_directions_are_confidence_weighted_means_of_groups() -> None:
    bank = bank_of([0, 1, 2] * 7)
    bank.confidence[::4] = 0
    torch.testing.assert_close(
        bank.group_sums(bank.phi, bank.weights()).double(), slow_directions(bank), atol=1e-5, rtol=1e-4
    )


def test_a_group_without_a_trusted_anchor_has_no_direction() -> None:
    bank = bank_of([0, 1] * 5)
    bank.confidence[bank.member_groups == 1] = 0
    directions = bank.group_sums(bank.phi, bank.weights())
    assert bool(directions.isfinite().all())
    assert not bool(directions[1].any())
    assert bool(directions[0].any())


def test_own_scores_leave_the_anchor_itself_out() -> None:
    bank = bank_of([0, 1, 2, 0] * 6)
    bank.confidence[::5] = 0
    own = bank.own_scores(bank.group_sums(bank.phi, bank.weights()), bank.gradient)
    for v in range(len(bank)):
        expected = -(slow_directions(bank, leave_out=v) @ bank.gradient[v].double())
        torch.testing.assert_close(own[v].double(), expected, atol=1e-4, rtol=1e-3)


def test_an_anchor_alone_in_its_group_says_nothing_about_it() -> None:
    bank = bank_of([0, 1, 1])
    own = bank.own_scores(bank.group_sums(bank.phi, bank.weights()), bank.gradient)
    assert float(own[0, 0]) == 0
    assert float(own[0, 1]) != 0


def test_leaving_out_the_only_trusted_anchor_gives_no_noise() -> None:
    """Where nearly all confidence is an anchor's own, what remains is a difference of equal numbers."""
    bank = bank_of([0] * 4)
    bank.phi, bank.gradient = 1e3 * bank.phi, 1e3 * bank.gradient
    bank.confidence = torch.tensor([1.0, 2e-6, 2e-6, 0.0])
    own = bank.own_scores(bank.group_sums(bank.phi, bank.weights()), bank.gradient)[0, 0]
    exact = -(slow_directions(bank, leave_out=0)[0] @ bank.gradient[0].double())
    assert abs(float(own) - float(exact)) < 1e-4 * float((bank.phi[0] @ bank.gradient[0]).abs())


def test_own_scores_in_a_run_equal_the_slow_ones() -> None:
    inputs, labels = problem()
    monitor = monitored(
        (inputs[80:], labels[80:]), replace_every=0, temperature=None, weigh_steps=False, help_weight=1.0
    )
    gradient = monitor.gradients.of_anchors()[
        0
    ].double()  # the only step ends with new weights, but is scored with these
    train(monitor, inputs, labels, torch.arange(80), steps=1)
    bank = monitor.anchors
    expected = [-float((slow_directions(bank, leave_out=v) @ gradient[v]).sum()) for v in range(len(bank))]
    table = monitor.anchor_scores()
    np.testing.assert_array_equal(table["n_observations"], np.full(40, monitor.schedule.refreshes))
    if monitor.schedule.refreshes == 1:
        np.testing.assert_allclose(table["influence"], expected, rtol=1e-3, atol=1e-4)


def test_a_wrong_label_on_an_anchor_is_found_by_its_own_score() -> None:
    labels = torch.arange(600) % 3
    inputs = 3 * torch.randn(3, 5, generator=torch.Generator().manual_seed(1))[labels] + torch.randn(600, 5)
    given = labels.clone()
    wrong = torch.arange(300, 600, 20)
    given[wrong] = (given[wrong] + 1) % 3
    monitor = monitored((inputs[300:], given[300:]))
    train(monitor, inputs, labels, torch.arange(300), steps=120, batch=30)
    worst = monitor.anchor_scores().worst(len(wrong))["index"] + 300
    assert len(set(worst.tolist()) & set(wrong.tolist())) >= 0.8 * len(wrong)


# --- replacement ------------------------------------------------------------------------------------------------


def test_the_least_trusted_anchors_are_replaced_by_their_own_group() -> None:
    bank = bank_of([0, 1] * 30, most=40, count=40)
    assert len(bank.pool) == 60
    before, groups = bank.members.clone(), bank.member_groups.clone()
    lowest = torch.argsort(bank.confidence)[:4]
    phi = bank.phi.clone()
    bank.fresh.zero_()
    assert bank.replace(0.1) == 4
    changed = (bank.members != before).nonzero().squeeze(1)
    assert set(changed.tolist()) == set(lowest.tolist())
    assert torch.equal(bank.member_groups, groups)
    assert torch.equal(bank.groups[bank.members], groups)
    assert not set(bank.members[changed].tolist()) & set(before.tolist()), "newcomers stood by before"
    assert len(set(bank.members.tolist())) == 40
    assert not bool(bank.phi[changed].any()), "a new anchor starts from φ = 0"
    kept = torch.ones(40, dtype=torch.bool)
    kept[changed] = False
    assert torch.equal(bank.phi[kept], phi[kept])
    assert bank.fresh.nonzero().squeeze(1).tolist() == changed.tolist()
    assert bank.replaced == 4


def test_nothing_is_replaced_where_nobody_stands_by() -> None:
    whole = bank_of([0, 1] * 5)
    assert whole.replace(0.5) == 0
    bank = bank_of([0] * 20 + [1] * 2, most=11, count=11)
    bank.confidence[bank.member_groups == 1] = 0  # the least trusted ones have no candidate left in their group
    bank.confidence[bank.member_groups == 0] = 0.5
    assert Counter(bank.member_groups.tolist())[1] == 2
    assert bank.replace(2 / 11) == 0
    assert bank_of([0] * 40, most=20, count=20).replace(0.01) == 0


def test_replacement_happens_in_a_run_and_new_anchors_join_the_table() -> None:
    inputs, labels = problem(400)
    monitor = monitored(
        (inputs[100:], labels[100:]), max_anchors=60, refresh_every=1, replace_every=2, replace_share=0.2
    )
    first = set(monitor.anchors.positions().tolist())
    train(monitor, inputs, labels, torch.arange(100), steps=10)  # the last refresh sees the newcomers
    now = set(monitor.anchors.positions().tolist())
    assert monitor.anchors.replaced > 0
    assert now - first
    seen = monitor.anchor_ledger.column("count")
    assert bool((seen[sorted(first | now)] > 0).all())
    assert Counter(monitor.anchors.member_labels.tolist()) == {0: 20, 1: 20, 2: 20}


# --- every held-out example gets a score ------------------------------------------------------------------------


@pytest.mark.parametrize("most", [200, 50, 10])
def test_every_held_out_example_gets_a_score(most: int) -> None:
    """In the bank (200), standing by (50), and beyond the pool that was looked at (10)."""
    inputs, labels = problem(300)
    data = Reads(inputs[100:], labels[100:])
    monitor = monitored(data, max_anchors=most)
    assert len(monitor.anchors) == most
    assert len(data.reads) <= min(200, 2 * most + 2), "a large hold-out is sampled, not read"
    train(monitor, inputs, labels, torch.arange(100))
    table = monitor.anchor_scores()
    np.testing.assert_array_equal(table["index"], np.arange(200))
    assert np.isfinite(table["influence"]).all()
    assert (table["n_observations"] >= 1).all()
    assert set(table["group"]) <= {0, 1, 2}
    in_bank = monitor.anchors.positions().numpy()
    assert (table["n_observations"][in_bank] == monitor.schedule.refreshes).all()


def test_scores_of_examples_beyond_the_bank_are_their_influence_on_all_groups() -> None:
    inputs, labels = problem(300)
    monitor = monitored((inputs[100:], labels[100:]), max_anchors=10, temperature=None, help_weight=1.0)
    train(monitor, inputs, labels, torch.arange(100))
    table = monitor.anchor_scores()
    others = np.setdiff1d(np.arange(200), monitor.anchors.positions().numpy())
    others = others[table["n_observations"][others] == 1][:20]
    psi = monitor.directions.psi.sum(0)
    for position in others:
        x, y = inputs[100 + position : 101 + position], labels[100 + position : 101 + position]
        head = monitor.model[2]
        loss = nn.functional.cross_entropy(monitor.model(x), y)
        weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
        gradient = torch.cat([weight, bias.unsqueeze(1)], dim=1).flatten()
        assert table["influence"][position] == pytest.approx(-float(psi @ gradient), rel=1e-3, abs=1e-4)


def test_reading_scores_during_training_does_not_freeze_those_of_the_stand_by() -> None:
    """Looking at the table early must leave the examples outside the bank with their score of the end, not of then."""
    inputs, labels = problem(300)
    tables = []
    for look in (False, True):
        torch.manual_seed(4)
        monitor = monitored((inputs[100:], labels[100:]), max_anchors=10, refresh_every=2, replace_every=0)
        train(monitor, inputs, labels, torch.arange(100), steps=2)
        if look:
            monitor.anchor_scores()
        train(monitor, inputs, labels, torch.arange(100), steps=20)
        tables.append(monitor.anchor_scores())
    for name in ("n_observations", "influence", "margin", "loss"):
        np.testing.assert_allclose(tables[0][name], tables[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_split_holdout_gives_one_table_under_the_original_indices() -> None:
    inputs, labels = problem(120)
    data = TensorDataset(inputs, labels)
    training, holdout = split_holdout(data, share=0.3)
    monitor = monitored(holdout, max_anchors=12)
    for x, y, index in DataLoader(indexed(training), batch_size=12, shuffle=True):
        with monitor.step(index):
            nn.functional.cross_entropy(monitor.model(x), y).backward()
        monitor.optimizer.step()
        monitor.optimizer.zero_grad()
    table = monitor.scores()
    np.testing.assert_array_equal(table["index"], np.arange(120))
    assert np.isfinite(table["influence"]).all()
    alone, own = monitor.scores(anchors=False), monitor.anchor_scores()
    np.testing.assert_array_equal(alone["index"], training.indices)
    for position, index in enumerate(holdout.indices):
        assert table["influence"][index] == own["influence"][position]
        assert table["loss"][index] == own["loss"][position]


def test_anchors_with_numbers_of_their_own_do_not_join_the_table() -> None:
    inputs, labels = problem(60)
    monitor = monitored((inputs[40:], labels[40:]))
    train(monitor, inputs, labels, torch.arange(40), steps=4)
    assert len(monitor.scores()) == 40
    with pytest.raises(Exception, match="split_holdout"):
        monitor.scores(anchors=True)


def test_the_average_of_an_anchor_begins_anew_after_an_anomaly() -> None:
    bank = bank_of([0, 1], count=2)
    bank.average, bank.fresh = torch.tensor([0.5, 0.5]), torch.tensor([False, False])
    for residual, average in (([float("inf"), 0.5], [float("inf"), 0.5]), ([0.25, 0.5], [0.25, 0.5])):
        bank.residual = torch.tensor(residual)
        bank.average_residual()
        assert bank.average.tolist() == pytest.approx(average)


def test_the_moving_average_of_residuals_begins_anew_after_an_anomaly() -> None:
    bank = bank_of([0] * 3)
    for residual in ([1.0, 1.0, torch.inf], [2.0, torch.inf, 5.0], [4.0, 6.0, 5.0]):
        bank.residual = torch.tensor(residual)
        bank.average_residual()
    torch.testing.assert_close(bank.average, torch.tensor([0.7 * 1.3 + 0.3 * 4, 6.0, 5.0]))
