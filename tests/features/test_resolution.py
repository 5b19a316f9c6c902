"""The resolution follows from the images and from the time there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from feature_cases import Patches, counting, photo, tiny

from sgoif.features import choose_resolution, extract_features, resolution
from sgoif.images.collection import Collection

SIZES = (96, 128, 160, 192, 224)


def collection(root: Path, sides: list[tuple[int, int]]) -> Collection:
    root.mkdir()
    for number, (width, height) in enumerate(sides):
        photo(number, width, height).save(root / f"{number:03}.png")
    return counting(root)


def paced(monkeypatch: pytest.MonkeyPatch, of_size: dict[int, float]) -> list[int]:
    """Let images take so many seconds each; the sizes that are timed."""
    timed: list[int] = []

    def pretend(backbone: object, images: object, size: int, most: float) -> float:
        timed.append(size)
        return of_size[size]

    monkeypatch.setattr(resolution, "_seconds_each", pretend)
    return timed


@pytest.mark.parametrize(
    ("sides", "size", "why"),
    [
        ([(8, 8)] * 3, 96, "96 pixels, 5 times the 8 of the images or more"),
        ([(28, 28)] * 3, 160, "160 pixels, 5 times the 28 of the images or more"),
        ([(40, 32), (32, 90), (400, 300)], 160, "160 pixels, 5 times the 32 of the images or more"),
        ([(400, 300)] * 3, 224, "224 pixels, the network's own size"),
    ],
)
def test_small_images_are_enlarged_about_five_times(
    tmp_path: Path, sides: list[tuple[int, int]], size: int, why: str
) -> None:
    assert choose_resolution(tiny(size=224), collection(tmp_path / "in", sides), cache=tmp_path) == (size, why)


def test_unreadable_images_do_not_decide(tmp_path: Path) -> None:
    given = collection(tmp_path / "in", [(20, 20)] * 3)
    for number in (0, 1):
        (tmp_path / "in" / f"{number:03}.png").write_bytes(b"")
    assert choose_resolution(tiny(size=224), given, cache=tmp_path)[0] == 128
    (tmp_path / "in" / "002.png").write_bytes(b"")
    assert choose_resolution(tiny(size=224), given, cache=tmp_path)[0] == 224


class TestTime:
    def test_it_goes_down_until_there_is_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        given = collection(tmp_path / "in", [(240, 250)] * 100)
        timed = paced(monkeypatch, {size: size / 10 for size in SIZES})
        size, why = choose_resolution(tiny(size=224), given, 1700, tmp_path)
        assert (size, timed) == (160, [224, 192, 160])
        assert why == "160 pixels: 27 minutes to compute, where 224 pixels would take 37 minutes"

    def test_the_least_is_taken_where_nothing_is_fast_enough(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = collection(tmp_path / "in", [(240, 250)] * 100)
        paced(monkeypatch, dict.fromkeys(SIZES, 1.0))
        assert choose_resolution(tiny(size=224), given, 10, tmp_path)[0] == 96

    def test_what_is_in_the_cache_takes_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        given = collection(tmp_path / "in", [(240, 250)] * 120)
        timed = paced(monkeypatch, dict.fromkeys(SIZES, 1.0))
        extract_features(given.pick(range(60)), tiny(size=224), cache=tmp_path)
        assert choose_resolution(tiny(size=224), given, 61, tmp_path)[0] == 224
        extract_features(given, tiny(size=224), cache=tmp_path)
        timed.clear()
        assert choose_resolution(tiny(size=224), given, 0, tmp_path)[0] == 224
        assert timed == []

    def test_a_clock_that_runs_better_today_gives_up_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = collection(tmp_path / "in", [(240, 250)] * 100)
        paced(monkeypatch, dict.fromkeys(SIZES, 1.0))
        assert choose_resolution(tiny(size=224), given, 110, tmp_path)[0] == 224
        extract_features(given, tiny(size=224), 160, tmp_path)
        assert choose_resolution(tiny(size=224), given, 110, tmp_path)[0] == 160
        assert choose_resolution(tiny(size=224), given, 210, tmp_path)[0] == 224

    def test_some_images_are_timed_and_nothing_is_kept_of_them(self, tmp_path: Path) -> None:
        given = collection(tmp_path / "in", [(40, 40)] * 60)
        one = tiny(size=224)
        for seconds, expected, seen in ((1e6, 224, 16), (0, 96, 5 * 48)):
            Patches.seen = 0
            assert choose_resolution(one, given, seconds, tmp_path / "cache")[0] == expected
            assert Patches.seen == seen
        assert not (tmp_path / "cache").exists()


def test_no_images_have_the_networks_own_size(tmp_path: Path) -> None:
    none = collection(tmp_path / "in", [(40, 40)]).pick(np.arange(0).tolist())
    assert choose_resolution(tiny(size=224), none, cache=tmp_path)[0] == 224
