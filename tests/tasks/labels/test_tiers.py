"""The ranking in three parts."""

from __future__ import annotations

import numpy as np
import pytest
from label_cases import Problem

from sgoif.errors import SettingError
from sgoif.tasks import LabelErrors
from sgoif.tasks.review import report


def test_the_parts_follow_each_other_and_hold_everything(plain: LabelErrors) -> None:
    surely, look, fine = plain.tiers()
    assert [part.name for part in (surely, look, fine)] == ["surely wrong", "worth a look", "fine"]
    judged = int(np.isfinite(plain.table()["probability_wrong"]).sum())
    assert surely.size + look.size + fine.size == judged
    assert surely.size == len(plain.select(0.1))
    assert surely.size + look.size == pytest.approx(plain.noise_rate().high * judged, abs=1)
    for part in (surely, look, fine):
        assert 0 <= part.low <= part.high <= 1
    assert surely.low >= look.low >= fine.low


def test_what_is_surely_wrong_mostly_is(plain: LabelErrors, problem: Problem) -> None:
    chosen = plain.select(0.1)
    assert len(chosen) >= 5
    assert problem.wrong[chosen].mean() > 0.85


def test_a_model_that_knows_nothing_still_shows_the_first(ignorant: LabelErrors) -> None:
    surely, look, _ = ignorant.tiers()
    assert surely.size == 0
    assert look.size > 100
    assert "it cannot be told how many" in repr(ignorant)
    assert f"{look.size:,} more are worth a look" in repr(ignorant)


@pytest.mark.parametrize("count", [40, 100])
def test_looks_say_how_many_labels_are_wrong(plain: LabelErrors, problem: Problem, count: int) -> None:
    drawn = plain.review_plan(count)
    assert len(set(drawn.tolist())) == count
    assert drawn.tolist() == plain.review_plan(200)[:count].tolist()
    found = plain.update({int(i): int(problem.true[i]) for i in drawn})
    assert found.share.low <= problem.wrong.mean() <= found.share.high
    assert found.share.high - found.share.low < 0.3
    assert "labels are wrong" in report(found)


def test_what_nobody_can_tell_makes_room_for_another_look(plain: LabelErrors, problem: Problem) -> None:
    first, *rest = (int(i) for i in plain.review_plan(40))
    looked: dict[int, int | None] = {i: int(problem.true[i]) for i in rest}
    assert len(plain.update(looked).looks) == 0
    found = plain.update({**looked, first: None})
    assert found.decided == 39
    assert 15 < len(found.looks) < 40


def test_looks_hold_for_a_model_that_knows_nothing(ignorant: LabelErrors, problem: Problem) -> None:
    found = ignorant.update({int(i): int(problem.true[i]) for i in ignorant.review_plan(100)})
    assert found.share.low <= problem.wrong.mean() <= found.share.high


def test_decisions_of_another_form_are_answered_with_a_sentence(plain: LabelErrors) -> None:
    with pytest.raises(SettingError, match=r"decisions=\[1, 2\] is not valid: expected \{index: class number\}"):
        plain.update([1, 2])  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="example 99999"):
        plain.update({99_999: 1})
