"""The tables of the pages are those of the result files."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(DOCS))  # as for a script that is run from there
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS))
    return module


def test_no_page_is_out_of_date(tables: ModuleType) -> None:
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.filled(text) == text, f"{page.name} is out of date; run: python docs/tables.py"
        assert len(tables.MARK.findall(text)) == text.count("<!-- table:")


def test_a_figure_that_was_typed_is_replaced(tables: ModuleType) -> None:
    page = (DOCS / "benchmarks" / "labels.md").read_text(encoding="utf-8")
    typed = re.sub(r"(\| mean \| \*\*)[\d.]+", r"\g<1>99.9", page, count=1)
    assert typed != page
    assert tables.filled(typed) == page


def test_an_unknown_table_is_named(tables: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no table 'nonsense'"):
        tables.filled("<!-- table: nonsense -->\n<!-- end -->")


def test_ties_are_all_marked_and_missing_cells_are_dashes(tables: ModuleType) -> None:
    cells = sys.modules["filling.cells"]
    assert cells.marked([[98.61], [98.64], [90.0], []]) == ["**98.6**", "**98.6**", "90.0", "–"]
    assert cells.number([1.0, 3.0]) == "2.0 ± 1.4"


def test_f1_by_hand_and_of_an_empty_selection(tables: ModuleType) -> None:
    thresholds = sys.modules["filling.labels_thresholds"]
    assert thresholds.f1(0.2, 0.6) == pytest.approx(2 * 0.8 * 0.6 / 1.4)
    assert thresholds.f1(None, 0.0) == 0


def test_the_recall_of_a_list_without_a_mistake_by_hand(tables: ModuleType) -> None:
    metrics = sys.modules["filling.labels_metrics"]
    assert metrics.best_recall([0.05, 0.5], 0.1) == pytest.approx((1 + 0.2) / 2)


def _line(method: str, aupr: float, *, seed: int = 3, gradual: float = 10) -> dict[str, Any]:
    details = {"gradual_epochs": gradual} if method == "coteaching" else {}
    line = {"set": "cifar10", "noise": "symmetric-20", "method": method, "seed": seed, "details": details}
    return {**line, "metrics": {"aupr": aupr}}


def test_the_best_rival_is_the_best_with_the_same_seed(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, verdict = sys.modules["filling.labels"], sys.modules["filling.labels_verdict"]
    lines = [_line("sgoif", 0.9), _line("sce", 0.92), _line("aum", 0.91), _line("aum", 0.99, seed=4)]
    lines += [_line("influence", 0.95), _line("sgoif", 0.5, seed=4)]
    monkeypatch.setattr(labels, "read_lines", lambda name: lines)
    monkeypatch.setattr(verdict, "NOISES", {"symmetric-20": "symmetric 20%"})
    row = verdict.best_rivals().splitlines()[2]
    assert row.startswith("| symmetric 20% | 90.0 | SCE loss | 92.0 | −2.00 |")
    assert row.endswith(f" {len([name for name in labels.choose('all') if verdict.is_rival(name)]) - 2} |")


def test_leads_over_rivals_are_of_what_both_were_run_on(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = sys.modules["filling.labels"]
    lines = [{**_line("sgoif", aupr), "noise": noise} for noise, aupr in (("symmetric-20", 0.9), ("symmetric-40", 0.8))]
    lines += [
        _line("sce", 0.92),
        {**_line("sce", 0.7), "noise": "symmetric-40"},
        _line("incv", 0.5),
        _line("incv", 1, seed=4),
    ]
    monkeypatch.setattr(labels, "read_lines", lambda name: [{**line, "trainings": 1.0} for line in lines])
    head, *rows = ([cell.strip() for cell in row.split("|")[1:-1]] for row in labels.heavy().splitlines())
    leads = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert [leads[row]["SCE loss"] for row in ("SG-OIF ahead by, mean", "at worst")] == ["+4.00", "−2.00"]
    assert [leads[row]["INCV"] for row in ("SG-OIF ahead by, mean", "at worst")] == ["+40.00", "+40.00"]
    assert leads["at worst"]["Mixup"] == "–"


def test_hurried_and_patient_rows_have_the_same_seeds(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    coteaching = sys.modules["filling.labels_coteaching"]
    files = {
        coteaching.HURRIED: [_line("coteaching", 0.5, gradual=1), _line("coteaching", 0.1, seed=4, gradual=1)],
        coteaching.CIFAR: [_line("coteaching", 0.8), _line("coteaching", 0.2, seed=5), _line("sce", 1.0)],
    }
    monkeypatch.setattr(coteaching, "read_lines", lambda name: files.get(name, []))
    assert coteaching.hurried().splitlines()[2:] == ["| CIFAR-10 | symmetric 20% | 1 | 50.0 | **80.0** |"]
    files[coteaching.CIFAR] = []
    assert coteaching.hurried().splitlines()[2:] == ["| CIFAR-10 | symmetric 20% | 1 | **30.0 ± 28.3** | – |"]
