"""Pretrained networks of images behind one interface: `load_backbone(name)`, one of `known_backbones()`."""

from sgoif.backbones.base import Backbone
from sgoif.backbones.named import known_backbones, load_backbone

__all__ = ["Backbone", "known_backbones", "load_backbone"]
