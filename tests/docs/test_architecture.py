"""Every place in the code that the page of the architecture names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from doc_pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PLACE = re.compile(r"`([\w/]+\.py):([\w.]+)`")
FILE = re.compile(r"(?<![\w/*])((?:\w+/)*\w+\.py)(?![\w:])")
MEMBER = re.compile(r"`([A-Z]\w+\.\w+)`")


def names_in(path: Path) -> set[str]:
    """What a file defines: functions, classes, and their methods and attributes as `Class.name`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def wrong_places(text: str) -> list[str]:
    """The `file.py:function` of a text that are not in the package."""
    wrong = []
    for file, name in PLACE.findall(text):
        path = ROOT / "src" / "sgoif" / file
        if not path.is_file() or name not in names_in(path):
            wrong.append(f"{file}:{name}")
    return wrong


def test_every_function_that_is_named_is_there() -> None:
    assert len(PLACE.findall(PAGE)) >= 18
    assert not wrong_places(PAGE)


@pytest.mark.parametrize("place", ["stability/gates.py:no_such_gate", "stability/no_such_file.py:find_gate"])
def test_a_place_that_is_gone_is_noticed(place: str) -> None:
    assert wrong_places(f"see `{place}`") == [place]


def test_every_method_that_is_named_without_its_file_is_there() -> None:
    known = set().union(*(names_in(path) for path in (ROOT / "src" / "sgoif").rglob("*.py")))
    named = set(MEMBER.findall(PAGE))
    assert len(named) >= 4
    assert named <= known


def test_every_file_that_is_named_is_there() -> None:
    files = set(FILE.findall(PAGE))
    assert len(files) > 10
    assert not [file for file in files if not (ROOT / "src" / "sgoif" / file).is_file()]


def test_the_hops_are_numbered_without_a_gap() -> None:
    hops = PAGE.split("### One example, from the batch to its row")[1].split("\n\nOn a GPU")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. `", hops, flags=re.MULTILINE)]
    assert numbers == list(range(1, 13))
