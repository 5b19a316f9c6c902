"""From decisions to a cleaned copy: what is written, what is refused, and that the original stays as it was."""

from __future__ import annotations

import csv
import errno
import fcntl
import gzip
import hashlib
import io
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sgoif.audit import apply as module
from sgoif.audit.apply import Applied, DecisionsError, apply_decisions
from sgoif.audit.placement import Places, safe_name
from sgoif.core.score_table import to_cell
from sgoif.images import ImagesError, open_images

Row = tuple[str, str, str, str]
HEADER = ["path", "decision", "given_label", "new_label", "source"]


def picture(seed: int, width: int = 8, height: int = 8) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def save(seed: int, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed).save(path)
    return path


def decide(path: Path, source: Path, rows: Sequence[Row]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows([to_cell(cell) for cell in (*row, str(source))] for row in rows)
    return path


def snapshot(root: Path) -> dict[str, tuple[str, int]]:
    """Contents and times of everything below a folder."""
    files = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    return {str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in sorted(files)}


def files_below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}


def no_clones(*_: Any) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for c, name in enumerate(("cat", "dog", "owl")):
        for i in range(4):
            save(10 * c + i, root / name / f"{i}.png")
    save(90, root / "cat" / "deep" / "er" / "0.png")
    return root


FIRST: list[Row] = [
    ("cat/0.png", "relabel", "cat", "dog"),
    ("cat/deep/er/0.png", "relabel", "cat", "owl"),
    ("cat/1.png", "drop", "cat", ""),
    ("dog/2.png", "keep", "dog", ""),
    ("owl/3.png", "relabel", "owl", "owl"),
]


@pytest.mark.parametrize("copy", [False, True])
def test_an_image_folder(tmp_path: Path, photos: Path, copy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "ioctl", no_clones)
    before = snapshot(photos)
    applied = apply_decisions(decide(tmp_path / "d.csv", photos, FIRST), tmp_path / "clean", links=not copy)
    clean = tmp_path / "clean"
    expected = {f"{c}/{i}.png" for c in ("cat", "dog", "owl") for i in range(4)} - {"cat/0.png", "cat/1.png"}
    assert files_below(clean) == expected | {"dog/0_2.png", "owl/deep/er/0.png"}
    assert (clean / "dog" / "0_2.png").read_bytes() == (photos / "cat" / "0.png").read_bytes()
    assert (clean / "dog" / "0.png").read_bytes() == (photos / "dog" / "0.png").read_bytes()
    assert (clean / "owl" / "deep" / "er" / "0.png").read_bytes() == (photos / "cat/deep/er/0.png").read_bytes()
    assert os.path.samefile(clean / "dog" / "0.png", photos / "dog" / "0.png") != copy
    assert (applied.kept, applied.undecided, applied.dropped) == (10, 8, 1)
    assert applied.relabelled == {("cat", "dog"): 1, ("cat", "owl"): 1}
    assert applied.ways == {"renamed": 1, ("copied" if copy else "linked"): 12}
    assert snapshot(photos) == before
    assert sorted(os.listdir(tmp_path)) == ["clean", "d.csv", "photos"]
    assert open_images(clean).class_names == ["cat", "dog", "owl"]
    text = applied.summary()
    assert "1  'cat' → 'dog'" in text
    assert "dropped     1" in text
    assert ("share their contents" in text) != copy


def test_dry_run_says_the_same_and_writes_nothing(tmp_path: Path, photos: Path) -> None:
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    dry = apply_decisions(decisions, tmp_path / "clean", dry_run=True)
    assert sorted(os.listdir(tmp_path)) == ["d.csv", "photos"]
    real = apply_decisions(decisions, tmp_path / "clean")
    for name in ("kept", "undecided", "dropped", "relabelled", "written"):
        assert getattr(dry, name) == getattr(real, name)
    assert dry.summary().startswith("would write")
    assert real.summary().startswith("wrote")


def test_an_edit_of_the_copy_leaves_the_original_alone(tmp_path: Path, photos: Path) -> None:
    before = snapshot(photos)
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    apply_decisions(decisions, tmp_path / "clean")
    for path in (tmp_path / "clean").rglob("*.png"):
        with open(path, "r+b") as file:
            file.write(b"edited in place")
    assert snapshot(photos) == before
    assert "an edit of one changes the original" in apply_decisions(decisions, tmp_path / "b", links=True).summary()


def test_files_are_cloned_where_the_disk_can(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clone(to: int, request: int, of: int) -> int:
        assert request == 0x40049409
        return os.write(to, os.pread(of, 1 << 20, 0))

    monkeypatch.setattr(fcntl, "ioctl", clone)
    monkeypatch.setattr(shutil, "copy2", lambda *_: 1 / 0)
    monkeypatch.setattr(sys, "platform", "linux")
    os.chmod(photos / "owl" / "1.png", 0o640)
    assert apply_decisions(decide(tmp_path / "d.csv", photos, FIRST), tmp_path / "clean").ways["cloned"] == 12
    one, other = photos / "owl" / "1.png", tmp_path / "clean" / "owl" / "1.png"
    assert other.read_bytes() == one.read_bytes()
    assert (other.stat().st_mtime_ns, other.stat().st_mode) == (one.stat().st_mtime_ns, one.stat().st_mode)


KILLED = """
import os, shutil, sys
from sgoif.audit.apply import apply_decisions
import sgoif.audit.dataset_writers
def bring(self, source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"half")
    if sys.argv[3] == "killed": os.kill(os.getpid(), 9)
    print("writing", flush=True)
    sys.stdin.read()
    shutil.copy2(source, target)
sgoif.audit.dataset_writers.Cleaning.bring = bring
apply_decisions(sys.argv[1], sys.argv[2])
"""


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path: Path, photos: Path) -> None:
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    long = "x" * 60

    def start(target: str, how: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", KILLED, str(decisions), str(tmp_path / target), how]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def parts() -> set[str]:
        return {path.name for path in tmp_path.glob(".*")}

    for target in ("clean", "other", long + "1"):
        assert start(target, "killed").wait() == -9
    left = parts()
    assert len(left) == 3
    for mine in (".clean.mine.part", ".clean.12345678.part"):
        (tmp_path / mine).mkdir()
        (tmp_path / mine / "notes.txt").write_text("keep me")
    alive = start("clean", "alive")
    assert alive.stdout is not None
    assert alive.stdout.readline() == b"writing\n"
    working = parts() - left - {".clean.mine.part", ".clean.12345678.part"}
    assert len(working) == 1, "the run that is alive has one"
    assert not {name for name in left & parts() if name.startswith(".clean.")}, "and removed that of the killed one"
    left &= parts()
    apply_decisions(decisions, tmp_path / (long + "2"))
    assert parts() == left | working | {".clean.mine.part", ".clean.12345678.part"}, "a similar name is another target"
    apply_decisions(decisions, tmp_path / "clean")
    assert working <= parts(), "another run is alive and keeps what it writes"
    assert len(files_below(tmp_path / "clean")) == 12
    alive.kill()
    alive.communicate()
    shutil.rmtree(tmp_path / "clean")
    apply_decisions(decisions, tmp_path / "clean", dry_run=True)
    assert working <= parts(), "a dry run changes nothing"
    apply_decisions(decisions, tmp_path / "clean")
    assert parts() == left | {".clean.mine.part", ".clean.12345678.part"}


def test_links_fall_back(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "another file system")

    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(fcntl, "ioctl", no_clones)
    applied = apply_decisions(decisions, tmp_path / "a", links=True)
    assert applied.ways["symlinked"] == 12
    assert any("--follow-links" in note for note in applied.notes)
    assert (tmp_path / "a" / "owl" / "1.png").is_symlink()
    assert open_images(tmp_path / "a", follow_links=True).image(0).size == (8, 8)
    monkeypatch.setattr(os, "symlink", refuse)
    assert apply_decisions(decisions, tmp_path / "b", links=True).ways["copied"] == 12
    assert not (tmp_path / "b" / "owl" / "1.png").is_symlink()


def test_a_link_in_the_original_becomes_a_link_to_the_file(tmp_path: Path, photos: Path) -> None:
    outside = save(77, tmp_path / "store" / "x.png")
    os.symlink("../../store/x.png", photos / "cat" / "x.png")
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    apply_decisions(decisions, tmp_path / "deep" / "er" / "clean", follow_links=True)
    assert (tmp_path / "deep/er/clean/cat/x.png").read_bytes() == outside.read_bytes()
    without = apply_decisions(decisions, tmp_path / "without")
    assert not (tmp_path / "without" / "cat" / "x.png").exists()
    assert any("1 link not followed" in note for note in without.notes)


def test_a_split_is_read_off_the_paths(tmp_path: Path, photos: Path) -> None:
    root = tmp_path / "all"
    shutil.copytree(photos, root / "train")
    shutil.copytree(photos, root / "val")
    save(500, root / "val" / "dog" / "only.png")
    for split in ("train", "val"):
        rows = [(f"{split}/cat/0.png", "relabel", "cat", "dog"), (f"{split}/cat/1.png", "drop", "cat", "")]
        apply_decisions(decide(tmp_path / "d.csv", root, rows), tmp_path / split)
        assert ("dog/only.png" in files_below(tmp_path / split)) == (split == "val")
        assert (tmp_path / split / "dog" / "0_2.png").exists()
        assert not (tmp_path / split / "cat" / "1.png").exists()


STRANGE = [
    "<img src=x onerror=alert(1)>",
    "a\nb\r\nc",
    "quo\"te's, and",
    "猫と犬",
    "é" * 100,
    "=cmd()",
    "'tick",
    "'=x",
    "a;=b\t'c",
    "-1",
]


@pytest.mark.parametrize("kind", ["folder", "manifest"])
def test_strange_names_survive_decisions_and_copy(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "in"
    source = root
    for i, name in enumerate(STRANGE):
        save(i, root / name / f"{name}.png")
        save(100 + i, root / name / "other.png")
    if kind == "manifest":
        source = root / "list.csv"
        with open(source, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label"])
            for name in STRANGE:
                writer.writerows([f"{name}/{f}.png", name] for f in (name, "other"))
    rows = [(f"{name}/{name}.png", "relabel", name, STRANGE[(i + 1) % len(STRANGE)]) for i, name in enumerate(STRANGE)]
    applied = apply_decisions(decide(tmp_path / "d.csv", source, rows), tmp_path / "out")
    assert sum(applied.relabelled.values()) == len(STRANGE)
    assert "\r" not in applied.summary()
    assert len(applied.summary().splitlines()) < 20
    clean = open_images(tmp_path / "out" if kind == "folder" else tmp_path / "out" / "manifest.csv")
    found = {np.asarray(clean.image(i)).tobytes(): clean.class_names[int(clean.labels[i])] for i in range(len(clean))}
    for i, name in enumerate(STRANGE):
        assert found[np.asarray(picture(i)).tobytes()] == STRANGE[(i + 1) % len(STRANGE)]
        assert found[np.asarray(picture(100 + i)).tobytes()] == name


def refuse(tmp_path: Path, photos: Path, rows: Sequence[Row], message: str) -> None:
    before = snapshot(photos)
    for dry_run in (True, False):
        with pytest.raises(DecisionsError, match=message):
            apply_decisions(decide(tmp_path / "d.csv", photos, rows), tmp_path / "clean", dry_run=dry_run)
    assert sorted(os.listdir(tmp_path)) == ["d.csv", "photos"]
    assert snapshot(photos) == before


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("cat/9.png", "drop", "cat", ""), r"row 7: 'cat/9\.png' is not in the data"),
        (("owl/0.png", "delete", "owl", ""), "none of keep, relabel, drop"),
        (("owl/0.png", "drop", "dog", ""), "should have the label 'dog' but has 'owl'"),
        (("owl/0.png", "relabel", "owl", ""), "new_label is empty"),
        (("owl/0.png", "relabel", "owl", "Dog"), "'Dog' of 'owl/0.png' is not a class of the data; did you mean 'dog'"),
        (("owl/0.png", "relabel", "owl", "ferret"), "not a class of the data; classes are 'cat', 'dog', 'owl'"),
        (("owl/0.png", "keep", "owl", "dog"), "choose keep or relabel"),
        (("cat/1.png", "drop", "cat", ""), "row 7: 'cat/1.png' was decided before in row 4"),
        (("cat/1.png", "keep", "cat", ""), "contradicts what was decided in row 4"),
        (("../photos/cat/2.png", "drop", "cat", ""), "is not in the data"),
    ],
)
def test_rows_that_do_not_fit_are_listed_and_nothing_is_written(
    tmp_path: Path, photos: Path, row: Row, message: str
) -> None:
    refuse(tmp_path, photos, [*FIRST, row], r"1 row of .*nothing was written:\n.*" + message)


def test_only_the_first_few_rows_are_listed(tmp_path: Path, photos: Path) -> None:
    rows: list[Row] = [(f"none/{i}.png", "drop", "", "") for i in range(9)]
    refuse(tmp_path, photos, rows, r"9 rows of (.|\n)*row 6(.|\n)*and 4 more")
    everything: list[Row] = [(name, "drop", "", "") for name in open_images(photos).names]
    refuse(tmp_path, photos, everything, "drops all 13 images")
    refuse(tmp_path, photos, [], "holds no decisions")


def test_files_that_are_not_decisions(tmp_path: Path, photos: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("path,label\ncat/0.png,cat\n")
    with pytest.raises(DecisionsError, match=r"lacks the columns 'decision', 'given_label', 'new_label'"):
        apply_decisions(path, tmp_path / "clean")
    path.write_text(",".join(HEADER) + "\ncat/0.png,drop\n")
    with pytest.raises(DecisionsError, match=r"row 2 .* does not have 5 cells"):
        apply_decisions(path, tmp_path / "clean")
    with pytest.raises(ImagesError, match="cannot read"):
        apply_decisions(tmp_path / "none.csv", tmp_path / "clean")


def test_the_source(tmp_path: Path, photos: Path) -> None:
    moved = tmp_path / "moved"
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    shutil.move(photos, moved)
    with pytest.raises(DecisionsError, match=r"no longer at .*--source"):
        apply_decisions(decisions, tmp_path / "clean")
    assert apply_decisions(decisions, tmp_path / "clean", source=moved).dropped == 1
    text = decisions.read_text()
    decisions.write_text(text + f"owl/0.png,drop,owl,,{moved}\n")
    with pytest.raises(DecisionsError, match="names several"):
        apply_decisions(decisions, tmp_path / "clean2")
    assert apply_decisions(decisions, tmp_path / "clean2", source=moved).dropped == 2
    decisions.write_text("path,decision,given_label,new_label\ncat/1.png,drop,cat,\n")
    with pytest.raises(DecisionsError, match="names none"):
        apply_decisions(decisions, tmp_path / "clean3")


def test_spreadsheets_may_have_saved_it_again(tmp_path: Path, photos: Path) -> None:
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    text = decisions.read_text().replace(",", ";").replace("drop", " Drop ")
    decisions.write_bytes(text.encode("utf-8-sig"))
    assert apply_decisions(decisions, tmp_path / "clean").dropped == 1


def test_where_a_copy_may_not_go(tmp_path: Path, photos: Path) -> None:
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    before = snapshot(photos)
    os.symlink(photos, tmp_path / "alias")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target, message in (
        (photos, "lies in the original"),
        (photos / "clean", "lies in the original"),
        (tmp_path / "alias" / "cat" / "clean", "lies in the original"),
        (tmp_path / "full", "is not empty"),
        (tmp_path, "is not empty"),
        (tmp_path / "file", "is not a folder"),
    ):
        with pytest.raises(DecisionsError, match=message):
            apply_decisions(decisions, target)
    with pytest.raises(ImagesError, match="cannot write"):
        apply_decisions(decisions, tmp_path / "file" / "clean")
    assert snapshot(photos) == before
    (tmp_path / "empty").mkdir()
    apply_decisions(decisions, tmp_path / "empty")
    assert (tmp_path / "empty" / "dog" / "0.png").exists()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_crash_leaves_nothing_half_done(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    done: list[str] = []
    real = shutil.copy2

    def failing(source: str, target: Path) -> None:
        if len(done) == 5:
            raise error
        done.append(source)
        real(source, target)

    monkeypatch.setattr(fcntl, "ioctl", no_clones)
    monkeypatch.setattr(shutil, "copy2", failing)
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    with pytest.raises(ImagesError if isinstance(error, OSError) else KeyboardInterrupt):
        apply_decisions(decisions, tmp_path / "clean")
    assert len(done) == 5
    assert sorted(os.listdir(tmp_path)) == ["d.csv", "photos"]


def test_a_class_that_becomes_empty_is_mentioned(tmp_path: Path, photos: Path) -> None:
    rows: list[Row] = [(f"owl/{i}.png", "drop", "owl", "") for i in range(4)]
    applied = apply_decisions(decide(tmp_path / "d.csv", photos, rows), tmp_path / "clean")
    assert "no images are left in 'owl'" in applied.summary()
    assert not (tmp_path / "clean" / "owl").exists()


ROWS = [("cat/0.png", "0", "a,b"), ("cat/1.png", "0", "=x"), ("dog/0.png", "1", ""), ("dog/1.png", "1", "猫")]


def test_a_csv_manifest_keeps_its_other_columns(tmp_path: Path, photos: Path) -> None:
    source = photos / "list.csv"
    with open(source, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["note", "path", "label"])
        writer.writerows([note, path, label] for path, label, note in ROWS)
        writer.writerow(["gone", "none.png", "1"])
        writer.writerow(["twice", "dog/0.png", "0"])
    before = snapshot(photos)
    rows: list[Row] = [("cat/0.png", "relabel", "0", "1"), ("cat/1.png", "drop", "0", "")]
    rows.append(("dog/0.png#row7", "relabel", "0", "1"))
    applied = apply_decisions(decide(tmp_path / "d.csv", source, rows), tmp_path / "clean")
    with open(tmp_path / "clean" / "manifest.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["note", "path", "label"],
            ["a,b", "images/cat/0.png", "1"],
            ["", "images/dog/0.png", "1"],
            ["猫", "images/dog/1.png", "1"],
            ["twice", "images/dog/0.png", "1"],
        ]
    assert files_below(tmp_path / "clean") == {f"images/{p}.png" for p in ("cat/0", "dog/0", "dog/1")} | {
        "manifest.csv"
    }
    assert snapshot(photos) == before
    assert len(applied.left_out) == 1
    assert "none.png" in applied.summary()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_copy_has_no_spaces_around_labels(kind: str, tmp_path: Path, photos: Path) -> None:
    paths, labels = [row[0] for row in ROWS], ["cat ", "cat", "dog", " dog"]
    source = photos / f"list.{kind}"
    if kind == "csv":
        source.write_text("path,label\n" + "".join(f"{p},{y}\n" for p, y in zip(paths, labels, strict=True)))
    else:
        parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.table({"path": paths, "label": labels}), source)
    rows: list[Row] = [("cat/0.png", "relabel", "cat", "dog"), ("cat/1.png", "keep", "cat", "")]
    applied = apply_decisions(decide(tmp_path / "d.csv", source, rows), tmp_path / "clean")
    assert applied.relabelled == {("cat", "dog"): 1}
    clean = open_images(tmp_path / "clean" / f"manifest.{kind}")
    assert [clean.class_names[y] for y in clean.labels] == ["dog", "cat", "dog", "dog"]
    assert not clean.notes


def test_a_parquet_manifest_keeps_its_types(tmp_path: Path, photos: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    label = pyarrow.array(["c", "c", "d", "d"]).dictionary_encode()
    numbers = pyarrow.array([1, 2, 3, 4], pyarrow.int16())
    table = pyarrow.table({"number": numbers, "label": label, "path": [row[0] for row in ROWS]})
    parquet.write_table(table, photos / "list.parquet")
    rows: list[Row] = [("cat/0.png", "relabel", "c", "d"), ("dog/0.png", "drop", "d", "")]
    apply_decisions(decide(tmp_path / "d.csv", photos / "list.parquet", rows), tmp_path / "clean")
    found = parquet.read_table(tmp_path / "clean" / "manifest.parquet")
    assert found.schema.types[:2] == table.schema.types[:2]
    assert found.to_pydict() == {
        "number": [1, 2, 4],
        "label": ["d", "c", "d"],
        "path": ["images/cat/0.png", "images/cat/1.png", "images/dog/1.png"],
    }
    assert len(open_images(tmp_path / "clean" / "manifest.parquet")) == 3


X = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
Y = [0, 1, 2, 0, 1, 2]
ARRAY_ROWS: list[Row] = [("train/1", "relabel", "1", "2"), ("train/3", "drop", "0", "")]


def check_archive(clean: Path, applied: Applied, x: Any) -> None:
    with np.load(clean / "clean.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["x"], x[[0, 1, 2, 4, 5]])
        assert archive["x"].dtype == x.dtype
        assert [archive["class_names"][i] for i in archive["y"]] == ["0", "2", "2", "1", "2"]
        assert archive["names"].tolist() == [f"train/{i}" for i in (0, 1, 2, 4, 5)]
    assert (applied.kept, applied.dropped, applied.relabelled) == (4, 1, {("1", "2"): 1})
    again = open_images(clean / "clean.npz")
    assert again.names == [f"train/{i}" for i in (0, 1, 2, 4, 5)]
    assert again.class_names == ["0", "1", "2"]


@pytest.mark.parametrize("kind", ["bytes", "unit"])
def test_npz(tmp_path: Path, kind: str) -> None:
    x = X if kind == "bytes" else X.astype(np.float32) / 255
    np.savez(tmp_path / "a.npz", x=x, y=np.array(Y))
    decisions = decide(tmp_path / "d.csv", tmp_path / "a.npz", ARRAY_ROWS)
    check_archive(tmp_path / "clean", apply_decisions(decisions, tmp_path / "clean"), x)


def test_idx_and_cifar(tmp_path: Path) -> None:
    grey = X[:, 0]
    (tmp_path / "mnist").mkdir()
    for name, values in (("images-idx3", grey), ("labels-idx1", np.array(Y, np.uint8))):
        head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
        (tmp_path / "mnist" / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes()))
    decisions = decide(tmp_path / "d.csv", tmp_path / "mnist", ARRAY_ROWS)
    check_archive(tmp_path / "clean", apply_decisions(decisions, tmp_path / "clean"), grey)
    big = np.random.default_rng(1).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    (tmp_path / "cifar").mkdir()
    for i in range(5):
        rows = range(6) if i == 0 else range(0)
        data = b"".join(bytes([Y[r]]) + big[r].tobytes() for r in rows) or bytes(3073)
        (tmp_path / "cifar" / f"data_batch_{i + 1}.bin").write_bytes(data)
    rest: list[Row] = [(f"train/{i}", "drop", "0", "") for i in range(6, 10)]
    decisions = decide(tmp_path / "d.csv", tmp_path / "cifar", ARRAY_ROWS + rest)
    applied = apply_decisions(decisions, tmp_path / "clean2")
    with np.load(tmp_path / "clean2" / "clean.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["x"], big[[0, 1, 2, 4, 5]].transpose(0, 2, 3, 1))
    assert applied.dropped == 5


@pytest.mark.parametrize("uniform", [True, False])
def test_hugging_face(tmp_path: Path, uniform: bool) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    contents = []
    for i in range(6):
        target = io.BytesIO()
        picture(i, 8 if uniform else 8 + i).save(target, "PNG")
        contents.append(target.getvalue())
    contents[5] = b"broken"
    table = pyarrow.table({"image": contents, "label": ["../up", "b/c", "é", "../up", "b/c", "é"]})
    with pyarrow.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    rows: list[Row] = [("train/1", "relabel", "b/c", "é"), ("train/3", "drop", "../up", "")]
    decisions = decide(tmp_path / "d.csv", tmp_path / "a.arrow", rows)
    dry = apply_decisions(decisions, tmp_path / "clean", dry_run=True)
    applied = apply_decisions(decisions, tmp_path / "clean")
    assert dry.left_out == applied.left_out
    assert "'train/5'" in applied.left_out[0]
    assert (applied.kept, applied.dropped) == (3, 1)
    if uniform:
        with np.load(tmp_path / "clean" / "clean.npz", allow_pickle=False) as archive:
            assert np.array_equal(archive["x"], np.stack([np.asarray(picture(i)) for i in (0, 1, 2, 4)]))
            assert [archive["class_names"][i] for i in archive["y"]] == ["../up", "é", "é", "b/c"]
    else:
        found = {"_up/train-0.png", "é/train-1.png", "é/train-2.png", "b_c/train-4.png"}
        assert files_below(tmp_path / "clean") == found
        assert (tmp_path / "clean" / "b_c" / "train-4.png").read_bytes() == contents[4]


def test_places_never_collide_and_names_stay_legal() -> None:
    places = Places()
    assert places.take(Path("a/x.png")) == Path("a/x.png")
    assert places.take(Path("a/x.png")) == Path("a/x_2.png")
    assert places.take(Path("a/x.png")) == Path("a/x_3.png")
    assert places.take(Path("a/x.png/y.png")) == Path("a/x.png-y.png")
    assert places.take(Path("a")) != Path("a")
    long = Path("a") / ("é" * 125 + ".png")
    places.take(long)
    assert len(os.fsencode(places.take(long).name)) <= 255
    assert places.folder("b") == "b"
    assert places.folder("b") == "b_2"
    for text in ("..", "../..", "/etc/passwd", "a\0b", "x" * 400, "", ".hidden", "con:"):
        name = safe_name(text)
        assert name not in ("", ".", "..")
        assert not set(name) & set("/\\\0")
        assert len(os.fsencode(name)) <= 255


def test_the_module_says_what_it_offers() -> None:
    assert set(module.__all__) == {"Applied", "DecisionsError", "apply_decisions"}


def test_files_that_cannot_be_read_are_left_out_and_named(tmp_path: Path, photos: Path) -> None:
    for name in ("dog/0.png", "owl/1.png"):
        (photos / name).write_bytes(b"")
    whole = (photos / "owl" / "2.png").read_bytes()
    (photos / "owl" / "2.png").write_bytes(whole[: len(whole) // 2])
    (photos / "cat" / "1.png").write_bytes(b"dropped, so nobody asks")
    decisions = decide(tmp_path / "d.csv", photos, FIRST)
    dry = apply_decisions(decisions, tmp_path / "clean", dry_run=True)
    applied = apply_decisions(decisions, tmp_path / "clean")
    copied = files_below(tmp_path / "clean")
    assert not copied & {"owl/1.png", "owl/2.png"}
    assert (tmp_path / "clean/dog/0.png").read_bytes() == (photos / "cat/0.png").read_bytes()  # the name is free
    assert (applied.kept, applied.undecided, applied.dropped) == (7, 5, 1)
    assert [entry.partition(":")[0] for entry in applied.left_out] == ["'dog/0.png'", "'owl/1.png'", "'owl/2.png'"]
    assert dry.left_out == applied.left_out
    assert "left out    3, which could not be read" in applied.summary()
    assert "the file is empty" in applied.summary()


def test_a_manifest_loses_the_rows_of_unreadable_files(tmp_path: Path, photos: Path) -> None:
    (photos / "list.csv").write_text("path,label\ncat/0.png,c\ncat/1.png,c\ndog/0.png,d\ndog/1.png,d\n")
    (photos / "dog" / "0.png").write_bytes(b"not an image")
    rows: list[Row] = [("cat/0.png", "relabel", "c", "d")]
    applied = apply_decisions(decide(tmp_path / "d.csv", photos / "list.csv", rows), tmp_path / "clean")
    table = (tmp_path / "clean" / "manifest.csv").read_text().split()
    assert table == ["path,label", "images/cat/0.png,d", "images/cat/1.png,c", "images/dog/1.png,d"]
    assert len(applied.left_out) == 1


def test_arrays_lose_images_that_are_not_numbers(tmp_path: Path) -> None:
    x = X.astype(np.float32) / 255
    x[5, 0, 0, 0] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=np.array(Y))
    applied = apply_decisions(decide(tmp_path / "d.csv", tmp_path / "a.npz", ARRAY_ROWS), tmp_path / "clean")
    with np.load(tmp_path / "clean" / "clean.npz", allow_pickle=False) as archive:
        assert archive["names"].tolist() == [f"train/{i}" for i in (0, 1, 2, 4)]
    assert "'train/5'" in applied.left_out[0]


def test_nothing_readable_is_an_error(tmp_path: Path, photos: Path) -> None:
    for path in photos.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DecisionsError, match="none of the images to copy can be read"):
        apply_decisions(decide(tmp_path / "d.csv", photos, FIRST), tmp_path / "clean")
    assert not (tmp_path / "clean").exists()
