"""Small residual networks for images, without pretrained weights; the audit and the benchmarks train them."""

from math import ceil, log2

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STRIDE_FROM = 32
"""Images with more pixels a side than this are halved by the first convolution itself."""
PATCHES = 200_000
"""Patches of images, at most, that whitening filters are made from."""
WEAKEST = 1e-4
"""Added to the variance of a direction before it is divided by: a direction without variance stays without strength."""


def conv_block(inputs: int, outputs: int, *, pool: bool = False, stride: int = 1) -> nn.Sequential:
    """3×3 convolution, batch norm, ReLU and, where asked for, a 2×2 max-pool."""
    parts: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]
    return nn.Sequential(*parts, nn.MaxPool2d(2)) if pool else nn.Sequential(*parts)


class Residual(nn.Module):
    """Adds what the body computes to its input."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


def halvings(image: int, largest: int) -> tuple[int, int]:
    """The stride of the first convolution, and the pools after it, that bring an image down to `largest` pixels a side.

    A stride saves the work of a convolution on a large image; it is left for images beyond 32 pixels, where the detail
    that it loses is small.
    """
    number = max(0, ceil(log2(image / largest)))
    stride = 2 if number and image > STRIDE_FROM else 1
    return stride, number - (stride == 2)


def stem(channels: int, width: int, image: int, largest: int) -> nn.Sequential:
    """The first convolution, and what brings an image down to `largest` pixels a side."""
    stride, pools = halvings(image, largest)
    return nn.Sequential(*conv_block(channels, width, stride=stride), *(nn.MaxPool2d(2) for _ in range(pools)))


class Whitening(nn.Module):
    """Fixed 3×3 filters whose answers to the data are uncorrelated and equally strong, with their negatives.

    Patches of images differ mostly in brightness. A convolution that starts at random has to learn to look past it,
    which is a good part of a short training. `fit` takes the filters from the data: the strongest principal components
    of its patches, each divided by its spread. Before that they are random directions.
    """

    filters: Tensor

    def __init__(self, channels: int, pairs: int, stride: int = 1) -> None:
        super().__init__()
        pairs = min(pairs, 9 * channels)
        self.register_buffer(
            "filters", nn.init.orthogonal_(torch.empty(pairs, 9 * channels)).view(pairs, channels, 3, 3)
        )
        self.outputs, self.stride = 2 * pairs, stride

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Take the filters from some images [n, C, H, W], prepared as the network sees them."""
        patches = F.unfold(images.float(), 3).transpose(1, 2).flatten(0, 1)
        patches = patches[:: max(1, len(patches) // PATCHES)]
        patches = patches - patches.mean(0)
        variance, directions = torch.linalg.eigh((patches.T @ patches / len(patches)).double().cpu())
        count = len(self.filters)
        scaled = directions[:, -count:] / (variance[-count:].clamp_min(0) + WEAKEST).sqrt()
        self.filters.copy_(scaled.T.flip(0).reshape(self.filters.shape))

    def forward(self, x: Tensor) -> Tensor:
        answers = F.conv2d(x, self.filters.to(x.dtype), stride=self.stride, padding=1)
        return torch.cat([answers, -answers], dim=1)


def whitened_stem(channels: int, width: int, image: int, largest: int) -> nn.Sequential:
    """The same with whitening filters, whose answers are mixed, in the place of a convolution that is trained."""
    stride, pools = halvings(image, largest)
    first = Whitening(channels, width // 2, stride)
    mix = nn.Conv2d(first.outputs, width, kernel_size=1, bias=False), nn.BatchNorm2d(width)
    return nn.Sequential(first, nn.ReLU(), *(nn.MaxPool2d(2) for _ in range(pools)), *mix)


def residual_pair(width: int) -> Residual:
    """Two convolutions beside a shortcut."""
    return Residual(nn.Sequential(conv_block(width, width), conv_block(width, width)))


class ResNet9(nn.Module):
    """The nine-layer residual network known from DAWNBench, for images of 8×8 pixels and more.

    `width` scales all layers, `image` is the side of the images. Logits are scaled by 1/8, as in the original: the
    features come from a max-pool and are large.
    """

    def __init__(self, channels: int = 3, classes: int = 10, width: int = 64, image: int = 32) -> None:
        super().__init__()
        self.prep = stem(channels, width, image, largest=32)
        self.layer1 = nn.Sequential(conv_block(width, 2 * width, pool=True), residual_pair(2 * width))
        self.layer2 = conv_block(2 * width, 4 * width, pool=True)
        self.layer3 = nn.Sequential(conv_block(4 * width, 8 * width, pool=True), residual_pair(8 * width))
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.prep(x))))
        logits: Tensor = self.head(self.pool(x).flatten(1)) / 8
        return logits


class ResNet7(nn.Module):
    """A smaller relative of ResNet-9 for machines without an accelerator.

    Large feature maps cost most there, so images are brought to 16×16 right after the first convolution, and the last
    stage is left out. `whitened` replaces that convolution with filters that are fitted to the data.
    """

    def __init__(
        self, channels: int = 3, classes: int = 10, width: int = 24, image: int = 32, *, whitened: bool = False
    ) -> None:
        super().__init__()
        self.prep = (whitened_stem if whitened else stem)(channels, width, image, largest=16)
        self.layer1 = nn.Sequential(conv_block(width, 2 * width, pool=True), residual_pair(2 * width))
        self.layer2 = nn.Sequential(conv_block(2 * width, 4 * width, pool=True), residual_pair(4 * width))
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.prep(x)))
        logits: Tensor = self.head(self.pool(x).flatten(1)) / 8
        return logits


def fit_whitening(model: nn.Module, images: Tensor) -> None:
    """Fit the whitening filters of a network to images, where it has some."""
    for module in model.modules():
        if isinstance(module, Whitening):
            module.fit(images)
