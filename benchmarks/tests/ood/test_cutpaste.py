"""CutPaste, by hand: what is pasted where, and how pieces are told apart."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from self_supervised_cases import SIDE, pictures, seeded
from torch import Tensor

from sgoif_bench.ood.trained import cutpaste

# CutPaste


def piece(height: float, width: float, source: tuple[float, float], target: tuple[float, float], angle: float) -> Any:
    def each(value: float) -> Tensor:
        return torch.tensor(value).view(1, 1, 1, 1)

    return cutpaste.Pieces(
        each(height), each(width), (each(source[0]), each(source[1])), (each(target[0]), each(target[1])), each(angle)
    )


def test_a_piece_of_the_image_itself_is_pasted() -> None:
    pixels = pictures(1)
    # Rows 1 to 3 and columns 2 to 5 go to rows 6 to 8 and columns 7 to 10.
    pasted = cutpaste.paste(pixels, piece(3, 4, (2, 3.5), (7, 8.5), 0.0), seeded(), jitter=None)
    expected = pixels.clone()
    expected[:, :, 6:9, 7:11] = pixels[:, :, 1:4, 2:6]
    torch.testing.assert_close(pasted, expected, atol=1e-5, rtol=0)


def test_a_scar_is_turned_before_it_is_pasted() -> None:
    pixels = pictures(1)
    # Rows 2 to 6 of column 4, turned by a quarter circle and put in the middle of row 8.
    pasted = cutpaste.paste(pixels, piece(5, 1, (4, 4), (8, 5), math.pi / 2), seeded(), jitter=None)
    where = (pasted != pixels).any(1)[0].nonzero()
    assert where.tolist() == [[8, column] for column in range(3, 8)]
    torch.testing.assert_close(pasted[:, :, 8, 3:8], pixels[:, :, 2:7, 4], atol=1e-5, rtol=0)


def test_only_the_piece_is_jittered() -> None:
    pixels = (0.3 + 0.4 * pictures(100, seed=2)).contiguous()
    pieces = cutpaste.draw_rectangles(100, SIDE, seeded(3))
    plain = cutpaste.paste(pixels, pieces, seeded(), jitter=None)
    jittered = cutpaste.paste(pixels, pieces, seeded())
    row = (torch.arange(SIDE).view(1, 1, -1, 1) - pieces.target[0]).abs() < pieces.height / 2
    column = (torch.arange(SIDE).view(1, 1, 1, -1) - pieces.target[1]).abs() < pieces.width / 2
    within = (row & column).expand_as(pixels)
    assert torch.equal(jittered[~within], pixels[~within])
    assert torch.equal(plain[~within], pixels[~within])
    change = (jittered - plain).abs()
    assert 0.01 < change[within].mean() < 0.1


def test_rectangles_and_scars_have_the_sizes_of_the_paper() -> None:
    pieces = cutpaste.draw_rectangles(4000, 256, seeded())
    area = pieces.height * pieces.width / 256**2
    assert area.min() == pytest.approx(0.02, abs=0.002)
    assert area.max() == pytest.approx(0.15, abs=0.002)
    aspect = pieces.width / pieces.height
    assert aspect.min() == pytest.approx(0.3, abs=0.02)
    assert aspect.max() == pytest.approx(3.3, abs=0.1)
    assert (aspect < 1).float().mean() == pytest.approx(0.5, abs=0.03)
    assert torch.equal(pieces.angle, torch.zeros_like(pieces.angle))
    scars = cutpaste.draw_scars(4000, 256, seeded())
    assert (int(scars.width.min()), int(scars.width.max())) == (2, 16)
    assert (int(scars.height.min()), int(scars.height.max())) == (10, 25)
    assert 44 < math.degrees(float(scars.angle.abs().max())) <= 45
    for drawn, side in ((pieces, 256), (scars, 256), (cutpaste.draw_scars(500, 8, seeded()), 8)):
        for middles in (drawn.source, drawn.target):
            for middle, size in zip(middles, (drawn.height, drawn.width), strict=True):
                assert (middle - (size - 1) / 2 >= 0).all()
                assert (middle + (size - 1) / 2 <= side - 1).all()
    small = cutpaste.draw_scars(500, 32, seeded())
    assert set(small.width.unique().tolist()) == {1, 2}
    assert set(small.height.unique().tolist()) == {2, 3}


def test_three_ways_are_the_image_a_rectangle_and_a_scar() -> None:
    made, tasks = cutpaste.three_ways(pictures(20, side=32), seeded())
    assert tasks.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    whole, rectangle, scar = made.chunk(3)
    changed = [(part != whole).any(1).float().mean(dim=(1, 2)) for part in (rectangle, scar)]
    assert (changed[0] > 0.01).all()
    assert (changed[0] < 0.2).all()
    assert (changed[1] > 0).all()
    assert (changed[1] < 0.02).all()
