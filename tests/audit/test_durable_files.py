"""Files that are there for good: what is flushed to disk, in which order, and what locks say."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sgoif.audit.errors import RunDirectoryError
from sgoif.audit.run_directory import claim
from sgoif.audit.settings import AuditSettings
from sgoif.core.serialization import atomic_write, load_state, save_state
from sgoif.errors import SettingError
from sgoif.images.reading import Reading
from sgoif.images.writing import PixelFile
from sgoif.tasks.unlearning.errors import LogError
from sgoif.tasks.unlearning.keys import open_key
from sgoif.tasks.unlearning.log import AuditLog
from sgoif_bench.journal import Journal, Kind

LINE = {"seed": 1, "metrics": {}, "recipe": {}}


def journal(path: Path, tell: Callable[[str], None] = print) -> Journal[int]:
    return Journal(path, Kind("a command", lambda line: int(line["seed"])), tell)


def checkpoints(folder: Path) -> None:
    settings = AuditSettings(folder / "photos", out=folder / "run")
    with claim(settings, resume=False) as directory:
        for step in (1, 2):
            directory.save({"step": step})


def pixels(folder: Path) -> None:
    file = PixelFile(folder, 4)
    file.append(Reading(np.zeros((1, 4, 4), dtype=np.uint8), b"content", (4, 4), b"thumbnail"))
    file.finish()


def entries(folder: Path) -> None:
    AuditLog(folder / "log").append("request", "first", {}, None)


def lines(folder: Path) -> None:
    with journal(folder / "results.jsonl") as open_journal:
        open_journal.append([LINE])


WRITERS: dict[str, Callable[[Path], Any]] = {
    "state": lambda folder: save_state(folder / "state.npz", {"x": torch.ones(3)}),
    "checkpoints": checkpoints,
    "pixels": pixels,
    "key": lambda folder: open_key(folder / "keys" / "key", make=True),
    "log": entries,
    "journal": lines,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_is_flushed_then_named_then_its_name_is_flushed(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    flush, move, names = os.fsync, os.replace, {}

    def fsync(handle: int) -> None:
        found = os.fstat(handle)
        path = os.readlink(f"/proc/self/fd/{handle}")
        done.append(("folder" if stat.S_ISDIR(found.st_mode) else "file", path))
        flush(handle)

    def replace(source: Any, target: Any) -> None:
        move(source, target)
        names[os.fspath(source)] = os.fspath(target)
        done.append(("move", os.fspath(source)))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    WRITERS[writer](tmp_path)
    files = [at for at, (what, _) in enumerate(done) if what == "file"]
    assert files
    for at in files:
        path = done[at][1]
        if path in names:
            at = done.index(("move", path))
            assert done.index(("file", path)) < at, "the content is on disk before the name is"
            path = names[path]
        assert ("folder", str(Path(path).parent)) in done[at:], "and so is the name in the end"
    for at, (what, path) in enumerate(done):
        if what == "move":
            assert done[at + 1] == ("folder", str(Path(names[path]).parent))


@pytest.mark.parametrize("refused", ["open", "fsync"])
def test_folders_that_cannot_be_flushed_do_no_harm(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, real_flush = os.open, os.fsync

    def open_(path: Any, *rest: Any, **named: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "folders cannot be opened here")
        return real_open(path, *rest, **named)

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "folders cannot be flushed here")
        real_flush(handle)

    monkeypatch.setattr(os, *(("open", open_) if refused == "open" else ("fsync", fsync)))
    save_state(tmp_path / "state.npz", {"x": torch.ones(3)})
    assert load_state(tmp_path / "state.npz")["x"].tolist() == [1, 1, 1]


def test_a_disk_that_fails_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        atomic_write(tmp_path / "x", lambda file: file.write(b"x"))


def held(folder: Path, told: Callable[[str], None] = print) -> dict[str, Callable[[], Any]]:
    """Every way to open something that is locked."""

    def run() -> None:
        with claim(AuditSettings(folder / "photos", out=folder / "run"), resume=False) as directory:
            directory.record("digest")

    def log() -> None:
        with AuditLog(folder / "log").held():
            pass

    def results() -> None:
        with journal(folder / "results.jsonl", told):
            pass

    return {"run": run, "log": log, "journal": results}


@pytest.mark.parametrize("what", ["run", "log", "journal"])
def test_only_a_lock_that_is_held_is_another_process(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = [0]

    def flock(*_: Any) -> None:
        raise OSError(answer[0], os.strerror(answer[0]))

    monkeypatch.setattr(fcntl, "flock", flock)
    told: list[str] = []
    act = held(tmp_path, told.append)[what]
    error = {"run": RunDirectoryError, "log": LogError, "journal": SettingError}[what]
    answer[0] = errno.EWOULDBLOCK
    with pytest.raises(error, match=r"another (process|run)"):
        act()
    answer[0] = errno.EIO
    with pytest.raises(error, match=r"cannot be locked \(input/output error\)"):
        act()
    for answer[0] in (errno.ENOLCK, errno.EOPNOTSUPP):
        if what == "journal":
            act()
            assert "has no locks" in told.pop()
        else:
            with pytest.warns(UserWarning, match=r"has no locks .*: make sure that no second process"):
                act()
