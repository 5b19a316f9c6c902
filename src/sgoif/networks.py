"""Small residual networks for images, without pretrained weights; the audit and the benchmarks train them."""

from __future__ import annotations

from math import ceil, log2

from torch import Tensor, nn

STRIDE_FROM = 32
"""Images with more pixels a side than this are halved by the first convolution itself."""


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


def stem(channels: int, width: int, image: int, largest: int) -> nn.Sequential:
    """The first convolution, and what brings an image down to `largest` pixels a side.

    A stride saves the work of a convolution on a large image; it is left for images beyond 32 pixels, where the detail
    that it loses is small.
    """
    halvings = max(0, ceil(log2(image / largest)))
    stride = 2 if halvings and image > STRIDE_FROM else 1
    pools = (nn.MaxPool2d(2) for _ in range(halvings - (stride == 2)))
    return nn.Sequential(*conv_block(channels, width, stride=stride), *pools)


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
    stage is left out.
    """

    def __init__(self, channels: int = 3, classes: int = 10, width: int = 24, image: int = 32) -> None:
        super().__init__()
        self.prep = stem(channels, width, image, largest=16)
        self.layer1 = nn.Sequential(conv_block(width, 2 * width, pool=True), residual_pair(2 * width))
        self.layer2 = nn.Sequential(conv_block(2 * width, 4 * width, pool=True), residual_pair(4 * width))
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.prep(x)))
        logits: Tensor = self.head(self.pool(x).flatten(1)) / 8
        return logits
