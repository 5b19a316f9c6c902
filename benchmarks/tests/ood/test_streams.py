"""Streams of images: what is told about alarms, the blur, and a small run from images to figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sgoif.errors import SettingError
from sgoif.tasks.ood import Alarm
from sgoif_bench.ood.streams import StreamSettings, _about, blurred


def alarm(time: int, change: int, towards: str = "stranger") -> Alarm:
    return Alarm(time=time, change=change, drivers=(), evidence=100.0, towards=towards)


def test_delays_count_from_the_change_and_what_was_missed_counts_as_never() -> None:
    found = _about([alarm(60, 52), alarm(90, 50), alarm(30, 10), None, alarm(70, 48, "more usual")], 50, 5)
    assert found == {
        "streams": 5,
        "found": 3,
        "too_early": 1,
        "median_delay": 40,
        "longest_delay": 40,
        "median_change_error": 2,
        "stranger": 2,
    }
    assert _about([None, None, alarm(60, 50)], 50, 3)["median_delay"] is None


def test_a_blur_keeps_the_mean_and_takes_the_detail() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 2, 16, 16), generator=generator, dtype=torch.uint8)
    assert torch.equal(blurred(images, 0.0), images)
    soft, softer = blurred(images, 0.7), blurred(images, 2.0)
    assert soft.dtype == torch.uint8
    assert soft.shape == images.shape
    assert float(softer.float().std()) < float(soft.float().std()) < float(images.float().std())
    assert abs(float(softer.float().mean()) - float(images.float().mean())) < 5


def test_a_blur_is_a_gaussian() -> None:
    point = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    point[0, 0, 7, 7] = 255
    at = np.arange(-3, 4)
    kernel = np.exp(-0.5 * at**2)
    kernel /= kernel.sum()
    expected = np.zeros((15, 15))
    expected[4:11, 4:11] = np.round(255 * np.outer(kernel, kernel))
    assert np.abs(blurred(point, 1.0)[0, 0].numpy() - expected).max() <= 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"share": 0.0}, "share = 0.0"),
        ({"change": 2000}, "before the end"),
        ({"outliers": "cats"}, "none of the sets for cifar10: cifar100"),
        ({"blur": -1.0}, "blur = -1.0"),
    ],
)
def test_mistakes_are_named(changes: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        StreamSettings(data="x", **changes)
