"""Bad inputs and bad days, each with the exit code and the words that it must be answered with.

Every case runs the command line in a forked child. It must end by itself, soon, in little memory, without a stack
trace, and nothing that came with the data may have been executed.
"""

from __future__ import annotations

import errno
import gzip
import io
import pickle
import resource
import shutil
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sgoif_bench.faults import child
from sgoif_bench.faults.digits import MODEL, make_folder
from sgoif_bench.faults.kills import often

LONGEST = 120.0
MOST_MEGABYTES = 1024.0
RAN = "RAN"
"""A file of this name in the case's folder says that something from the data was executed."""


@dataclass(frozen=True)
class Case:
    """One thing that goes wrong."""

    name: str
    make: Callable[[Path], list[str]]
    """Fills a folder and returns the arguments of the command."""
    code: int
    says: str
    """What the output must hold."""
    before: Callable[[Path], None] | None = None
    """Runs in the child first."""


def tried(case: Case, work: Path) -> dict[str, Any]:
    """Run one case in a folder of its own."""
    folder = work / "case"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    log = folder / "log"
    arguments = case.make(folder)
    before = case.before
    empty = child.forked(lambda: 0, log).wait(LONGEST)
    running = child.command(arguments, log, None if before is None else lambda: before(folder))
    ended = running.wait(LONGEST)
    hung = ended is None
    ended = ended or running.kill()
    text = log.read_text(encoding="utf-8", errors="replace")
    extra = ended.megabytes - (empty.megabytes if empty else 0.0)
    wrong = [
        *([f"it did not end within {LONGEST:.0f} s"] if hung else []),
        *([f"exit code {ended.code} instead of {case.code}"] if ended.code != case.code else []),
        *(["a stack trace"] if "Traceback" in text else []),
        *([f"{case.says!r} was not said"] if case.says not in text else []),
        *([f"{extra:.0f} MB more memory"] if extra > MOST_MEGABYTES else []),
        *(["something in the data was executed"] if (folder / RAN).exists() else []),
    ]
    said = next((line for line in text.splitlines() if case.says in line), text.strip()[-300:])
    return {
        "case": case.name,
        "ok": not wrong,
        "wrong": wrong,
        "exit_code": ended.code,
        "said": said.replace(str(folder), "…").strip()[:240],
        "seconds": round(ended.seconds, 2),
        "megabytes": round(extra),
    }


def _audit(folder: Path, data: Path, *options: str, model: str = MODEL) -> list[str]:
    run = ["audit", str(data), "--out", str(folder / "run"), "--epochs", "3", "--device", "cpu", "--no-early-stop"]
    return [*run, "--model", model, *options]


def _photos(folder: Path) -> Path:
    return make_folder(folder / "photos", per_class=20)


# --- data ---------------------------------------------------------------------------------------------------------


def _corrupt_images(folder: Path) -> list[str]:
    photos = _photos(folder)
    files = sorted(photos.rglob("*.png"))
    for number, path in enumerate(files[::6]):
        content = path.read_bytes()
        path.write_bytes((content[:30], b"", b"\x89PNG\r\n", b"GIF89a" + content)[number % 4])
    return _audit(folder, photos)


def _only_corrupt_images(folder: Path) -> list[str]:
    photos = _photos(folder)
    for path in photos.rglob("*.png"):
        path.write_bytes(path.read_bytes()[:40])
    return _audit(folder, photos)


def _png(width: int, height: int, packed: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def _image_bomb(folder: Path) -> list[str]:
    photos = _photos(folder)
    (photos / "zero" / "bomb.png").write_bytes(_png(60_000, 60_000, zlib.compress(bytes(1 << 22))))
    return _audit(folder, photos)


def _npz_bomb(folder: Path) -> list[str]:
    """Four gigabytes of zeros, as the directory of the archive has it."""
    with zipfile.ZipFile(folder / "set.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (("x", np.zeros((1 << 12, 32, 32), np.uint8)), ("y", np.arange(1 << 12) % 3)):
            target = io.BytesIO()
            np.save(target, array)
            archive.writestr(f"{name}.npy", target.getvalue())
        archive.filelist[0].file_size = (1 << 32) - 2
    return _audit(folder, folder / "set.npz")


def _npz_head(folder: Path) -> list[str]:
    """An array whose head alone unpacks to half a gigabyte."""
    with zipfile.ZipFile(folder / "set.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w") as entry:
            entry.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 29))
            for _ in range(1 << 7):
                entry.write(b" " * (1 << 22))
        archive.writestr("y.npy", b"")
    return _audit(folder, folder / "set.npz")


class _Program:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.folder / RAN,)


def _npz_objects(folder: Path) -> list[str]:
    objects = np.empty(4, dtype=object)
    objects[:] = [_Program(folder)] * 4
    np.savez(folder / "set.npz", x=objects, y=np.arange(4))
    return _audit(folder, folder / "set.npz")


def _npz_climbing(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "set.npz", "w") as archive:
        archive.writestr(f"../../{RAN}.npy", b"x")
        archive.writestr("/tmp/x.npy", b"x")
    return _audit(folder, folder / "set.npz")


def _idx_bomb(folder: Path) -> list[str]:
    packed = gzip.compress(struct.pack(">4I", 0x803, 1 << 21, 32, 32) + bytes(1 << 22))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(packed)
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 4) + bytes(4))
    return _audit(folder, folder)


def _cifar(folder: Path, content: bytes) -> list[str]:
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(content)
    return _audit(folder, folder)


def _cifar_program(folder: Path) -> list[str]:
    return _cifar(folder, pickle.dumps({b"data": _Program(folder), b"labels": []}, 2))


def _cifar_memo(folder: Path) -> list[str]:
    """Ten bytes that make Python's own reader fill 32 gigabytes."""
    return _cifar(folder, b"\x80\x02Nr\xff\xff\xff\x7f.")


def _cifar_tuples(folder: Path) -> list[str]:
    """A key of 2^60 tuples, which takes for ever to hash."""
    return _cifar(folder, b"\x80\x04})\x94" + _doubled(60) + b"Ns.")


def _doubled(levels: int) -> bytes:
    return b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(levels))


def _manifest(folder: Path, rows: list[list[str]]) -> list[str]:
    text = "".join(f"{path},{label}\n" for path, label in [["path", "label"], *rows])
    (folder / "photos" / "list.csv").write_text(text)
    return _audit(folder, folder / "photos" / "list.csv")


def _climbing(folder: Path) -> list[str]:
    """Paths that lead out of the folder: by dots, absolute, through a link."""
    photos = _photos(folder)
    outside = folder / "secret.png"
    shutil.copyfile(next(photos.rglob("*.png")), outside)
    (photos / "link.png").symlink_to(outside)
    bad = ["../secret.png", str(outside), "link.png", "zero/../../secret.png", "/etc/passwd"]
    good = [[str(path.relative_to(photos)), path.parent.name] for path in sorted(photos.rglob("*-*.png"))]
    return _manifest(folder, [*good, *([path, "zero"] for path in bad)])


def _only_climbing(folder: Path) -> list[str]:
    _photos(folder)
    (folder / "secret.png").write_bytes(b"x")
    return _manifest(folder, [["../secret.png", "zero"], ["/etc/passwd", "one"]])


def _missing(folder: Path) -> list[str]:
    return _audit(folder, folder / "nothing")


# --- states -------------------------------------------------------------------------------------------------------


def _finished(folder: Path) -> list[str]:
    """An audit that came to its end, and the arguments that go on with it; made once and copied."""
    model = folder.parent / "finished"
    if not model.exists():
        model.mkdir()
        ended = child.command(_audit(model, _photos(model)), model / "log", often).wait(LONGEST)
        if ended is None or ended.code:
            raise RuntimeError((model / "log").read_text(errors="replace")[-500:])
    for part in ("photos", "run"):
        shutil.copytree(model / part, folder / part)
    return _audit(folder, folder / "photos", "--resume")


def _state(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[str]:
    from sgoif.core.serialization import load_state, save_state

    arguments = _finished(folder)
    path = folder / "run" / "checkpoint.npz"
    save_state(path, change(load_state(path)))
    return arguments


def _cut_checkpoint(folder: Path) -> list[str]:
    arguments = _finished(folder)
    for path in (folder / "run").glob("checkpoint*.npz"):
        path.write_bytes(path.read_bytes()[:-200])
    return arguments


def _future_checkpoint(folder: Path) -> list[str]:
    return _state(folder, lambda state: {**state, "version": 99})


def _foreign_checkpoint(folder: Path) -> list[str]:
    return _state(folder, lambda state: {k: v for k, v in state.items() if not k.startswith("model.")})


def _swapped(folder: Path) -> list[str]:
    arguments = _finished(folder)
    run = folder / "run"
    shutil.copyfile(run / "run.json", run / "checkpoint.npz")
    (run / "checkpoint-previous.npz").unlink(missing_ok=True)
    return arguments


def _packed_checkpoint(folder: Path) -> list[str]:
    """A checkpoint of zeros that are packed a thousandfold."""
    arguments = _finished(folder)
    run = folder / "run"
    (run / "checkpoint-previous.npz").unlink(missing_ok=True)
    np.savez_compressed(run / "checkpoint.npz", meta=np.zeros(1 << 26, np.uint8))
    return arguments


def _damaged_record(folder: Path, content: bytes) -> list[str]:
    arguments = _finished(folder)
    (folder / "run" / "run.json").write_bytes(content)
    return arguments


def _decisions(folder: Path) -> list[str]:
    photos = _photos(folder)
    (folder / "decisions.csv").write_bytes(b"path,decision,given_label,new_label,source\n\xff\xfe,keep,,,\n")
    return ["apply", str(folder / "decisions.csv"), "--to", str(folder / "to"), "--source", str(photos)]


def _log(folder: Path) -> list[str]:
    (folder / "log.jsonl").write_text("[" * 20_000 + "\n")
    return ["unlearn", "verify", str(folder / "log.jsonl")]


# --- bad days -----------------------------------------------------------------------------------------------------


def _plain_audit(folder: Path) -> list[str]:
    return _audit(folder, _photos(folder))


def _not_a_number(folder: Path) -> list[str]:
    return _audit(folder, _photos(folder), model=MODEL.replace(":tiny", ":diverging"))


def _small_disk(folder: Path) -> None:
    """No file may become larger than this, which a write answers as a full disk would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def _full_disk(folder: Path) -> None:
    """The disk is full when the first checkpoint is written."""
    import sgoif.audit.run_directory as rundir

    def full(path: Path, state: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    often()
    vars(rundir)["save_state"] = full


def _unreadable(folder: Path, ending: str = "one") -> None:
    """A subfolder that may not be listed; permissions alone do not stop the superuser."""
    import os

    scan = os.scandir

    def refused(path: Any = ".") -> Any:
        if str(path).endswith(ending):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    vars(os)["scandir"] = refused


def _all_unreadable(folder: Path) -> None:
    _unreadable(folder, "photos")


def _failing_disk(folder: Path) -> None:
    """Some images cannot be read for an error of the disk."""
    from PIL import Image

    opening = Image.open

    def failing(source: Any, *given: Any, **options: Any) -> Any:
        if str(source).endswith("7.png"):
            raise OSError(errno.EIO, "Input/output error", str(source))
        return opening(source, *given, **options)

    vars(Image)["open"] = failing


def _clock(folder: Path) -> None:
    """The clock on the wall jumps a year ahead and back with every look at it."""
    now, looks = time.time, [0]

    def jumping() -> float:
        looks[0] += 1
        return now() + (3.15e7 if looks[0] % 2 else -3.15e7)

    time.time = jumping


def _occupied(folder: Path) -> list[str]:
    """Another process works in the run directory; it is ended when the case is over."""
    arguments = _audit(folder, _photos(folder))
    (folder / "run").mkdir()
    return arguments


def _hold(folder: Path) -> None:
    import fcntl
    import os

    handle = os.open(folder / "run" / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    os.write(handle, b"12345\n")
    fcntl.flock(handle, fcntl.LOCK_EX)


CASES = [
    Case("some images corrupt", _corrupt_images, 0, "files could not be used"),
    Case("all images corrupt", _only_corrupt_images, 2, "holds no readable image"),
    Case("image of 60,000 × 60,000 pixels from 4 kB", _image_bomb, 0, "1 file could not be used"),
    Case("npz that unpacks to 4 GB", _npz_bomb, 2, "would unpack to"),
    Case("npz with a head of half a gigabyte", _npz_head, 2, "a head of"),
    Case("npz with pickled objects", _npz_objects, 2, "holds Python objects"),
    Case("npz with ../ and absolute entries", _npz_climbing, 2, "has no images under"),
    Case("idx.gz that unpacks to 2 GB", _idx_bomb, 2, "would unpack to"),
    Case("CIFAR pickle that calls a function", _cifar_program, 2, "asks to run"),
    Case("CIFAR pickle of ten bytes that reserves memory", _cifar_memo, 2, "not the dictionary of a CIFAR file"),
    Case("CIFAR pickle whose key takes for ever to hash", _cifar_tuples, 2, "keys are not text"),
    Case("manifest with rows that lead outside", _climbing, 0, "5 files could not be used"),
    Case("manifest that only leads outside", _only_climbing, 2, "lies outside"),
    Case("data that are not there", _missing, 2, "does not exist"),
    Case("all checkpoints cut off", _cut_checkpoint, 2, "no checkpoint in"),
    Case("checkpoint of a later version", _future_checkpoint, 2, "has version 99"),
    Case("checkpoint of another model", _foreign_checkpoint, 2, "does not fit this run"),
    Case("another file in the checkpoint's place", _swapped, 2, "no checkpoint in"),
    Case("checkpoint packed a thousandfold", _packed_checkpoint, 2, "would unpack to"),
    Case("run record cut off", lambda folder: _damaged_record(folder, b'{"settings": {'), 2, "run.json is damaged"),
    Case("run record not text", lambda folder: _damaged_record(folder, b"\xff\xfe\x00"), 2, "run.json is damaged"),
    Case(
        "run record nested 20,000 deep",
        lambda folder: _damaged_record(folder, b"[" * 20_000),
        2,
        "run.json is damaged",
    ),
    Case("decisions that are not text", _decisions, 2, "not UTF-8 text"),
    Case("unlearning log nested 20,000 deep", _log, 3, "not an entry of an audit log"),
    Case("losses that are not numbers", _not_a_number, 2, "the loss is not a number"),
    Case("file size limit", _plain_audit, 2, "is full", _small_disk),
    Case("full disk at a checkpoint", _plain_audit, 2, "the disk is full", _full_disk),
    Case("class folder that may not be listed", _plain_audit, 0, "files could not be used", _unreadable),
    Case("data folder that may not be listed", _plain_audit, 2, "cannot look into", _all_unreadable),
    Case("disk errors on some images", _plain_audit, 0, "files could not be used", _failing_disk),
    Case("clock that jumps a year ahead and back", _plain_audit, 0, "labels look wrong", _clock),
    Case("two writers on one run directory", _occupied, 2, "is at work in", _hold),
]


def names() -> list[str]:
    """The names of all cases."""
    return [case.name for case in CASES]
