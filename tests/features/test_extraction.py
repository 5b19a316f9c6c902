"""Features are computed once: what was there is not read again, and what is kept is that of the images."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from feature_cases import counting, expected, photo, photos, run, tiny
from PIL import Image

from sgoif.errors import ModelError
from sgoif.features import CacheError, cache_folder, extract_features
from sgoif.images import open_images, open_unlabelled
from sgoif.images.backends import Files


def only_file(cache: Path) -> Path:
    (found,) = (path for path in cache.rglob("*") if path.is_file())
    return found


class TestTheyAreThoseOfTheBackbone:
    def test_images_of_the_size_itself_to_half_precision(self, tmp_path: Path) -> None:
        for seed in range(20):
            photo(seed, 32, 32).save(tmp_path / f"{seed:02}.png")
        found = run(tmp_path, tmp_path / "cache")
        wanted = expected(tmp_path, counting(tmp_path).names, tiny())
        torch.testing.assert_close(found.array, wanted, rtol=2e-3, atol=2e-3)
        assert found.features.array.dtype == np.float16
        assert found.features.rows.tolist() == list(range(20))
        assert (found.features.size, found.features.backbone, found.features.reused) == (32, "tiny", 0)

    @pytest.mark.parametrize(("width", "height", "suffix"), [(1200, 900, "jpg"), (500, 130, "jpg"), (700, 800, "png")])
    def test_large_images_nearly(self, tmp_path: Path, width: int, height: int, suffix: str) -> None:
        for seed in range(3):
            photo(seed, width, height).save(tmp_path / f"{seed}.{suffix}", quality=95)
        wanted = expected(tmp_path, counting(tmp_path).names, tiny())
        cosine = torch.cosine_similarity(run(tmp_path, tmp_path / "cache").array, wanted)
        assert float(cosine.min()) > 0.999

    def test_a_photograph_that_lies_on_its_side_is_seen_upright(self, tmp_path: Path) -> None:
        upright, turned = tmp_path / "a" / "0.png", tmp_path / "b" / "0.jpg"
        upright.parent.mkdir()
        turned.parent.mkdir()
        photo(1, 400, 300).save(upright)
        exif = Image.Exif()
        exif[0x0112] = 6
        photo(1, 400, 300).transpose(Image.Transpose.ROTATE_90).save(turned, quality=95, exif=exif)
        one, other = (run(path.parent, tmp_path / "cache").array for path in (upright, turned))
        assert float(torch.cosine_similarity(one, other)) > 0.999

    def test_grey_and_transparent_and_tiny_ones(self, tmp_path: Path) -> None:
        photo(0).convert("L").save(tmp_path / "0.png")
        photo(0).convert("L").convert("RGB").save(tmp_path / "1.png")
        photo(1, 1, 1).save(tmp_path / "2.png")
        photo(2, 32, 32).convert("RGBA").save(tmp_path / "3.png")
        found = run(tmp_path, tmp_path / "cache")
        assert torch.equal(found.array[0], found.array[1])
        assert found.array.isfinite().all()
        torch.testing.assert_close(
            found.array[2:], expected(tmp_path, ["2.png", "3.png"], tiny()), rtol=2e-3, atol=2e-3
        )

    def test_a_size_that_the_network_does_not_have_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"works at \(32,\) pixels a side, not at 33"):
            extract_features(counting(photos(tmp_path / "in", 1)), tiny(), 33, tmp_path / "cache")

    def test_features_that_are_no_numbers_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="'tiny' gives features too large for 16 bits, or no numbers"):
            run(photos(tmp_path / "in", 1), tmp_path / "cache", tiny(std=1e-9))
        assert not (tmp_path / "cache").exists()

    def test_no_images_have_no_features(self, tmp_path: Path) -> None:
        none = counting(photos(tmp_path / "in", 1)).pick([])
        found = extract_features(none, tiny(), cache=tmp_path / "cache")
        assert found.array.shape == (0, 20)


class TestOnce:
    def test_a_second_call_decodes_nothing(self, tmp_path: Path) -> None:
        first = run(photos(tmp_path / "in", 40), tmp_path / "cache")
        assert (first.decoded, first.computed, first.features.reused) == (40, 40, 0)
        again = run(tmp_path / "in", tmp_path / "cache")
        assert (again.decoded, again.computed, again.features.reused) == (0, 0, 40)
        assert torch.equal(first.array, again.array)
        assert isinstance(again.features.array, np.memmap)

    def test_copies_are_computed_once(self, tmp_path: Path) -> None:
        root = photos(tmp_path / "in", 30)
        for number in range(30):
            shutil.copy(root / "007.png", root / f"copy{number}.png")
        found = run(root, tmp_path / "cache")
        assert (found.decoded, found.computed, len(found.array)) == (30, 30, 60)
        assert torch.equal(found.array[30:], found.array[7].expand(30, -1))
        assert found.features.reused == 0

    def test_a_file_that_was_moved_keeps_its_features(self, tmp_path: Path) -> None:
        first = run(photos(tmp_path / "in", 20), tmp_path / "cache")
        (tmp_path / "in" / "003.png").rename(tmp_path / "in" / "x003.png")
        again = run(tmp_path / "in", tmp_path / "cache")
        assert (again.decoded, again.features.reused) == (0, 20)
        order = [*range(3), *range(4, 20), 3]
        assert torch.equal(again.array, first.array[order])

    def test_a_file_that_was_changed_is_read_anew(self, tmp_path: Path) -> None:
        first = run(photos(tmp_path / "in", 20), tmp_path / "cache")
        photo(99).save(tmp_path / "in" / "003.png")
        again = run(tmp_path / "in", tmp_path / "cache")
        assert (again.decoded, again.features.reused) == (1, 19)
        assert (again.array != first.array).any(1).nonzero().flatten().tolist() == [3]

    def test_every_network_and_size_has_features_of_its_own(self, tmp_path: Path) -> None:
        root = photos(tmp_path / "in", 5)
        first = run(root, tmp_path / "cache")
        for other in (tiny(1), tiny(size=40)):
            assert run(root, tmp_path / "cache", other).computed == 5
        again = run(root, tmp_path / "cache")
        assert again.computed == 0
        assert torch.equal(first.array, again.array)

    def test_an_array_is_known_by_its_rows(self, tmp_path: Path) -> None:
        images = np.stack([np.asarray(photo(seed, 32, 32)) for seed in range(20)])
        np.savez(tmp_path / "a.npz", x=images, y=np.arange(20) % 2)
        np.savez(tmp_path / "b.npz", x=images[::-1], y=np.arange(20) % 4)
        first = extract_features(open_images(tmp_path / "a.npz"), tiny(), cache=tmp_path / "cache")
        again = extract_features(open_images(tmp_path / "b.npz"), tiny(), cache=tmp_path / "cache")
        assert (first.reused, again.reused) == (0, 20)
        assert np.array_equal(first.array, again.array[::-1])
        np.savez(tmp_path / "c.npz", x=images.astype(np.float32) / 255, y=np.arange(20) % 2)
        scaled = extract_features(open_images(tmp_path / "c.npz"), tiny(), cache=tmp_path / "cache")
        assert scaled.reused == 0
        assert np.allclose(scaled.array, first.array, atol=0.01)

    def test_rows_of_a_table_are_known_by_the_file_they_hold(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        root = photos(tmp_path / "in", 4)
        cells = [{"bytes": path.read_bytes(), "path": None} for path in sorted(root.iterdir())]
        parquet.write_table(pyarrow.table({"image": cells, "label": [0, 1, 0, 1]}), tmp_path / "t.parquet")
        first = run(root, tmp_path / "cache")
        again = extract_features(open_images(tmp_path / "t.parquet"), tiny(), cache=tmp_path / "cache")
        assert again.reused == 4
        assert np.array_equal(first.features.array, again.array)


class TestUnreadable:
    def test_they_are_named_and_left_out(self, tmp_path: Path) -> None:
        root = photos(tmp_path / "in", 6)
        whole = (root / "002.png").read_bytes()
        (root / "002.png").write_bytes(whole[: len(whole) // 2])
        shutil.copy(root / "002.png", root / "006.png")
        (root / "004.png").write_bytes(b"")
        collection = counting(root)
        (root / "005.png").unlink()
        found = extract_features(collection, tiny(), cache=tmp_path / "cache")
        assert found.rows.tolist() == [0, 1, 3]
        assert len(found.array) == 3
        told = {skipped.name: skipped.reason for skipped in found.unreadable}
        assert list(told) == ["002.png", "004.png", "005.png", "006.png"]
        assert "damaged or cut off" in told["002.png"]
        assert told["006.png"] == told["002.png"]
        assert told["004.png"] == "the file is empty"
        assert told["005.png"] == "no such file"

    def test_what_is_written_to_while_it_is_read_is_not_kept(self, tmp_path: Path) -> None:
        class Changing(Files):
            def image(self, number: int, most: int | None = None, least: int | None = None) -> Image.Image:
                photo(99).save(tmp_path / "in" / "000.png")
                return super().image(number, most, least)

        root = photos(tmp_path / "in", 1)
        original = (root / "000.png").read_bytes()
        collection = open_unlabelled(root)
        collection.store = Changing([root / "000.png"])
        found = extract_features(collection, tiny(), cache=tmp_path / "cache")
        assert [skipped.reason for skipped in found.unreadable] == ["it was written to while it was read"]
        (root / "000.png").write_bytes(original)
        again = run(root, tmp_path / "cache")
        assert again.features.reused == 0
        assert float(torch.cosine_similarity(again.array, expected(root, ["000.png"], tiny()))) > 0.999


class TestCutShort:
    def test_it_goes_on_where_it_was(self, tmp_path: Path) -> None:
        class Killed(Exception):
            pass

        def stop(done: int, total: int) -> None:
            assert total == 100
            if done >= 50:
                raise Killed

        photos(tmp_path / "in", 100)
        with pytest.raises(Killed):
            extract_features(counting(tmp_path / "in"), tiny(), cache=tmp_path / "cache", progress=stop)
        again = run(tmp_path / "in", tmp_path / "cache")
        assert again.features.reused == 64
        assert again.decoded == again.computed == 36
        assert torch.equal(again.array, run(tmp_path / "in", tmp_path / "other").array)

    @pytest.mark.parametrize("lost", [1, 40, 76, 100])
    def test_a_cut_off_end_is_made_again(self, tmp_path: Path, lost: int) -> None:
        first = run(photos(tmp_path / "in", 20), tmp_path / "cache")
        file = only_file(tmp_path / "cache")
        size = file.stat().st_size
        with file.open("r+b") as handle:
            handle.truncate(size - lost)
        again = run(tmp_path / "in", tmp_path / "cache")
        assert again.decoded == (2 if lost > 76 else 1)
        assert torch.equal(first.array, again.array)
        assert file.stat().st_size == size

    @pytest.mark.parametrize("place", [0, 4, 20, 36, 60, 75])
    def test_a_damaged_record_is_made_again(self, tmp_path: Path, place: int) -> None:
        first = run(photos(tmp_path / "in", 20), tmp_path / "cache")
        file = only_file(tmp_path / "cache")
        content = bytearray(file.read_bytes())
        content[7 * 76 + place] ^= 1
        file.write_bytes(content)
        again = run(tmp_path / "in", tmp_path / "cache")
        assert again.decoded == 1
        assert torch.equal(first.array, again.array)
        assert run(tmp_path / "in", tmp_path / "cache").decoded == 0

    def test_a_foreign_file_is_no_source_of_features(self, tmp_path: Path) -> None:
        first = run(photos(tmp_path / "in", 20), tmp_path / "cache")
        only_file(tmp_path / "cache").write_bytes(bytes(76 * 5) + b"something else")
        assert torch.equal(run(tmp_path / "in", tmp_path / "cache").array, first.array)


def test_threads_of_torch_are_afterwards_as_many_as_before(tmp_path: Path) -> None:
    for seed in range(40):
        photo(seed, 32, 32).save(tmp_path / f"{seed:02}.png")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = run(tmp_path, tmp_path / "cache")
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as fresh:
            assert fresh.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)
    wanted = expected(tmp_path, counting(tmp_path).names, tiny())
    torch.testing.assert_close(found.array, wanted, rtol=2e-3, atol=2e-3)


def test_progress_tells_of_every_image(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many computations are under way at once
    try:
        for _ in range(2):
            extract_features(counting(photos(tmp_path / "in", 40)), tiny(), cache=tmp_path / "cache", progress=tell)
    finally:
        torch.set_num_threads(threads)
    assert told == [(0, 40), (16, 40), (40, 40), (40, 40)]


def test_the_folder_of_the_cache_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGOIF_CACHE", str(tmp_path / "mine"))
    extract_features(counting(photos(tmp_path / "in", 1)), tiny())
    assert only_file(tmp_path / "mine").is_relative_to(cache_folder())
    assert run(tmp_path / "in", cache_folder()).features.reused == 1


def test_what_vanishes_meanwhile_is_an_error_and_not_another_feature(tmp_path: Path) -> None:
    def remove(done: int, total: int) -> None:
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)

    with pytest.raises(CacheError, match="gone or damaged: run this again"):
        extract_features(counting(photos(tmp_path / "in", 20)), tiny(), cache=tmp_path / "cache", progress=remove)
