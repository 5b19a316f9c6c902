"""What is decided from the data: the hold-out, batch size, epochs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.audit.errors import AuditError
from sgoif.audit.plan import hold_out, make_plan
from sgoif.audit.settings import AuditSettings
from sgoif.device.selection import choose_device


@given(
    sizes=st.lists(st.integers(1, 400), min_size=2, max_size=30),
    share=st.floats(0.01, 1 / 3),
    seed=st.integers(0, 5),
)
def test_every_class_gives_its_part_and_no_more(sizes: list[int], share: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    if sum(size >= 3 for size in sizes) < 2:
        with pytest.raises(AuditError, match="too few to audit"):
            hold_out(labels, share, seed)
        return
    rows, held = hold_out(labels, share, seed)
    assert sorted([*rows, *held]) == list(range(len(labels)))
    counts = np.bincount(labels[held], minlength=len(sizes))
    for size, count in zip(sizes, counts, strict=True):
        assert count <= size // 3
        assert count >= min(20, size // 3) or counts.sum() >= 0.9 * max(2000, 20 * len(sizes))


def test_shares_limits_and_seeds() -> None:
    labels = np.repeat(np.arange(10), 1000)
    _, held = hold_out(labels, 0.1, 0)
    assert np.bincount(labels[held]).tolist() == [100] * 10
    assert set(held) != set(hold_out(labels, 0.1, 1)[1])
    large = np.repeat([0, 1, 2], [40_000, 5_000, 50])
    counts = np.bincount(large[hold_out(large, 0.1, 0)[1]])
    assert counts.sum() in range(1990, 2001)
    assert counts[2] == 16
    assert counts[1] == 500
    many = np.repeat(np.arange(500), 90)
    assert np.bincount(many[hold_out(many, 0.1, 0)[1]]).tolist() == [20] * 500


def test_classes_of_one_or_two_images_are_only_trained_on() -> None:
    labels = np.array([0] * 30 + [1] * 30 + [2] + [3, 3])
    rows, held = hold_out(labels, 0.1, 0)
    assert set(labels[held]) == {0, 1}
    assert {60, 61, 62} <= set(rows)


def test_copies_are_trained_on_rather_than_held_out() -> None:
    labels = np.arange(200) % 2
    held = hold_out(labels, 0.1, 0, copies=range(100))[1]
    assert held.min() >= 100
    assert len(hold_out(labels, 0.1, 0, copies=range(200))[1]) == len(held) == 40


@pytest.mark.parametrize("labels", [[0, 1], [0, 0, 1, 1], [0] * 30 + [1]])
def test_too_few_images_are_refused_with_the_reason(labels: list[int]) -> None:
    with pytest.raises(AuditError, match="at least two classes need 3 images"):
        hold_out(np.array(labels), 0.1, 0)


def test_small_sets_get_small_batches_and_more_epochs() -> None:
    def plan(examples: int, **options: int) -> tuple[int, int, int]:
        found = make_plan(AuditSettings(Path("x"), from_scratch=True, device="cpu", **options), examples)  # type: ignore[arg-type]
        return found.batch_size, found.epochs, found.steps

    assert plan(4)[0] == 4
    assert plan(160)[:2] == (16, 60)
    assert plan(1_600)[0] == 64
    assert plan(9_000)[:2] == (128, 18)
    assert plan(1_000_000)[:2] == (128, 16)
    steps = [plan(n)[2] for n in (100, 400, 1_600, 9_000, 50_000)]
    assert min(steps) >= 400
    assert steps == sorted(steps)
    assert plan(9_000, epochs=3, batch_size=50) == (50, 3, 540)


def test_learning_rates_grow_with_the_batch_and_shrink_for_trained_weights(tmp_path: Path) -> None:
    def rate(**options: object) -> float:
        return make_plan(AuditSettings(Path("x"), from_scratch=True, device="cpu", **options), 9_000).learning_rate  # type: ignore[arg-type]

    assert rate(batch_size=32) == pytest.approx(rate(batch_size=128) / 2)
    assert rate(batch_size=512) == rate(batch_size=4096) == pytest.approx(2 * rate(batch_size=128))
    assert rate(model="a:b") < rate()
    assert rate(weights=tmp_path / "w.safetensors") < rate(model="a:b")
    assert rate(learning_rate=0.3) == 0.3


def test_auto_takes_a_device_that_is_there() -> None:
    assert choose_device("auto").type in ("cpu", "cuda")
    assert choose_device("cpu").type == "cpu"
