"""DRAEM: learn to restore images into which something foreign was blended, and to mark where it was.

Zavrtanik, Kristan, Skočaj: DRÆM – A discriminatively trained reconstruction embedding for surface anomaly detection.
ICCV 2021.

An anomaly is made out of a mask M (Perlin noise above 0.5, see `perlin`), a foreign picture A and an opacity β,

    I_a = (1 − M) I + M ((1 − β) I + β A),      β ~ U(0.1, 1),

in half of the images; the others stay whole. One network restores, I_r = r(I_a); one marks, p = softmax(m(I_r, I_a)),
with p_1 the probability of an anomaly at a pixel. Both learn together from

    L = mean (I − I_r)² + (1 − SSIM(I, I_r)) + mean −(1 − p_t)² log p_t

with p_t the probability of what M says. An image's score is the largest value of p_1 after a mean filter, of 21×21
pixels where images have 256×256 and in proportion elsewhere, at least 3×3.

Foreign pictures. The authors take the Describable Textures Dataset, changed by three random ones of seven functions
(posterise, sharpen, solarise, equalise, brightness, colour, autocontrast). That set is also one on which detectors are
tested, so it is no default here: `textures` takes any pictures as bytes [M, C, H, W] of the images' size, and without
them half of the anomalies are made of other training images and half of procedural textures, changed in the same way.

Sizes. The authors' networks start with 128 and 64 channels; here with `width` = 64 and half of it, which suits small
images. Their code trains by Adam at 0.0001 with batches of 8, falling fivefold after 80 and 90% of the epochs. Batches
here are those of the recipe, and the rate grows with the square root of their size, as is usual for Adam:
0.0001 √(batch / 8).

The method knows no classes; labels are not used. Cost: one pass over the data an epoch, of networks of its own.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.rivals.common import torch_stream
from sgoif_bench.ood.trained.method import Scorer
from sgoif_bench.ood.trained.perlin import blobs, patterns
from sgoif_bench.ood.trained.unet import Marking, Restoring
from sgoif_bench.ood.trained.views import changed, chosen, fresh, pixel_batches, side_of, to_pixels, uniform

WIDTH = 64
"""Channels at full size of the network that restores; the one that marks has half as many."""
OPACITY = (0.1, 1.0)
WHOLE_SHARE = 0.5
"""Images left without an anomaly."""
LEARNING_RATE, RATE_BATCH = 1e-4, 8
MILESTONES, FALL = (0.8, 0.9), 0.2
FOCUS = 2.0
"""γ of the focal loss."""
WINDOW, WINDOW_SPREAD = 11, 1.5
"""Side and standard deviation of the Gaussian window of SSIM."""
SSIM_FLOORS = (0.01**2, 0.03**2)
FILTER_SHARE = 21 / 256
_ANOMALY_STREAM, _RESTORING, _MARKING = 331, 332, 333


# Anomalies


class Foreign:
    """Pictures to blend into images: given ones, or other images of the batch and procedural textures."""

    def __init__(self, shape: tuple[int, int, int], pictures: Tensor | None, device: torch.device) -> None:
        if pictures is not None and (
            pictures.dtype != torch.uint8 or tuple(pictures.shape[1:]) != shape or not len(pictures)
        ):
            raise SettingError(
                f"textures are {pictures.dtype} {list(pictures.shape)}; expected at least one picture as uint8 "
                f"[M, {', '.join(map(str, shape))}]: bring them to the size of the images first"
            )
        self._pictures = None if pictures is None else pictures.to(device)

    def draw(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """One picture for each image of the batch, changed at random."""
        count, channels, side, _ = pixels.shape
        if self._pictures is not None:
            which = torch.randint(len(self._pictures), (count,), generator=generator, device=generator.device)
            return changed(self._pictures[which].float() / 255, generator)
        # A shift by less than the batch: no image is blended into itself, unless it is alone.
        shift = 1 + torch.randint(max(1, count - 1), (1,), generator=generator, device=generator.device)
        others = pixels[(torch.arange(count, device=pixels.device) + shift) % count]
        made = patterns(count, channels, side, generator)
        return changed(torch.where(chosen(count, 0.5, generator), others, made), generator)


def blend(pixels: Tensor, foreign: Tensor, mask: Tensor, opacity: Tensor) -> Tensor:
    """I_a = (1 − M) I + M ((1 − β) I + β A)."""
    return pixels + mask * opacity * (foreign - pixels)


def draw_anomalies(pixels: Tensor, foreign: Foreign, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The images with anomalies, and their masks [n, 1, H, W], which are empty for those left whole."""
    count, side = len(pixels), pixels.shape[2]
    mask = blobs(count, side, generator) * ~chosen(count, WHOLE_SHARE, generator)
    opacity = uniform(count, *OPACITY, generator)
    return blend(pixels, foreign.draw(pixels, generator), mask, opacity), mask


# Losses


def ssim(first: Tensor, second: Tensor) -> Tensor:
    """Structural similarity (Wang et al., TIP 2004) of pixels in [0, 1], mean over everything; 1 for equal images."""
    channels = first.shape[1]
    place = torch.arange(WINDOW, device=first.device, dtype=first.dtype) - WINDOW // 2
    bell = torch.exp(-(place**2) / (2 * WINDOW_SPREAD**2))
    bell = bell / bell.sum()

    def local(x: Tensor) -> Tensor:
        for window in (bell.view(1, 1, -1, 1), bell.view(1, 1, 1, -1)):
            padding = (window.shape[2] // 2, window.shape[3] // 2)
            x = F.conv2d(x, window.expand(channels, 1, -1, -1), padding=padding, groups=channels)
        return x

    mean_1, mean_2 = local(first), local(second)
    variance_1, variance_2 = local(first**2) - mean_1**2, local(second**2) - mean_2**2
    together = local(first * second) - mean_1 * mean_2
    light, structure = SSIM_FLOORS
    return (
        (2 * mean_1 * mean_2 + light)
        * (2 * together + structure)
        / ((mean_1**2 + mean_2**2 + light) * (variance_1 + variance_2 + structure))
    ).mean()


def focal_loss(logits: Tensor, mask: Tensor) -> Tensor:
    """−(1 − p_t)^γ log p_t (Lin et al., ICCV 2017), mean over pixels; logits [n, 2, H, W], mask [n, 1, H, W]."""
    log_p = logits.log_softmax(dim=1).gather(1, mask.long())
    return -((1 - log_p.exp()) ** FOCUS * log_p).mean()


# Training and score


def filter_side(side: int) -> int:
    """Side of the mean filter: the odd number nearest to 21/256 of the image, at least 3."""
    return max(3, 2 * round((FILTER_SHARE * side - 1) / 2) + 1)


def image_score(anomaly: Tensor) -> Tensor:
    """The largest mean over a window of the map [n, 1, H, W]; beyond the image it counts as zero."""
    size = filter_side(anomaly.shape[2])
    return F.avg_pool2d(anomaly, size, stride=1, padding=size // 2).amax(dim=(1, 2, 3))


def draem(
    problem: Problem,
    outliers: Tensor | None,
    tell: Say,
    *,
    textures: Tensor | None = None,
    width: int = WIDTH,
    learning_rate: float = LEARNING_RATE,
) -> Scorer:
    """Train both networks on anomalies of our own making; the score is the largest smoothed mark."""
    del outliers
    if width < 2:
        raise SettingError(f"width = {width} must be at least 2, so that the marking network has a channel")
    if learning_rate <= 0:
        raise SettingError(f"learning_rate = {learning_rate} must be positive")
    side, channels = side_of(problem), problem.channels
    foreign = Foreign((channels, side, side), textures, problem.device)
    restoring = fresh(problem, _RESTORING, lambda: Restoring(channels, side, width))
    marking = fresh(problem, _MARKING, lambda: Marking(channels, side, width // 2))
    both = nn.ModuleList((restoring, marking))
    batches, epochs = pixel_batches(problem), problem.recipe.epochs
    rate = learning_rate * math.sqrt(max(1.0, batches.batch_size / RATE_BATCH))
    optimizer = torch.optim.Adam(both.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [int(share * epochs * len(batches)) for share in MILESTONES], gamma=FALL
    )
    generator = torch_stream(problem, _ANOMALY_STREAM)

    def see(pixels: Tensor) -> tuple[Tensor, Tensor]:
        with problem.autocast():
            restored = restoring(pixels)
            marks = marking(restored, pixels)
        return restored.float(), marks.float()

    for epoch in range(1, epochs + 1):
        both.train()
        parts = torch.zeros(3, device=problem.device)
        for pixels, _, _ in batches:
            with torch.no_grad():
                given, mask = draw_anomalies(pixels, foreign, generator)
            restored, marks = see(given)
            losses = torch.stack((F.mse_loss(restored, pixels), 1 - ssim(restored, pixels), focal_loss(marks, mask)))
            losses.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            parts += losses.detach()
        squared, structure, focal = (parts / len(batches)).tolist()
        tell(f"draem: epoch {epoch} of {epochs}, losses {squared:.4f} + {structure:.3f} + {focal:.4f}")

    @torch.no_grad()
    def score(images: Tensor) -> Tensor:
        both.eval()
        _, marks = see(to_pixels(problem, images))
        return image_score(marks.softmax(dim=1)[:, 1:])

    details = {
        "width": width,
        "learning_rate": rate,
        "textures": 0 if textures is None else len(textures),
        "parameters": sum(parameter.numel() for parameter in both.parameters()),
    }
    return Scorer(score, trainings=1.0, details=details)
