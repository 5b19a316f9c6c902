"""The adaptor: what it finds, what it leaves alone, and how it answers odd questions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from poison_cases import CLASSES, SIZE, Cloud, Direct, cloud
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from sgoif.core.data import Part, indexed
from sgoif.errors import SettingError
from sgoif.tasks import PoisonTrace
from sgoif.tasks.poisoning import feature_extraction
from sgoif.tasks.poisoning.trace import OUTSTANDING, UNKNOWN
from sgoif_bench.metrics import average_precision


@pytest.fixture(scope="module")
def case() -> Cloud:
    return cloud()


@pytest.fixture(scope="module")
def trace(case: Cloud) -> PoisonTrace:
    return PoisonTrace.fit(Direct(case.x, case.y), case.dataset())


def test_known_victims_lead_to_all_that_was_planted_and_nothing_else(case: Cloud, trace: PoisonTrace) -> None:
    for victims in (case.victims, case.victims[:1]):
        found = trace.culprits(victims, case.target)
        assert sorted(found.selected) == np.flatnonzero(case.planted).tolist()
        assert average_precision(case.planted, found.score) == 1
        assert (found.probability[case.planted] > 0.5).all()
        assert (found.probability[~case.planted] < 0.5).all()
        assert [family.label for family in found.families] == [case.target]
        assert sorted(found.families[0].index) == sorted(found.selected)
        assert found.score.dtype == found.probability.dtype == np.float64
        assert len(found) == len(case.y)


def test_nothing_known_leads_there_too_and_nothing_is_found_where_nothing_is(case: Cloud, trace: PoisonTrace) -> None:
    found = trace.suspects()
    assert sorted(found.selected) == np.flatnonzero(case.planted).tolist()
    assert average_precision(case.planted, found.score) == 1
    assert found.evidence[0].label == case.target
    assert [item.passed for item in found.evidence] == [True] + [False] * (len(found.evidence) - 1)
    for seed in range(4):
        clean = cloud(planted=0, seed=seed)
        searched = PoisonTrace.fit(Direct(clean.x, clean.y), clean.dataset())
        for answer in (searched.suspects(), searched.culprits(clean.victims[:2], 1)):
            assert len(answer.selected) == 0
            assert answer.families == []
            assert answer.probability.max() < 0.5
        assert "nothing stands apart" in repr(searched.suspects())


def test_a_group_is_nothing_special_where_most_classes_have_one() -> None:
    case = cloud(per_class=200, planted=0)
    x = case.x.clone()
    kinds = [torch.nonzero(case.y == label).squeeze(1)[:20] for label in range(CLASSES)]
    for label, rows in enumerate(kinds):
        x[rows, 10 + label] += 10
    crowded = PoisonTrace.fit(Direct(x, case.y), TensorDataset(x, case.y)).suspects()
    assert len(crowded.selected) == 0
    assert min(item.mixture.separation for item in crowded.evidence) > UNKNOWN.separation  # each by itself would do
    alone = case.x.clone()
    alone[kinds[1], 11] += 10
    found = PoisonTrace.fit(Direct(alone, case.y), TensorDataset(alone, case.y)).suspects()
    assert sorted(found.selected) == sorted(kinds[1].tolist())
    typical = np.median([item.mixture.separation for item in found.evidence if item.label != 1])
    assert found.evidence[0].mixture.separation > OUTSTANDING * typical


@pytest.mark.parametrize("planted", [140, 170])
def test_of_two_halves_none_is_removed_and_the_class_is_named(planted: int) -> None:
    case = cloud(planted=0)
    extra = torch.randn(planted, SIZE) + case.x[case.y == 2].mean(0)
    extra[:, 7] += 16
    x, y = torch.cat([case.x, extra]), torch.cat([case.y, torch.full((planted,), 2)])
    truth = np.arange(len(y)) >= len(case.y)
    found = PoisonTrace.fit(Direct(x, y), TensorDataset(x, y), names=("ant", "bee", "cat", "dog")).suspects()
    assert len(found.selected) == 0
    assert any("labelled cat fall into two large parts" in note for note in found.notes)
    own = y.numpy() == 2
    assert np.sort(found.score)[-own.sum() + 1 :].min() >= found.score[~own].max()
    precision = average_precision(truth, found.score)
    assert (precision == 1) if planted < 150 else (precision > truth.mean())  # the smaller half comes first


def test_examples_of_other_labels_rank_below_all_of_the_wrong_label(case: Cloud, trace: PoisonTrace) -> None:
    found = trace.culprits(case.victims, case.target)
    own = case.y.numpy() == case.target
    assert found.score[~own].max() < found.score[own].min()
    assert np.isfinite(found.score).all()
    assert (found.probability[~own] == 0).all()


def test_without_labels_the_answers_of_the_network_are_traced(case: Cloud, trace: PoisonTrace) -> None:
    answers = trace.views.network.model(case.victims).argmax(1)
    assert (answers == case.target).all()
    np.testing.assert_array_equal(trace.culprits(case.victims).score, trace.culprits(case.victims, case.target).score)


def test_victims_of_two_labels_are_traced_apart() -> None:
    first, second = cloud(target=0, seed=1), cloud(target=3, seed=1, planted=20)
    planted = torch.cat([first.x, second.x[torch.from_numpy(second.planted)]])
    labels = torch.cat([first.y, second.y[torch.from_numpy(second.planted)]])
    truth = np.concatenate([first.planted, np.ones(20, dtype=bool)])
    trace = PoisonTrace.fit(Direct(planted, labels), TensorDataset(planted, labels))
    victims = torch.cat([first.victims[:4], second.victims[:4]])
    found = trace.culprits(victims, [0] * 4 + [3] * 4)
    assert sorted(found.selected) == np.flatnonzero(truth).tolist()
    assert sorted(family.label for family in found.families) == [0, 3]
    assert [item.label for item in found.responsible] == [0] * 4 + [3] * 4
    table = found.table()
    assert table.columns == ["index", "poison_score", "probability", "family", "given_label", "selected"]
    assert set(table["family"][truth]) == {0, 1}
    assert set(table["family"][~truth]) == {-1}
    assert table["selected"].sum() == truth.sum()
    assert (table["given_label"] == labels.numpy()).all()


def test_each_victim_has_its_most_responsible_examples(case: Cloud, trace: PoisonTrace) -> None:
    found = trace.culprits(case.victims, case.target)
    assert len(found.responsible) == len(case.victims)
    for item in found.responsible:
        assert len(item.index) == len(item.score) == 8
        assert case.planted[item.index].all()
        assert (np.diff(item.score) <= 0).all()


def test_how_many_to_remove_is_worked_out_once_when_asked(case: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgoif.tasks.poisoning import trace as module

    calls = []
    real = module.estimate_removal

    def counted(*given: Any) -> Any:
        calls.append(1)
        return real(*given)

    monkeypatch.setattr(module, "estimate_removal", counted)
    trace = PoisonTrace.fit(Direct(case.x, case.y), case.dataset())
    found = trace.culprits(case.victims, case.target)
    assert calls == []
    assert found.to_restore is found.to_restore
    assert len(calls) == 1
    assert trace.suspects().to_restore is None


def test_indices_are_kept_whatever_the_order(case: Cloud, trace: PoisonTrace) -> None:
    model = Direct(case.x, case.y)
    wanted = trace.suspects()
    shuffled = DataLoader(indexed(case.dataset()), batch_size=64, shuffle=True)
    again = PoisonTrace.fit(model, shuffled).suspects()
    np.testing.assert_allclose(again.score, wanted.score, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(again.index, np.arange(len(case.y)))
    rows = [row for row in range(len(case.y)) if row % 7 != 3]
    part = PoisonTrace.fit(model, Part(case.dataset(), rows)).suspects()
    np.testing.assert_array_equal(part.index, rows)
    assert set(part.selected) == set(rows) & set(np.flatnonzero(case.planted))
    assert part.score.shape == (len(rows),)
    batches = [(case.x[i : i + 50], case.y[i : i + 50]) for i in range(0, len(case.y), 50)]
    np.testing.assert_allclose(PoisonTrace.fit(model, batches).suspects().score, wanted.score, rtol=1e-4, atol=1e-6)
    plain = PoisonTrace.fit(model, (case.x, case.y)).suspects()
    np.testing.assert_array_equal(plain.score, wanted.score)


def test_other_labels_can_be_given(case: Cloud) -> None:
    model = Direct(case.x, case.y)
    hidden = TensorDataset(case.x, torch.zeros_like(case.y))
    found = PoisonTrace.fit(model, hidden, labels=case.y.tolist()).culprits(case.victims, case.target)
    assert sorted(found.selected) == np.flatnonzero(case.planted).tolist()
    assert (found.given == case.y.numpy()).all()


def test_the_model_and_the_random_state_are_left_as_they_were(case: Cloud) -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(SIZE), Direct(case.x, case.y))
    model.train()
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    trace = PoisonTrace.fit(model, case.dataset())
    trace.culprits(case.victims, case.target)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [module.training for module in model] == [False, True, True]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_batches_and_repetition_change_nothing(case: Cloud, trace: PoisonTrace) -> None:
    other = PoisonTrace.fit(Direct(case.x, case.y), case.dataset(), batch_size=17)
    np.testing.assert_allclose(other.suspects().score, trace.suspects().score, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(trace.suspects().score, trace.suspects().score)


def test_two_classes_with_a_single_logit() -> None:
    case = cloud(target=1)
    keep = case.y < 2
    x, y, planted = case.x[keep], case.y[keep], case.planted[keep.numpy()]
    means = [x[y == c].mean(0) for c in (0, 1)]

    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(SIZE, 1)
            with torch.no_grad():
                self.head.weight.copy_((means[1] - means[0])[None])
                self.head.bias.fill_(float(0.5 * (means[0] @ means[0] - means[1] @ means[1])))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(x)
            return out

    found = PoisonTrace.fit(Single(), TensorDataset(x, y)).culprits(case.victims, 1)
    assert sorted(found.selected) == np.flatnonzero(planted).tolist()
    assert found.families[0].resembles == {0: int(planted.sum())}


def test_notes_tell_what_does_not_fit(case: Cloud) -> None:
    few = torch.cat([torch.nonzero(case.y != 3).squeeze(1), torch.nonzero(case.y == 3).squeeze(1)[:6]])
    trace = PoisonTrace.fit(Direct(case.x, case.y), TensorDataset(case.x[few], case.y[few]))
    found = trace.culprits(case.victims[:2], 3)
    assert "2 of 2 victims do not get the label" in found.notes[0]
    assert "only 6 training examples have the label 3" in found.notes[1]
    assert len(found.selected) == 0
    assert len(found.responsible) == 2
    assert len(found.responsible[0].index) == 0
    assert found.to_restore is None
    assert "1 classes have fewer than 20 examples" in trace.suspects().notes[0]


def test_stages_are_left_out_where_they_would_not_fit(case: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    images = case.x.reshape(-1, 1, 4, 6)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES))
    whole = PoisonTrace.fit(model, TensorDataset(images, case.y))
    assert [stage.shape for stage in whole.views.stages] == [(len(images), 2), (len(images), 2)]
    monkeypatch.setattr(feature_extraction, "MOST_STAGE_BYTES", 100)
    monkeypatch.setattr(feature_extraction, "KEEP_ON_DEVICE", 100)
    small = PoisonTrace.fit(model, TensorDataset(images, case.y))
    assert small.views.stages == []
    np.testing.assert_array_equal(small.suspects().score, whole.suspects().score)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_set": []}, "empty"),
        ({"train_set": [torch.zeros(3, SIZE)]}, r"\(x, y\)"),
        ({"train_set": 7}, "a data set, a loader"),
        ({"batch_size": 0}, "at least 1"),
        ({"labels": [0, 1]}, "2 labels"),
        ({"labels": [0.5] * 10}, "class numbers"),
        ({"labels": [9] * 10}, "the model has 4 classes"),
        ({"train_set": [(torch.zeros(3, SIZE), torch.zeros(2))]}, "3 inputs but 2 labels"),
        ({"train_set": [(torch.zeros(2, SIZE), torch.tensor([0.5, 1]))]}, "must be class numbers"),
        ({"train_set": [(torch.zeros(2, SIZE), torch.zeros(2), torch.zeros(2))]}, "same index twice"),
        ({"train_set": [(torch.full((2, SIZE), torch.nan), torch.zeros(2))]}, "not finite"),
    ],
)
def test_a_training_set_that_cannot_be_read_is_an_error(given: dict[str, Any], message: str) -> None:
    x, y = torch.randn(10, SIZE), torch.arange(10) % CLASSES
    settings: dict[str, Any] = {"train_set": TensorDataset(x, y), **given}
    with pytest.raises(SettingError, match=message):
        PoisonTrace.fit(Direct(x, y), **settings)


@pytest.mark.parametrize("way", ["shuffle", "weighted", "batches", "subset", "indexed", "part", "whole"])
def test_whatever_a_loader_draws_examples_are_named_by_their_place_in_the_data(case: Cloud, way: str) -> None:
    data, count = case.dataset(), len(case.y)
    rows = np.random.default_rng(0).permutation(count)[: count - 50]
    loader: DataLoader[Any] = {
        "shuffle": lambda: DataLoader(data, batch_size=32, shuffle=True),
        "weighted": lambda: DataLoader(data, batch_size=32, sampler=WeightedRandomSampler([1.0] * count, count)),
        "batches": lambda: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 32, drop_last=False)),
        "subset": lambda: DataLoader(data, batch_size=32, sampler=SubsetRandomSampler(rows.tolist())),
        "indexed": lambda: DataLoader(indexed(data), batch_size=32, sampler=SubsetRandomSampler(rows.tolist())),
        "part": lambda: DataLoader(Part(data, rows.tolist()), batch_size=32),
        "whole": lambda: DataLoader([(case.x[:70], case.y[:70]), (case.x[70:], case.y[70:])], batch_size=None),  # type: ignore[arg-type, list-item]
    }[way]()
    found = PoisonTrace.fit(Direct(case.x, case.y), loader).culprits(case.victims, case.target)
    there = np.sort(rows) if way in ("subset", "indexed", "part") else np.arange(count)
    assert found.index.tolist() == there.tolist()
    assert sorted(found.selected) == [row for row in there.tolist() if case.planted[row]]


@pytest.mark.parametrize(
    ("victims", "labels", "message"),
    [
        (torch.zeros(0, SIZE), 0, "batch of inputs"),
        (torch.zeros(2, SIZE + 1), 0, "batch of inputs"),
        ([1, 2], 0, "got list"),
        (torch.full((1, SIZE), torch.inf), 0, "finite"),
        (torch.zeros(2, SIZE), 4, "0 to 3"),
        (torch.zeros(2, SIZE), [0, 1, 2], "one label, or one each"),
        (torch.zeros(2, SIZE), 0.5, "class numbers"),
    ],
)
def test_victims_that_do_not_fit_are_an_error(trace: PoisonTrace, victims: Any, labels: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        trace.culprits(victims, labels)
