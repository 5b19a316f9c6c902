"""One pass from images to an array: geometry, channels, copies, damage, interruptions."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_cases import class_folder, picture, save
from PIL import Image

from sgoif.errors import SettingError
from sgoif.images import Collection, ImagesError, Pixels, open_images, open_pixels, prepare
from sgoif.images import reading as reading_module
from sgoif.images import writing as writing_module
from sgoif.images.backends import Files
from sgoif.images.errors import ChangedImagesError
from sgoif.images.pixels import IMAGES, MEASURED, PIXELS, THUMBS
from sgoif.images.reading import centre_square


def planes(image: Image.Image) -> Any:
    values = np.asarray(image)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def test_images_of_the_common_size_are_kept_exactly(tmp_path: Path) -> None:
    class_folder(tmp_path / "in", ("b", "a"), each=20, size=(32, 32))
    calls: list[tuple[int, int]] = []
    collection = open_images(tmp_path / "in")
    pixels = prepare(collection, tmp_path / "out", progress=lambda done, total: calls.append((done, total)))
    assert pixels.array.shape == (40, 3, 32, 32)
    assert pixels.array.dtype == np.uint8
    assert isinstance(pixels.array, np.memmap)
    assert not pixels.array.flags.writeable
    for i in range(40):
        assert np.array_equal(pixels.array[i], planes(collection.image(i)))
    assert pixels.names == collection.names
    assert pixels.labels.tolist() == collection.labels.tolist()
    assert pixels.class_names == ["a", "b"]
    assert pixels.files == [str(collection.file(i)) for i in range(40)]
    assert pixels.sizes.tolist() == [[32, 32]] * 40
    assert calls[-1] == (40, 40)
    assert (pixels.size, pixels.channels, len(pixels)) == (32, 3, 40)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(8, 8)] * 4, 8),
        ([(28, 28)] * 4, 28),
        ([(7, 7)] * 4, 32),
        ([(8, 8), (8, 8), (8, 8), (9, 9)], 32),
        ([(28, 20)] * 4, 32),
        ([(48, 60)] * 4, 32),
        ([(49, 60)] * 4, 64),
        ([(500, 30), (30, 500), (400, 300), (20, 20)], 32),
        ([(1, 1), (200, 200), (200, 200), (1, 300)], 64),
    ],
)
def test_the_common_size(tmp_path: Path, sizes: list[tuple[int, int]], expected: int) -> None:
    for i, size in enumerate(sizes):
        save(picture(i, *size), tmp_path / "in" / "ab"[i % 2] / f"{i}.png")
    pixels = prepare(open_images(tmp_path / "in"), tmp_path / "out")
    assert pixels.array.shape == (4, 3, expected, expected)
    assert sorted(map(tuple, pixels.sizes.tolist())) == sorted(sizes)


@settings(max_examples=40, deadline=None)
@given(st.integers(16, 120), st.integers(16, 120), st.sampled_from([8, 32, 64]), st.sampled_from(["x", "y"]))
def test_shorter_side_to_size_then_the_centre(width: int, height: int, size: int, along: str) -> None:
    """A slope stays a slope: every pixel has the value of the place in the original that it stands for."""
    y, x = np.mgrid[0:height, 0:width]
    slope = 2 * (x if along == "x" else y)
    found = np.asarray(centre_square(Image.fromarray(slope.astype(np.uint8)), size)).astype(float)
    assert found.shape == (size, size)
    side, length = min(width, height), width if along == "x" else height
    place = (length - side) / 2 + (np.arange(size) + 0.5) * side / size - 0.5
    inner = np.abs(place - (length - 1) / 2) < (length - 1) / 2 - 2.5 * max(side / size, 1)
    values = found[size // 2] if along == "x" else found[:, size // 2]
    assert np.abs(values - 2 * place)[inner].max(initial=0) <= 1.5


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::2] = 255
    found = np.asarray(centre_square(Image.fromarray(stripes), 32)).astype(int)
    assert np.abs(found - 128).max() < 10


def test_grey_images_have_one_channel_and_one_colour_image_gives_three(tmp_path: Path) -> None:
    for i in range(30):
        grey = picture(i, 32, 32, "L")
        save(grey if i % 2 else grey.convert("RGB"), tmp_path / "in" / "ab"[i % 2] / f"{i}.png")
    pixels = prepare(open_images(tmp_path / "in"), tmp_path / "out")
    assert pixels.array.shape == (30, 1, 32, 32)
    coloured = picture(99, 32, 32, "L").convert("RGB")
    coloured.putpixel((31, 31), (1, 2, 3))
    save(coloured, tmp_path / "in" / "b" / "z.png")
    collection = open_images(tmp_path / "in")
    mixed = prepare(collection, tmp_path / "out")
    assert mixed.array.shape == (31, 3, 32, 32)
    for i in range(31):
        assert np.array_equal(mixed.array[i], planes(collection.image(i).convert("RGB")))


def test_copies_are_found_whatever_the_file(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "in", each=3)
    shutil.copy(root / "cat" / "0.png", root / "cat" / "same.png")
    picture(1).save(root / "cat" / "lossless.bmp")
    picture(101).save(root / "cat" / "conflict.tiff")
    grey = picture(50, mode="L")
    grey.save(root / "dog" / "grey.png")
    grey.convert("RGB").save(root / "dog" / "grey_as_rgb.png")
    picture(0).rotate(90, expand=True).save(root / "cat" / "turned.png")
    pixels = prepare(open_images(root), tmp_path / "out")
    found = {tuple(sorted(pixels.names[i] for i in group.indices)): group.conflicting for group in pixels.duplicates}
    assert found == {
        ("cat/0.png", "cat/same.png"): False,
        ("cat/1.png", "cat/lossless.bmp"): False,
        ("cat/conflict.tiff", "dog/1.png"): True,
        ("dog/grey.png", "dog/grey_as_rgb.png"): False,
    }


def test_large_images_in_strips_hash_like_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "STRIP", 100)
    monkeypatch.setattr(reading_module, "LARGE", 150)  # larger ones go one at a time
    root = class_folder(tmp_path / "in")
    shutil.copy(root / "cat" / "0.png", root / "dog" / "copy.png")
    changed = picture(0)
    changed.putpixel((15, 11), (0, 0, 0))
    save(changed, root / "dog" / "nearly.png")
    pixels = prepare(open_images(root), tmp_path / "out")
    assert len(pixels) == 8
    assert [[pixels.names[i] for i in group.indices] for group in pixels.duplicates] == [["cat/0.png", "dog/copy.png"]]


def test_damaged_files_are_left_out_and_reported(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "in", ("a", "b", "c"))
    good = (root / "a" / "0.png").read_bytes()
    (root / "a" / "empty.png").write_bytes(b"")
    (root / "a" / "cut.png").write_bytes(good[:100])
    (root / "b" / "text.jpg").write_text("<script>alert(1)</script>")
    for path in (root / "b").glob("*.png"):
        path.write_bytes(b"broken")
    pixels = prepare(open_images(root), tmp_path / "out")
    assert pixels.names == [f"{c}/{i}.png" for c in "ac" for i in range(3)]
    assert pixels.class_names == ["a", "c"]
    assert pixels.labels.tolist() == [0, 0, 0, 1, 1, 1]
    reasons = {entry.name: entry.reason for entry in pixels.skipped}
    assert set(reasons) == {"a/empty.png", "a/cut.png", "b/text.jpg", "b/0.png", "b/1.png", "b/2.png", "b"}
    assert reasons["a/empty.png"] == "the file is empty"
    assert "class left out" in reasons["b"]
    assert np.array_equal(pixels.array[3], prepare(open_images(root), tmp_path / "again", size=32).array[3])


def test_nothing_left_to_compare(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "in")
    for path in (root / "cat").glob("*"):
        path.write_bytes(b"")
    with pytest.raises(ImagesError, match=r"only one class, 'dog'.*the file is empty"):
        prepare(open_images(root), tmp_path / "out")
    for path in (root / "dog").glob("*"):
        path.write_bytes(b"x")
    with pytest.raises(ImagesError, match="no readable image"):
        prepare(open_images(root), tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


class Counting(Files):
    decoded = 0

    def image(self, number: int, most: int | None = None, least: int | None = None) -> Image.Image:
        Counting.decoded += 1
        return super().image(number, most, least)


def counting(root: Path) -> Collection:
    collection = open_images(root)
    collection.store = Counting([str(collection.file(i)) for i in range(len(collection))])
    Counting.decoded = 0
    return collection


def same(first: Pixels, second: Pixels) -> bool:
    fields = ("names", "class_names", "skipped", "duplicates", "files", "digest")
    return (
        all(getattr(first, name) == getattr(second, name) for name in fields)
        and np.array_equal(first.array, second.array)
        and np.array_equal(first.labels, second.labels)
        and all(first.thumbnails(i) == second.thumbnails(i) for i in range(len(first)))
    )


def test_every_image_is_decoded_once_and_then_never_again(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "in", each=40, size=(80, 60))
    first = prepare(counting(root), tmp_path / "out")
    assert Counting.decoded == 80
    again = prepare(counting(root), tmp_path / "out")
    assert Counting.decoded == 0
    assert same(first, again)
    assert same(first, open_pixels(tmp_path / "out"))
    prepare(counting(root), tmp_path / "out", size=16)
    assert Counting.decoded == 80
    os.utime(root / "cat" / "0.png", (1, 1))
    prepare(counting(root), tmp_path / "out", size=16)
    assert Counting.decoded == 80


@pytest.mark.parametrize("name", [PIXELS, THUMBS, MEASURED, IMAGES])
@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_an_incomplete_set_is_made_again(tmp_path: Path, name: str, damage: str) -> None:
    root = class_folder(tmp_path / "in", size=(80, 60))
    expected = prepare(open_images(root), tmp_path / "good")
    out = tmp_path / "out"
    shutil.copytree(tmp_path / "good", out)
    content = (out / name).read_bytes()
    (out / name).unlink()
    if damage != "missing":
        (out / name).write_bytes(content[: len(content) // 2] if damage == "cut" else b"{}")
    with pytest.raises(ImagesError, match="complete set"):
        open_pixels(out)
    assert same(prepare(open_images(root), out), expected)


def zeroed(content: bytes) -> bytes:
    return content[:200] + bytes(400) + content[600:]


def relabelled(content: bytes) -> bytes:
    """The first image has the label of the last one."""
    record = json.loads(content)
    record["labels"][0] = record["labels"][-1]
    return json.dumps(record, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("name", "change"), [(PIXELS, zeroed), (THUMBS, zeroed), (MEASURED, zeroed), (IMAGES, relabelled)]
)
def test_a_set_whose_content_was_changed_is_refused_and_left_alone(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    root = class_folder(tmp_path / "in", size=(80, 60))
    out = tmp_path / "out"
    expected = prepare(open_images(root), out)
    sound = (out / name).read_bytes()
    changed = change(sound)
    assert len(changed) == len(sound)
    assert changed != sound
    (out / name).unlink()  # a new file: the old one is still mapped
    (out / name).write_bytes(changed)
    for opened in (lambda: open_pixels(out), lambda: prepare(open_images(root), out)):
        with pytest.raises(
            ChangedImagesError, match=rf"{name}.* has been changed or damaged.*Put the file back, or move"
        ):
            opened()
    assert (out / name).read_bytes() == changed
    assert len(open_pixels(out, verify=False)) == len(expected)
    out.rename(tmp_path / "away")
    again = prepare(open_images(root), out)
    assert same(again, expected)
    assert again.content == expected.content == open_pixels(out).content != ""


def test_killed_at_any_time(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "in", each=60, size=(40, 40))
    out = tmp_path / "out"
    start = time.perf_counter()
    expected = prepare(open_images(root), tmp_path / "good")
    whole = time.perf_counter() - start
    context = multiprocessing.get_context("fork")
    killed = 0
    for moment in np.linspace(0.05, 1.3, 6):
        process = context.Process(target=prepare, args=(open_images(root), out))
        process.start()
        time.sleep(float(moment) * whole)
        process.kill()
        process.join()
        killed += process.exitcode != 0
        try:
            assert same(open_pixels(out), expected)
        except ImagesError:
            assert not (out / IMAGES).exists()
    assert killed > 0
    assert same(prepare(open_images(root), out), expected)
    assert sorted(os.listdir(out)) == sorted([PIXELS, THUMBS, MEASURED, IMAGES])


@pytest.mark.parametrize("name", [PIXELS, THUMBS, MEASURED, IMAGES])
def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / f".{name}.a1b2c3d4.part").write_bytes(b"half")
    (out / ".notes.part").write_text("not ours")
    prepare(open_images(class_folder(tmp_path / "in", each=3)), out)
    assert sorted(os.listdir(out)) == sorted([".notes.part", PIXELS, THUMBS, MEASURED, IMAGES])


class Full:
    """A file on a disk with room for so many bytes."""

    room = 0

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: bytes) -> int:
        Full.room -= len(data)
        if Full.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 100, 5_000, 20_000, 60_000])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    root = class_folder(tmp_path / "in", each=5, size=(80, 80))
    original = writing_module._part
    Full.room = room
    monkeypatch.setattr(writing_module, "_part", lambda *given: Full(original(*given)))
    with pytest.raises(ImagesError, match=r"is full .*run the same command again"):
        prepare(open_images(root), tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []
    monkeypatch.undo()
    assert len(prepare(open_images(root), tmp_path / "out")) == 10


def _with_little_room(collection: Collection, out: Path) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
    try:
        prepare(collection, out)
    except ImagesError as error:
        os._exit(0 if "is full" in str(error) and os.listdir(out) == [] else 2)
    os._exit(3)


def test_a_limit_of_the_system_counts_as_a_full_disk(tmp_path: Path) -> None:
    """No pretending: the kernel refuses the write, wherever in the buffering that happens."""
    collection = open_images(class_folder(tmp_path / "in", each=5, size=(80, 80)))
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_with_little_room, args=(collection, tmp_path / "out"))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_disk_that_fills_up_at_the_very_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sgoif.images.preparation.atomic_write", full)
    root = class_folder(tmp_path / "in")
    with pytest.raises(ImagesError, match="is full"):
        prepare(open_images(root), tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    collection = open_images(class_folder(tmp_path / "in"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(ImagesError, match=r"cannot write to .*Choose a folder"):
        prepare(collection, tmp_path / "file" / "out")
    for size in (7, 1025):
        with pytest.raises(SettingError, match=f"size = {size}"):
            prepare(collection, tmp_path / "out", size=size)


def test_an_interrupted_pass_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(open_images(class_folder(tmp_path / "in")), tmp_path / "out", progress=interrupt)
    assert os.listdir(tmp_path / "out") == []


def test_thumbnails(tmp_path: Path) -> None:
    y, x = np.mgrid[0:300, 0:400]
    scene = np.stack([x % 256, y % 256, (x + y) % 256], axis=-1).astype(np.uint8)
    for i in range(4):
        save(Image.fromarray(np.roll(scene, 10 * i, 0)), tmp_path / "in" / "ab"[i % 2] / f"{i}.jpg")
    save(picture(0, 40, 20), tmp_path / "in" / "a" / "small.png")
    save(picture(0, 64, 64), tmp_path / "in" / "a" / "native.png")
    save(picture(0, 2000, 1), tmp_path / "in" / "a" / "line.png")
    collection = open_images(tmp_path / "in")
    pixels = prepare(collection, tmp_path / "out")
    shutil.rmtree(tmp_path / "in")  # thumbnails need the originals no more
    for i, name in enumerate(pixels.names):
        content = pixels.thumbnails(i)
        with Image.open(io.BytesIO(content)) as thumb:
            assert Image.MIME[str(thumb.format)] == pixels.thumbnail_type
            width, height = pixels.sizes[i].tolist()
            scale = min(96 / max(width, height), 1)
            assert abs(thumb.width - width * scale) <= 1
            assert abs(thumb.height - max(height * scale, 1)) <= 1
            if name.endswith(".jpg"):
                assert 200 < len(content) < 4000
                small = np.roll(scene, 10 * int(Path(name).stem), 0)[::50, ::50].astype(float).mean((0, 1))
                assert np.abs(np.asarray(thumb).astype(float).mean((0, 1)) - small).max() < 25
    with pytest.raises(IndexError):
        pixels.thumbnails(len(pixels))


def test_arrays_and_grey_digits(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
    x[7] = x[3]
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(50) % 5)
    pixels = prepare(open_images(tmp_path / "a.npz"), tmp_path / "out")
    assert np.array_equal(pixels.array[:, 0], x)
    assert pixels.files == [None] * 50
    assert [(group.indices, group.conflicting) for group in pixels.duplicates] == [((3, 7), True)]
    with Image.open(io.BytesIO(pixels.thumbnails(4))) as thumb:
        assert thumb.size == (8, 8)


def test_strange_names_survive_in_the_record(tmp_path: Path) -> None:
    names = ["<b>", "a\nb", 'q"', "猫", "y" * 200]
    for i, name in enumerate(names):
        save(picture(i), tmp_path / "in" / name / f"{name}.png")
    odd = os.fsencode(tmp_path) + b"/in/<b>/caf\xe9.png"
    shutil.copy(tmp_path / "in" / "<b>" / "<b>.png", os.fsdecode(odd))
    collection = open_images(tmp_path / "in")
    pixels = prepare(collection, tmp_path / "out")
    assert pixels.names == collection.names
    assert pixels.class_names == collection.class_names
    assert all(path is not None and os.path.isfile(path) for path in pixels.files)
    json.loads((tmp_path / "out" / IMAGES).read_text(encoding="utf-8"))


def test_reading_many_images_takes_little_memory(tmp_path: Path) -> None:
    """What the pass itself holds stays far below the size of the data."""
    import tracemalloc

    x = np.zeros((80, 400, 400, 3), np.uint8)
    x[:, 0, 0, 0] = np.arange(80)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(80) % 2)
    del x
    collection = open_images(tmp_path / "a.npz")
    tracemalloc.start()
    try:
        prepare(collection, tmp_path / "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12e6  # the data have 38.4e6 bytes
