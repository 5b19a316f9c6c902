"""An audit that is told nothing: features, heads, a short look at a network, and on with what serves best."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from audit_cases import FLIPPED, read_issues
from backbone_cases import NAME, SIDE, offer

from sgoif.audit import audit as auditing
from sgoif.audit import live_status
from sgoif.audit.audit import audit
from sgoif.audit.choice import Choice, Goal
from sgoif.audit.errors import AuditInterrupted, RunDirectoryError
from sgoif.audit.frozen import FrozenRun
from sgoif.audit.progress import Progress
from sgoif.audit.results import AuditResult
from sgoif.audit.settings import AuditSettings
from sgoif.audit.training import Course, Training
from sgoif.backbones import efficientnet_lite
from sgoif.cli import main
from sgoif.commands.finished_run import open_run
from sgoif.errors import MissingExtraError, SettingError
from sgoif.reports.page_json import TYPES
from sgoif.tasks.crossfit import CrossFit
from sgoif.tasks.labels.noise_rate import NoiseRate


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A backbone that is quick, and a cache of its own."""
    offer(monkeypatch)
    monkeypatch.setenv("SGOIF_CACHE", str(tmp_path_factory.getbasetemp() / "features"))


def look_of(monkeypatch: pytest.MonkeyPatch, agreement: float) -> list[str]:
    """A short look at a network ends with this agreement; returns the names of those that were looked at."""
    seen: list[str] = []

    def look(settings: AuditSettings, plan: Any, *_: Any) -> float:
        seen.append(plan.model)
        return agreement

    monkeypatch.setattr(auditing, "short_look", look)
    return seen


def settings(photos: Path, out: Path, **options: Any) -> AuditSettings:
    return AuditSettings(photos, out=out, **{"backbone": NAME, "device": "cpu", **options})


@pytest.fixture(scope="module")
def finished(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """Judged by features, which agree with more labels than the look."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        offer(monkeypatch)
        monkeypatch.setenv("SGOIF_CACHE", str(tmp_path_factory.getbasetemp() / "features"))
        look_of(monkeypatch, 0.1)
        return audit(settings(photos, tmp_path_factory.mktemp("automatic") / "run"))


def test_wrong_labels_come_first_and_the_way_is_told(finished: AuditResult) -> None:
    rows = read_issues(finished.out)
    assert len(rows) == 180
    assert sum(FLIPPED in row["path"] for row in rows[:18]) >= 14
    summary = json.loads((finished.out / "summary.json").read_text())
    assert summary["plan"]["model"] == f"{NAME}, frozen at {SIDE} pixels"
    assert summary["trained_on"] == summary["held_out"] == 180
    why = next(note for note in summary["notes"] if note.startswith("chosen by a short look at each"))
    assert "heads on frozen features agreed with" in why
    assert why.endswith("a small network after a short training from scratch with 10.0%")
    page = finished.report.read_text(encoding="utf-8")
    assert "chosen by a short look" in page
    assert f"frozen at {SIDE} pixels" in page


def test_the_page_names_the_held_out_images_that_each_one_hurts(finished: AuditResult) -> None:
    content = finished.report.read_text(encoding="utf-8")
    held = re.search(r'"harmed":\{"type":"([a-z]\d+)","data":"([^"]+)"', content)
    assert held is not None
    kind = {kind: name for name, kind in TYPES.items()}[held[1]]
    named = np.frombuffer(base64.b64decode(held[2]), dtype=f"<{kind}").reshape(180, -1)
    assert (named >= 0).any(axis=1).mean() > 0.95


def test_nothing_is_done_twice(
    finished: AuditResult, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = AuditSettings.from_record(finished.summary["settings"])
    before = (finished.out / "issues.csv").read_bytes()
    monkeypatch.setattr(CrossFit, "train", lambda *_: pytest.fail("a head was trained again"))
    monkeypatch.setattr(auditing, "short_look", lambda *_: pytest.fail("looked again"))
    audit(own, resume=True)
    assert (finished.out / "issues.csv").read_bytes() == before
    with pytest.raises(RunDirectoryError, match="a finished run"):
        audit(own)


def test_a_run_that_was_stopped_keeps_its_heads_and_ends_as_if_nothing_had_been(
    finished: AuditResult, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Progress):
        def advance(self, done: int, total: int, note: str = "") -> None:
            if note == "head 3 of 4":
                raise KeyboardInterrupt

    own = settings(photos, tmp_path / "run")
    look_of(monkeypatch, 0.1)
    with pytest.raises(AuditInterrupted, match="--resume"):
        audit(own, Stop())
    assert {path.name for path in own.directory.glob("head-*")} == {"head-0.npz", "head-1.npz"}
    trained: list[int] = []
    train = CrossFit.train

    def counted(self: CrossFit, fold: int, *given: Any) -> Any:
        trained.append(fold)
        return train(self, fold, *given)

    monkeypatch.setattr(CrossFit, "train", counted)
    result = audit(own, resume=True)
    assert trained == [2, 3]
    assert (result.out / "issues.csv").read_bytes() == (finished.out / "issues.csv").read_bytes()


def test_a_damaged_head_is_trained_again(finished: AuditResult, monkeypatch: pytest.MonkeyPatch) -> None:
    before, kept = (finished.out / "issues.csv").read_bytes(), finished.out / "head-1.npz"
    content = kept.read_bytes()
    kept.write_bytes(content[: len(content) // 2])
    audit(AuditSettings.from_record(finished.summary["settings"]), resume=True)
    assert (finished.out / "issues.csv").read_bytes() == before
    assert kept.read_bytes() == content


def test_a_network_is_trained_where_it_agrees_with_more_labels(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = look_of(monkeypatch, 1.0)
    monkeypatch.setattr("sgoif.audit.plan.FEWEST_EPOCHS", 2)
    monkeypatch.setattr("sgoif.audit.plan.STEPS", 20)
    result = audit(settings(photos, tmp_path / "run"))
    assert seen == ["resnet7-whitened"]
    assert result.summary["plan"]["model"] == "resnet7-whitened"
    assert any("agreed with 100.0%" in note for note in result.summary["notes"])
    monkeypatch.setattr(auditing, "FrozenRun", lambda *_: pytest.fail("features were opened again"))
    monkeypatch.setattr(Training, "advance", lambda _: pytest.fail("trained again"))
    monkeypatch.setattr(auditing, "short_look", lambda *_: pytest.fail("looked again"))
    again = audit(AuditSettings.from_record(result.summary["settings"]), resume=True)
    assert again.summary["steps"] == result.summary["steps"]


@pytest.mark.parametrize(("decided", "epochs"), [(True, [1]), (False, [1, 2])])
def test_a_look_is_a_short_training_and_a_second_one_follows_where_it_decides_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: bool, epochs: list[int]
) -> None:
    monkeypatch.setattr("sgoif.audit.plan.FEWEST_EPOCHS", 12)
    monkeypatch.setattr("sgoif.audit.plan.STEPS", 20)
    steps: list[int] = []
    advance = Course.advance

    def counted(self: Course) -> None:
        advance(self)
        steps.append(self.plan.epochs * self.plan.steps_per_epoch)

    monkeypatch.setattr(Course, "advance", counted)
    monkeypatch.setattr(FrozenRun, "agreement", lambda *_: 1.0)
    monkeypatch.setattr(Goal, "decided", lambda *_: decided)
    audit(settings(photos, tmp_path / "run"))
    assert steps == [count * 8 for count in epochs for _ in range(count * 8)]


@pytest.mark.parametrize(
    ("agreement", "decided"),
    [(0.71, True), (0.69, False), (0.56, False), (0.54, True), (0.1, True)],
    ids=["ahead", "near", "half as far from the most", "further", "far"],
)
def test_a_first_look_decides_where_a_second_one_could_change_nothing(agreement: float, decided: bool) -> None:
    assert Goal(agreement=0.7, most=0.85).decided(agreement) is decided


@pytest.mark.parametrize(("told", "most"), [(True, 0.88), (False, 1.0)])
def test_the_most_that_can_be_right_needs_heads_that_have_learned(told: bool, most: float) -> None:
    findings = SimpleNamespace(rate_told=told, noise_rate=lambda: NoiseRate(0.15, 0.12, 0.2))
    run = SimpleNamespace(_findings=findings)
    assert FrozenRun.most_right.fget(run) == most  # type: ignore[attr-defined]


def test_whoever_watches_is_told_of_features_and_heads(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_of(monkeypatch, 0.1)
    monkeypatch.setattr(live_status, "EVERY", 0.0)
    told: list[dict[str, Any]] = []
    write = live_status.atomic_write

    def listening(path: Path, how: Any, **options: Any) -> None:
        write(path, how, **options)
        told.append(json.loads(path.read_text(encoding="utf-8")))

    class Stop(Progress):
        def stage(self, name: str, total: int, done: int = 0) -> None:
            if name == "writing the page":
                raise KeyboardInterrupt

    monkeypatch.setattr(live_status, "atomic_write", listening)
    own = settings(photos, tmp_path / "run")
    with pytest.raises(AuditInterrupted):
        audit(own, Stop())
    assert told[-1]["state"] == "stopped"
    assert {"state": f"features by {NAME} at {SIDE} pixels", "done": 180, "total": 180} in told
    assert {"state": "training heads on the features", "done": 400, "total": 400} in told
    audit(own, resume=True)
    assert told[-1]["state"] == "finished"


def test_of_equals_the_first_way_is_taken() -> None:
    assert Choice.of({"frozen": 0.5, "scratch": 0.5}).method == "frozen"
    assert Choice.of({"frozen": 0.5, "scratch": 0.6, "finetuned": 0.7}).method == "finetuned"


def test_checked_labels_may_be_about_any_image(
    finished: AuditResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = read_issues(finished.out)
    given = tmp_path / "decisions.csv"
    lines = [f"{row['path']},keep,{row['given_label']}," for row in rows[:3]]
    given.write_text("path,decision,given_label,new_label\n" + "\n".join(lines) + "\n")
    said: list[str] = []
    listening = Progress()
    monkeypatch.setattr(listening, "say", said.append)
    own = AuditSettings.from_record({**finished.summary["settings"], "checked": str(given)})
    audit(own, listening, resume=True)
    assert any(line.startswith("3 checked labels") for line in said)


@pytest.mark.parametrize("options", [{"epochs": 3}, {"augment": False}, {"budget": 0.2}, {"nproc": 2}])
def test_settings_of_a_network_need_one(options: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"give --finetune or --from-scratch with it"):
        AuditSettings(Path("photos"), **options).raise_if_pointless()
    AuditSettings(Path("photos"), from_scratch=True, **options).raise_if_pointless()


def test_settings_without_a_network_are_refused_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="epochs is about the training of a network"):
        audit(settings(photos, tmp_path / "run", epochs=3))
    assert not (tmp_path / "run").exists()
    assert main(["audit", str(photos), "--out", str(tmp_path / "run"), "--nproc", "2"]) == 2


def test_without_the_extra_it_says_what_to_install_or_to_ask_for(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(efficientnet_lite, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"sgoif\[pretrained\].*or give --from-scratch"):
        audit(AuditSettings(photos, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert main(["audit", str(photos), "--out", str(tmp_path / "run")]) == 2
    assert "--from-scratch" in capsys.readouterr().err


def test_other_commands_say_that_there_is_no_network(finished: AuditResult) -> None:
    with pytest.raises(RunDirectoryError, match="trained no network"):
        open_run(finished.out, None, print)


def test_copies_never_judge_each_other(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    shutil.copytree(photos, tmp_path / "photos")
    for path in sorted((tmp_path / "photos" / "dots").iterdir())[:20]:
        shutil.copy(path, tmp_path / "photos" / "bars" / f"copy-{path.name}")
    seen: list[CrossFit] = []
    init = CrossFit.__init__

    def watched(self: CrossFit, *given: Any, **options: Any) -> None:
        init(self, *given, **options)
        seen.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(CrossFit, "__init__", watched)
    with pytest.raises(AuditInterrupted):
        audit(settings(tmp_path / "photos", tmp_path / "run"))
    assert np.count_nonzero(np.bincount(seen[0].group) > 1) >= 20
