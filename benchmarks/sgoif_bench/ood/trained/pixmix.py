"""PixMix: training images mixed with pictures of great structural complexity, and with changed copies of themselves.

Hendrycks, Zou, Mazeika, Tang, Li, Song, Steinhardt: PixMix: Dreamlike Pictures Comprehensively Improve Safety
Measures. CVPR 2022.

For an image x in [0, 1] and one picture m of the mixing set,

    z ← x or augment(x)                                                         each with probability ½
    r times, r uniform in 0 … 4:
        o ← augment(x) or m                                                     each with probability ½
        z ← clip(mix(z, o), 0, 1)
    add(z, o)      = (a (2z − 1) + b (2o − 1) + 1) / 2
    multiply(z, o) = (2z)^a (2o)^b / 2                                          each with probability ½
    a ~ Beta(3, 1), b ~ Beta(1, 3)   or   a ~ 1 + Beta(1, 3), b ~ −Beta(1, 3)   each with probability ½

`augment` is one of autocontrast, equalize, posterize, rotate, solarize, shear and translate in x or y, colour,
contrast, brightness and sharpness (all operations, as in OpenOOD's configuration; the last four are left out where
corrupted images are the test), with a strength drawn up to 3 of 10. They follow the Python imaging library to the byte
(rotation, shear: to one level of 255), and work on whole batches: a change of values is a table of 256 entries per
channel, a change of places an affine map.

Mixing set. The authors use pictures of fractals and visualisations of features. Neither can be had without a download,
so unless a set is given, fractals are made here: attractors of iterated function systems of 2 to 6 random contractions,
with singular values by the rule of Anderson and Farrell (Improving Fractal Pre-training, WACV 2022), drawn by the chaos
game and coloured as fractal flames are (Draves 1992): each map pulls a point's colour towards its own, brightness is
the logarithm of the number of visits. A picture shows two of them over a background between two colours. As by the
authors, pictures are brought to 36/32 of the images' size and cropped at random.

Score. log(1 − max_k p_k), the order of MSP. Cost: one training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif_bench.batches import Channels, normalise
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.rivals.common import torch_stream
from sgoif_bench.ood.trained.common import log_doubt, scored
from sgoif_bench.ood.trained.enhance import ENHANCEMENTS, enhanced
from sgoif_bench.ood.trained.method import Scorer

# The authors' values for CIFAR.
ROUNDS = 4
BETA = 3.0
SEVERITY = 3.0
PICTURE_SCALE = 36 / 32

FRACTALS = 2000
LAYERS = 2
"""Fractals in one picture, each over the one before, so that little of it is plain."""
MOST_MAPS = 6
WALKERS, VISITS, SETTLING = 400, 60, 15
LARGEST_SIDE = 72
"""Pictures are drawn no larger than this, where the visits still fill them, and enlarged for larger images."""
FRAMING = 2000
"""Points that the frame of a picture is chosen by."""
FRACTALS_AT_ONCE = 100
_FRACTAL_STREAM, _MIXING_STREAM = 441, 442

POINTWISE = ("autocontrast", "equalize", "posterize", "solarize")
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
AUGMENTATIONS = (*POINTWISE, *GEOMETRIC, *ENHANCEMENTS)


# Augmentations, of bytes [n, C, H, W].


def histograms(images: Tensor) -> Tensor:
    """How often each value occurs in each channel, [n, C, 256]."""
    flat = images.flatten(2).long()
    return torch.zeros(*flat.shape[:2], 256, dtype=torch.long, device=images.device).scatter_add_(
        2, flat, torch.ones_like(flat)
    )


def autocontrast_table(counts: Tensor) -> Tensor:
    """Values stretched so that the darkest of a channel is 0 and its brightest 255."""
    values = torch.arange(256, device=counts.device)
    low = torch.where(counts > 0, values, 255).amin(dim=2, keepdim=True).double()
    high = torch.where(counts > 0, values, 0).amax(dim=2, keepdim=True).double()
    # A number over a tensor would be taken times its reciprocal, which rounds twice.
    scale = torch.full_like(high, 255) / (high - low).clamp_min(1)
    stretched = (values * scale - low * scale).trunc().clamp(0, 255).long()
    return torch.where(high > low, stretched, values)


def equalize_table(counts: Tensor) -> Tensor:
    """Values spread so that a channel's histogram becomes as level as it can."""
    values = torch.arange(256, device=counts.device)
    brightest = torch.where(counts > 0, values, 0).amax(dim=2, keepdim=True)
    step = (counts.sum(dim=2, keepdim=True) - counts.gather(2, brightest)) // 255
    before = counts.cumsum(dim=2) - counts
    spread = ((step // 2 + before) // step.clamp_min(1)).clamp(0, 255)
    return torch.where(step > 0, spread, values)


def posterize_table(bits: Tensor) -> Tensor:
    """Only the leading `bits` [n] of every value, [n, 256]."""
    unit = 2 ** (8 - bits.unsqueeze(1))
    return torch.arange(256, device=bits.device) // unit * unit


def solarize_table(threshold: Tensor) -> Tensor:
    """Values from `threshold` [n] on inverted, [n, 256]."""
    values = torch.arange(256, device=threshold.device)
    return torch.where(values < threshold.unsqueeze(1), values, 255 - values)


def look_up(images: Tensor, table: Tensor) -> Tensor:
    """Every value of the image replaced by the entry of its channel's table [n, C, 256]."""
    return table.gather(2, images.flatten(2).long()).view(images.shape).to(torch.uint8)


def warp(images: Tensor, maps: Tensor) -> Tensor:
    """Each image read where `maps` [n, 2, 3] sends its pixels, in pixels from the upper left corner; bilinear.

    What comes from outside the image is black; between its outermost pixel centres and its edge it goes on as it is.
    """
    count, _, height, width = images.shape
    rows = torch.arange(height, device=images.device) + 0.5
    columns = torch.arange(width, device=images.device) + 0.5
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    size = torch.tensor([width, height], device=images.device).view(1, 2, 1)
    # Products by hand: a matrix product may run in a reduced precision, which moves pixels.
    source = maps[:, :, :1] * x.flatten() + maps[:, :, 1:2] * y.flatten() + maps[:, :, 2:]
    inside = ((source >= 0) & (source < size)).all(dim=1).view(count, 1, height, width)
    grid = (2 * source / size - 1).transpose(1, 2).reshape(count, height, width, 2)
    read = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    # Bytes are cut, not rounded; the small number keeps an untouched 7 from becoming 6.
    return torch.where(inside, read + 1e-3, 0.0).to(torch.uint8)


class Choice(NamedTuple):
    """Which augmentation every image gets, how strong, and in which direction; each [n]."""

    kind: Tensor
    """Position in AUGMENTATIONS."""
    strength: Tensor
    """0 to 10."""
    sign: Tensor
    """−1 or 1."""


def affine_maps(choice: Choice, height: int, width: int) -> Tensor:
    """For `warp`; the identity where the augmentation does not move pixels."""
    kind, strength, sign = choice
    whole = sign * (strength * 30 / 10).trunc()
    angle = torch.where(kind == AUGMENTATIONS.index("rotate"), whole, 0.0) * (math.pi / 180)
    shear = sign * strength * 0.3 / 10
    shear_x = torch.where(kind == AUGMENTATIONS.index("shear_x"), shear, 0.0)
    shear_y = torch.where(kind == AUGMENTATIONS.index("shear_y"), shear, 0.0)
    move_x = sign * (strength * (width / 3) / 10).trunc()
    move_y = sign * (strength * (height / 3) / 10).trunc()
    move_x = torch.where(kind == AUGMENTATIONS.index("translate_x"), move_x, 0.0)
    move_y = torch.where(kind == AUGMENTATIONS.index("translate_y"), move_y, 0.0)
    cosine, sine = angle.cos(), angle.sin()
    # The image turns about its centre; rows of the result point to columns of the source.
    middle_x, middle_y = width / 2, height / 2
    turn_x = middle_x - cosine * middle_x + sine * middle_y
    turn_y = middle_y - sine * middle_x - cosine * middle_y
    first = torch.stack([cosine, shear_x - sine, move_x + turn_x], dim=1)
    second = torch.stack([sine + shear_y, cosine, move_y + turn_y], dim=1)
    return torch.stack([first, second], dim=1)


class Augmenter:
    """Changed copies of one batch of images; what only depends on the images is worked out once."""

    def __init__(self, images: Tensor) -> None:
        self.images = images
        counts = histograms(images)
        self._autocontrast, self._equalize = autocontrast_table(counts), equalize_table(counts)

    def apply(self, choice: Choice) -> Tensor:
        """Every image changed as chosen for it."""
        kind, strength, _ = choice
        channels, height, width = self.images.shape[1:]
        tables = {
            "autocontrast": self._autocontrast,
            "equalize": self._equalize,
            "posterize": posterize_table(4 - (strength * 4 / 10).long()).unsqueeze(1).expand(-1, channels, -1),
            "solarize": solarize_table(256 - (strength * 256 / 10).long()).unsqueeze(1).expand(-1, channels, -1),
        }
        table = torch.arange(256, device=kind.device).expand(len(kind), channels, -1)
        for name in POINTWISE:
            table = torch.where((kind == AUGMENTATIONS.index(name)).view(-1, 1, 1), tables[name], table)
        moved = warp(self.images, affine_maps(choice, height, width))
        changed = torch.where((kind < len(POINTWISE)).view(-1, 1, 1, 1), look_up(self.images, table), moved)
        for name in ENHANCEMENTS:
            here = kind == AUGMENTATIONS.index(name)
            changed[here] = enhanced(self.images[here], name, strength[here] * 1.8 / 10 + 0.1)
        return changed


# Mixing.


def mix_add(z: Tensor, o: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Weighted sum of two images about grey."""
    return (a * (2 * z - 1) + b * (2 * o - 1) + 1) / 2


def mix_multiply(z: Tensor, o: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Weighted geometric product of two images."""
    return (2 * z) ** a * (2 * o).clamp_min(1e-37) ** b / 2


class PixMix:
    """Mixes batches of normalised images with pictures."""

    def __init__(
        self,
        pictures: Tensor,
        mean: Channels,
        spread: Channels,
        generator: torch.Generator,
        rounds: int = ROUNDS,
        beta: float = BETA,
        severity: float = SEVERITY,
    ) -> None:
        self._pictures = pictures
        """uint8 [M, C, h, w], at least as large as the images."""
        self._mean, self._spread = mean, spread
        self._generator = generator
        self._rounds, self._beta, self._severity = rounds, beta, severity

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._generator, device=self._pictures.device)

    def _coin(self, count: int) -> Tensor:
        return (self._uniform(count) < 0.5).view(-1, 1, 1, 1)

    def choose(self, count: int) -> Choice:
        """A random augmentation for each of so many images."""
        kind = (self._uniform(count) * len(AUGMENTATIONS)).long()
        strength = 0.1 + (self._severity - 0.1) * self._uniform(count)
        return Choice(kind, strength, torch.where(self._uniform(count) < 0.5, -1.0, 1.0))

    def weights(self, count: int) -> tuple[Tensor, Tensor]:
        """a and b of so many mixes, each [n, 1, 1, 1]."""
        high = self._uniform(count).view(-1, 1, 1, 1) ** (1 / self._beta)
        low, third = (1 - self._uniform(count).view(-1, 1, 1, 1) ** (1 / self._beta) for _ in range(2))
        inner = self._coin(count)
        return torch.where(inner, high, 1 + low), torch.where(inner, third, -third)

    def crop(self, count: int, height: int, width: int) -> Tensor:
        """So many random pictures, each cropped at a random place."""
        tall, wide = self._pictures.shape[2:]
        which = (self._uniform(count) * len(self._pictures)).long().view(-1, 1, 1)
        rows = (self._uniform(count, 1) * (tall - height + 1)).long() + torch.arange(height, device=which.device)
        columns = (self._uniform(count, 1) * (wide - width + 1)).long() + torch.arange(width, device=which.device)
        # Indices beside a slice come first in the result: [n, H, W, C].
        return self._pictures[which, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Mixed images, normalised like those given."""
        count, _, height, width = x.shape
        shape = (1, len(self._mean), 1, 1)
        with torch.autocast(x.device.type, enabled=False):
            centre, scale = (torch.tensor(part, device=x.device).view(shape) for part in (self._mean, self._spread))
            given = ((x.float() * scale + centre) * 255).round().clamp(0, 255).to(torch.uint8)
            augmenter = Augmenter(given)
            original, picture = given.float() / 255, self.crop(count, height, width).float() / 255
            z = torch.where(self._coin(count), augmenter.apply(self.choose(count)).float() / 255, original)
            rounds = (self._uniform(count) * (self._rounds + 1)).long().view(-1, 1, 1, 1)
            for number in range(self._rounds):
                changed = augmenter.apply(self.choose(count)).float() / 255
                o = torch.where(self._coin(count), changed, picture)
                adding = self._coin(count)
                mixed = torch.where(
                    adding, mix_add(z, o, *self.weights(count)), mix_multiply(z, o, *self.weights(count))
                )
                z = torch.where(number < rounds, mixed.clamp(0, 1), z)
            return torch.empty_like(x).copy_(normalise(z * 255, self._mean, self._spread))


# Pictures.


class Systems(NamedTuple):
    """Iterated function systems of up to MOST_MAPS affine contractions x ← A x + t."""

    matrices: Tensor
    """[n, MOST_MAPS, 2, 2]"""
    shifts: Tensor
    """[n, MOST_MAPS, 2]"""
    probabilities: Tensor
    """[n, MOST_MAPS], 0 for maps that a system does not have."""


def draw_systems(count: int, generator: torch.Generator) -> Systems:
    """Random systems whose attractors are neither dust nor a blot.

    Singular values σ₁ ≥ σ₂ < 1 of N maps have Σ (σ₁ + 2σ₂) between (5 + N) / 2 and (6 + N) / 2: of 64 draws the one
    that is nearest to a random number from there is taken. A map is used in proportion to the area it covers, σ₁σ₂.
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=generator.device)

    sizes = 2 + (uniform(count) * (MOST_MAPS - 1)).long()
    present = torch.arange(MOST_MAPS, device=sizes.device) < sizes.unsqueeze(1)
    values = uniform(count, 64, MOST_MAPS, 2).sort(dim=3, descending=True).values
    sums = ((values[..., 0] + 2 * values[..., 1]) * present.unsqueeze(1)).sum(dim=2)
    wanted = (5 + sizes + uniform(count)) / 2
    best = (sums - wanted.unsqueeze(1)).abs().argmin(dim=1)
    values = 0.99 * values[torch.arange(count, device=sizes.device), best]
    left, right = (_rotations(2 * math.pi * uniform(count, MOST_MAPS)) for _ in range(2))
    mirrored = torch.where(uniform(count, MOST_MAPS) < 0.5, -1.0, 1.0)
    stretched = torch.stack([values[..., 0], mirrored * values[..., 1]], dim=2)
    matrices = left * stretched.unsqueeze(2) @ right
    shifts = 2 * uniform(count, MOST_MAPS, 2) - 1
    area = values.prod(dim=2).clamp_min(0.01) * present
    return Systems(matrices, shifts, area / area.sum(dim=1, keepdim=True))


def _rotations(angles: Tensor) -> Tensor:
    cosine, sine = angles.cos(), angles.sin()
    return torch.stack([torch.stack([cosine, -sine], dim=-1), torch.stack([sine, cosine], dim=-1)], dim=-2)


def visits(systems: Systems, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The chaos game: points of every attractor [n, P, 2] and their colour in [0, 1], [n, P]."""
    count = len(systems.matrices)
    here = generator.device
    own = torch.rand(count, MOST_MAPS, generator=generator, device=here)
    points = torch.zeros(count, WALKERS, 2, device=here)
    colours = torch.full((count, WALKERS), 0.5, device=here)
    rows = torch.arange(count, device=here).unsqueeze(1)
    upto = systems.probabilities.cumsum(dim=1)[:, :-1].contiguous()
    kept_points, kept_colours = [], []
    for turn in range(SETTLING + VISITS):
        which = torch.searchsorted(upto, torch.rand(count, WALKERS, generator=generator, device=here), right=True)
        points = (systems.matrices[rows, which] * points.unsqueeze(2)).sum(dim=3) + systems.shifts[rows, which]
        colours = (colours + own.gather(1, which)) / 2
        if turn >= SETTLING:
            kept_points.append(points)
            kept_colours.append(colours)
    return torch.cat(kept_points, dim=1), torch.cat(kept_colours, dim=1)


def background(count: int, side: int, generator: torch.Generator) -> Tensor:
    """From one random colour to another along a random direction, [n, 3, side, side] in [0, 1]."""
    here = generator.device
    ends = torch.rand(2, count, 3, 1, 1, generator=generator, device=here)
    angle = 2 * math.pi * torch.rand(count, 1, 1, generator=generator, device=here)
    line = torch.linspace(-1, 1, side, device=here)
    along = 0.5 + (angle.cos() * line + angle.sin() * line.unsqueeze(1)).unsqueeze(1) / math.sqrt(8)
    return ends[0] * along + ends[1] * (1 - along)


def paint(points: Tensor, colours: Tensor, below: Tensor, generator: torch.Generator) -> Tensor:
    """These points in random palettes over pictures [n, 3, side, side] in [0, 1]."""
    count, _, fine, _ = below.shape

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=points.device)

    # A few far points must not shrink the picture, so the frame holds the middle of them, or less.
    low, high = points[:, :FRAMING].quantile(torch.tensor([0.02, 0.98], device=points.device), dim=1, keepdim=True)
    zoom = 0.5 + 0.6 * uniform(count, 1, 1)
    place = ((points - (low + high) / 2) / ((high - low).clamp_min(1e-6) * zoom) + 0.5) * fine
    inside = ((place >= 0) & (place < fine)).all(dim=2)
    pixel = place.long().clamp(0, fine - 1)
    cell = torch.where(inside, pixel[..., 1] * fine + pixel[..., 0], fine * fine)
    # Whole numbers add up to the same sum in every order.
    hits = torch.zeros(count, fine * fine + 1, dtype=torch.long, device=points.device)
    tints = torch.zeros_like(hits)
    hits.scatter_add_(1, cell, torch.ones_like(cell))
    tints.scatter_add_(1, cell, (colours * 1023).long())
    hits, tints = hits[:, :-1], tints[:, :-1]
    light = hits.float().log1p()
    light = (light / light.amax(dim=1, keepdim=True).clamp_min(1e-6)).unsqueeze(1)
    tint = (tints / hits.clamp_min(1) / 1023).float().unsqueeze(1)
    waves, phases = 0.5 + 1.5 * uniform(count, 3, 1), uniform(count, 3, 1)
    ink = 0.5 + 0.5 * torch.cos(2 * math.pi * (waves * tint + phases))
    return (light * ink + (1 - light) * below.flatten(2)).view_as(below)


def fractals(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Coloured pictures of random fractals, uint8 [count, 3, side, side], on the generator's device."""
    parts = []
    for first in range(0, count, FRACTALS_AT_ONCE):
        number = min(FRACTALS_AT_ONCE, count - first)
        picture = background(number, 2 * side, generator)
        for _ in range(LAYERS):
            picture = paint(*visits(draw_systems(number, generator), generator), picture, generator)
        parts.append((F.avg_pool2d(picture, 2) * 255).round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts)


def brought_to(pictures: Tensor, channels: int, height: int, width: int) -> Tensor:
    """Pictures with so many channels, and larger by the room for cropping than images of that size."""
    wanted = round(PICTURE_SCALE * height), round(PICTURE_SCALE * width)
    values = pictures.float()
    if pictures.shape[1] != channels:
        values = values.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)
    if tuple(values.shape[2:]) != wanted:
        values = F.interpolate(values, size=wanted, mode="bilinear", antialias=True)
    return values.round().clamp(0, 255).to(torch.uint8)


def mixing_of(
    problem: Problem,
    tell: Say,
    *,
    mixing_set: Tensor | None = None,
    pictures: int = FRACTALS,
    rounds: int = ROUNDS,
    beta: float = BETA,
    severity: float = SEVERITY,
) -> tuple[PixMix, dict[str, float]]:
    """What mixes the problem's batches, and its numbers for the result file.

    `mixing_set` uint8 [M, C, h, w] takes the place of so many `pictures` of fractals that are made otherwise.
    """
    if mixing_set is not None and (mixing_set.dtype != torch.uint8 or mixing_set.dim() != 4 or not len(mixing_set)):
        raise SettingError(
            f"mixing_set of PixMix is {mixing_set.dtype} {list(mixing_set.shape)}; it must be torch.uint8 [M, C, h, w]"
        )
    if pictures < 1 or rounds < 0:
        raise SettingError(f"pictures = {pictures} of PixMix must be at least 1 and rounds = {rounds} at least 0")
    if not beta > 0 or not 0.1 <= severity <= 10:
        raise SettingError(f"beta = {beta} of PixMix must be positive, and severity = {severity} lie in [0.1, 10]")
    height, width = problem.images.shape[2:]
    if mixing_set is None:
        tell(f"pixmix: making {pictures} fractals")
        side = min(LARGEST_SIDE, round(PICTURE_SCALE * max(height, width)))
        mixing_set = fractals(pictures, side, torch_stream(problem, _FRACTAL_STREAM))
    ready = brought_to(mixing_set.to(problem.device), problem.channels, height, width)
    mixing = PixMix(ready, problem.mean, problem.spread, torch_stream(problem, _MIXING_STREAM), rounds, beta, severity)
    return mixing, {"pictures": len(ready), "rounds": rounds, "beta": beta, "severity": severity}


@contextmanager
def mixed_inputs(model: nn.Module, mixing: PixMix) -> Iterator[None]:
    """The model gets mixed images while it trains."""
    handle = model.register_forward_pre_hook(lambda module, inputs: (mixing(inputs[0]),) if module.training else None)
    try:
        yield
    finally:
        handle.remove()


def pixmix(
    problem: Problem,
    outliers: Tensor | None,
    tell: Say,
    *,
    mixing_set: Tensor | None = None,
    pictures: int = FRACTALS,
    rounds: int = ROUNDS,
    beta: float = BETA,
    severity: float = SEVERITY,
) -> Scorer:
    """Train on mixed images; the score is the log of one minus the largest probability.

    `mixing_set` uint8 [M, C, h, w] takes the place of so many `pictures` of fractals that are made otherwise.
    """
    del outliers
    mixing, details = mixing_of(
        problem, tell, mixing_set=mixing_set, pictures=pictures, rounds=rounds, beta=beta, severity=severity
    )
    model = problem.new_model()
    with mixed_inputs(model, mixing):
        problem.fit(
            model,
            problem.batches(),
            on_epoch=lambda epoch: tell(f"pixmix: epoch {epoch} of {problem.recipe.epochs}"),
        )
    return Scorer(scored(model, log_doubt), model, details=details)
