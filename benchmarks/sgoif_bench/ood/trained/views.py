"""What the methods with training tasks of their own share: images as pixels, random views of them, seeded modules.

Everything here works on whole batches on the images' own device. Pixels are floats in [0, 1], [n, C, H, W] with one or
three channels; random numbers come from a generator on that device. What has to do with colour leaves images of one
channel as they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.batches import Batches
from sgoif_bench.labels.problem import Problem

SMALLEST_SIDE = 8
TURNS = 4
"""Quarter turns of an image, the first being none."""
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness (ITU-R BT.601)."""
CROP_TRIALS = 10
"""How often a box is drawn before the whole image is taken, as is usual for this crop."""

AnyModule = TypeVar("AnyModule", bound=nn.Module)


# Problems and networks


def side_of(problem: Problem) -> int:
    """Pixels along a side of the problem's images, which must be square."""
    channels, height, width = problem.images.shape[1:]
    if height != width or height < SMALLEST_SIDE or channels not in (1, 3):
        raise SettingError(
            f"images of {channels}×{height}×{width} do not fit: expected 1 or 3 channels and a square of at least "
            f"{SMALLEST_SIDE}×{SMALLEST_SIDE} pixels; crop or resize them first"
        )
    return int(height)


def pixel_batches(
    problem: Problem, number: int = 0, *, augment: bool | None = None, batch_size: int | None = None
) -> Batches:
    """The problem's batches as pixels in [0, 1], not normalised; by default augmented as the recipe says."""
    batches = problem.batches(number=number)
    return dataclasses.replace(
        batches,
        mean=(0.0,) * problem.channels,
        spread=(1.0,) * problem.channels,
        augment=batches.augment if augment is None else augment,
        batch_size=batches.batch_size if batch_size is None else min(batch_size, batches.batch_size),
    )


def to_network(problem: Problem, pixels: Tensor) -> Tensor:
    """Pixels normalised as the problem's networks take them."""
    mean, spread = _statistics(problem, pixels)
    layout = torch.channels_last if problem.on_gpu else torch.contiguous_format
    return ((pixels - mean) / spread).contiguous(memory_format=layout)


def to_pixels(problem: Problem, images: Tensor) -> Tensor:
    """Normalised images as pixels again."""
    mean, spread = _statistics(problem, images)
    return images * spread + mean


def _statistics(problem: Problem, like: Tensor) -> tuple[Tensor, Tensor]:
    shape = (1, problem.channels, 1, 1)
    return like.new_tensor(problem.mean).view(shape), like.new_tensor(problem.spread).view(shape)


def fresh(problem: Problem, number: int, make: Callable[[], AnyModule]) -> AnyModule:
    """A module with weights drawn for (seed of the problem, number), on the problem's device."""
    with torch.random.fork_rng(devices=[problem.device] if problem.on_gpu else []):
        torch.manual_seed(1000 * problem.seed + number)
        module = make()
    layout = torch.channels_last if problem.on_gpu else torch.contiguous_format
    return module.to(device=problem.device, memory_format=layout)  # type: ignore[call-overload, no-any-return]


# Random numbers


def uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """One number for each image, [n, 1, 1, 1]."""
    return low + (high - low) * torch.rand(count, 1, 1, 1, generator=generator, device=generator.device)


def chosen(count: int, share: float, generator: torch.Generator) -> Tensor:
    """For each image whether it is among this share, [n, 1, 1, 1]."""
    return torch.rand(count, 1, 1, 1, generator=generator, device=generator.device) < share


# Colour


def rgb_to_hsv(pixels: Tensor) -> Tensor:
    """Hue (a share of the full turn), saturation and value, each in [0, 1]."""
    red, green, blue = pixels.unbind(dim=1)
    value, brightest = pixels.max(dim=1)
    spread = value - pixels.amin(dim=1)
    safe = spread.clamp_min(1e-12)
    sector = torch.stack(((green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe), dim=1)
    hue = (sector.gather(1, brightest.unsqueeze(1)).squeeze(1) / 6) % 1
    hue = torch.where(spread > 0, hue, 0)
    saturation = torch.where(value > 0, spread / value.clamp_min(1e-12), 0)
    return torch.stack((hue, saturation, value), dim=1)


def hsv_to_rgb(hsv: Tensor) -> Tensor:
    """The inverse of `rgb_to_hsv`."""
    hue, saturation, value = (part.unsqueeze(1) for part in hsv.unbind(dim=1))
    position = (hsv.new_tensor((5.0, 3.0, 1.0)).view(1, 3, 1, 1) + 6 * hue) % 6
    return value * (1 - saturation * torch.minimum(position, 4 - position).clamp(0, 1))


def to_grey(pixels: Tensor) -> Tensor:
    """The brightness in every channel."""
    if pixels.shape[1] == 1:
        return pixels
    weights = pixels.new_tensor(LUMA).view(1, 3, 1, 1)
    return (weights * pixels).sum(dim=1, keepdim=True).expand_as(pixels)


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """Random changes of colour, another one for each image.

    Brightness, contrast and saturation are multiplied by a number from [1 − strength, 1 + strength]; hue is turned by
    up to `hue` of the full turn either way. Half of the images change contrast first, the others last.
    """

    brightness: float
    contrast: float
    saturation: float
    hue: float

    def __post_init__(self) -> None:
        for name, most in (("brightness", 1.0), ("contrast", 1.0), ("saturation", 1.0), ("hue", 0.5)):
            if not 0 <= getattr(self, name) <= most:
                raise SettingError(f"{name} = {getattr(self, name)} of a jitter must lie between 0 and {most:g}")

    def __call__(self, pixels: Tensor, generator: torch.Generator, where: Tensor | None = None) -> Tensor:
        """The changed images; contrast is about the mean over `where` [n, 1, H, W], by default over the image."""
        count = len(pixels)
        contrast = uniform(count, 1 - self.contrast, 1 + self.contrast, generator)
        first = chosen(count, 0.5, generator)
        pixels = change_contrast(pixels, torch.where(first, contrast, 1), where)
        pixels = self._change_colour(pixels, generator)
        return change_contrast(pixels, torch.where(first, 1, contrast), where)

    def _change_colour(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        count = len(pixels)
        brightness = uniform(count, 1 - self.brightness, 1 + self.brightness, generator)
        if pixels.shape[1] == 1:
            return (pixels * brightness).clamp(0, 1)
        saturation = uniform(count, 1 - self.saturation, 1 + self.saturation, generator)
        turn = uniform(count, -self.hue, self.hue, generator)
        return change_hsv(pixels, turn, factors=(saturation, brightness))


def change_contrast(pixels: Tensor, factor: Tensor, where: Tensor | None = None) -> Tensor:
    """Every channel drawn from or to its mean over `where`, by default over the image."""
    if where is None:
        mean = pixels.mean(dim=(2, 3), keepdim=True)
    else:
        mean = (pixels * where).sum(dim=(2, 3), keepdim=True) / where.sum(dim=(2, 3), keepdim=True).clamp_min(1e-12)
    return (mean + factor * (pixels - mean)).clamp(0, 1)


def change_hsv(pixels: Tensor, turn: Tensor, factors: tuple[Tensor, Tensor]) -> Tensor:
    """Hue turned, saturation and value multiplied by the two factors; all [n, 1, 1, 1]."""
    hue, saturation, value = (part.unsqueeze(1) for part in rgb_to_hsv(pixels).unbind(dim=1))
    parts = (hue + turn) % 1, (saturation * factors[0]).clamp(0, 1), (value * factors[1]).clamp(0, 1)
    return hsv_to_rgb(torch.cat(parts, dim=1))


# Geometry


def mirrored(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Half of the images mirrored."""
    return torch.where(chosen(len(pixels), 0.5, generator), pixels.flip(3), pixels)


def quarter_turns(images: Tensor) -> Tensor:
    """All images at 0°, then all at 90°, 180° and 270°, [4n, C, H, W]."""
    return torch.cat([torch.rot90(images, turn, (2, 3)) for turn in range(TURNS)])


def crop_boxes(
    count: int, side: int, generator: torch.Generator, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Top, left, height and width in whole pixels of one random box for each image, [n, 4].

    The area is uniform in `scale` of the image, the logarithm of width : height in that of `ratio`. The first of ten
    boxes that fits is taken, the whole image where none does.
    """

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=generator.device)

    area = side**2 * (scale[0] + (scale[1] - scale[0]) * draw(count, CROP_TRIALS))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * draw(count, CROP_TRIALS)).exp()
    heights, widths = (area / aspect).sqrt().round().clamp_min(1), (area * aspect).sqrt().round().clamp_min(1)
    fits = (heights <= side) & (widths <= side)
    first = fits.float().argmax(dim=1, keepdim=True)
    any_fits = fits.any(dim=1)
    height = torch.where(any_fits, heights.gather(1, first).squeeze(1), side)
    width = torch.where(any_fits, widths.gather(1, first).squeeze(1), side)
    top, left = ((draw(count) * (side - size + 1)).floor() for size in (height, width))
    return torch.stack((top, left, height, width), dim=1)


def resize_crops(pixels: Tensor, boxes: Tensor) -> Tensor:
    """The box [top, left, height, width] of each image enlarged to the size of the image, bilinear."""
    height, width = pixels.shape[2:]
    top, left, box_height, box_width = boxes.unbind(dim=1)
    theta = pixels.new_zeros(len(pixels), 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = box_width / width, box_height / height
    theta[:, 0, 2] = (2 * left + box_width) / width - 1
    theta[:, 1, 2] = (2 * top + box_height) / height - 1
    grid = F.affine_grid(theta, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


@dataclass(frozen=True, kw_only=True)
class ContrastiveViews:
    """The views of SimCLR (Chen, Kornblith, Norouzi, Hinton, ICML 2020) as CSI takes them: colour, grey, crop."""

    jitter: Jitter = Jitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    jitter_share: float = 0.8
    grey_share: float = 0.2
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        for name in ("jitter_share", "grey_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"{name} = {getattr(self, name)} must lie between 0 and 1")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise SettingError(f"scale = {self.scale} must be a range within (0, 1]")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise SettingError(f"ratio = {self.ratio} must be a range of positive numbers")

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """One view of each image."""
        count, side = len(pixels), pixels.shape[2]
        pixels = torch.where(chosen(count, self.jitter_share, generator), self.jitter(pixels, generator), pixels)
        pixels = torch.where(chosen(count, self.grey_share, generator), to_grey(pixels), pixels)
        return resize_crops(pixels, crop_boxes(count, side, generator, self.scale, self.ratio))


# Stronger changes, which make an image look like something else


def posterised(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Only the highest one to seven bits of every byte kept."""
    step = 2 ** uniform(len(pixels), 1, 8, generator).floor()
    return ((255 * pixels).round() / step).floor() * step / 255


def sharpened(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Drawn from or to a slightly blurred copy, up to twice as sharp."""
    kernel = pixels.new_ones(3, 3)
    kernel[1, 1] = 5
    window = (kernel / kernel.sum()).expand(pixels.shape[1], 1, 3, 3)
    blurred = F.conv2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), window, groups=pixels.shape[1])
    return (blurred + uniform(len(pixels), 0, 2, generator) * (pixels - blurred)).clamp(0, 1)


def solarised(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Pixels at or above a threshold from [32, 128] of 255 inverted."""
    return torch.where(pixels >= uniform(len(pixels), 32, 128, generator) / 255, 1 - pixels, pixels)


def equalised(pixels: Tensor) -> Tensor:
    """Every channel with its histogram of bytes made flat: a byte becomes the share of pixels not brighter.

    The darkest byte that occurs becomes 0 and the brightest 255, as in OpenCV; a channel of one value stays as it is.
    """
    levels = (255 * pixels).round().clamp(0, 255).long().flatten(2).flatten(0, 1)
    counts = torch.zeros(len(levels), 256, device=pixels.device)
    counts.scatter_add_(1, levels, torch.ones_like(levels, dtype=counts.dtype))
    below = counts.cumsum(dim=1)
    darkest = counts.gather(1, levels.amin(dim=1, keepdim=True))
    rest = levels.shape[1] - darkest
    spread = ((below - darkest) / rest.clamp_min(1)).gather(1, levels)
    return torch.where(rest > 0, spread, pixels.flatten(2).flatten(0, 1)).view_as(pixels)


def brightened(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Multiplied by up to a fifth more or less, then up to 30 of 255 added or taken away."""
    count = len(pixels)
    return (pixels * uniform(count, 0.8, 1.2, generator) + uniform(count, -30, 30, generator) / 255).clamp(0, 1)


def recoloured(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Hue turned by up to 50 of 255 either way and saturation changed by up to as much."""
    if pixels.shape[1] == 1:
        return pixels
    count = len(pixels)
    turn, more = (uniform(count, -50, 50, generator) / 255 for _ in range(2))
    hsv = rgb_to_hsv(pixels)
    parts = (hsv[:, :1] + turn) % 1, (hsv[:, 1:2] + more).clamp(0, 1), hsv[:, 2:]
    return hsv_to_rgb(torch.cat(parts, dim=1))


def stretched(pixels: Tensor) -> Tensor:
    """Every channel from its darkest pixel as 0 to its brightest as 1."""
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) / (high - low).clamp_min(1e-12), pixels)


Change = Callable[[Tensor, torch.Generator], Tensor]
CHANGES: tuple[Change, ...] = (
    posterised,
    sharpened,
    solarised,
    lambda pixels, generator: equalised(pixels),
    brightened,
    recoloured,
    lambda pixels, generator: stretched(pixels),
)
"""The changes that DRAEM draws from."""


def changed(pixels: Tensor, generator: torch.Generator, count: int = 3) -> Tensor:
    """Each image after `count` different changes drawn for it, all images of a batch in the same random order."""
    if not 0 <= count <= len(CHANGES):
        raise SettingError(f"count = {count} must lie between 0 and {len(CHANGES)}, the changes there are")
    scores = torch.rand(len(pixels), len(CHANGES), generator=generator, device=generator.device)
    ranks = scores.argsort(dim=1).argsort(dim=1)
    for position in torch.randperm(len(CHANGES), generator=generator, device=generator.device).tolist():
        picked = (ranks[:, position] < count).view(-1, 1, 1, 1)
        pixels = torch.where(picked, CHANGES[position](pixels, generator), pixels)
    return pixels
