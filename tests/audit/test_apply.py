"""From decisions to a cleaned copy: what is written, and that the original stays as it was."""

from __future__ import annotations

import csv
import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apply_cases import FIRST, Row, decide, files_below, no_clones, picture, save, snapshot
from warm_processes import WarmProcess, python

from sgoif.audit import apply as module
from sgoif.audit.apply import DecisionsError, apply_decisions
from sgoif.audit.dataset_writers import Places, safe_name
from sgoif.images import ImagesError, open_images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for c, name in enumerate(("cat", "dog", "owl")):
        for i in range(4):
            save(10 * c + i, root / name / f"{i}.png")
    save(90, root / "cat" / "deep" / "er" / "0.png")
    return root


def test_what_nobody_can_tell_keeps_its_label_and_is_undecided(tmp_path: Path, photos: Path) -> None:
    rows = [("cat/0.png", "skip", "cat", ""), ("cat/1.png", "keep", "cat", "")]
    applied = apply_decisions(decide(tmp_path / "d.csv", photos, rows), tmp_path / "clean", dry_run=True)
    assert (applied.kept - applied.undecided, applied.dropped, applied.relabelled) == (1, 0, {})


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

    def start(target: str, how: str) -> WarmProcess:
        return python(KILLED, str(decisions), str(tmp_path / target), how)

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
    assert alive.stdout.readline() == "writing\n"
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


def test_nothing_readable_is_an_error(tmp_path: Path, photos: Path) -> None:
    for path in photos.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DecisionsError, match="none of the images to copy can be read"):
        apply_decisions(decide(tmp_path / "d.csv", photos, FIRST), tmp_path / "clean")
    assert not (tmp_path / "clean").exists()
