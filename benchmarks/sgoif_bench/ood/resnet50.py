"""ResNet-50 for large photos, with the names of weights that published files of weights use.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016. The stride sits in the 3×3 convolution of a block,
as in the weights that are published today.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

WIDEN = 4
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and stride of each stage."""


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = WIDEN * width
        self.conv1 = nn.Conv2d(inputs, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)))
        inner = F.relu(self.bn2(self.conv2(inner)))
        return F.relu(self.bn3(self.conv3(inner)) + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """Sixteen blocks in four stages; images of 224×224 pixels are usual, any from 32×32 will do."""

    stages = tuple(f"layer{number}" for number in range(1, len(STAGES) + 1))
    """Where a detector should look: inside a block, the last map of a resolution is not the end of a stage."""

    def __init__(self, channels: int = 3, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        inputs = 64
        for name, (width, blocks, stride) in zip(self.stages, STAGES, strict=True):
            layers = [Bottleneck(inputs, width, stride)]
            layers += [Bottleneck(WIDEN * width, width, 1) for _ in range(blocks - 1)]
            self.add_module(name, nn.Sequential(*layers))
            inputs = WIDEN * width
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits
