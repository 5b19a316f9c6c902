"""The tables of the pages are those of the result files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pages import cells, curriculum, engine, fill, label_errors, labels

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_no_page_is_out_of_date() -> None:
    for page in fill.PAGES:
        text = page.read_text(encoding="utf-8")
        assert fill.filled(text) == text, f"{page.name} is out of date; run: make tables"
        assert len(fill.MARK.findall(text)) == text.count("<!-- table:")


def test_a_figure_that_was_typed_is_replaced() -> None:
    page = (DOCS / "benchmarks" / "labels.md").read_text(encoding="utf-8")
    typed = re.sub(r"(\| CIFAR-10, mean \| )[\d.]+", r"\g<1>99.9", page, count=1)
    assert typed != page
    assert fill.filled(typed) == page


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(SystemExit, match="no table 'nonsense'"):
        fill.filled("<!-- table: nonsense -->\n<!-- end -->")


def test_ties_are_all_marked_and_missing_cells_are_dashes() -> None:
    assert cells.marked([[98.61], [98.64], [90.0], []]) == ["**98.6**", "**98.6**", "90.0", "–"]
    assert cells.number([1.0, 3.0]) == "2.0 ± 1.4"


def _line(method: str, aupr: float, *, seed: int = 3, trainings: float = 1) -> dict[str, Any]:
    line = {"noise": "symmetric-20", "method": method, "seed": seed, "trainings": trainings}
    return {**line, "metrics": {"aupr": aupr}}


def test_the_best_rival_is_the_best_with_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [_line("sgoif", 0.9), _line("coteaching", 0.92, trainings=2.96), _line("aum", 0.91)]
    lines += [_line("aum", 0.99, seed=4), _line("influence", 0.95), _line("sgoif", 0.5, seed=4)]
    monkeypatch.setattr(labels, "read_lines", lambda name: lines)
    monkeypatch.setattr(labels, "SETS", {"CIFAR-10": "a.jsonl"})
    first, mean = labels.best_rivals().splitlines()[2:]
    assert first == "| CIFAR-10, symmetric 20% | 90.0 | Co-teaching | 92.0 | 3 | −2.00 | held-out |"
    assert mean == "| CIFAR-10, mean | 90.0 | best of each | 92.0 |  | −2.00 |  |"


def test_the_corpus_is_counted_by_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"covered": True, "width": 0.1, "false_discovery_rate": 0.2, "recall": 0.5}
    line = {"name": "a", "set": "mnist", "agreement": 0.9, "error": None, "aupr": None, "constants": "(1,)"}
    lines = [
        {**line, "stated": told},
        {**line, "set": "cifar10", "stated": {**told, "covered": False}},
        {**line, "name": "published-x", "with_decoys": None, "without_decoys": told, "constants": None},
        {**line, "error": "too little is known"},
    ]
    monkeypatch.setattr(label_errors, "read_lines", lambda name: lines)
    rows = label_errors.TABLES["label-errors-corpus"]().splitlines()[2:]
    assert rows == [
        "| MNIST | 1 | 100% | 0.10 | 0% | 50% | – | held-out |",
        "| CIFAR-10 | 1 | 0% | 0.10 | 0% | 50% | – | held-out |",
        "| published, CIFAR-10 | 1 | 100% | 0.10 | 0% | 50% | – | dev |",
        "| all | 3 | 67% | 0.10 | 0% | 50% | – | dev |",
    ]


def test_a_method_without_lines_of_its_own_is_the_first_of_two_trainings() -> None:
    twice = {"method": "sce-twice", "metrics": {"accuracy": 0.9}, "details": {"first_accuracy": 0.8}}
    assert curriculum._values([twice], "sce") == [80]
    assert curriculum._values([twice, {"method": "sce", "metrics": {"accuracy": 0.7}}], "sce") == [70]
    assert curriculum._values([twice], "plain") == []


def test_every_row_of_the_benchmarks_says_how_it_was_selected() -> None:
    for module in (labels, label_errors, curriculum, engine):
        for make in module.TABLES.values():
            head, _, *rows = ([cell.strip() for cell in row.split("|")[1:-1]] for row in make().splitlines())
            assert head[-1] == "selection"
            assert all(row[-1] in ("dev", "held-out") for row in rows if not row[0].endswith("mean"))
