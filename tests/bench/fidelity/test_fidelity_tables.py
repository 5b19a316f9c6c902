"""The tables of the page cope with results that are not there yet, or that lack what was added later."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture
def filling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[ModuleType, ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(DOCS))
    for name in [name for name in sys.modules if name.partition(".")[0] == "filling"]:
        monkeypatch.delitem(sys.modules, name)
    from filling import cells, fidelity, fidelity_changes, fidelity_removed  # type: ignore[import-not-found]

    for module in (cells, fidelity, fidelity_changes, fidelity_removed):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return fidelity, fidelity_changes, fidelity_removed


def line(method: str, **metrics: object) -> dict[str, object]:
    found = {"lds": 0.5, "lds_low": 0.4, "lds_high": 0.6, "left_out": {}, "brittle": [], "wrong_aupr": None, **metrics}
    return {
        "set": "cifar10",
        "wrong_share": 0.0,
        "method": method,
        "seed": 0,
        "error": None if metrics else "ImportError: a|b",
        "ceiling": 0.9,
        "seconds": 3.0,
        "seconds_per_query": 0.015,
        "training_seconds": 6.0,
        "trainings": 0,
        "memory": {"peak_bytes": 2**30},
        "recipe": {"model": "linear"},
        "metrics": found if metrics else {},
    }


def write(folder: Path, name: str, *lines: dict[str, object]) -> None:
    (folder / name).write_text("".join(json.dumps(each) + "\n" for each in lines))


def test_cifar10_fills_itself_once_it_was_run(filling, tmp_path: Path):
    fidelity, _, _ = filling
    assert fidelity.cifar10() == "Not run yet.\n"
    other = {**line("ekfac", lds=0.1), "seed": 1, "seconds": None}
    write(tmp_path, "fidelity-cifar10.jsonl", line("sgoif", lds=0.3), line("ekfac", lds=0.2), line("lissa"), other)
    scores, cost = fidelity.cifar10().split("\n\n")
    assert "| SG-OIF | **0.300 [0.400, 0.600]** | – |" in scores
    assert "| EK-FAC (kronfluence) | 0.200 [0.400, 0.600] | **0.100 [0.400, 0.600]** |" in scores
    assert "| Hessian, LiSSA (dattri) | could not run | – |" in scores
    assert "| most that could be reached | 0.900 | 0.900 |" in scores
    assert "| CIFAR-10, 0% wrong | EK-FAC (kronfluence) | 3.00 | 0.5 | 15.0 | 1024 | 0 |" in cost
    assert "CIFAR-10" not in fidelity.lds()
    assert "a\\|b" in fidelity.absent()


def test_times_are_shown_seed_by_seed(filling, tmp_path: Path):
    fidelity, _, _ = filling
    again = {**line("ekfac", lds=0.1), "seed": 1, "seconds": 2.5, "seconds_per_query": 0.0125, "training_seconds": 5.0}
    write(tmp_path, "fidelity-cifar10.jsonl", again, line("ekfac", lds=0.1))
    assert "| 3.00 / 2.50 | 0.5 / 0.5 | 15.0 / 12.5 | 1024 / 1024 | 0 |" in fidelity.cifar10()


def test_the_cost_of_a_method_is_one_line(filling, tmp_path: Path):
    fidelity, _, _ = filling
    write(tmp_path, "fidelity-digits.jsonl", line("ekfac", lds=0.1), {**line("ekfac", lds=0.1), "wrong_share": 0.1})
    write(tmp_path, "fidelity-mnist.jsonl", {**line("trak-5", lds=0.1), "trainings": 4}, line("lissa"))
    assert fidelity.costs().splitlines()[2:] == [
        "| EK-FAC (kronfluence) | 3.00 (0.5) | 3.00 (0.5) | – | 1024 / 1024 / – | 0 |",
        "| TRAK, 5 networks (traker) | – | – | 3.00 (0.5) | – / – / 1024 | 4 |",
    ]


def test_some_answered_queries_are_shown_as_such_and_win_nothing(filling, tmp_path: Path):
    fidelity, _, _ = filling
    assert fidelity.few() == "All libraries that ran answered all queries.\n"
    both = {"sgoif-head": 0.25, "ekfac": 0.125}
    some = {**line("lissa", lds=0.9, same_queries=both), "queries": 200, "answered": 12}
    write(tmp_path, "fidelity-cifar10.jsonl", line("ekfac", lds=0.2), some)
    scores, cost = fidelity.cifar10().split("\n\n")
    assert "| Hessian, LiSSA (dattri) | 0.900 [0.400, 0.600], 12 queries |" in scores
    assert "**0.200 [0.400, 0.600]**" in scores
    assert "LiSSA" not in cost
    assert fidelity.few().splitlines()[2:] == [
        "| Hessian, LiSSA (dattri) | 12 of 200 | 0.900 [0.400, 0.600] | 0.125 | 0.250 | 0.01 | 1 |"
    ]


def test_the_summary_has_one_setting_in_a_column_for_every_data_set(filling, tmp_path: Path):
    fidelity, _, _ = filling
    assert fidelity.summary() == "Not run yet.\n"
    ours = "sgoif-factored-5-epochs"
    write(
        tmp_path,
        "fidelity-cifar10.jsonl",
        line("sgoif-head", lds=0.9),
        {**line(ours, lds=0.4), "seed": 1, "seconds": None},
        line("ekfac", lds=0.8),
        {**line("ekfac", lds=0.1), "seed": 1},
        line("trak-1", lds=0.7),
    )
    write(
        tmp_path,
        "fidelity-cifar10-again.jsonl",
        {**line(ours, lds=0.3), "seconds": 0.3},
        line("ekfac", lds=0.2),
        {**line("trak-1", lds=0.05), "seconds": 6.0},
    )
    digits = {"set": "digits", "wrong_share": 0.1}
    write(
        tmp_path,
        "fidelity-queries.jsonl",
        line("sgoif-head", error_spearman=0.9, confidence_spearman=0.9),
        line(ours, error_spearman=0.7, confidence_spearman=0.3),
        {**line("sgoif-monitor", error_spearman=0.5, confidence_spearman=-0.1), "seed": 1},
        {**line(ours, lds=0.6), **digits, "seconds": 0.6},
        {**line("ekfac", lds=0.5), **digits},
    )
    head, _, *rows = [row[2:-2].split(" | ") for row in fidelity.summary().splitlines()]
    assert head[2:] == ["CIFAR-10, 0% wrong", "digits, 10% wrong"]
    assert [row[2] for row in rows] == [
        "0.300 / 0.400",
        "0.200 / 0.100",
        "0.100",
        "0.050 (0.300)",
        "0.050",
        *("0.70", "0.50", "0.30", "-0.10"),
    ]
    assert [row[3] for row in rows] == ["0.600", "0.500", "0.200", "– (–)", *5 * ["–"]]
    assert "SG-OIF, factored, 5 epochs scored | 0.300 | 0.30 | 0.10 |" in fidelity.TABLES["fidelity-again"]()


def test_confidence_is_held_against_what_could_be_seen_seed_by_seed(filling, tmp_path: Path):
    fidelity, _, _ = filling
    parts = {f"{part}_spearman": 0.1 for part in fidelity.PARTS}
    seeds = []
    for seed, own, reliable, cost in ((1, 0.4, 0.0, 0.75), (0, 0.3, 0.25, 1.5)):
        own_lds = {"lds_by_query": [0.1, 0.3], "lds_reliability": reliable}
        stated = line("sgoif-head", confidence_spearman=own, **own_lds, **parts)
        seeds.append({**stated, "seed": seed, "seconds": cost})
    untimed = {**line("sgoif", lds=0.2), "seconds": None}
    write(tmp_path, "fidelity-queries.jsonl", *seeds, line("ekfac", lds=0.2), untimed)
    assert fidelity.confidence().splitlines()[2:] == [
        "| CIFAR-10, 0% wrong | SG-OIF, head alone | 0.30 / 0.40 | 0.50 / 0.00 | 0.60 | 0.05 / 0.00"
        + 4 * " | 0.10 / 0.10"
        + " |"
    ]
    assert fidelity.many().splitlines()[2:] == [
        "| CIFAR-10, 0% wrong | SG-OIF | 0.200 | – | – |",
        "| CIFAR-10, 0% wrong | SG-OIF, head alone | 0.500 / 0.500 | 1.50 / 0.75 | 0.50 |",
        "| CIFAR-10, 0% wrong | EK-FAC (kronfluence) | 0.200 | 3.00 | 1.00 |",
    ]


def test_errors_are_listed_where_a_method_states_them(filling, tmp_path: Path):
    fidelity, _, _ = filling
    plain = {"gradient": 0.25, "doubt": -0.1}
    stated = line("sgoif-head", error_spearman=0.7, error_margin_spearman=-0.4, error_plain_spearman=plain)
    other = {**line("sgoif-head", error_spearman=0.6, error_margin_spearman=0.3), "seed": 1}
    write(tmp_path, "fidelity-queries.jsonl", other, stated, line("ekfac", lds=0.2))
    assert fidelity.expected_errors().splitlines()[2:] == [
        "| CIFAR-10, 0% wrong | SG-OIF, head alone | 0.70 / 0.60 | -0.40 / 0.30 | -0.10 | – | – | – | 0.25 |"
    ]


def test_other_readings_are_shown_seed_by_seed(filling, tmp_path: Path):
    fidelity, _, _ = filling
    assert fidelity.readings() == "Not run yet.\n"
    seeds = [
        {"set": "mnist", "wrong_share": 0.1, "method": "sgoif-head", "confidence": own, "spearman": found}
        for own, found in ((0.5, {"layers": 0.1}), (0.7, {"layers": 0.3, "ranks": 0.4}))
    ]
    other = {**seeds[0], "set": "digits", "spearman": {}}
    whole = {"readings": {"layers": "…", "ranks": "…"}, "rows": [*seeds, other]}
    (tmp_path / fidelity.READINGS).write_text(json.dumps(whole))
    assert fidelity.readings().splitlines()[0] == "| data | method | confidence | layers | ranks |"
    assert fidelity.readings().splitlines()[2:] == [
        "| MNIST, 10% wrong | SG-OIF, head alone | 0.50 / 0.70 | 0.10 / 0.30 | 0.40 |",
        "| digits, 10% wrong | SG-OIF, head alone | 0.50 | – | – |",
    ]


def test_layers_come_after_settings(filling, tmp_path: Path):
    fidelity, _, _ = filling
    assert fidelity.layers() == "Not run yet.\n"
    part = {"lds": 0.2, "low": 0.1, "high": 0.3, "queries": 9}
    whole = {"lds": {"head": part}, "layers": {"prep.0": part}, "unit_length": {"all layers": part}}
    (tmp_path / fidelity.LAYERS).write_text(json.dumps({**whole, "seed_1": {"lds": {"head": {**part, "lds": 0.25}}}}))
    assert fidelity.layers().splitlines()[2:] == [
        "| head | 9 | 0.200 [0.100, 0.300] | 0.250 [0.100, 0.300] |",
        "| all layers, each brought to unit length | 9 | 0.200 [0.100, 0.300] | – |",
        "| prep.0 alone | 9 | 0.200 [0.100, 0.300] | – |",
    ]


def test_changes_are_shown_where_a_line_has_them(filling, tmp_path: Path):
    _, changes, _ = filling
    assert changes.alone() == changes.relabelled() == "Not run yet.\n"
    part = {"spearman": 0.6, "low": 0.5, "high": 0.7, "ceiling": 0.99}
    both = {**part, "predicted_from": "both labels", "given_label_spearman": 0.25}
    given = {**part, "spearman": 0.3, "predicted_from": "given label"}
    write(
        tmp_path,
        changes.FILES["digits"],
        line("sgoif", alone=part, relabelled={"1": both}),
        line("trak-1", alone={**part, "spearman": 0.2}, relabelled={"1": given}),
        line("ekfac", lds=0.5),
        line("lissa"),
    )
    assert changes.alone().splitlines()[2:] == [
        "| SG-OIF | **0.60 [0.50, 0.70]** |",
        "| TRAK, 1 network (traker) | 0.20 [0.50, 0.70] |",
        "| most that could be reached | 0.99 |",
    ]
    assert changes.relabelled().splitlines()[2:] == [
        "| SG-OIF | **0.60** (0.25) |",
        "| TRAK, 1 network (traker) | – (0.30) |",
        "| most that could be reached | 0.99 |",
    ]


def test_what_is_removed_stands_beside_chance(filling, tmp_path: Path):
    _, _, removed = filling
    assert removed.brittle() == removed.groups() == "Not run yet.\n"
    part = {"removed": 14, "queries": 24, "flipped": 0.25, "margin_change": -3.04}
    chance = {"brittle_at_random": [{**part, "flipped": 1 / 24, "margin_change": 0.1}], "examples": 1437}
    own = {**line("sgoif", brittle=[part]), **chance}
    other = {**line("ekfac", brittle=[{**part, "flipped": 0.125}]), **chance}
    write(tmp_path, removed.BRITTLE["digits"], own, other, line("lissa"))
    left = {"20": {"spearman": 0.2, "low": 0.1, "high": 0.3, "ceiling": 0.5}}
    small = {**line("sgoif", brittle=[part], left_out=left), **chance, "examples": 1500}
    write(tmp_path, removed.BRITTLE["mnist"], small)
    assert removed.brittle().splitlines() == [
        "| method | digits, 14 of 1,437 removed, of 24 | MNIST, 14 of 1,500 removed, of 24 |",
        "| --- | ---: | ---: |",
        "| SG-OIF | 6 (-3.0) | 6 (-3.0) |",
        "| EK-FAC (kronfluence) | 3 (-3.0) | – |",
        "| removed at random | 1 (0.1) | 1 (0.1) |",
    ]
    assert removed.groups().splitlines()[2:] == [
        "| SG-OIF | 0.20 [0.10, 0.30] |",
        "| most that could be reached | 0.50 |",
    ]


def test_wrong_labels_have_a_column_for_every_data_set_that_has_some(filling, tmp_path: Path):
    _, _, removed = filling
    for name, aupr in (("digits", 0.5), ("mnist", 0.25)):
        found = {**line("sgoif", wrong_aupr=aupr, wrong_auroc=0.75), "set": name, "wrong_share": 0.1}
        write(tmp_path, removed.FILES[name], found, {**line("sgoif", lds=0.1), "set": name})
    assert removed.wrong_labels().splitlines()[2:] == ["| SG-OIF | 50.0 | 75.0 | 25.0 | 75.0 |"]
