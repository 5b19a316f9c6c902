"""What the fillers of the benchmark pages make of result files: which line counts, which rival is shown."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def filler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A module of `pages`, reading the files of this test instead of the results."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pages"]:
        monkeypatch.delitem(sys.modules, name)

    def load(name: str) -> ModuleType:
        monkeypatch.setattr(import_module("pages.cells"), "RESULTS", tmp_path)
        return import_module(f"pages.{name}")

    return load


def write(folder: Path, name: str, *lines: dict[str, Any]) -> None:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def cells(table: str) -> list[list[str]]:
    """The rows of a table without its head."""
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


def judged(method: str, lds: float, seed: int = 0, seconds: float | None = 2.0, **metrics: float) -> dict[str, Any]:
    found = {"lds": lds, **metrics}
    return {
        "set": "digits",
        "wrong_share": 0.1,
        "method": method,
        "seed": seed,
        "seconds": seconds,
        "error": None,
        "metrics": found,
    }


def test_fidelity_takes_the_later_judgement_and_no_failed_line(filler: Any, tmp_path: Path) -> None:
    fidelity = filler("fidelity")
    ours = fidelity.OURS
    failed = {**judged("ekfac", 0.9), "error": "ImportError", "metrics": {}}
    write(tmp_path, "a.jsonl", judged(ours, 0.9), judged(ours, 0.4, 1, None), judged("ekfac", 0.2), failed)
    write(tmp_path, "b.jsonl", judged(ours, 0.3, seconds=0.5), judged("ekfac", 0.1, 1), judged("trak-1", 0.05))
    write(tmp_path, "c.jsonl", judged(ours, 0.5, error_spearman=0.7), judged("sgoif-monitor", 0.25, error_spearman=0.6))
    study = fidelity.Study("title", "digits", 0.1, ("a.jsonl", "b.jsonl"), ("c.jsonl",), "held-out")
    shown = ["title", "0.300, 0.400", "0.200, 0.100", "0.050", "–", "0.250", "0.250", "0.70", "0.60", "–", "held-out"]
    assert fidelity.row(study) == shown
    write(tmp_path, "d.jsonl", judged(ours, 0.9, seconds=1.0), judged("ekfac", 0.9), judged(ours, 0.9, 1, None))
    write(tmp_path, "e.jsonl", judged("ekfac", 0.9, 1))
    timed = fidelity.row(replace(study, timed=("d.jsonl", "e.jsonl")))
    assert timed == [*shown[:5], "0.500", *shown[6:]]


def test_fidelity_shows_trak_with_the_ridge_that_did_best(filler: Any, tmp_path: Path) -> None:
    fidelity = filler("fidelity")
    plain = [judged("trak-1", 0.9), judged("trak-1", 0.8, 1)]
    write(tmp_path, "a.jsonl", *plain, judged("trak-1-ridge", 0.3), judged("trak-1-ridge-10", 0.4, 1))
    study = fidelity.Study("title", "digits", 0.1, ("a.jsonl",), ("a.jsonl",), "dev")
    assert fidelity.ridge(study) == "–, 0.400"


def test_fidelity_names_ours_beside_trak_where_the_halves_differ(filler: Any, tmp_path: Path) -> None:
    fidelity = filler("fidelity")
    write(tmp_path, "a.jsonl", judged(fidelity.OURS, 0.3), judged("trak-1", 0.1))
    study = fidelity.Study("title", "digits", 0.1, ("none.jsonl",), ("none.jsonl",), "dev", ("a.jsonl",))
    assert fidelity.trak(study) == "0.100 (0.300)"


def test_outliers_show_the_best_rivals_and_times_of_other_files(filler: Any, tmp_path: Path) -> None:
    ood = filler("ood")
    means = {"sentinel": 0.9, "sentinel-ungated": 0.99, "msp": 0.5, "knn": 0.8, "vim": 0.95, "gram": 0.7}

    def line(method: str, mean: float, time: float) -> dict[str, Any]:
        figures = {f"{part}_auroc": mean for part in ("near", "far", "mean")}
        return {"method": method, "metrics": {**figures, "mean_fpr95": 0.125, "time_ratio": time}}

    write(tmp_path, "a.jsonl", *(line(method, mean, 9.0) for method, mean in means.items()))
    write(tmp_path, "b.jsonl", *(line("sentinel", 0.1, time) for time in (1.0, 1.25, 3.0)))
    shown = ood.rows(ood.Setting("here", ("a.jsonl",), "dev", ("b.jsonl",)))
    assert [row[1] for row in shown] == ["SG-OIF sentinel", "ViM", "KNN", "Gram, former"]  # mended since
    assert shown[0] == ["here", "SG-OIF sentinel", "90.00", "90.00", "90.00", "12.5", "1.25", "dev"]
    assert shown[1][-2:] == ["–", "–"]


def test_poison_is_compared_with_rivals_that_know_as_much(filler: Any, tmp_path: Path) -> None:
    poisoning = filler("poisoning")

    def line(method: str, aupr: float, seed: int = 0, after: float | None = None) -> dict[str, Any]:
        figures = {"aupr": aupr, "success_before": 1.0, "success_after": after}
        return {"method": method, "attack": "badnets-1", "seed": seed, "metrics": figures}

    lines = [line("sgoif-known", 0.5, after=0.02), line("sgoif-unknown", 0.4), line("sgoif-online", 1.0)]
    rivals = [line("tracin", 0.3), line("spectral", 0.2), line("random", 0.1), line("tracin", 1.0, seed=1)]
    none = {**line("sgoif-unknown", 0.0), "attack": "none"}
    write(tmp_path, "a.jsonl", *lines, *rivals, none)
    (row,) = poisoning.rows(poisoning.Runs("data", "a.jsonl", (0,), "dev"))
    known, unknown = ["50.0", "30.0 TracIn", "2"], ["40.0", "20.0 spectral signatures", "–"]
    assert row == ["data, BadNets patch 1%", "1", "100", *known, *unknown, "dev"]


def test_deletions_are_timed_on_a_processor_alone(filler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlearning = filler("unlearning")

    def line(seed: int, device: str, seconds: float, broken: int) -> dict[str, Any]:
        part = {
            "spearman": {"first_order": 0.5},
            "closed": {method: {"mean": 0.5, "least": 0.25} for method in ("influence", "newton", "removal")},
            "certificate": {"removal": {"broken": broken}},
            "interval": {"removal": {"population_coverage": 0.75}},
            "seconds": {"removal": seconds, "retraining": 1.0},
        }
        return {"seed": seed, "machine": {"device_type": device}, "metrics": {"single": part, "group": part}}

    write(tmp_path, "a.jsonl", line(0, "cpu", 0.5, 1), line(1, "cuda", 0.1, 2), line(2, "cpu", 9.0, 4))
    monkeypatch.setattr(unlearning, "RUNS", (unlearning.Runs("data", "a.jsonl", (0, 1), "dev"),))
    single, _ = cells(unlearning.summary())
    assert single == ["data (2)", "single", "0.500", *3 * ["50.0 / 25.0"], "3", "75.0", "500 (1000)", "dev"]


def test_loops_are_shown_by_their_smallest_lead_and_lengths_by_anchors(
    filler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = filler("loops")
    signals = dict.fromkeys(("final_loss", "mean_loss", "probability_margin", "logit_margin"), 0.25)

    def line(noise: str, label_score: float, same: bool = True, **place: Any) -> dict[str, Any]:
        metrics = {**signals, "influence": 0.125, "label_score": label_score}
        return {"noise": noise, "seed": 0, "metrics": metrics, "identical": same, "efforts": {"steps": 75}, **place}

    even, swapped = "symmetric-20", "class-dependent-20"
    first = [
        line(noise, share, loop=name) for name in ("adam", "lion") for noise, share in ((even, 0.5), (swapped, 0.75))
    ]
    write(tmp_path, "loops.jsonl", *first[:3], line(swapped, 0.125, same=False, loop="lion"))
    assert cells(loops.smallest_leads()) == [
        ["`lion`", "75", "50.0 (+25.0)", "12.5 (−12.5)"],
        ["`adam`", "75", "50.0 (+25.0)", "75.0 (+50.0)"],
    ]
    monkeypatch.setattr(loops, "SHOWN", 1)
    assert cells(loops.smallest_leads())[1] == ["1 others, least", "", "50.0 (+25.0)", "75.0 (+50.0)"]
    assert loops.unchanged() == "Identical weights: 3 of 4 pairs of trainings.\n"
    places = [{"steps": steps, "anchors": count} for steps in (3000, 20) for count in (1000, 50)]
    write(tmp_path, "lengths.jsonl", *(line(noise, 0.5, **place) for noise in (even, swapped) for place in places))
    shown = cells(loops.by_length())
    assert [row[:2] for row in shown] == [[a, b] for a in ("symmetric", "class-dependent") for b in ("20", "3,000")]
    assert shown[0][2:] == 2 * ["50.0/12.5/25.0"]
    assert "50 anchors | 1,000 anchors" in loops.by_length()


def test_every_round_of_damaged_files_is_counted(filler: Any, tmp_path: Path) -> None:
    faults = filler("faults")
    facts = {"kills": 5, "partial_files": 1, "audits": 3, "audits_with_the_same_table": 2}
    facts |= {"inputs": 4, "inputs_as_expected": 4}
    readers = {"png": {"files": 1000, "crashes": ["a"]}, "csv": {"files": 234, "crashes": []}}
    for name, _ in faults.ROUNDS.values():
        (tmp_path / name).write_text(json.dumps({"summary": facts, "fuzz": {"readers": readers}}), encoding="utf-8")
    shown = [row[1:4] for row in cells(faults.summary())]
    assert shown == [["5", "4", "1"], ["3", "2", "1"], ["4", "4", "0"], *3 * [["1,234", "1,233", "1"]]]


def test_pretrained_networks_show_the_better_of_two_scores_and_a_mean_over_complete_rows(
    filler: Any, tmp_path: Path
) -> None:
    pretrained = filler("pretrained")

    def line(method: str, aupr: float, place: str = "digits symmetric-15", seed: int = 0) -> dict[str, Any]:
        name, noise = place.split()
        about = {"recipe_id": "a", "examples": 1000, "wrong": 150, "seconds": 2.4, "machine": {"device_type": "cpu"}}
        return {"set": name, "noise": noise, "method": method, "seed": seed, "metrics": {"aupr": aupr}, **about}

    methods = [name for names in pretrained.COLUMNS.values() for name in names]
    second = "photos instance-15"
    lines = [line(name, 0.5, place) for name in methods for place in ("digits symmetric-15", second)]
    further = [
        line("sgoif-frozen", 0.9),
        line("sgoif-frozen", 0.7, seed=1),
        line("knn-vote", 0.6, "mnist symmetric-15"),
    ]
    write(tmp_path, "pretrained-a.jsonl", *lines)
    write(
        tmp_path,
        "pretrained-b.jsonl",
        *further,
        line("simifeat-rank", 0.625, second),
        line("knn-vote", 0.6, "mnist symmetric-15"),
    )
    photos, mnist, digits, mean = cells(pretrained.areas())
    assert photos == ["photos of waste, by image 15%", *3 * ["50.0"], "**62.5**", *4 * ["50.0"], "dev"]
    assert mnist == ["MNIST, symmetric 15%", "–", "–", "**60.0**", *5 * ["–"], "dev"]
    assert digits == ["digits, symmetric 15%", "**80.0 ± 14.1**", *7 * ["50.0"], "dev"]
    assert mean == ["mean of the 2 rows that are complete", "**65.0**", "50.0", "50.0", "56.2", *4 * ["50.0"], ""]
    assert cells(pretrained.seconds())[1] == ["MNIST, one core", "1,000", "–", "–", "2", *5 * ["–"]]


def test_whole_audits_are_compared_over_the_seeds_that_both_ways_have(filler: Any, tmp_path: Path) -> None:
    audits = filler("audits")

    def line(
        way: str, seed: int, aupr: float, seconds: float, chosen: str | None = None, **more: Any
    ) -> dict[str, Any]:
        place = {"set": "digits", "noise": "symmetric-15", "way": way, "seed": seed, "recipe_id": "a"}
        found = {"recipe": {"device": "cpu"}, "metrics": {"aupr": aupr}, "seconds": seconds, "chosen": chosen}
        return {**place, **found, **more}

    gpu = {"recipe_id": "b", "recipe": {"device": "cuda"}, "set": "photos", "noise": "instance-15"}
    write(
        tmp_path,
        "audits-a.jsonl",
        line("automatic", 0, 0.5, 10.0, "scratch"),
        line("automatic", 1, 0.7, 20.0, "frozen"),
        line("automatic", 2, 0.9, 20.0, "frozen"),
        line("from-scratch", 0, 0.6, 5.0),
        line("from-scratch", 1, 0.6, 5.0),
    )
    write(tmp_path, "audits-b.jsonl", line("automatic", 0, 0.5, 10.0, "finetuned", **gpu))
    photos, digits = cells(audits.audits())
    assert photos == ["photos of waste, by image, GPU", "50.0", "–", "–", "fine-tuned", "–"]
    shown = ["70.0 ± 20.0", "60.0 ± 0.0", "+0.0 ± 14.1", "frozen 2, scratch 1", "3.00 ± 1.41"]
    assert digits == ["digits, symmetric", *shown]


def test_findings_that_are_so_to_the_eye_are_no_false_alarms(filler: Any, tmp_path: Path) -> None:
    findings = filler("findings")
    origin = {
        "set": "photos",
        "seed": 0,
        "recipe_id": "a",
        "recipe": {},
        "clean_images": 2000,
        "planted": {},
        "found": {},
    }

    def line(kind: str, *rows: list[int]) -> dict[str, Any]:
        grave = {"error": 0, "warning": len(rows), "note": 0}
        clean = [{"rows": some, "severity": "warning"} for some in rows]
        measured = {"recall": 1.0, "precision": 0.5, "alarms": 0.0}
        return {**origin, "kind": kind, "metrics": measured, "clean": clean, "clean_severity": grave}

    write(tmp_path, "findings.jsonl", line("dark"), line("blurry", [1], [2], [3]), line("leaks", [4, 5], [5, 7]))
    looked = {"so": {"photos": {"blurry": [[2]], "copies": [[4, 5, 6]]}}}
    (tmp_path / "findings-looked.json").write_text(json.dumps(looked))
    assert cells(findings.false_alarms()) == [["leaks", "0.50 (1.00)"], ["blurry", "1.00 (1.50)"]]
    assert cells(findings.found())[1] == ["dark", "100/50"]
