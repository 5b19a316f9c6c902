"""An audit from beginning to end, in this process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_cases import FLIPPED, make_folder, read_issues
from PIL import Image

from sgoif.audit import outputs, run_directory
from sgoif.audit.audit import AuditResult, audit
from sgoif.audit.errors import AuditError, AuditInterrupted, RunDirectoryError
from sgoif.audit.progress import Progress
from sgoif.audit.settings import AuditSettings
from sgoif.core.score_table import ScoreTable
from sgoif.errors import ModelError, SgoifError
from sgoif.findings.record import read_findings
from sgoif.images import ImagesError

QUICK: dict[str, Any] = {"model": "tiny_nets:tiny", "device": "cpu", "epochs": 3}
FILES = {
    "findings.json",
    "findings.parquet",
    "issues.csv",
    "issues.parquet",
    "report.html",
    "summary.json",
    "skipped.csv",
    "copies.csv",
    "run.json",
}


def settings(path: Path, out: Path, **options: Any) -> AuditSettings:
    return AuditSettings(path, out=out, **{**QUICK, **options})


@pytest.fixture(scope="module")
def finished(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    out = tmp_path_factory.mktemp("finished") / "run"
    return audit(settings(photos, out, epochs=40, early_stop=False))


@pytest.fixture(scope="module")
def quick(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a quick run finds that nobody disturbs."""
    out = tmp_path_factory.mktemp("quick") / "run"
    audit(settings(photos, out))
    return read_issues(out)


def test_wrong_labels_come_first_in_every_output(finished: AuditResult) -> None:
    rows = read_issues(finished.out)
    assert list(rows[0]) == list(outputs.COLUMNS)
    assert len(rows) == 180
    assert sum(FLIPPED in row["path"] for row in rows[:18]) >= 14
    assert [row["path"] for row in rows] == list(finished.table["path"])
    probability = [float(row["probability_wrong"]) for row in rows]
    assert probability == sorted(probability, reverse=True)
    for row in rows:
        assert row["given_label"] == row["path"].split("/")[0]
        assert row["predicted_label"] in ("bars", "columns", "dots")
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(finished.out / "issues.parquet").to_pydict()
    assert table["path"] == list(finished.table["path"])
    assert table["is_label_issue"] == finished.table["is_label_issue"].tolist()


def test_the_run_directory_is_complete_and_tidy(finished: AuditResult) -> None:
    names = {p.name for p in finished.out.iterdir()}
    assert names >= FILES
    assert not [name for name in names if name.startswith(".") or name.endswith(".part")]
    page = finished.report.read_text(encoding="utf-8")
    assert "<title" in page
    assert FLIPPED in page
    assert (finished.out / "skipped.csv").read_text().splitlines() == ["name,reason"]


def test_the_summary_says_what_was_found_and_how(finished: AuditResult) -> None:
    written = json.loads((finished.out / "summary.json").read_text())
    assert written["images"] == 180
    assert written["classes"] == 3
    assert written["trained_on"] + written["held_out"] == 180
    assert written["selected"] == int(finished.table["is_label_issue"].sum())
    assert written["noise_rate"]["low"] <= written["noise_rate"]["estimate"] <= written["noise_rate"]["high"]
    assert written["settings"]["epochs"] == 40
    assert written["plan"]["model"] == "tiny_nets:tiny"
    assert written["stopped"] == "all epochs done"
    assert written["seconds"] > 0
    assert {"sgoif", "torch"} <= set(written["versions"])


def test_a_finished_run_only_writes_its_outputs_again(finished: AuditResult, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: (finished.out / name).read_bytes() for name in ("issues.csv", "checkpoint.npz")}
    for name in ("issues.csv", "report.html", "summary.json"):
        (finished.out / name).unlink()
    monkeypatch.setattr("sgoif.audit.training.Training.advance", lambda _: pytest.fail("trained again"))
    own = AuditSettings.from_record(finished.summary["settings"])
    again = audit(own, resume=True)
    assert {name: (finished.out / name).read_bytes() for name in before} == before
    assert again.report.is_file()
    looser = audit(AuditSettings.from_record({**own.record(), "fdr": 0.4}), resume=True)
    assert looser.summary["selected"] >= again.summary["selected"]
    with pytest.raises(RunDirectoryError, match="a finished run"):
        audit(own)


def test_the_same_seed_gives_the_same_files_and_the_callers_randomness_is_untouched(
    quick: list[dict[str, Any]], photos: Path, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = (torch.rand(3), np.random.rand(3))  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    audit(settings(photos, tmp_path / "one"))
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])  # noqa: NPY002
    assert read_issues(tmp_path / "one") == quick


def test_changed_data_are_not_mixed_with_an_old_run(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", per_class=12)
    audit(settings(data, tmp_path / "run"))
    shutil.copy(next((data / "bars").glob("*.png")), data / "bars" / "new.png")
    with pytest.raises(RunDirectoryError, match="have changed"):
        audit(settings(data, tmp_path / "run"), resume=True)


def test_the_checkpoint_of_another_run_is_refused(quick: list[dict[str, Any]], photos: Path, tmp_path: Path) -> None:
    other = make_folder(tmp_path / "other", per_class=60, seed=9)
    audit(settings(photos, tmp_path / "run"))
    audit(settings(other, tmp_path / "foreign"))
    audit(settings(photos, tmp_path / "seeded", seed=1))
    own = (tmp_path / "run" / "checkpoint.npz").read_bytes()
    for name, differing in (("foreign", "data, prepared images"), ("seeded", "seed")):
        shutil.copy(tmp_path / name / "checkpoint.npz", tmp_path / "run")
        with pytest.raises(RunDirectoryError, match=rf"checkpoint\.npz belongs to another run: {differing} differ"):
            audit(settings(photos, tmp_path / "run"), resume=True)
        foreign = (tmp_path / name / "checkpoint.npz").read_bytes()
        assert (tmp_path / "run" / "checkpoint.npz").read_bytes() == foreign
    (tmp_path / "run" / "checkpoint.npz").write_bytes(own)
    audit(settings(photos, tmp_path / "run"), resume=True)
    assert read_issues(tmp_path / "run") == quick


def test_pixels_that_were_changed_are_refused(photos: Path, tmp_path: Path) -> None:
    audit(settings(photos, tmp_path / "run"))
    before, pixels = read_issues(tmp_path / "run"), tmp_path / "run" / "cache" / "pixels.npy"
    content = pixels.read_bytes()
    changed = content[:1000] + bytes(45_000) + content[46_000:]
    assert changed != content
    pixels.unlink()
    pixels.write_bytes(changed)
    with pytest.raises(ImagesError, match=r"pixels\.npy.* has been changed or damaged.*move the folder away"):
        audit(settings(photos, tmp_path / "run"), resume=True)
    assert pixels.read_bytes() == changed
    (tmp_path / "run" / "cache").rename(tmp_path / "away")
    audit(settings(photos, tmp_path / "run"), resume=True)
    assert pixels.read_bytes() == content
    assert read_issues(tmp_path / "run") == before


def test_where_every_checkpoint_is_damaged_nothing_begins_anew_by_itself(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(AuditInterrupted):
        audit(settings(photos, tmp_path / "run"), Stop(signal.SIGINT, 11))
    path = tmp_path / "run" / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(RunDirectoryError, match=r"cannot go on where it was.*remove checkpoint\.npz and run the same"):
        audit(settings(photos, tmp_path / "run"), resume=True)
    assert not (tmp_path / "run" / "issues.csv").exists()
    path.unlink()
    audit(settings(photos, tmp_path / "run"), resume=True)
    assert len(read_issues(tmp_path / "run")) == 180


class Stop(Progress):
    """Sends a signal at a step, as a person or a scheduler would."""

    def __init__(self, number: signal.Signals, at: int, stage: str = "training") -> None:
        self.number, self.at, self.wanted, self.current = number, at, stage, ""

    def stage(self, name: str, total: int, done: int = 0) -> None:
        self.current = name

    def advance(self, done: int, total: int, note: str = "") -> None:
        if self.current.startswith(self.wanted) and done == self.at:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(
    number: signal.Signals, code: int, quick: list[dict[str, Any]], photos: Path, tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(AuditInterrupted) as stop:
        audit(settings(photos, tmp_path / "run"), Stop(number, 11))
    assert signal.getsignal(number) is before
    assert stop.value.exit_code == code
    assert "after step 11 is kept" in str(stop.value)
    assert str(stop.value).endswith(settings(photos, tmp_path / "run").command("--resume"))
    audit(settings(photos, tmp_path / "run"), resume=True)
    assert read_issues(tmp_path / "run") == quick


def test_a_signal_while_images_are_read_leaves_a_run_that_can_go_on(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(AuditInterrupted, match="What was read of the images is kept"):
        audit(settings(photos, tmp_path / "run"), Stop(signal.SIGINT, 64, "reading"))
    audit(settings(photos, tmp_path / "run"), resume=True)
    assert len(read_issues(tmp_path / "run")) == 180


def test_a_full_disk_in_the_middle_is_explained_and_the_run_goes_on_later(
    quick: list[dict[str, Any]], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "EVERY", 0.0)
    written, save = [], run_directory.save_state

    def filling(path: Path, state: dict[str, Any]) -> None:
        if len(written) == 5:
            raise OSError(28, "No space left on device")
        written.append(path)
        save(path, state)

    monkeypatch.setattr(run_directory, "save_state", filling)
    with pytest.raises(RunDirectoryError, match=r"disk is full.*after step 5 is kept.*--resume"):
        audit(settings(photos, tmp_path / "run"))
    monkeypatch.undo()
    audit(settings(photos, tmp_path / "run"), resume=True)
    assert read_issues(tmp_path / "run") == quick


def test_a_full_disk_while_writing_results_loses_no_training(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ScoreTable, "to_csv", full)
    with pytest.raises(RunDirectoryError, match=r"disk is full\. The checkpoint after step \d+ is kept"):
        audit(settings(photos, tmp_path / "run"))
    monkeypatch.undo()
    monkeypatch.setattr("sgoif.audit.training.Training.advance", lambda _: pytest.fail("trained again"))
    assert len(audit(settings(photos, tmp_path / "run"), resume=True).table) == 180


HOSTILE = [
    "<script>alert(1)</script>".replace("/", "_"),
    "\"quotes\" and 'apostrophes'",
    "line\nbreak",
    "=HYPERLINK(1)",
    "Привет 世界 \u202eabc",
    "ж" * 100,
]


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", classes=HOSTILE, per_class=6)
    first = next((data / HOSTILE[0]).glob("*.png"))
    strange = first.with_name("'--></script><img src=x onerror=alert(1)>\n.png".replace("/", "_"))
    first.rename(strange)
    result = audit(settings(data, tmp_path / "run"))
    rows = read_issues(tmp_path / "run")
    assert {row["given_label"] for row in rows} == set(HOSTILE)
    assert {row["path"] for row in rows} == {p.relative_to(data).as_posix() for p in data.glob("*/*.png")}
    raw = result.issues.read_text(encoding="utf-8")
    assert not [line for line in raw.splitlines() if line.startswith(("=", "+", "@"))]
    page = result.report.read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page


def test_unreadable_and_repeated_images_are_reported(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", per_class=12)
    (data / "bars" / "broken.png").write_bytes(b"not an image")
    some = sorted((data / "dots").glob("*.png"))
    shutil.copy(some[0], data / "dots" / "copy.png")
    shutil.copy(some[1], data / "bars" / "elsewhere.png")
    result = audit(settings(data, tmp_path / "run"))
    assert "bars/broken.png" in (tmp_path / "run" / "skipped.csv").read_text()
    assert (result.summary["skipped"], result.summary["duplicates"], result.summary["images"]) == (1, 2, 38)
    counts = result.summary["findings"]["kinds"]
    assert (counts["unreadable"], counts["copies"]) == (1, 2)
    first = next(found for found in read_findings(tmp_path / "run" / "findings.json") if found.kind == "copies")
    assert (first.severity, set(first.images)) == ("error", {"bars/elsewhere.png", f"dots/{some[1].name}"})
    assert any("Exact copies: 1 finding about 2 images" in line for line in result.summary["findings"]["summary"])
    copies = (tmp_path / "run" / "copies.csv").read_text().splitlines()
    assert copies[0] == "copies,labels_differ,nearly,path,given_label"
    assert sorted(copies[1:3]) == ["1,True,False,bars/elsewhere.png,bars", f"1,True,False,dots/{some[1].name},dots"]
    assert sorted(copies[3:]) == sorted(["2,False,False,dots/copy.png,dots", f"2,False,False,dots/{some[0].name},dots"])
    assert copies_on(result.report) == {
        frozenset({"bars/elsewhere.png", f"dots/{some[1].name}"}),
        frozenset({"dots/copy.png", f"dots/{some[0].name}"}),
    }


def copies_on(page: Path) -> set[frozenset[str]]:
    """Names of the pictures that a page calls copies of each other."""
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', page.read_text("utf-8"), re.S)
    assert found is not None
    report = json.loads(found[1])
    return {frozenset(report["names"][row] for row in group) for group in report["copies"]}


def test_images_that_are_nearly_the_same_are_reported(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", per_class=12)
    some = sorted((data / "dots").glob("*.png"))
    with Image.open(some[0]) as picture:
        picture.point(lambda value: min(255, value + 3)).save(data / "bars" / "brighter.png")
    result = audit(settings(data, tmp_path / "run"))
    assert (result.summary["duplicates"], result.summary["near_duplicates"]) == (0, 1)
    (alike,) = (found for found in read_findings(tmp_path / "run" / "findings.json") if found.kind == "near-copies")
    assert (alike.severity, set(alike.images)) == ("warning", {"bars/brighter.png", f"dots/{some[0].name}"})
    assert set(alike.classes) == {"bars", "dots"}
    copies = (tmp_path / "run" / "copies.csv").read_text().splitlines()
    assert copies[1:] == ["1,True,True,bars/brighter.png,bars", f"1,True,True,dots/{some[0].name},dots"]
    assert copies_on(result.report) == {frozenset({"bars/brighter.png", f"dots/{some[0].name}"})}


def test_classes_of_one_image_are_scored_and_not_listed(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", per_class=12)
    (data / "lonely").mkdir()
    shutil.copy(next((data / "bars").glob("*.png")), data / "lonely" / "one.png")
    result = audit(settings(data, tmp_path / "run"))
    row = result.table["path"].tolist().index("lonely/one.png")
    assert result.table["n_observations"][row] == 3
    assert np.isfinite(result.table["influence"][row])
    assert result.table["probability_wrong"][row] == result.summary["noise_rate"]["estimate"]
    assert np.isfinite(result.table["probability_wrong"]).all()
    assert not result.table["is_label_issue"][row]
    assert any("labels of 'lonely' are not judged" in note for note in result.summary["notes"])


@pytest.mark.parametrize("case", ["one class", "two images", "a dozen", "empty", "nothing readable", "missing"])
def test_data_that_cannot_be_audited_are_refused_and_leave_nothing(case: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    if case == "one class":
        make_folder(data, classes=("only",), per_class=10, wrong=0)
    elif case == "two images":
        make_folder(data, classes=("a", "b"), per_class=1, wrong=0)
    elif case == "a dozen":
        make_folder(data, classes=("a", "b"), per_class=6, wrong=0)
    elif case == "empty":
        (data / "a").mkdir(parents=True)
    elif case == "nothing readable":
        for name in ("a", "b"):
            (data / name).mkdir(parents=True)
            (data / name / "x.png").write_bytes(b"no image")
    with pytest.raises(SgoifError) as error:
        audit(settings(data, tmp_path / "run"))
    assert len(str(error.value)) > 30
    assert not (tmp_path / "run" / "summary.json").exists()
    if case in ("two images", "a dozen"):
        assert isinstance(error.value, AuditError)
    if case != "nothing readable":
        assert not (tmp_path / "run").exists()


def test_mistakes_in_the_model_are_found_before_the_images_are_read(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        audit(settings(photos, tmp_path / "run", model="resnet1000"))
    with pytest.raises(ModelError, match="no such file"):
        audit(settings(photos, tmp_path / "run", weights=tmp_path / "none.safetensors"))
    assert not (tmp_path / "run").exists()


def test_trained_weights_are_where_a_run_starts(quick: list[dict[str, Any]], photos: Path, tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    from sgoif.audit.models import make_model

    save_file(make_model("tiny_nets:tiny", 3, 7, 12).state_dict(), tmp_path / "w.safetensors")
    said: list[str] = []

    class Ear(Progress):
        def say(self, message: str) -> None:
            said.append(message)

    audit(settings(photos, tmp_path / "run", weights=tmp_path / "w.safetensors"), Ear())
    assert any("4.weight" in message for message in said)
    assert read_issues(tmp_path / "run") != quick


def test_without_pyarrow_the_rest_is_written_and_said(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "find_spec", lambda name: None)
    result = audit(settings(photos, tmp_path / "run"))
    assert not (tmp_path / "run" / "issues.parquet").exists()
    assert any("pyarrow" in note for note in result.summary["notes"])
