"""Every kind of picture, what it draws, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from sgoif.errors import SettingError
from sgoif_bench.cli import main
from sgoif_bench.labels.panels import BLUE, GREEN, RED, look_of
from sgoif_bench.labels.plots import KINDS, PlotSettings, cumulative_gain, pareto_front, plot

NOISES = ("symmetric-20", "class-dependent-20")


def line(method: str, seed: int, noise: str, aupr: float, **changes: Any) -> dict[str, Any]:
    epochs = [
        {"epoch": epoch, "aupr": aupr * epoch / 4, "residual": 1 / epoch, "confidence": epoch / 5, "tau": 0.1}
        for epoch in (1, 2, 3, 4)
    ]
    recall = np.linspace(0, 1, 101)
    known: dict[str, Any] = {
        "set": "cifar10", "noise": noise, "method": method, "seed": seed, "shared": method != "knn",
        "metrics": {"aupr": aupr}, "recipe_id": "r", "recipe": {"epochs": 4}, "trainings": 1.0, "removal": None,
        "seconds": 100 * aupr, "memory": {"peak_bytes": 2**20}, "machine": {"device": "cpu"},
        "details": {"epochs": epochs}, "curve": (1 - recall / 2).tolist(),
    }  # fmt: skip
    return {**known, **changes}


METHODS = {"sgoif": 0.9, "moving-average-gate": 0.7, "without-gate": 0.3, "aum": 0.8, "loss": 0.6, "knn": 0.5}
LINES = [
    line(method, seed, noise, aupr + 0.01 * seed)
    for method, aupr in METHODS.items()
    for seed in (0, 1)
    for noise in NOISES
]


def drawn(kind: str, lines: list[dict[str, Any]], **settings: Any) -> Figure:
    figure = Figure()
    KINDS[kind](figure, lines, PlotSettings(kind, **settings))
    return figure


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_and_format_is_a_file_that_repeats(kind: str, ending: str, tmp_path: Path) -> None:
    heads = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    written = []
    for name in ("one", "two") if ending == "svg" else ("one",):
        path = tmp_path / "new" / f"{name}.{ending}"
        plot(LINES, PlotSettings(kind, title="a title"), path)
        written.append(path.read_bytes())
    assert written[0].startswith(heads[ending])
    assert len(written[0]) > 2000
    assert written[-1] == written[0]


def test_convergence_shows_residual_and_aupr_of_each_gate() -> None:
    residual, aupr, *_ = drawn("convergence", LINES).axes
    assert len(residual.lines) == len(METHODS)
    assert residual.get_yscale() == "log"
    assert residual.lines[0].get_ydata() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert aupr.lines[0].get_ydata() == pytest.approx([100 * 0.905 * epoch / 4 for epoch in (1, 2, 3, 4)])
    assert len(aupr.collections) == len(METHODS), "a band over seeds"


def test_residuals_can_come_from_the_refreshes_of_the_bank() -> None:
    refreshes = [{"step": step, "residual_mean": step / 10, "confidence_mean": 0.5} for step in (1, 5, 10, 11, 20)]
    entry = line("sgoif", 0, "none", 0.8)
    epochs = [{"epoch": 1, "aupr": 0.5}, {"epoch": 2, "aupr": 0.8}]
    entry |= {"examples": 120, "recipe": {"anchors": 20, "batch_size": 10}}
    entry["details"] = {"refreshes": refreshes, "epochs": epochs}
    residual, _ = drawn("convergence", [entry]).axes
    assert residual.lines[0].get_xydata() == pytest.approx(np.array([[1, 1.6 / 3], [2, 1.55]]))
    assert drawn("confidence", [entry]).axes[0].lines[0].get_ydata() == pytest.approx([0.5, 0.5])


def test_seeds_are_dots_and_their_mean_a_bar() -> None:
    axes = drawn("seeds", LINES).axes[0]
    assert axes.get_yticklabels()[0].get_text() == "SG-OIF"
    dots, bar, *_ = axes.lines
    assert sorted(dots.get_xdata()) == pytest.approx([90, 91])
    assert bar.get_xdata() == pytest.approx([90.5, 90.5])


def test_the_gain_adds_up() -> None:
    assert cumulative_gain([(3, 2), (2, 2), (1, 4)]) == pytest.approx([50, 25, -25])
    left, right = drawn("gain", LINES).axes
    rival = 0.805
    assert left.lines[0].get_ydata() == pytest.approx([100 * (0.905 - rival) / rival] * 2)
    assert len(right.lines) == 1 + len(NOISES), "one per setting and the zero line"
    against = drawn("gain", LINES, baseline="moving-average-gate").axes[0]
    assert against.lines[0].get_ydata() == pytest.approx([100 * 0.2 / 0.705] * 2)
    assert "SG-OIF, moving-average gate" in against.get_ylabel()


def test_the_gain_without_epochs_is_one_panel() -> None:
    lines = [{**entry, "details": {}} for entry in LINES]
    assert [axes.get_title() for axes in drawn("gain", lines).axes] == ["across settings"]


def test_the_curve_is_the_mean_over_seeds() -> None:
    one, two = (line("sgoif", seed, "none", 0.5) for seed in (0, 1))
    two["curve"] = [1.0] * 101
    axes = drawn("precision-recall", [one, two]).axes[0]
    assert axes.lines[0].get_xdata() == pytest.approx(np.linspace(0, 1, 101))
    assert axes.lines[0].get_ydata() == pytest.approx(1 - np.linspace(0, 1, 101) / 4)


def test_the_front_holds_what_no_other_beats() -> None:
    points = {"cheap": (1.0, 0.5), "worse": (2.0, 0.4), "good": (3.0, 0.9), "same": (3.0, 0.8), "best": (9.0, 0.95)}
    assert pareto_front(points) == ["cheap", "good", "best"]
    axes = drawn("pareto", LINES).axes[0]
    fillings = {(dot.get_xdata()[0], dot.get_ydata()[0]): dot.get_markerfacecolor() for dot in axes.lines[:-1]}
    hollow = {text.get_text(): fillings[text.xy] for text in axes.texts}
    assert hollow["SG-OIF"] == "none"
    assert hollow["nearest neighbours"] != "none"
    assert "mean over 2 settings" in axes.get_title()


def test_only_common_settings_are_averaged() -> None:
    lines = [entry for entry in LINES if (entry["method"], entry["noise"]) != ("knn", NOISES[0])]
    assert NOISES[1] in drawn("pareto", lines).axes[0].get_title()
    assert NOISES[0] not in drawn("pareto", lines).axes[0].get_title()
    apart = [line("knn", 0, "a", 0.5), line("aum", 0, "b", 0.5)]
    with pytest.raises(SettingError, match="no setting in common"):
        drawn("pareto", apart)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("convergence", "residual"),
        ("confidence", "confidence"),
        ("seeds", "no result has aupr"),
        ("gain", "no result has an AUPR"),
        ("precision-recall", "curve"),
        ("pareto", "both aupr and seconds"),
    ],
)
def test_what_is_missing_is_named(kind: str, message: str, tmp_path: Path) -> None:
    bare = line("sgoif", 0, "none", 0.5, details={}, curve=None, metrics={"aupr": None})
    with pytest.raises(SettingError, match=message):
        plot([bare], PlotSettings(kind), tmp_path / "a.png")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"kind": "pie"}, "pie.*convergence, seeds"),
        ({"kind": "seeds", "metric": "x"}, "no metric"),
        ({"kind": "pareto", "cost": "aupr"}, "no cost.*seconds, trainings, memory"),
    ):
        with pytest.raises(SettingError, match=message):
            PlotSettings(**settings)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"a\.jpg must end in one of \.png, \.svg, \.pdf"):
        plot(LINES, PlotSettings("seeds"), tmp_path / "a.jpg")
    with pytest.raises(SettingError, match="no setting has results of both sgoif and the best rival"):
        drawn("gain", [line("sgoif", 0, "a", 0.5), line("aum", 0, "b", 0.5)])
    with pytest.raises(SettingError, match="too many for one picture"):
        drawn("seeds", [line("sgoif", 0, f"symmetric-{rate}", 0.5) for rate in range(20)])
    changed = line("aum", 0, NOISES[0], 0.5, recipe_id="s", recipe={"epochs": 5})
    with pytest.raises(SettingError, match="different recipes"):
        plot([*LINES, changed], PlotSettings("seeds"), tmp_path / "a.png")


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "r.jsonl", tmp_path / "p.png"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in LINES))
    assert main(["plot", "seeds", str(file), "--out", str(picture), "--where", "noise=symmetric-20"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["plot", "pareto", str(file), "--out", str(picture), "--json"]) == 0
    capfd.readouterr()
    mistakes = {
        "pie.*convergence": ["pie", str(file), "--out", str(picture)],
        "no result file": ["seeds", "--out", str(picture)],
        "p.txt must end": ["seeds", str(file), "--out", str(tmp_path / "p.txt")],
        "no such file": ["seeds", str(tmp_path / "none.jsonl"), "--out", str(picture)],
        "one result file, not 2": ["run", str(file), str(file), "--out", str(picture)],
        "is not a result file with epochs": ["run", str(file), "--out", str(picture)],
    }
    for message, arguments in mistakes.items():
        assert main(["plot", *arguments]) == 2
        streams = capfd.readouterr()
        assert message.split(".*")[0] in streams.err.replace("\n", " ")
        assert streams.out == ""


def test_a_run_is_drawn_as_before(tmp_path: Path) -> None:
    record = {"epoch": 1, "steps": 3, "methods": {"influence": {"aupr": 0.5}}}
    (tmp_path / "run.json").write_text(json.dumps({"epochs": [record], "monitors": {}}))
    for number, words in enumerate((["run", str(tmp_path / "run.json")], [str(tmp_path / "run.json")])):
        picture = tmp_path / f"{number}.png"
        assert main(["plot", *words, "--out", str(picture)]) == 0
        assert picture.exists()


def test_the_influence_stands_for_ours_where_the_label_score_is_not_drawn() -> None:
    gates = ["influence", "moving-average-gate-influence", "without-gate-influence"]
    assert [look_of(name, gates)["color"] for name in gates] == [GREEN, BLUE, RED]
    both = ["sgoif", "influence"]
    assert look_of("sgoif", both)["color"] == GREEN != look_of("influence", both)["color"]
    assert look_of("influence", gates)["linewidth"] > look_of("influence", both)["linewidth"]
