"""Where a result comes from: the command, the versions, the machine. And writing it down in one piece."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgoif.core.serialization import atomic_write
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


def command_line(program: str, arguments: Sequence[str]) -> str:
    """The command as one would type it, without where on this machine the data and the results are."""
    shown: list[str] = []
    for argument in arguments:
        option, joined, value = argument.partition("=")
        if option.startswith("--") and joined:
            shown.append(f"{option}={_shown_value(option, value)}")
        else:
            shown.append(_shown_value(shown[-1] if shown else "", argument))
    return shlex.join([*program.split(), *shown])


def _shown_value(option: str, value: str) -> str:
    if option == "--data":
        return "DATA"
    return Path(value).name if Path(value).is_absolute() else value


def rounded(value: Any, digits: int) -> Any:
    """The value with its fractions cut to so many significant digits, however deep they lie."""
    if isinstance(value, Mapping):
        return {name: rounded(item, digits) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


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
    text = json.dumps(plain(value), indent=1, allow_nan=False) + "\n"
    atomic_write(path, lambda file: file.write(text), text=True)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
