"""One picture laid over another."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter
from sklearn.datasets import load_sample_images

from sgoif.images.registration import registered


def square(left: float, top: float, wide: float, high: float) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A window of a photograph without detail at 16 × 16 pixels, as planes."""
    whole = Image.fromarray(load_sample_images().images[0]).filter(ImageFilter.GaussianBlur(12))
    box = (left, top, left + wide, top + high)
    return np.asarray(whole.resize((16, 16), Image.Resampling.BOX, box)).transpose(2, 0, 1)


@pytest.mark.parametrize("window", [(110, 104, 180, 190), (104, 96, 200, 190), (92, 108, 205, 196)])
def test_a_window_that_was_moved_or_scaled_is_laid_over(window: tuple[float, float, float, float]) -> None:
    whole, part = square(100, 100, 200, 200)[None], square(*window)[None]
    plain = np.linalg.norm(_unit(whole[0]) - _unit(part[0]))
    colours, slopes = registered(whole, part)[0]
    assert colours < 0.4 * plain
    assert slopes < 0.5
    assert colours == pytest.approx(registered(whole, (part * 0.8).astype(np.uint8))[0, 0], abs=0.03), (
        "whatever the light"
    )


def test_others_and_mirrored_ones_are_not_and_the_same_is_at_once() -> None:
    whole = square(100, 100, 200, 200)[None]
    others = np.stack([square(380, 150, 200, 200), np.full((3, 16, 16), 90, np.uint8), whole[0, ..., ::-1]])
    apart = registered(np.repeat(whole, 3, 0), others)
    assert apart.shape == (3, 2)
    assert (apart > 0.6).all()
    assert registered(whole, whole)[0].max() < 1e-3
    assert registered(whole[:0], whole[:0]).shape == (0, 2)


def _unit(image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    vector = (image - image.mean((1, 2), keepdims=True)).ravel()
    return np.asarray(vector / np.linalg.norm(vector))
