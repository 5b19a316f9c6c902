"""Tables by hand: means, spreads, the best, ties, holes, and text that must not break a format."""

from __future__ import annotations

import json
import shutil
import subprocess
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from sgoif.errors import SettingError
from sgoif_bench.cli import main
from sgoif_bench.labels.lines import METRICS
from sgoif_bench.labels.table import TableSettings
from sgoif_bench.tables.cells import Cell, within_error
from sgoif_bench.tables.formats import escape_latex, escape_markdown
from sgoif_bench.tables.layout import build, render


def line(method: str, aupr: float | None, seed: int = 0, noise: str = "symmetric-20", **changes: Any) -> dict[str, Any]:
    metrics = {"aupr": aupr, "f1": None}
    recipe = {"model": "resnet9", "epochs": changes.pop("epochs", 20)}
    known: dict[str, Any] = {
        "set": "cifar10", "noise": noise, "method": method, "seed": seed, "shared": False, "metrics": metrics,
        "recipe_id": f"r{recipe['epochs']}", "recipe": recipe, "seconds": 10.0, "trainings": 1.0, "removal": None,
        "memory": {"peak_bytes": 3 * 2**20}, "machine": {"device": "cpu"},
    }  # fmt: skip
    return {**known, **changes}


THREE = [
    *(line("sgoif", value, seed) for seed, value in enumerate((0.90, 0.92, 0.94))),
    *(line("aum", value, seed) for seed, value in enumerate((0.91, 0.90, 0.935))),
    *(line("loss", value, seed) for seed, value in enumerate((0.80, 0.82, 0.81))),
    *(line("sgoif", value, seed, "class-dependent-20") for seed, value in enumerate((0.7, 0.8, 0.9))),
    *(line("aum", value, seed, "class-dependent-20") for seed, value in enumerate((0.5, 0.6, 0.7))),
]


def test_numbers_by_hand() -> None:
    (table,) = build(THREE, TableSettings())
    ours, aum, loss = ("sgoif",), ("aum",), ("loss",)
    assert table.rows == [ours, loss, aum], "ours first, the rest in the order of the registry"
    assert table.columns == [("symmetric-20",), ("class-dependent-20",), ("mean of 1",)]
    assert table.cells[ours, ("symmetric-20",)].mean == pytest.approx(0.92)
    assert table.cells[ours, ("symmetric-20",)].deviation == pytest.approx(0.02)
    # Differences to aum: -0.01, 0.02, 0.005; mean 0.005, standard error 0.015 / √3 = 0.0087.
    assert table.best(("symmetric-20",)) == ({ours}, {aum})
    assert table.best(("class-dependent-20",)) == ({ours}, set())
    assert (loss, ("class-dependent-20",)) not in table.cells
    assert table.cells[loss, ("mean of 1",)].mean == pytest.approx(0.81)


def test_markdown_as_it_is_printed() -> None:
    lines = render(THREE, TableSettings()).splitlines()
    assert lines == [
        "**cifar10, AUPR**",
        "",
        "| method | symmetric-20 | class-dependent-20 | mean of 1 | seeds |",
        "| :-- | --: | --: | --: | --: |",
        "| SG-OIF | **92.0 ± 2.0** | **80.0 ± 10.0** | **92.0 ± 2.0** | 3 |",
        "| mean loss | 81.0 ± 1.0 | – | 81.0 ± 1.0 | 3 |",
        "| AUM | 91.5 ± 1.8 ≈ | 60.0 ± 10.0 | 91.5 ± 1.8 ≈ | 3 |",
        "",
        "Mean ± standard deviation over seeds. Bold: best. ≈: within one standard error of the best (paired over"
        " seeds). The mean is over the settings that all compared have.",
    ]


def test_the_mean_is_over_common_columns_seed_by_seed() -> None:
    (table,) = build([entry for entry in THREE if entry["method"] != "loss"], TableSettings())
    mean = table.cells[("sgoif",), ("mean",)]
    assert mean.values == pytest.approx({0: 0.8, 1: 0.86, 2: 0.92})
    assert mean.deviation == pytest.approx(0.06)


def cell(*values: float, first: int = 0) -> Cell:
    return Cell(METRICS["aupr"], dict(enumerate(values, start=first)))


def test_a_tie_is_within_one_standard_error_of_the_paired_difference() -> None:
    best = cell(1.0, 3.0)
    assert within_error(best, cell(0.0, 3.0))  # mean 0.5, error (1/√2)/√2 = 0.5
    assert not within_error(best, cell(0.0, 2.9))
    assert not within_error(best, cell(1.0))
    assert not within_error(best, cell(1.0, 3.0, first=5))
    assert within_error(cell(1.0, 2.0), cell(1.0, 2.0))
    assert within_error(cell(1.0, 2.0), cell(2.2, 1.0), sign=-1)
    spread = [0.3, -0.1, 0.2, 0.1]
    error = sqrt(sum((d - 0.125) ** 2 for d in spread) / 3 / 4)
    assert within_error(cell(*spread), cell(0, 0, 0, 0)) == (error >= 0.125)


def test_equal_means_are_all_best_and_one_seed_has_no_spread() -> None:
    text = render([line("sgoif", 0.5), line("aum", 0.5), line("loss", 0.4)], TableSettings())
    assert "| SG-OIF | **50.0** | 1 |" in text
    assert "| AUM | **50.0** | 1 |" in text
    assert "| mean loss | 40.0 | 1 |" in text
    assert "±" not in text


def test_costs_are_better_when_lower_and_say_whether_they_are_shared() -> None:
    lines = [line("sgoif", 0.9, seconds=5.0, shared=True), line("knn", 0.8, seconds=3.0)]
    text = render(lines, TableSettings(metric="seconds"))
    assert "| SG-OIF | 5.0 † | 1 |" in text
    assert "| nearest neighbours | **3.0** | 1 |" in text
    assert "several methods share" in text
    assert "| SG-OIF | **3** † | 1 |" in render(lines, TableSettings(metric="memory"))


def test_metrics_as_columns_and_methods_as_columns() -> None:
    lines = [line("sgoif", 0.9, seconds=5.0), line("knn", 0.8, seconds=3.0)]
    text = render(lines, TableSettings(metric="aupr,seconds", columns="metric", by="set,noise"))
    assert "| SG-OIF | **90.0** | 5.0 | 1 |" in text
    assert "| nearest neighbours | 80.0 | **3.0** | 1 |" in text
    assert "mean" not in text
    listed = render(lines[:1], TableSettings(metric="aupr,seconds", rows="metric"))
    assert "| AUPR | 90.0 | 1 |" in listed
    assert "| seconds | 5.0 | 1 |" in listed
    turned = render(THREE, TableSettings(rows="noise", columns="method"))
    assert "| noise | SG-OIF | mean loss | AUM |" in turned
    assert "| symmetric-20 | **92.0 ± 2.0** | 81.0 ± 1.0 | 91.5 ± 1.8 ≈ |" in turned
    assert "| class-dependent-20 | **80.0 ± 10.0** | – | 60.0 ± 10.0 |" in turned
    assert "| seeds | 3 | 3 | 3 |" in turned
    assert len(build(lines, TableSettings(metric="aupr,seconds"))) == 2


def test_a_table_for_every_data_set_and_seeds_that_differ() -> None:
    lines = [*THREE, line("sgoif", 0.5, set="digits"), line("aum", 0.6, 3, "class-dependent-20")]
    text = render(lines, TableSettings())
    assert text.index("**digits, AUPR**") < text.index("**cifar10, AUPR**"), "the order of the recipes"
    assert "| 3–4 |" in text


def test_a_program_gets_raw_numbers() -> None:
    (table,) = json.loads(render(THREE, TableSettings(format="json")))["tables"]
    aum = next(c for c in table["cells"] if (c["method"], c.get("noise")) == ("aum", "symmetric-20"))
    assert aum["mean"] == pytest.approx(0.915)
    assert (aum["best"], aum["tied"], aum["seeds"]) == (False, True, [0, 1, 2])
    assert [c["mean"] for c in table["cells"] if c.get("over") and c["method"] == "loss"] == [pytest.approx(0.81)]


@pytest.mark.parametrize(
    ("lines", "settings", "message"),
    [
        ([line("aum", 0.5), line("aum", 0.6, epochs=30)], {}, r"seed 0.*differ in epochs.*--where epochs"),
        ([line("aum", 0.5), line("loss", 0.6, epochs=30)], {}, r"cifar10 symmetric-20.*different recipes.*--by epochs"),
        ([line("aum", 0.5), line("aum", 0.6, shared=True)], {}, "differ in shared"),
        ([line("aum", 0.5), line("aum", 0.5, noise="none")], {"columns": "seed"}, "differ in noise"),
        ([line("aum", None)], {}, "none of these results has aupr"),
        ([line("aum", 0.5)], {"where": ("method=loss",)}, "no result is left where method=loss"),
        ([line("aum", 0.5)], {"where": ("method",)}, "FIELD=VALUE"),
        ([line("aum", 0.5)], {"rows": "colour"}, "no field 'colour'; choose from .*noise"),
        ([], {}, "no result is left"),
    ],
)
def test_what_cannot_be_tabled_is_said(lines: list[dict[str, Any]], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build(lines, TableSettings(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "accuracy"}, "accuracy; choose from aupr"),
        ({"metric": ","}, "choose from aupr"),
        ({"format": "html"}, "html.*markdown, latex, json"),
        ({"rows": "noise"}, "noise cannot stand"),
        ({"rows": ""}, "each need a field"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TableSettings(**settings)


def test_different_recipes_can_be_what_is_compared() -> None:
    lines = [line("aum", 0.5), line("aum", 0.6, epochs=30)]
    assert "| epochs 30 | **60.0** | 1 |" in render(lines, TableSettings(rows="epochs"))
    assert len(build(lines, TableSettings(by="set,epochs"))) == 2
    assert "| AUM | 60.0 | 1 |" in render(lines, TableSettings(where=("epochs=30",)))
    assert "| a, b | 50.0 | 1 |" in render([line("a, b", 0.5), *lines], TableSettings(where=("method=a, b",)))


NASTY = r"a_b & 50% of {x}^2 ~ \cmd $1 #2 <b> | *c* `d` [e]"


def test_text_is_shown_as_it_is() -> None:
    assert escape_markdown("a|b_c*d<e>\n`f`") == r"a\|b\_c\*d\<e\> \`f\`"
    assert escape_latex(r"50%_{a}\b^~&#$") == (r"50\%\_\{a\}\textbackslash{}b\textasciicircum{}\textasciitilde{}\&\#\$")
    table = render([line(NASTY, 0.5), line("aum", 0.4)], TableSettings())
    row = next(row for row in table.splitlines() if "50.0" in row)
    assert row.replace(r"\|", "").count("|") == 4


def test_latex_as_it_is_printed() -> None:
    text = render(THREE, TableSettings(format="latex"))
    assert r"SG-OIF & \textbf{92.0\,$\pm$\,2.0} & \textbf{80.0\,$\pm$\,10.0} &" in text
    assert r"mean loss & 81.0\,$\pm$\,1.0 & -- &" in text
    assert r"AUM & 91.5\,$\pm$\,1.8\,$\approx$ &" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert all(row.count(" & ") == 4 for row in text.splitlines() if row.endswith(r"\\"))
    assert r"\begin{tabular}{lrrrr}" in text
    assert text.isascii()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_compiles(tmp_path: Path) -> None:
    lines = [*THREE, line(NASTY, 0.5), line(NASTY, 0.5, 1), line("knn", 0.9, shared=True, noise="a_b%")]
    tables = [render(lines, TableSettings(metric, format="latex")) for metric in ("aupr", "seconds")]
    tables.append(render(lines, TableSettings(rows="noise", columns="method", format="latex")))
    source = ["\\documentclass{article}", "\\usepackage{booktabs}", "\\begin{document}", *tables, "\\end{document}"]
    (tmp_path / "t.tex").write_text("\n".join(source), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "t.pdf").stat().st_size > 1000


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in THREE) + '{"set": "cif')
    assert main(["table", str(file), "--where", "method=sgoif,aum", "--where", "noise=symmetric-20"]) == 0
    streams = capfd.readouterr()
    assert "| AUM | 91.5 ± 1.8 ≈ | 3 |" in streams.out
    assert "mean loss" not in streams.out
    assert "last line is incomplete" in streams.err
    assert main(["table", str(file), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["tables"]
    assert main(["table", str(file), "--format", "latex"]) == 0
    assert capfd.readouterr().out.startswith(r"\begin{table}")
    assert main(["table", str(tmp_path / "none.jsonl")]) == 2
    assert "no such file" in capfd.readouterr().err
    assert main(["table", str(file), "--metric", "colour"]) == 2
    assert "choose from aupr" in capfd.readouterr().err
