"""Models of a user, as `--model tiny_nets:...` finds them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sgoif.audit.networks import conv_block


def tiny(channels: int, classes: int) -> nn.Module:
    """Quick to train; has batch norm and dropout, whose state and draws a resumed run must repeat."""
    body = nn.Sequential(conv_block(channels, 8, pool=True), conv_block(8, 16, pool=True))
    return nn.Sequential(body, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, classes))


def without_batch_statistics(channels: int, classes: int) -> nn.Module:
    """Computes the same for an image whatever else is in its batch."""
    body = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveMaxPool2d(4))
    return nn.Sequential(body, nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, classes))


def classes_only(classes: int) -> nn.Module:
    return tiny(3, classes)


def unnamed(a: int, b: int) -> nn.Module:
    return tiny(a, b)


def like_torchvision(*, weights: Any = None, **options: int) -> nn.Module:
    assert weights is None
    return tiny(3, options["num_classes"])


def broken(channels: int, classes: int) -> nn.Module:
    raise ValueError("no such thing")


def no_model(channels: int, classes: int) -> str:
    return "resnet"


def wrong_head(channels: int, classes: int) -> nn.Module:
    return tiny(channels, classes + 1)


class Tuple(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.inner = tiny(channels, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), x


NUMBER = 3
