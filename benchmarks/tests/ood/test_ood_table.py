"""Tables of results on outliers by hand: sets, near, far, mean, ties, and which file is which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgoif.errors import SettingError
from sgoif_bench.cli import main
from sgoif_bench.kinds import kind_of
from sgoif_bench.ood.table import OodTableSettings, build, render

GROUPS = {"cifar100": "near", "svhn": "far", "texture": "far"}


def line(method: str, aurocs: tuple[float, ...], seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A result with these AUROCs for CIFAR-100, SVHN and the textures."""
    recipe = {"model": "resnet18", "epochs": changes.pop("epochs", 30)}
    ood = {
        name: {"group": group, "auroc": auroc, "fpr95": 1 - auroc, "aupr_in": auroc / 2, "aupr_out": auroc / 4}
        for (name, group), auroc in zip(GROUPS.items(), aurocs, strict=False)
    }
    known: dict[str, Any] = {
        "set": "cifar10", "noise": "none", "protocol": "house", "method": method, "seed": seed, "inputs": "",
        "recipe_id": f"r{recipe['epochs']}", "recipe": recipe, "shared": True, "fpr95_positive": "ood", "ood": ood,
        "metrics": {"accuracy": 0.94, "time_ratio": 1.25, "ms_per_image": 0.1}, "seconds": 100.0, "trainings": 1.0,
        "memory": {"peak_bytes": 3 * 2**20}, "machine": {"device": "cpu"},
    }  # fmt: skip
    return {**known, **changes}


THREE = [
    *(line("sentinel", values, seed) for seed, values in enumerate([(0.9, 1.0, 0.8), (0.8, 0.9, 0.9)])),
    *(line("knn", values, seed) for seed, values in enumerate([(0.92, 0.7, 0.7), (0.75, 0.7, 0.7)])),
    line("msp", (0.5, 0.6, 0.7), 0),
]


def test_numbers_by_hand() -> None:
    (table,) = build(THREE, OodTableSettings("auroc,fpr95,accuracy"))
    ours, knn, msp = ("sentinel",), ("knn",), ("msp",)
    assert table.title == "cifar10, house protocol, AUROC"
    assert table.rows == [ours, msp, knn], "ours first, the rest in the order of the registry"
    assert table.columns == [
        ("auroc", "cifar100"), ("auroc", "svhn"), ("auroc", "texture"),
        ("auroc", "near"), ("auroc", "far"), ("auroc", "mean"), ("fpr95", "mean"), ("accuracy", ""),
    ]  # fmt: skip
    assert table.cells[ours, ("auroc", "near")].values == pytest.approx({0: 0.9, 1: 0.8})
    assert table.cells[ours, ("auroc", "far")].values == pytest.approx({0: 0.9, 1: 0.9})
    assert table.cells[ours, ("auroc", "mean")].mean == pytest.approx((2.7 + 2.6) / 6), "every set weighs the same"
    assert table.cells[msp, ("fpr95", "mean")].mean == pytest.approx(0.4)
    # Near: differences −0.02 and 0.05, mean 0.015, standard error 0.035.
    assert table.best(("auroc", "near")) == ({ours}, {knn})
    assert table.best(("auroc", "far")) == ({ours}, set())
    assert table.best(("fpr95", "mean")) == ({ours}, set()), "lower is better"


def test_markdown_as_it_is_printed() -> None:
    lines = render(THREE, OodTableSettings("auroc,fpr95,aupr_in,accuracy,time_ratio")).splitlines()
    assert lines[0] == "**cifar10, house protocol, AUROC**"
    assert lines[2] == (
        "| method | CIFAR-100 | SVHN | Texture | near | far | mean | FPR95 (OOD positive), mean | AUPR-in, mean"
        " | ID accuracy | time, forward passes | seeds |"
    )
    assert lines[4] == (
        "| SG-OIF sentinel | **85.0 ± 7.1** | **95.0 ± 7.1** | **85.0 ± 7.1** | **85.0 ± 7.1** | **90.0 ± 0.0**"
        " | **88.3 ± 2.4** | **11.7 ± 2.4** | **44.2 ± 1.2** | **94.0 ± 0.0** | **1.25 ± 0.00** | 2 |"
    )
    assert lines[5].startswith("| MSP | 50.0 | 60.0 | 70.0 | 50.0 | 65.0 | 60.0 | 40.0 |")
    assert "| KNN | 83.5 ± 12.0 ≈ |" in lines[6]
    assert "within one standard error" in lines[-1]


def test_latex_and_json() -> None:
    text = render(THREE, OodTableSettings(format="latex"))
    assert r"SG-OIF sentinel & \textbf{85.0\,$\pm$\,7.1} &" in text
    assert r"FPR95 (OOD positive), mean" in text
    assert text.isascii()
    (table,) = json.loads(render(THREE, OodTableSettings("auroc", format="json")))["tables"]
    cell = next(c for c in table["cells"] if (c["method"], c["over"]) == ("knn", "near"))
    assert cell["metric"] == "auroc"
    assert cell["mean"] == pytest.approx(0.835)
    assert (cell["best"], cell["tied"], cell["seeds"]) == (False, True, [0, 1])


def test_means_are_over_the_sets_that_all_have() -> None:
    lines = [line("sentinel", (0.9, 0.8, 0.1)), line("knn", (0.5, 0.6))]
    (table,) = build(lines, OodTableSettings("auroc"))
    assert [over for _, over in table.columns] == ["cifar100", "svhn", "near", "far", "mean"]
    assert table.cells[("sentinel",), ("auroc", "mean")].mean == pytest.approx(0.85)
    (alone,) = build(lines[:1], OodTableSettings("auroc"))
    assert alone.cells[("sentinel",), ("auroc", "mean")].mean == pytest.approx(0.6)
    (near,) = build([line("knn", (0.5,))], OodTableSettings("auroc"))
    assert [over for _, over in near.columns] == ["cifar100", "near", "mean"], "no far set, no mean of them"


def test_any_metric_can_come_first() -> None:
    (table,) = build(THREE, OodTableSettings("fpr95"))
    assert table.title == "cifar10, house protocol, FPR95 (OOD positive)"
    assert table.cells[("msp",), ("fpr95", "svhn")].mean == pytest.approx(0.4)
    text = render(THREE, OodTableSettings("seconds,memory,accuracy"))
    assert "| SG-OIF sentinel | **100.0 ± 0.0** † | **3 ± 0** † | **94.0 ± 0.0** | 2 |" in text
    (none,) = build([line("draem", (0.5,), metrics={"accuracy": None})], OodTableSettings("auroc,accuracy"))
    assert ("accuracy", "") not in none.columns, "a method that does not classify has no accuracy"


def test_a_table_for_every_set_protocol_and_noise() -> None:
    lines = [
        line("knn", (0.5, 0.5, 0.5)),
        line("knn", (0.5, 0.5, 0.5), protocol="v1", fpr95_positive="id"),
        line("knn", (0.5, 0.5, 0.5), noise="symmetric-20"),
        line("knn", (0.5, 0.5, 0.5), set="mnist"),
    ]
    titles = [table.title for table in build(lines, OodTableSettings("auroc"))]
    assert titles == [
        "mnist, house protocol, AUROC", "cifar10, OpenOOD v1, AUROC", "cifar10, house protocol, AUROC",
        "cifar10, house protocol, symmetric-20, AUROC",
    ]  # fmt: skip
    assert "FPR95 (ID positive)" in render(lines, OodTableSettings(where=("protocol=v1",)))
    rows = build(lines[::2], OodTableSettings("auroc", rows="method,noise", by="set"))
    assert rows[0].rows == [("knn", "none"), ("knn", "symmetric-20")]
    both = render(lines[:2], OodTableSettings("fpr95", rows="method,protocol", by="set"))
    assert "**cifar10, FPR95**" in both, "two conventions in one table have no common name"


@pytest.mark.parametrize(
    ("lines", "settings", "message"),
    [
        ([line("knn", (0.5,)), line("msp", (0.5,), epochs=100)], {}, r"cifar10 none house.*different recipes.*epochs"),
        (
            [line("knn", (0.5,)), line("knn", (0.5,), inputs="outliers a")],
            {},
            "seed 0 fall into the same place.*inputs",
        ),
        ([line("knn", (0.5,))], {"where": ("method=msp",)}, "no result is left where method=msp"),
        ([line("knn", (0.5,))], {"by": "colour"}, "no field 'colour'; choose from .*protocol"),
        ([line("knn", (0.5,), metrics={})], {"metric": "accuracy"}, "none of these results has accuracy"),
        ([], {}, "no result is left"),
    ],
)
def test_what_cannot_be_tabled_is_said(lines: list[dict[str, Any]], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build(lines, OodTableSettings(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "aupr"}, "aupr; choose from auroc, fpr95"),
        ({"format": "html"}, "html.*markdown, latex, json"),
        ({"rows": ""}, "--rows needs a field"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        OodTableSettings(**settings)


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return path


def test_the_command_knows_whose_file_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ood = written(tmp_path / "ood.jsonl", THREE)
    labels = {key: value for key, value in THREE[0].items() if key not in ("protocol", "inputs", "ood")}
    other = written(tmp_path / "labels.jsonl", [{**labels, "metrics": {"aupr": 0.5}}])
    assert kind_of([ood]) == "ood"
    assert kind_of([other]) == "labels"
    assert main(["table", str(ood), "--where", "method=knn,sentinel"]) == 0
    streams = capfd.readouterr()
    assert "**cifar10, house protocol, AUROC**" in streams.out
    assert "MSP" not in streams.out
    assert main(["table", str(ood), "--metric", "fpr95", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["tables"][0]["title"].endswith("FPR95 (OOD positive)")
    assert main(["table", str(other)]) == 0
    assert "**cifar10, AUPR**" in capfd.readouterr().out
    assert main(["table", str(ood), str(other)]) == 2
    assert "do not go into one table" in capfd.readouterr().err
    assert main(["table", str(ood), "--columns", "noise"]) == 2
    assert "leave --columns away" in capfd.readouterr().err
    assert main(["table", str(tmp_path / "none.jsonl")]) == 2
    assert "no such file" in capfd.readouterr().err


def test_the_command_is_there(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ood", "--help"]) == 0
    shown = capfd.readouterr().out
    assert all(option in shown for option in ("--protocol", "--outliers", "--networks", "--workers", "--json"))
    assert main(["ood", "--protocol", "v9"]) == 2
    assert "choose from v1.5, v1, house" in capfd.readouterr().err
