"""Which device to compute on, by name."""

from __future__ import annotations

from typing import Literal

import torch

from sgoif.errors import SettingError

Device = Literal["auto", "cpu", "cuda"]


def choose_device(name: str) -> torch.device:
    """The device by name; "auto" takes CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingError("--device cuda was asked for, but torch finds no CUDA device here; use --device cpu")
    return torch.device(name)
