"""Labels made wrong: exactly so many, only in what is trained on, and found by features that tell the classes apart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sgoif.errors import SettingError
from sgoif.findings import Finding, Severity
from sgoif.findings.kinds.labels import WrongLabels
from sgoif.tasks.crossfit import head
from sgoif_bench.findings import run, runner
from sgoif_bench.findings.grid import KIND
from sgoif_bench.findings.kinds import choose
from sgoif_bench.findings.labels import ERRORS, KINDS, NOTES, mislabelled
from sgoif_bench.findings.pictures import Pictures, generated
from sgoif_bench.findings.planting import LEAST, clean
from sgoif_bench.findings.settings import FindingsSettings

COUNT = 200


def test_a_share_of_the_labels_to_train_on_becomes_any_other() -> None:
    classes = ["a", "b", "c"]
    many = Pictures(np.arange(9000) % 3, classes, lambda row: pytest.fail(f"image {row} is looked at"))
    tree, twin = mislabelled(many, 1, 0.2), clean(many, 1)
    train = [row for row, file in enumerate(twin.files) if file.split == "train"]
    wrong = [row for row, file in enumerate(tree.files) if file.plants]
    assert len(wrong) == round(0.2 * len(train))
    assert set(wrong) <= set(train)
    for row, (file, before) in enumerate(zip(tree.files, twin.files, strict=True)):
        assert (file.split, file.number, file.row) == (before.split, before.number, row)
        assert (file.label != before.label) == (row in set(wrong))
    pairs = Counter((twin.files[row].label, tree.files[row].label) for row in wrong)
    assert len(pairs) == 6
    assert all(abs(count - len(wrong) / 6) < 5 * np.sqrt(len(wrong) / 6) for count in pairs.values())
    assert [file.label for file in mislabelled(many, 1, 0.2).files] == [file.label for file in tree.files]
    assert sum(bool(file.plants) for file in mislabelled(many, 1, 0.0001).files) == LEAST


def test_they_are_asked_for_beside_the_rest_which_stays_as_it_was() -> None:
    assert choose("all", features=True)[:2] == list(KINDS)
    assert not set(KINDS) & set(choose("all", features=False))
    with pytest.raises(SettingError, match="without features"):
        choose("wrong-label", features=False)
    with pytest.raises(SettingError, match=r"--wrong 0\.7"):
        FindingsSettings(wrong=0.7)
    jobs = FindingsSettings(sets="photos", backbone="lite0", device="cpu").asked()
    assert jobs[0].key("any").recipe_id == "d6c81b1c253d", "that of lines written before"
    assert jobs[1].methods == KINDS
    assert not set(jobs[0].methods) & set(KINDS)
    other = FindingsSettings(sets="photos", backbone="lite0", device="cpu", wrong=0.2).asked()
    assert [job.key("any") == before.key("any") for job, before in zip(other, jobs, strict=True)] == [True, False]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The command on generated images with features that tell their classes apart; labels of the twin by file."""
    whole = generated(COUNT)
    row_of = {whole.file(row)[0]: row for row in range(COUNT)}

    def features(collection: Any, names: list[str], *_: Any) -> Any:
        rows = np.array([row_of[(collection.root / name).read_bytes()] for name in names])
        noise = np.random.default_rng(0).normal(size=(COUNT, 12)).astype(np.float32)
        return noise[rows] + 6 * np.eye(12, dtype=np.float32)[whole.labels[rows]]

    monkeypatch.setattr(runner, "load_backbone", lambda _: "a network")
    monkeypatch.setattr(runner, "choose_resolution", lambda *_, **__: (8, "so"))
    monkeypatch.setattr(runner, "_features", features)
    monkeypatch.chdir(tmp_path)
    files = clean(whole, 0).files
    return {f"{file.number:06d}.png": file.label for file in files if file.split == "train"}


def lines() -> dict[str, Any]:
    options = ["--limit", str(COUNT), "--kinds", ",".join(KINDS), "--backbone", "lite0", "--device", "cpu"]
    assert run.main([*options, "--out", "found.jsonl"]) == 0
    return {line["kind"]: line for line in KIND.read([Path("found.jsonl")])}


def test_what_is_found_is_counted(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that finds all but four of the wrong labels, suspects three of these, and is wrong about two in both."""
    monkeypatch.setattr(runner, "judged", lambda pixels, *_: SimpleNamespace(names=pixels.names))

    def find(_: Any, seen: Any) -> list[Finding]:
        wrong = sorted(name for name in seen.names if asked[name.rpartition("/")[2]] != name.split("/")[1])
        right = sorted(set(seen.names) - set(wrong), key=lambda name: name.rpartition("/")[2])
        errors = [Finding(ERRORS, Severity.ERROR, "so", (name,)) for name in (*wrong[4:], *right[:2])]
        return [*errors, Finding(ERRORS, Severity.NOTE, "look", (*wrong[:3], *right[2:5]))]

    monkeypatch.setattr(WrongLabels, "find", find)
    found, train = lines(), len(asked)
    planted = round(0.1 * train)
    sure, look = found[ERRORS], found[NOTES]
    for line in (sure, look):
        assert (line["images"], line["clean_images"], line["planted"]) == (train, train, {"symmetric": planted})
        assert (line["known"], len(line["wrong"])) == (0, line["findings"] - line["right"])
    assert (sure["found"], sure["right"], look["found"], look["right"]) == (
        {"symmetric": planted - 4},
        planted - 4,
        {"symmetric": 3},
        3,
    )
    assert (sure["metrics"]["recall"], look["metrics"]["recall"]) == (1 - 4 / planted, 3 / planted)
    assert (sure["metrics"]["precision"], look["metrics"]["precision"]) == ((planted - 4) / (planted - 2), 0.5)
    assert sure["metrics"]["alarms"] == pytest.approx(2000 / train)
    assert (sure["clean_severity"]["error"], look["clean_severity"]["note"], look["metrics"]["alarms"]) == (2, 3, 0)


@pytest.mark.long
def test_they_are_found_where_features_tell_the_classes_apart(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "EPOCHS", 4)
    found = lines()
    assert found[ERRORS]["metrics"]["recall"] + found[NOTES]["metrics"]["recall"] > 0.9
    assert found[ERRORS]["metrics"]["alarms"] == 0
    for line in found.values():
        assert (line["images"], line["planted"]) == (len(asked), {"symmetric": round(0.1 * len(asked))})
    assert found[ERRORS]["severity"] == {"error": found[ERRORS]["findings"], "warning": 0, "note": 0}
    assert found[NOTES]["severity"]["error"] == 0
