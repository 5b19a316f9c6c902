"""Small networks of the benchmarks, all without pretrained weights."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from sgoif.audit.networks import Residual, ResNet9, conv_block
from sgoif.commands.demo.digits import digits_net
from sgoif.errors import SettingError

__all__ = ["MODELS", "ResNet9", "TinyViT", "digits_net", "lenet", "resnet18_cifar", "small_cnn", "tiny_vit"]


def small_cnn(channels: int = 3, classes: int = 10, width: int = 32) -> nn.Sequential:
    """Three convolutions and a linear head; any image of 8×8 pixels or more."""
    return nn.Sequential(
        conv_block(channels, width, pool=True),
        conv_block(width, 2 * width, pool=True),
        conv_block(2 * width, 4 * width, pool=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


def lenet(channels: int = 1, classes: int = 10, image: int = 28) -> nn.Sequential:
    """LeNet-5 with ReLU and max-pools, as OpenOOD trains it: three 5×5 convolutions and two linear layers.

    The original took 32×32 images; 28×28 images are padded by two pixels a side.
    """
    if image not in (28, 32):
        raise SettingError(f"LeNet is for images of 28×28 or 32×32 pixels, not {image}×{image}; choose another --model")
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, kernel_size=5, padding=(32 - image) // 2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 120, kernel_size=5), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
    )


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def resnet18_cifar(channels: int = 3, classes: int = 10) -> nn.Sequential:
    """ResNet-18 with a 3×3 stem and no first max-pool, as is usual for 32×32 images."""
    model = nn.Sequential()
    model.add_module("stem", conv_block(channels, 64))
    width = 64
    for number, (outputs, stride) in enumerate(((64, 1), (128, 2), (256, 2), (512, 2)), start=1):
        model.add_module(
            f"layer{number}", nn.Sequential(BasicBlock(width, outputs, stride), BasicBlock(outputs, outputs, 1))
        )
        width = outputs
    model.add_module("pool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("head", nn.Linear(512, classes))
    return model


class Attention(nn.Module):
    """Multi-head self-attention with one linear layer for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class TinyViT(nn.Module):
    """A pre-norm vision transformer: patch convolution, a few blocks, mean over tokens, linear head."""

    def __init__(self, channels: int, classes: int, image: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        if image % patch or width % heads:
            raise SettingError(f"image {image} must be a multiple of patch {patch}, width {width} of heads {heads}")
        self.patches = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)
        self.position = nn.Parameter(
            trunc_normal_(self.patches.weight.new_empty(1, (image // patch) ** 2, width), std=0.02)
        )
        self.blocks = nn.Sequential(*(_transformer_block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(dim=1))
        return logits


def _transformer_block(width: int, heads: int) -> nn.Sequential:
    feed_forward = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    return nn.Sequential(
        Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, heads))), Residual(nn.Sequential(*feed_forward))
    )


def tiny_vit(
    channels: int = 3,
    classes: int = 10,
    image: int = 32,
    patch: int = 4,
    width: int = 96,
    depth: int = 4,
    heads: int = 4,
) -> TinyViT:
    """A vision transformer that trains on one core."""
    return TinyViT(channels, classes, image, patch, width, depth, heads)


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet9": ResNet9,
    "resnet18": resnet18_cifar,
    "small-cnn": small_cnn,
    "tiny-vit": tiny_vit,
}
"""Models for 32×32 images by the name used on the command line; each is called with (channels, classes)."""
