"""A model of a user, as `--model trace_nets:small` finds it."""

from __future__ import annotations

from torch import nn

from sgoif.audit.networks import conv_block


def small(channels: int, classes: int) -> nn.Module:
    body = nn.Sequential(conv_block(channels, 12), conv_block(12, 24, pool=True), conv_block(24, 24, pool=True))
    return nn.Sequential(body, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, classes))
