"""Where a result comes from: the command, the versions, the machine. And writing it down in one piece."""

import json
import math
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgoif.core.serialization import write_text
from sgoif.core.version import __version__


def package_version() -> str:
    """The installed version of this package, or that of the sources where it runs uninstalled."""
    try:
        return version("sgoif")
    except PackageNotFoundError:
        return __version__


def versions() -> dict[str, str | None]:
    """What the result was computed with."""
    return {
        "sgoif": package_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
    }


def machine(device: torch.device) -> dict[str, Any]:
    """What the result was computed on, without names of hosts or people."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "device_type": device.type,
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def plain(value: Any) -> Any:
    """The value in terms of JSON: arrays as lists, numbers that are none as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, torch.Tensor | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return value.as_posix()
    return value


def write_json(path: Path, value: Any) -> None:
    """Write the value so that a reader sees the old file or the whole new one, never a part."""
    write_text(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
