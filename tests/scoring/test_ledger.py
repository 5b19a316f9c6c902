"""The ledger against numpy, its memory, and a run of one million examples and a thousand classes."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sgoif import InfluenceMonitor
from sgoif.errors import IndexingError, SettingError, StateError
from sgoif.scoring.ledger import DENSE_GROUPS, FLOAT_GROUPS, Ledger

CPU = torch.device("cpu")
COLUMNS = ("score", "support", "margin", "logit_margin", "loss", "bound")


def make_ledger(groups: int, size: int | None = None, *, duplicates: bool = False) -> Ledger:
    """A ledger with as many classes as groups."""
    return Ledger(groups, groups, CPU, size, duplicates=duplicates)


def observe(ledger: Ledger, index, scores, groups=None, weight: float = 1.0, valid=None) -> None:
    """Fold in scores [B]; the other columns are fixed functions of the score."""
    scores = torch.as_tensor(scores, dtype=torch.float32)
    index = torch.as_tensor(index)
    ledger.reserve(int(index.max()))
    values = torch.stack([scores * factor for factor in (1, 2, 3, 4, 5, 6)], dim=1)
    groups = torch.zeros(len(scores), ledger.groups.columns) if groups is None else torch.as_tensor(groups).float()
    valid = torch.ones(len(scores), dtype=torch.bool) if valid is None else torch.as_tensor(valid)
    probabilities = groups.softmax(1)
    ledger.add(index, values, groups, probabilities, torch.nan_to_num(groups).argmax(1), valid, weight)


def random_run(rng: np.random.Generator, examples: int, groups: int, steps: int):
    """Steps of (index, scores, group scores, weight) in which every example is drawn now and then."""
    return [
        (
            rng.permutation(examples)[: max(1, examples // 2)],
            rng.normal(size=max(1, examples // 2)),
            rng.normal(size=(max(1, examples // 2), groups)),
            float(rng.uniform(0.1, 2.0)),
        )
        for _ in range(steps)
    ]


def by_example(run, examples: int):
    """Scores, group scores and weights of every example, in the order of the run."""
    for example in range(examples):
        hits = [(s[i == example], g[i == example], w) for i, s, g, w in run if (i == example).any()]
        yield (
            np.array([float(s[0]) for s, _, _ in hits]),
            np.array([g[0] for _, g, _ in hits]),
            np.array([w for _, _, w in hits]),
        )


@pytest.mark.parametrize("groups", [1, 10, 32, 33, 64])
def test_means_variances_and_counts_equal_numpy(groups: int) -> None:
    rng = np.random.default_rng(groups)
    run = random_run(rng, 20, groups, 30)
    ledger = make_ledger(groups, 20)
    for index, scores, group_scores, weight in run:
        observe(ledger, index, scores, group_scores, weight)
    tolerance = 1e-5 if groups <= FLOAT_GROUPS else 4e-3
    group, value = ledger.worst_group()
    for example, (scores, group_scores, weights) in enumerate(by_example(run, 20)):
        mean = np.average(scores, weights=weights)
        effective = weights.sum() ** 2 / (weights**2).sum()
        spread = np.average((scores - mean) ** 2, weights=weights) * effective / (effective - 1)
        assert ledger.column("count")[example] == len(scores)
        assert float(ledger.mean("score")[example]) == pytest.approx(mean, abs=1e-5)
        assert float(ledger.effective_count()[example]) == pytest.approx(effective, rel=1e-4)
        assert float(ledger.variance()[example]) == pytest.approx(spread, rel=1e-3, abs=1e-5)
        for factor, column in enumerate(COLUMNS, start=1):
            assert float(ledger.mean(column)[example]) == pytest.approx(factor * mean, abs=1e-4)
        means = np.average(group_scores, axis=0, weights=weights)
        np.testing.assert_allclose(ledger.groups.mean[example].float().numpy(), means, atol=tolerance)
        assert ledger.label[example] == group_scores[-1].argmax()
        if ledger.classes.dense:
            softmax = np.exp(group_scores) / np.exp(group_scores).sum(1, keepdims=True)
            found = ledger.classes.mean[example].float().numpy()
            np.testing.assert_allclose(found, np.average(softmax, axis=0, weights=weights), atol=2e-3)
        assert float(value[example]) == pytest.approx(means.max(), abs=tolerance)
        assert means[int(group[example])] == pytest.approx(means.max(), abs=2 * tolerance)


def test_equal_weights_give_the_sample_variance() -> None:
    scores = np.random.default_rng(0).normal(size=50)
    ledger = make_ledger(1, 1)
    for score in scores:
        observe(ledger, [0], [score], weight=0.3)
    assert float(ledger.variance()[0]) == pytest.approx(scores.var(ddof=1), rel=1e-4)
    assert float(ledger.effective_count()[0]) == pytest.approx(50, rel=1e-4)


@pytest.mark.parametrize("groups", [1, 32, 33, 64, 65, 1000])
def test_an_unseen_example_has_no_score_and_no_group(groups: int) -> None:
    ledger = make_ledger(groups, 3)
    observe(ledger, [1], [2.0], torch.full((1, groups), 0.5))
    group, value = ledger.worst_group()
    assert ledger.mean("score").isnan().tolist() == [True, False, True]
    assert group[0] == -1
    assert group[1] >= 0
    assert value.isnan().tolist() == [True, False, True]
    assert ledger.effective_count().tolist() == [0, 1, 0]
    assert bool(ledger.variance()[1].isnan()), "one observation has no variance"


def test_the_least_harmed_group_is_still_the_worst_when_all_are_helped() -> None:
    for groups in (10, 40, 100):
        ledger = make_ledger(groups, 1)
        scores = -1.0 - torch.arange(groups).float()
        for _ in range(3):
            observe(ledger, [0], [-1.0], scores.unsqueeze(0))
        group, value = ledger.worst_group()
        assert int(group[0]) == 0
        assert float(value[0]) == pytest.approx(-1.0, abs=1e-3)


@pytest.mark.parametrize("groups", [65, 300, 1000])
def test_slots_find_the_group_that_is_consistently_worst(groups: int) -> None:
    rng = np.random.default_rng(1)
    examples, truth = 40, rng.integers(0, groups, 40)
    ledger = make_ledger(groups, examples)
    for _ in range(25):
        scores = rng.normal(scale=0.3, size=(examples, groups))
        scores[np.arange(examples), truth] = rng.normal(2.0, 0.3, size=examples)
        observe(ledger, np.arange(examples), np.ones(examples), scores)
    group, value = ledger.worst_group()
    np.testing.assert_array_equal(group.numpy(), truth)
    np.testing.assert_allclose(value.numpy(), 2.0, atol=0.4)
    used = ledger.groups.slot[ledger.groups.slot >= 0]
    assert used.numel() == ledger.groups.slot.numel(), "all slots are put to use"
    for row in ledger.groups.slot.tolist():
        assert len(set(row)) == len(row), "a group has one slot only"


def test_a_slot_that_fades_gives_way_to_a_new_worst_group() -> None:
    ledger = make_ledger(100, 1)
    for step in range(40):
        scores = torch.zeros(1, 100)
        scores[0, 7 if step < 5 else 70] = 1.0
        observe(ledger, [0], [1.0], scores)
    assert int(ledger.worst_group()[0][0]) == 70


def _tensors(ledger: Ledger) -> list[torch.Tensor]:
    parts = [ledger.sums, ledger.label]
    return [*parts, *(t for rows in (ledger.groups, ledger.classes) for t in (rows.mean, rows.slot))]


@pytest.mark.parametrize("groups", [*range(1, DENSE_GROUPS + 1), 65, 100, 1000, 21_000])
def test_an_example_takes_at_most_256_bytes(groups: int) -> None:
    ledger = make_ledger(groups, 1000)
    stored = sum(t.numel() * t.element_size() for t in _tensors(ledger))
    assert stored / 1000 == ledger.bytes_per_example
    assert ledger.bytes_per_example <= 256


@pytest.mark.parametrize("groups", [5, 40, 100])
def test_growing_keeps_what_was_there(groups: int) -> None:
    rng = np.random.default_rng(2)
    grown, fixed = make_ledger(groups), make_ledger(groups, 6000)
    assert grown.used == 0
    for largest in (3, 1023, 1024, 5999):
        index = np.unique([0, largest // 2, largest])
        scores, group_scores = rng.normal(size=len(index)), rng.normal(size=(len(index), groups))
        for ledger in (grown, fixed):
            observe(ledger, index, scores, group_scores)
        assert grown.used == largest + 1
    assert torch.equal(grown.sums[:6000], fixed.sums)
    assert torch.equal(grown.groups.mean[:6000], fixed.groups.mean)
    assert torch.equal(grown.groups.slot[:6000], fixed.groups.slot)
    assert len(grown.sums) < 2 * 6000, "growth by half, not without bound"


def test_out_of_range_indices_are_refused_and_change_nothing() -> None:
    ledger = make_ledger(3, 10)
    with pytest.raises(IndexingError, match="out of range"):
        ledger.reserve(10)
    open_ended = make_ledger(3)
    with pytest.raises(IndexingError, match="out of range"):
        open_ended.reserve(2**31)
    assert open_ended.used == 0
    for size in (0, -1):
        with pytest.raises(SettingError, match="size"):
            make_ledger(3, size)


def test_memory_that_does_not_suffice_is_explained_and_leaves_the_ledger_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = make_ledger(100)
    observe(ledger, [3], [1.0], torch.ones(1, 100))
    calls = iter([None, RuntimeError("not enough memory: you tried to allocate")])
    real = torch.zeros

    def failing(*args, **kwargs):
        error = next(calls)
        if error:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr("sgoif.scoring.ledger.torch.zeros", failing)
    with pytest.raises(IndexingError, match="do not fit the memory"):
        ledger.reserve(10**6)
    monkeypatch.undo()
    assert ledger.used == 4
    assert {len(part) for part in _tensors(ledger)} == {len(ledger.sums)}
    observe(ledger, [2000], [1.0], torch.ones(1, 100))
    assert ledger.used == 2001


@pytest.mark.parametrize("groups", [4, 40, 100])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_invalid_observations_leave_no_trace(groups: int, bad: float) -> None:
    rng = np.random.default_rng(3)
    ledger = make_ledger(groups, 4)
    for _ in range(3):
        observe(ledger, [0, 1, 2, 3], rng.normal(size=4), rng.normal(size=(4, groups)), weight=0.7)
    before = {key: value.clone() for key, value in ledger.state_dict().items()}
    observe(ledger, [0, 2], [bad, bad], torch.full((2, groups), bad), valid=[False, False])
    for key, value in ledger.state_dict().items():
        assert torch.equal(value, before[key]), key
    observe(
        ledger, [0, 1], [bad, 1.0], torch.stack([torch.full((groups,), bad), torch.ones(groups)]), valid=[False, True]
    )
    assert torch.equal(ledger.sums[0], before["sums"][0])
    assert ledger.column("count").tolist() == [3, 4, 3, 3]


def test_scores_beyond_half_precision_stay_numbers() -> None:
    ledger = make_ledger(40, 1)
    for _ in range(3):
        observe(ledger, [0], [1.0], torch.full((1, 40), 1e6))
    assert bool(ledger.groups.mean.isfinite().all())


@pytest.mark.parametrize("groups", [4, 40, 100])
def test_an_example_twice_in_a_batch_counts_twice(groups: int) -> None:
    rng = np.random.default_rng(4)
    together, apart = make_ledger(groups, 3, duplicates=True), make_ledger(groups, 3)
    for _ in range(4):
        scores, group_scores = rng.normal(size=4), rng.normal(size=(4, groups)) + 3 * np.arange(groups)
        observe(together, [0, 1, 1, 2], scores, group_scores)
        observe(apart, [0, 1, 2], scores[[0, 1, 3]], group_scores[[0, 1, 3]])
        observe(apart, [1], scores[2:3], group_scores[2:3])
    torch.testing.assert_close(together.sums, apart.sums)
    assert together.column("count").tolist() == [4, 8, 4]
    assert torch.equal(together.worst_group()[0], apart.worst_group()[0])
    if together.groups.dense:
        torch.testing.assert_close(
            together.groups.mean, apart.groups.mean, atol=5e-2 if groups > 32 else 1e-5, rtol=1e-3
        )


@given(
    order=st.permutations(list(range(8))),
    cuts=st.lists(st.integers(1, 7), max_size=3, unique=True),
    seed=st.integers(0, 1000),
    groups=st.sampled_from([3, 40]),
)
@settings(max_examples=40, deadline=None)
def test_order_and_batching_of_observations_do_not_matter(order, cuts, seed, groups) -> None:
    rng = np.random.default_rng(seed)
    index, scores, by_group = rng.integers(0, 3, 8), rng.normal(size=8), rng.normal(size=(8, groups))
    one, other = make_ledger(groups, 3), make_ledger(groups, 3, duplicates=True)
    for i in range(8):
        observe(one, index[i : i + 1], scores[i : i + 1], by_group[i : i + 1], weight=0.5)
    for part in np.split(np.array(order), sorted(cuts)):
        observe(other, index[part], scores[part], by_group[part], weight=0.5)
    torch.testing.assert_close(one.sums, other.sums, atol=1e-5, rtol=1e-5)
    tolerance = 1e-5 if groups <= FLOAT_GROUPS else 2e-2
    torch.testing.assert_close(one.groups.mean, other.groups.mean, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(one.variance(), other.variance(), atol=1e-4, rtol=1e-3, equal_nan=True)


@pytest.mark.parametrize("groups", [4, 40, 100])
def test_state_comes_back_exactly_and_misfits_are_refused(groups: int) -> None:
    rng = np.random.default_rng(5)
    ledger = make_ledger(groups)
    for index, scores, by_group, weight in random_run(rng, 30, groups, 5):
        observe(ledger, index, scores, by_group, weight)
    state = {key: value.clone() for key, value in ledger.state_dict().items()}
    other = make_ledger(groups)
    observe(other, [2000], [3.0])
    other.load_state_dict(state)
    assert other.used == ledger.used
    for key, value in other.state_dict().items():
        assert torch.equal(value, state[key])
    assert not bool(other.sums[ledger.used :].any()), "nothing is left of what was there before"
    with pytest.raises(StateError):
        make_ledger(groups + 1 if groups < 64 else 3).load_state_dict(state)
    with pytest.raises(StateError, match="size=5"):
        make_ledger(groups, 5).load_state_dict(state)
    with pytest.raises(StateError, match="differ in length"):
        make_ledger(groups).load_state_dict({**state, "groups": state["groups"][:-1]})


def test_a_million_examples_and_a_thousand_classes() -> None:
    size, classes, width, batch = 1_000_000, 1000, 4, 64
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=generator)
    labels = torch.arange(classes)
    model = nn.Linear(width, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monitor = InfluenceMonitor(model, optimizer, anchors=(centres + 0.1, labels), size=size)
    drawn = torch.randint(0, size, (6, batch), generator=generator)
    drawn[0, 0] = size - 1
    for index in drawn:
        index = index.unique()
        y = index % classes
        x = centres[y] + 0.3 * torch.randn(len(y), width, generator=generator)
        with monitor.step(index):
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    table = monitor.scores()
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20  # GiB, ru_maxrss is in KiB
    assert len(table) == size
    seen = drawn.unique().numpy()
    np.testing.assert_array_equal(np.flatnonzero(table["n_observations"]), seen)
    assert np.isfinite(table["influence"][seen]).all()
    assert np.isnan(np.delete(table["influence"], seen)).all()
    assert ((table["group"][seen] >= 0) & (table["group"][seen] < classes)).all()
    assert set(np.delete(table["group"], seen)) == {-1}
    assert monitor.ledger.bytes_per_example <= 256
    assert sum(t.numel() * t.element_size() for t in _tensors(monitor.ledger)) <= 256 * size
    assert seconds < 60, f"{seconds:.0f} s for six steps"  # about 4 s on one core; the rest is room for a busy machine
    assert grown < 3, f"{grown:.1f} GiB more at the peak"


def test_a_share_of_an_observation_counts_like_a_smaller_weight() -> None:
    whole, parts = make_ledger(2), make_ledger(2)
    index, scores, groups = torch.arange(3), torch.tensor([1.0, 2.0, 3.0]), torch.randn(3, 2)
    share = torch.tensor([0.25, 1.0, 0.5])
    for ledger in (whole, parts):
        observe(ledger, index, scores, groups)
    for row in range(3):
        observe(whole, index[row : row + 1], -scores[row : row + 1], groups[row : row + 1], 0.8 * float(share[row]))
    values = torch.stack([-scores * factor for factor in (1, 2, 3, 4, 5, 6)], dim=1)
    ones = torch.ones(3, dtype=torch.bool)
    parts.add(index, values, groups, groups.softmax(1), groups.argmax(1), ones, 0.8, share)
    assert torch.allclose(whole.sums[:3], parts.sums[:3])
    assert torch.allclose(whole.groups.mean[:3].float(), parts.groups.mean[:3].float())
    assert torch.allclose(whole.classes.mean[:3].float(), parts.classes.mean[:3].float())
