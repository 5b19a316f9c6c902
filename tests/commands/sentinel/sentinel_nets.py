"""A model of a user, as `--model sentinel_nets:small` finds it."""

from __future__ import annotations

from torch import nn

from sgoif.audit.networks import conv_block


def small(channels: int, classes: int) -> nn.Module:
    body = nn.Sequential(conv_block(channels, 8), conv_block(8, 16, pool=True))
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, classes))
