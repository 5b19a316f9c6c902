"""Perlin noise: smooth random fields that are zero on average and vary over a chosen length.

Perlin: An Image Synthesizer, SIGGRAPH 1985; the fade is that of Improving Noise, SIGGRAPH 2002.

At every corner c of a lattice stands a random unit vector g_c. At a point p within the cell with corners c,

    n_c   = g_c · (p − c)
    noise = √2 · Σ_c n_c Π_axis (1 − fade(|p − c|)),      fade(t) = 6t⁵ − 15t⁴ + 10t³

which lies in [−1, 1]: halfway between four corners whose vectors all point at p the sum is √½, and it is never more.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sgoif.errors import SettingError


def fade(position: Tensor) -> Tensor:
    """From 0 at 0 to 1 at 1, with first and second derivative zero at both ends."""
    return position**3 * (position * (6 * position - 15) + 10)


def perlin(side: int, cells: Tensor, generator: torch.Generator, angle: Tensor | None = None) -> Tensor:
    """Fields of noise, [n, side, side] in [−1, 1].

    `cells` [n, 2] says into how many cells each field is divided along its rows and columns, whole numbers of 1 and
    more. The lattice is turned about the middle by `angle` [n], in radians. Noise is read at the middle of pixels:
    it is always zero at the corners of the lattice, and with one pixel to a cell would be zero everywhere.
    """
    if side < 1 or cells.shape[1:] != (2,) or int(cells.min()) < 1:
        raise SettingError(
            f"noise on {side}×{side} pixels in cells {list(cells.shape)} is not possible: expected a side of at least "
            "1 and for every field two numbers of cells of at least 1"
        )
    count, device = len(cells), cells.device
    centred = (torch.arange(side, device=device) + 0.5) / side - 0.5
    rows, columns = (part.expand(count, side, side) for part in torch.meshgrid(centred, centred, indexing="ij"))
    if angle is not None:
        cosine, sine = (part.view(-1, 1, 1) for part in (angle.cos(), angle.sin()))
        rows, columns = cosine * rows + sine * columns, cosine * columns - sine * rows
    points = torch.stack((rows, columns)) + 0.5
    points = points * cells.T.to(points.dtype).view(2, count, 1, 1)
    corner = points.floor()
    within = points - corner

    # A turned lattice reaches beyond the image on all sides by (√2 − 1)/2 of its length.
    size = int(cells.max()) + 2 * math.ceil(0.21 * int(cells.max())) + 2
    direction = 2 * math.pi * torch.rand(count, size, size, generator=generator, device=device)
    gradients = torch.stack((direction.cos(), direction.sin()))
    which = torch.arange(count, device=device).view(-1, 1, 1)
    noise = torch.zeros(count, side, side, device=device)
    for down in (0, 1):
        for right in (0, 1):
            row, column = (corner[0].long() + down) % size, (corner[1].long() + right) % size
            dot = gradients[0][which, row, column] * (within[0] - down)
            dot = dot + gradients[1][which, row, column] * (within[1] - right)
            weight = fade(within[0] if down else 1 - within[0]) * fade(within[1] if right else 1 - within[1])
            noise = noise + weight * dot
    return math.sqrt(2) * noise


def finest(side: int) -> int:
    """The largest power of 2 of cells along a side that leaves each at least two pixels; at most 2⁵."""
    return min(5, int(math.log2(side)) - 1)


def draw_cells(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Random numbers of cells along rows and columns, each a power of 2 up to the finest, [n, 2]."""
    powers = torch.randint(0, finest(side) + 1, (count, 2), generator=generator, device=generator.device)
    cells: Tensor = 2**powers
    return cells


def draw_angles(count: int, generator: torch.Generator) -> Tensor:
    """Random turns between −90° and 90°, [n]."""
    return math.pi * (torch.rand(count, generator=generator, device=generator.device) - 0.5)


def blobs(count: int, side: int, generator: torch.Generator, threshold: float = 0.5) -> Tensor:
    """Masks of random shape and size, [n, 1, side, side] of 0 and 1: where noise of a random grain is large.

    Some are empty. Grain, turn and threshold are those of DRAEM.
    """
    cells, angle = draw_cells(count, side, generator), draw_angles(count, generator)
    return (perlin(side, cells, generator, angle) > threshold).float().unsqueeze(1)


def patterns(count: int, channels: int, side: int, generator: torch.Generator, octaves: int = 3) -> Tensor:
    """Clouds, ripples and grains between two random colours each, pixels [n, channels, side, side].

    Noise of several octaves, each of twice as many cells and half the strength, sets the share of either colour.
    """
    if octaves < 1:
        raise SettingError(f"octaves = {octaves} must be at least 1")
    cells, angle = draw_cells(count, side, generator), draw_angles(count, generator)
    noise, total = torch.zeros(count, side, side, device=generator.device), 0.0
    for octave in range(octaves):
        finer = (cells * 2**octave).clamp(max=2 ** finest(side))
        noise = noise + 0.5**octave * perlin(side, finer, generator, angle)
        total += 0.5**octave
    share = ((1 + 2 * noise / total) / 2).clamp(0, 1).unsqueeze(1)
    colours = torch.rand(2, count, channels, 1, 1, generator=generator, device=generator.device)
    return colours[0] + share * (colours[1] - colours[0])
