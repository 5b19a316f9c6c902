"""The judgement of labels stays small: its lines and the numbers that somebody chose, each with its source."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "src" / "sgoif" / "tasks" / "labels"
DECISION = (ROOT / "docs" / "decisions" / "0010-small-judgement.md").read_text(encoding="utf-8")
CHOSEN = {name: float(value) for name, value in re.findall(r"`([A-Z_]+)` = ([\d.]*\d)", DECISION)}
MOST_LINES, MOST_CHOSEN = 1200, 10


def numbers() -> dict[str, object]:
    """Every number that a module of the package has at its top, by name."""
    found: dict[str, object] = {}
    for path in FOLDER.glob("*.py"):
        own = re.findall(r"^([A-Z][A-Z_, ]*)(?:: \w+)? = ", path.read_text(encoding="utf-8"), re.MULTILINE)
        module = importlib.import_module(f"sgoif.tasks.labels.{path.stem}")
        for name in ", ".join(own).split(", "):
            value = getattr(module, name, None)
            if isinstance(value, (int, float, np.ndarray)):
                assert name not in found, f"{name} stands in two modules"
                found[name] = value
    return found


def test_the_package_has_few_lines() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FOLDER.rglob("*.py"))
    assert lines <= MOST_LINES


def test_few_numbers_were_chosen_and_the_page_has_all_of_them() -> None:
    known = numbers()
    assert len(known) > 20, "the numbers were not found"
    assert 0 < len(CHOSEN) <= MOST_CHOSEN
    for name, value in CHOSEN.items():
        assert known[name] == pytest.approx(value, abs=1e-4), f"the page has another value of {name}"
    unsaid = [name for name in known if f"`{name}`" not in DECISION]
    assert not unsaid, "the page says nothing of these numbers: is each one chosen, a level, or a bound of arithmetic?"
