"""Which device to compute on, by name."""

from typing import Literal

import torch

from sgoif.errors import SettingError

Device = Literal["auto", "cpu", "cuda"]


def choose_device(name: str) -> torch.device:
    """The device by name; "auto" takes CUDA where there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise SettingError("--device cuda was asked for, but torch finds no CUDA device here; use --device cpu")
    return torch.device("cuda", torch.cuda.current_device()) if name != "cpu" and available else torch.device("cpu")
