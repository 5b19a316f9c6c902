"""Files that are damaged, left out, or not what they are called."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from sgoif.findings import Examined, Finding, Severity
from sgoif.findings.kinds.files import NAMED, LeftOut, Misnamed, Unreadable
from sgoif.images import open_images, open_pixels, prepare
from sgoif.images.decode import SUFFIXES


def examined(root: Path, out: Path) -> Examined:
    prepare(open_images(root), out)
    pixels = open_pixels(out)
    return Examined(pixels.names, pixels.labels, pixels.class_names, pixels.measurements(), unreadable=pixels.skipped)


def photos(root: Path) -> Path:
    for number in range(12):
        values = np.random.default_rng(number).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        path = root / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path, quality=90)
    return root


def told(findings: list[Finding]) -> dict[str, str]:
    return {finding.images[0]: finding.message for finding in findings}


def test_damaged_files_are_errors_and_others_that_were_left_out_are_notes(tmp_path: Path) -> None:
    root = photos(tmp_path / "in")
    (root / "a" / "0.jpg").write_bytes(b"")
    whole = (root / "a" / "2.jpg").read_bytes()
    (root / "a" / "2.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "b" / "1.jpg").write_bytes(b"<html>not found</html>")
    (root / "a" / "photo.heic").write_bytes(whole)
    shutil.copy(root / "a" / "4.jpg", root / "loose.jpg")
    seen = examined(root, tmp_path / "out")
    damaged = Unreadable().find(seen)
    assert {finding.severity for finding in damaged} == {Severity.ERROR}
    assert told(damaged) == {
        "a/0.jpg": "The image is lost: the file is empty.",
        "a/2.jpg": told(damaged)["a/2.jpg"],
        "b/1.jpg": "The image is lost: not an image in a known format.",
    }
    assert "cut off" in told(damaged)["a/2.jpg"]
    left = LeftOut().find(seen)
    assert {finding.severity for finding in left} == {Severity.NOTE}
    assert set(told(left)) == {"a/photo.heic", "loose.jpg"}
    assert len({finding.id for finding in damaged + left}) == 5
    assert Misnamed().find(seen) == []


def test_files_in_another_format_than_they_are_named(tmp_path: Path) -> None:
    root = photos(tmp_path / "in")
    for name, kind in (("0.jpg", "PNG"), ("2.jpg", "GIF")):
        with Image.open(root / "a" / name) as image:
            image.copy().save(tmp_path / "other", kind)
        shutil.move(tmp_path / "other", root / "a" / name)
    shutil.move(root / "b" / "1.jpg", root / "b" / "1.JPEG")
    shutil.move(root / "b" / "3.jpg", root / "b" / "3.png")
    findings = Misnamed().find(examined(root, tmp_path / "out"))
    assert told(findings) == {
        "a/0.jpg": "A PNG file is called .jpg.",
        "a/2.jpg": "A GIF file is called .jpg.",
        "b/3.png": "A JPEG file is called .png.",
    }


def test_rows_of_arrays_have_no_format(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "in.npz", images=images, labels=np.arange(6) % 2)
    seen = examined(tmp_path / "in.npz", tmp_path / "out")
    assert Misnamed().find(seen) == Unreadable().find(seen) == []
    assert set(seen.measured.format.tolist()) == {b""}


def test_every_suffix_that_is_read_is_known() -> None:
    assert set(NAMED) == set(SUFFIXES)
