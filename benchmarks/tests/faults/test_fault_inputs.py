"""Bad inputs and bad days: every case ends as it should."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fault_program import result_of

from sgoif_bench.faults.cases import CASES, names

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"), pytest.mark.long]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What was tried, case by case."""
    found: list[dict[str, Any]] = result_of(tmp_path_factory.mktemp("faults"), "--kills", "0")["inputs"]
    return found


@pytest.mark.parametrize("name", names())
def test_a_bad_input_gets_its_answer(name: str, cases: list[dict[str, Any]]) -> None:
    (case,) = [case for case in cases if case["case"] == name]
    assert case["wrong"] == [], case["said"]


def test_cases_differ() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.code for case in CASES} == {0, 2, 3}
