"""The run directory: nobody's work is overwritten, and a checkpoint survives kills, damage and a full disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from sgoif.audit import run_directory
from sgoif.audit.errors import RunDirectoryError
from sgoif.audit.run_directory import RunDirectory, claim
from sgoif.audit.settings import AuditSettings
from sgoif.core.serialization import save_state


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((3,), float(step))}


@pytest.fixture
def settings(tmp_path: Path) -> AuditSettings:
    return AuditSettings(tmp_path / "photos", out=tmp_path / "run", from_scratch=True, epochs=3)


def begin(settings: AuditSettings, step: int | None = None) -> None:
    with claim(settings, resume=False) as directory:
        directory.record("digest")
        if step is not None:
            directory.save(state(step))


def test_a_run_is_recorded_before_it_works(settings: AuditSettings) -> None:
    begin(settings)
    written = json.loads((settings.directory / "run.json").read_text())
    assert written["settings"] == settings.record()
    assert written["digest"] == "digest"
    assert "torch" in written["versions"]


def test_an_existing_run_is_never_overwritten(settings: AuditSettings) -> None:
    begin(settings, 5)
    with pytest.raises(RunDirectoryError, match=r"not finished.*--resume.*--out"), claim(settings, resume=False):
        pass
    (settings.directory / "summary.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match="a finished run"), claim(settings, resume=False):
        pass
    with claim(settings, resume=True) as directory:
        found, problems = directory.load()
    assert found is not None
    assert (found["step"], problems) == (5, [])


@pytest.mark.parametrize("decoys", [None, 0.02, 0])
def test_runs_with_labels_made_wrong_on_purpose_are_refused_with_a_sentence(
    settings: AuditSettings, decoys: float | None
) -> None:
    begin(settings, 5)
    written = json.loads((settings.directory / "run.json").read_text())
    written["settings"]["decoys"] = decoys
    (settings.directory / "run.json").write_text(json.dumps(written))
    if decoys == 0:
        with claim(settings, resume=True) as directory:
            assert directory.load()[0] is not None
        return
    with pytest.raises(RunDirectoryError, match=r"made wrong on purpose.*sgoif review.*--out"), claim(settings, True):
        pass
    (settings.directory / "checkpoint.npz").unlink()
    with claim(settings, resume=True) as directory:
        directory.record("digest")
    assert "decoys" not in json.loads((settings.directory / "run.json").read_text())["settings"]


def test_a_folder_of_somebody_else_is_left_alone(settings: AuditSettings) -> None:
    settings.directory.mkdir()
    (settings.directory / "thesis.tex").write_text("x")
    for resume in (False, True):
        with pytest.raises(RunDirectoryError, match=r"thesis\.tex"), claim(settings, resume=resume):
            pass
    assert (settings.directory / "thesis.tex").read_text() == "x"
    assert [entry.name for entry in settings.directory.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_left_nothing_gives_way_to_another(settings: AuditSettings, resume: bool) -> None:
    """A mistake in the settings may be noticed after they were written down."""
    begin(settings)
    mended = AuditSettings(settings.path, out=settings.out, from_scratch=True, epochs=4)
    with claim(mended, resume=resume) as directory:
        directory.record("another")
    written = json.loads((settings.directory / "run.json").read_text())
    assert (written["settings"], written["digest"]) == (mended.record(), "another")
    with claim(mended, resume=True) as directory, pytest.raises(RunDirectoryError, match="have changed"):
        directory.record("a third")


def test_changed_settings_are_named_with_the_command_to_go_on(settings: AuditSettings) -> None:
    begin(settings, 5)
    changed = AuditSettings(settings.path, out=settings.out, from_scratch=True, epochs=4, seed=2)
    with (
        pytest.raises(
            RunDirectoryError, match=r"epochs was 3, now 4; seed was 0, now 2.*--from-scratch --epochs 3 .*--resume"
        ),
        claim(changed, resume=True),
    ):
        pass
    with claim(AuditSettings(settings.path, out=settings.out, from_scratch=True, epochs=3, fdr=0.3), resume=True):
        pass


def test_changed_data_are_noticed(settings: AuditSettings) -> None:
    begin(settings, 5)
    with claim(settings, resume=True) as directory, pytest.raises(RunDirectoryError, match="have changed"):
        directory.record("another digest")


def test_nothing_to_resume_is_a_fresh_start(settings: AuditSettings) -> None:
    with claim(settings, resume=True) as directory:
        directory.record("digest")
        assert directory.load() == (None, [])


def test_two_processes_cannot_share_a_directory(settings: AuditSettings) -> None:
    with claim(settings, resume=False) as directory:
        directory.record("digest")
        message = rf"another process \({os.getpid()}\) is at work"
        with pytest.raises(RunDirectoryError, match=message), claim(settings, resume=True):
            pass
    with claim(settings, resume=True):
        pass


def test_a_failed_start_leaves_no_trace(settings: AuditSettings) -> None:
    with pytest.raises(ZeroDivisionError), claim(settings, resume=False):
        raise ZeroDivisionError
    assert not settings.directory.exists()


def test_two_generations_are_kept_and_damage_falls_back(settings: AuditSettings) -> None:
    with claim(settings, resume=False) as directory:
        directory.record("digest")
        for step in (1, 2, 3):
            directory.save(state(step))
        newest = settings.directory / run_directory.NEWEST
        newest.write_bytes(newest.read_bytes()[:-50])
        found, problems = RunDirectory(directory.path, settings).load()
    assert found is not None
    assert found["step"] == 2
    assert torch.equal(found["weights"], torch.full((3,), 2.0))
    assert len(problems) == 1


def test_where_no_checkpoint_can_be_read_the_user_decides(settings: AuditSettings) -> None:
    with claim(settings, resume=False) as directory:
        directory.record("digest")
        directory.save(state(1))
        directory.save(state(2))
    files = [settings.directory / name for name in (run_directory.NEWEST, run_directory.PREVIOUS)]
    for path in files:
        path.write_bytes(path.read_bytes()[:-50])
    before = {path.name: path.read_bytes() for path in settings.directory.iterdir()}
    said = r"no checkpoint in .*run can be read.*remove checkpoint.npz and checkpoint-previous.npz and run .*--out"
    with claim(settings, resume=True) as directory, pytest.raises(RunDirectoryError, match=said):
        directory.load()
    assert {path.name: path.read_bytes() for path in settings.directory.iterdir()} == before
    for path in files:
        path.unlink()
    with claim(settings, resume=True) as directory:
        directory.record("digest")
        assert directory.load() == (None, [])


def identified(settings: AuditSettings, **identity: Any) -> RunDirectory:
    directory = RunDirectory(settings.directory, settings)
    directory.identity = {"seed": 0, "data": "a", "prepared images": "b", **identity}
    return directory


def test_a_checkpoint_of_another_run_is_refused_and_left_alone(settings: AuditSettings, tmp_path: Path) -> None:
    begin(settings)
    mine = identified(settings)
    mine.save(state(1))
    identified(settings, seed=1, data="c").save(state(9))  # as if copied there
    newest = settings.directory / run_directory.NEWEST
    before = newest.read_bytes()
    with pytest.raises(
        RunDirectoryError, match=r"checkpoint\.npz belongs to another run: data, seed differ.*move it away"
    ):
        identified(settings).load()
    assert newest.read_bytes() == before
    newest.rename(tmp_path / "elsewhere.npz")
    found, problems = identified(settings).load()
    assert found is not None
    assert (found["step"], problems) == (1, [])
    assert run_directory.IDENTITY not in found


def test_a_checkpoint_that_says_nothing_of_its_run_is_refused(settings: AuditSettings) -> None:
    begin(settings)
    save_state(settings.directory / run_directory.NEWEST, state(4))
    with pytest.raises(RunDirectoryError, match=r"checkpoint\.npz does not say which run.*--out"):
        identified(settings).load()


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_between_the_renames_loses_nothing(
    settings: AuditSettings, renames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    with claim(settings, resume=False) as directory:
        directory.record("digest")
        directory.save(state(1))
        directory.save(state(2))
        done, replace = [], os.replace

        def dying(source: Any, target: Any) -> None:
            if Path(source).name.startswith("."):  # the write itself
                return replace(source, target)
            if len(done) == renames:
                raise Killed
            done.append(target)
            return replace(source, target)

        monkeypatch.setattr(os, "replace", dying)
        if renames < 2:
            with pytest.raises(Killed):
                directory.save(state(3))
        else:
            directory.save(state(3))
        monkeypatch.undo()
    with claim(settings, resume=True) as directory:
        found, _ = directory.load()
        assert found is not None
        assert found["step"] == 3
        directory.save(state(4))
        assert directory.load()[0]["step"] == 4  # type: ignore[index]
        assert not (directory.path / run_directory.INCOMING).exists()


def test_a_full_disk_keeps_the_last_checkpoint_and_says_so(
    settings: AuditSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claim(settings, resume=False) as directory:
        directory.record("digest")
        directory.save(state(7))

        def full(_handle: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunDirectoryError, match=r"disk is full.*after step 7 is kept.*--resume"):
            directory.save(state(8))
        monkeypatch.undo()
        assert directory.load()[0]["step"] == 7  # type: ignore[index]
        assert sorted(p.name for p in directory.path.iterdir()) == ["checkpoint.npz", "lock", "run.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    settings = AuditSettings(tmp_path, out=tmp_path / "closed" / "run")
    with pytest.raises(RunDirectoryError, match="cannot be written"), claim(settings, resume=False):
        pass


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_disk_is_refused_before_any_work(
    settings: AuditSettings, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: refuse())
    with pytest.raises(RunDirectoryError, match=r"cannot be written.*--out"), claim(settings, resume=False):
        pass


def test_a_file_in_the_way_is_named(settings: AuditSettings) -> None:
    settings.directory.write_text("")
    with pytest.raises(RunDirectoryError, match="is a file"), claim(settings, resume=False):
        pass


def test_a_damaged_record_is_not_guessed_at(settings: AuditSettings) -> None:
    begin(settings)
    (settings.directory / "run.json").write_text('{"settings": ')
    with pytest.raises(RunDirectoryError, match="damaged"), claim(settings, resume=True):
        pass


def test_half_written_files_of_a_killed_process_are_removed(settings: AuditSettings) -> None:
    begin(settings)
    (settings.directory / ".checkpoint-incoming.npz.abc.part").write_bytes(b"x")
    with claim(settings, resume=True):
        pass
    assert not list(settings.directory.glob(".*"))


def test_checkpoints_come_at_intervals(settings: AuditSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with claim(settings, resume=False) as directory:
        directory.record("digest")
        seen = {}
        for now in (105.0, 111.0, 131.0):
            seen[now] = (directory.due(end_of_epoch=False), directory.due(end_of_epoch=True))
        assert seen == {105.0: (False, False), 111.0: (False, True), 131.0: (True, True)}
        directory.save(state(1))
        assert not directory.due(end_of_epoch=True)
