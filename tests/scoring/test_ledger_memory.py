"""Where a ledger lies, how it grows, and ledgers that are made of others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sgoif.scoring.ledger import LARGEST_INDEX, Ledger

CPU, META = torch.device("cpu"), torch.device("meta")
SOUND = torch.ones(1, dtype=torch.bool)


def tensors(ledger: Ledger) -> dict[str, torch.Tensor]:
    rows = {"groups": ledger.groups, "classes": ledger.classes}
    parts = {f"{name} {part}": getattr(held, part) for name, held in rows.items() for part in ("mean", "slot")}
    own = {"sums": ledger.sums, "label": ledger.label, "notes": ledger.autocorrelation.sums}
    return {**own, **parts, "powers": ledger._powers, "factors": ledger._factors}


def observe(ledger: Ledger, index: int, score: float, weight: float = 1.0, label: int = 0) -> None:
    ledger.reserve(index)
    rows, width = torch.tensor([index]), (ledger.groups.columns, ledger.classes.columns)
    values = torch.full((1, 6), score)
    groups, classes = (torch.linspace(0, score, columns).unsqueeze(0) for columns in width)
    ledger.add(rows, values, groups, classes, torch.tensor([label]), torch.ones(1, dtype=torch.bool), weight)


@pytest.mark.parametrize("columns", [3, 100])
def test_all_of_it_lies_on_its_device(columns: int) -> None:
    ledger = Ledger(columns, columns, META, 4)
    for made in (ledger, ledger.blank(), ledger.every(2, 1)):
        assert {name: part.device.type for name, part in tensors(made).items() if part.device.type != "meta"} == {}
    assert ledger.label.dtype == torch.int32


def test_indices_reach_up_to_the_largest_of_32_bits() -> None:
    assert Ledger(1, 1, META, LARGEST_INDEX).used == 2**31 - 1
    growing = Ledger(1, 1, META)
    growing.reserve(LARGEST_INDEX)
    assert growing.used == 2**31
    assert {part.device.type for part in tensors(growing).values()} == {"meta"}


def test_it_grows_by_half_from_a_thousand_rows_or_to_what_is_asked_for() -> None:
    ledger = Ledger(3, 3, CPU)
    assert len(ledger.sums) == 0
    for largest, rows in ((3, 1024), (1023, 1024), (1024, 1536), (5000, 5001)):
        ledger.reserve(largest)
        assert {len(part) for part in (ledger.sums, ledger.label, ledger.groups.mean, ledger.classes.mean)} == {rows}


@pytest.mark.parametrize("size", [None, 6])
def test_an_example_that_was_never_seen_has_no_label(size: int | None) -> None:
    ledger = Ledger(100, 100, CPU, size)
    observe(ledger, 2, 1.0, label=7)
    assert ledger.label[:3].tolist() == [-1, -1, 7]
    assert ledger.groups.slot[:2].unique().tolist() == [-1]
    group, value = ledger.worst_group()
    assert len(group) == len(value) == ledger.used == (size or 3)


@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("size", [None, 6])
def test_a_copy_has_the_same_layout_and_memory_of_its_own(size: int | None, duplicates: bool) -> None:
    ledger = Ledger(3, 100, CPU, size, duplicates=duplicates)
    observe(ledger, 2, 1.5)
    for made in (ledger.blank(), ledger.copy(), ledger.every(3, 2)):
        assert made.duplicates is duplicates
        assert (made.groups.columns, made.classes.columns) == (3, 100)
    assert ledger.blank().fixed_size == ledger.copy().fixed_size == size
    assert ledger.every(3, 2).fixed_size == (2 if size else None)
    copied = ledger.copy()
    assert copied.used == ledger.used
    observe(copied, 2, 0.5)
    assert copied.column("count")[2] == 2
    assert ledger.column("count")[2] == 1
    assert Ledger(3, 3, CPU).duplicates is False


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.25), (0.5, 0.5, 1.0)])
def test_the_variance_of_few_unequal_observations_is_the_formula(weights: tuple[float, ...]) -> None:
    scores = np.array([1.0, 4.0, 2.0])[: len(weights)]
    ledger = Ledger(1, 1, CPU, 1)
    for score, weight in zip(scores, weights, strict=True):
        observe(ledger, 0, float(score), weight)
    effective = sum(weights) ** 2 / sum(w * w for w in weights)
    mean = np.average(scores, weights=weights)
    expected = np.average((scores - mean) ** 2, weights=weights) * effective / (effective - 1)
    assert float(ledger.effective_count()[0]) == pytest.approx(effective)
    assert float(ledger.variance()[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [None, 6])
@pytest.mark.parametrize("columns", [3, 100])
def test_what_is_forgotten_was_never_seen(columns: int, size: int | None) -> None:
    ledger = Ledger(columns, columns, CPU, size)
    observe(ledger, 5, 1.0, label=2)
    ledger.autocorrelation.observe(ledger, 1)
    ledger.forget()
    fresh = Ledger(columns, columns, CPU, size)
    fresh.reserve(5)
    for name, part in tensors(fresh).items():
        assert torch.equal(tensors(ledger)[name], part), name
    assert ledger.used == 6


def test_parts_of_a_state_have_the_names_of_saved_files() -> None:
    dense, slots = Ledger(3, 3, CPU, 4), Ledger(100, 100, CPU, 4)
    notes = {"autocorrelation.moments", "autocorrelation.sums"}
    assert set(dense.state_dict()) == {"sums", "label", "groups", "classes"} | notes
    assert set(slots.state_dict()) - set(dense.state_dict()) == {"group_slots", "class_slots"}


def test_a_state_without_examples_leaves_none() -> None:
    ledger = Ledger(3, 3, CPU)
    observe(ledger, 5, 1.0)
    ledger.load_state_dict(Ledger(3, 3, CPU).state_dict())
    assert ledger.used == 0


def test_the_first_group_has_a_slot_like_any_other() -> None:
    ledger = Ledger(100, 3, CPU, 1)
    for score in (1.0, 3.0):
        by_group = torch.zeros(1, 100)
        by_group[0, 0] = score
        ledger.add(torch.tensor([0]), torch.ones(1, 6), by_group, torch.ones(1, 3), torch.tensor([0]), SOUND, 1.0)
    group, value = ledger.worst_group()
    assert (int(group), float(value)) == (0, 2.0)


@pytest.mark.parametrize("score", [1e6, -1e6])
def test_means_beyond_half_precision_stay_at_its_end(score: float) -> None:
    ledger = Ledger(40, 3, CPU, 1)
    ledger.add(torch.tensor([0]), torch.ones(1, 6), torch.full((1, 40), score), torch.ones(1, 3), torch.tensor([0]),
               SOUND, 1.0)  # fmt: skip
    assert ledger.groups.mean.unique().tolist() == [math.copysign(65504.0, score)]
