"""What is measured of an image: against plain formulas, and as it should follow what is done to the image."""

from __future__ import annotations

import calendar
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_cases import picture, save
from PIL import Image, ImageFilter

from sgoif.images import ImagesError, open_images, open_pixels, prepare
from sgoif.images import measurements as module
from sgoif.images.decode import decode
from sgoif.images.measurements import Measurements, load_measurements, measure
from sgoif.images.pixels import MEASURED, VERSION

CONTENT = bytes(range(16))


def measured(image: Image.Image, *, grey: bool | None = None) -> Any:
    return measure(image, CONTENT, grey=image.mode == "L" if grey is None else grey)[0]


def scene(seed: int, side: int = 256) -> Image.Image:
    """Overlapping discs of many sizes and colours: as in photographs, every scale has edges."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side
    image = np.full((side, side, 3), 128, dtype=np.uint8)
    for radius in np.sort(1 / random.uniform(2, 40, 300))[::-1]:
        centre = random.uniform(0, 1, 2)
        image[(x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2 / 4] = random.integers(20, 236, 3)
    return Image.fromarray(image)


def test_every_number_against_its_formula() -> None:
    row, values = measured(image := picture(3, 40, 30)), np.asarray(picture(3, 40, 30)) / 255
    light = np.sqrt(values**2 @ [0.241, 0.691, 0.068])
    assert (row["width"], row["height"], bool(row["grey"])) == (40, 30, False)
    assert row["content"].tobytes() == CONTENT
    assert row["brightness"] == pytest.approx(light.mean(), abs=1e-3)
    assert row["contrast"] == pytest.approx(light.std(), abs=1e-3)
    assert [row["darkest"], row["brightest"]] == pytest.approx(np.percentile(light, [5, 99]), abs=0.01)
    counts = np.bincount(np.rint(light * 255).astype(int).ravel()) / light.size
    assert row["entropy"] == pytest.approx(-sum(share * np.log2(share) for share in counts if share), abs=1e-5)
    assert row["colour"] == pytest.approx(values.mean((0, 1)), abs=1e-5)
    assert row["saturation"] == pytest.approx(np.mean(1 - values.min(2) / values.max(2)), abs=1e-4)
    edge = np.ones((30, 40), dtype=bool)
    edge[1:-1, 1:-1] = False
    assert row["border"] == pytest.approx(values[edge].mean(0), abs=1e-5)
    assert row["border_spread"] == pytest.approx(np.sqrt(values[edge].var(0).mean()), abs=1e-5)
    assert row["thumbnail"].tolist() == np.asarray(image.resize((8, 8), Image.Resampling.BOX)).tolist()
    assert np.isnan(row["taken"])


def test_a_grey_image_is_measured_alike_however_it_is_stored() -> None:
    grey = picture(4, 50, 300, mode="L")
    one, three = measured(grey), measured(grey.convert("RGB"), grey=True)
    assert one.tobytes() == three.tobytes()
    assert measured(grey.convert("RGB"), grey=False)["brightness"] == pytest.approx(one["brightness"], abs=2e-3)


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (2000, 3), (7, 9), (8, 8), (257, 256)])
def test_images_of_any_shape(size: tuple[int, int]) -> None:
    for mode in ("L", "RGB"):
        row = measured(picture(1, *size, mode=mode))
        assert (row["width"], row["height"]) == size
        finite = [name for name in row.dtype.names if name not in ("sharpness", "taken", "format")]
        assert all(np.isfinite(row[name]).all() for name in finite)
        assert np.isnan(row["sharpness"]) == (min(size) < 8)


def test_sharpness_falls_with_blur_whatever_the_contrast() -> None:
    sharp = scene(1)
    blurred = [measured(sharp.filter(ImageFilter.GaussianBlur(radius)))["sharpness"] for radius in (0, 0.7, 1.5, 4)]
    assert blurred == sorted(blurred, reverse=True)
    assert blurred[0] > 0.55
    assert blurred[2] < 0.4
    faint = Image.fromarray((110 + np.asarray(sharp) * 0.15).astype(np.uint8))
    assert measured(faint)["sharpness"] == pytest.approx(blurred[0], rel=0.1)
    assert measured(picture(1, 200, 200, mode="L"))["sharpness"] == pytest.approx(4, rel=0.05)
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint8), (64, 256))
    assert measured(Image.fromarray(np.ascontiguousarray(ramp)))["sharpness"] == pytest.approx(0.25, rel=0.05)


def test_sharpness_is_the_same_at_every_size_and_there_is_none_in_a_flat_image() -> None:
    large = scene(2, 1024)
    sizes = [large.resize((side, side), Image.Resampling.BICUBIC) for side in (200, 256, 300, 512, 1024)]
    found = [measured(image)["sharpness"] for image in sizes]
    assert max(found) < 1.15 * min(found)
    assert measured(large.filter(ImageFilter.GaussianBlur(6)))["sharpness"] < 0.4
    assert np.isnan(measured(Image.new("RGB", (64, 64), (10, 200, 30)))["sharpness"])


def test_the_hash_tells_near_copies_from_other_images() -> None:
    def apart(one: Image.Image, other: Image.Image) -> int:
        return bin(int(measured(one)["hash"]) ^ int(measured(other)["hash"])).count("1")

    images = [scene(seed, 128) for seed in range(6)]
    for image in images:
        again = io.BytesIO()
        image.save(again, "JPEG", quality=50)
        smaller = image.resize((90, 90), Image.Resampling.BICUBIC)
        brighter = Image.eval(image, lambda level: min(255, int(level * 1.1)))
        assert max(apart(image, Image.open(again)), apart(image, smaller), apart(image, brighter)) <= 8
    assert min(apart(one, other) for i, one in enumerate(images) for other in images[:i]) >= 14
    assert apart(Image.new("L", (64, 64), 7), Image.new("L", (90, 40), 9)) == 0


def dated(path: Path, taken: str | None, changed: str | None = None, turn: int | None = None) -> Path:
    exif = Image.Exif()
    if changed is not None:
        exif[module.CHANGED] = changed
    if turn is not None:
        exif[0x0112] = turn
    if taken is not None:
        exif.get_ifd(module.EXIF)[module.TAKEN] = taken
    picture(5).save(path, exif=exif)
    return path


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_the_date_of_the_camera(tmp_path: Path, suffix: str) -> None:
    expected = calendar.timegm((2019, 5, 1, 12, 30, 7))
    path = tmp_path / f"a.{suffix}"
    assert module.date_taken(decode(dated(path, "2019:05:01 12:30:07", "2020:01:01 00:00:00"))) == expected
    assert module.date_taken(decode(dated(path, "2019:05:01 12:30:07", turn=6))) == expected
    assert module.date_taken(decode(dated(path, None, "2019:05:01 12:30:07"))) == expected


@pytest.mark.parametrize("text", ["0000:00:00 00:00:00", "2019:13:01 12:00:00", "yesterday", "", "9" * 50])
def test_what_is_no_date_is_not_known(tmp_path: Path, text: str) -> None:
    assert np.isnan(module.date_taken(decode(dated(tmp_path / "a.jpg", text))))


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_damaged_exif_loses_the_date_alone(tmp_path: Path) -> None:
    content = dated(tmp_path / "a.jpg", "2019:05:01 12:30:07").read_bytes()
    start, random = content.index(b"Exif\0\0") + 6, np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[start + int(random.integers(0, 60))] = int(random.integers(0, 256))
        row = measured(decode(bytes(damaged)))
        assert np.isnan(row["taken"]) or row["taken"] > 0
        assert row["width"] * row["height"] == 16 * 12


def test_they_are_kept_with_the_prepared_images(tmp_path: Path) -> None:
    root = tmp_path / "in"
    for number in range(4):
        for name in "ab":
            save(picture(number, 20 + number, 30), root / name / f"{number}.png")
    (root / "a" / "1.png").write_bytes(b"damaged")
    pixels = prepare(open_images(root), tmp_path / "out")
    found = pixels.measurements()
    assert len(found) == len(pixels) == 7
    assert np.stack([found.width, found.height], 1).tolist() == pixels.sizes.tolist()
    assert found.file_bytes.tolist() == [Path(str(path)).stat().st_size for path in pixels.files]
    same = {tuple(rows) for group in pixels.duplicates for rows in [group.indices]}
    assert {tuple(np.flatnonzero((found.content == row).all(1)).tolist()) for row in found.content} == same | {(4,)}
    for column, (name, dtype) in zip(vars(found).values(), module.ROW.descr[:2], strict=False):
        assert column.dtype == np.dtype(dtype), name


def test_another_file_is_not_taken_for_them(tmp_path: Path) -> None:
    rows = Measurements.of([measure(picture(seed), CONTENT, grey=False) for seed in range(3)])
    path = tmp_path / "m.npz"
    rows.save(path)
    again = load_measurements(path)
    assert all(np.array_equal(getattr(again, k), v, equal_nan=v.dtype.kind == "f") for k, v in vars(rows).items())
    assert len(Measurements.of([])) == 0
    columns: dict[str, Any] = dict(vars(rows))
    for change in ({"hash": rows.hash.astype(float)}, {"width": rows.width[:2]}, {"colour": rows.colour[:, :2]}):
        np.savez(path, **{**columns, **change})
        with pytest.raises(ImagesError, match="does not hold the measurements"):
            load_measurements(path)
    for content in (b"", b"PK\3\4", b"\x93NUMPY"):
        path.write_bytes(content)
        with pytest.raises(ImagesError, match="does not hold the measurements"):
            load_measurements(path)


def test_images_prepared_without_them_are_prepared_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "in"
    for name in "ab":
        save(picture(ord(name)), root / name / "0.png")
    out = tmp_path / "out"
    with monkeypatch.context() as older:
        older.setattr("sgoif.images.preparation.VERSION", VERSION - 1)
        older.setattr("sgoif.images.pixels.VERSION", VERSION - 1)
        prepare(open_images(root), out)
    (out / MEASURED).unlink()
    with pytest.raises(ImagesError, match=f"version {VERSION - 1}"):
        open_pixels(out)
    assert len(prepare(open_images(root), out).measurements()) == 2
    shutil.rmtree(out)
