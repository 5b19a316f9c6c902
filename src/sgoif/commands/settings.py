"""What the settings of several commands have in common: images, what is required of a value, lists of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sgoif.audit.settings import LARGEST_IMAGE, SMALLEST_IMAGE
from sgoif.device.selection import Device
from sgoif.errors import SettingError


@dataclass(frozen=True)
class DataSettings:
    """Which images, and how they are laid out; the fields are the arguments of `sgoif.images.open_images`."""

    path: Path
    layout: str = "auto"
    split: str | None = None
    root: Path | None = None
    image_column: str | None = None
    label_column: str | None = None
    limit: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the path."""
        names = ("layout", "split", "root", "image_column", "label_column", "limit")
        return {name: getattr(self, name) for name in names}


class Requirements:
    """Raises where a setting is not what is expected."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def __call__(self, ok: bool, name: str, expected: str) -> None:
        if not ok:
            raise SettingError(f"{option_name(name)} {getattr(self._settings, name)} is not valid: expected {expected}")

    def share(self, name: str) -> None:
        value = getattr(self._settings, name)
        self(0 < value < 1, name, "a share strictly between 0 and 1, for instance 0.05")

    def batches_on_a_device(self) -> None:
        self(self._settings.batch_size >= 1, "batch_size", "a whole number of at least 1")
        self(self._settings.device in get_args(Device), "device", f"one of {', '.join(get_args(Device))}")

    def image_options(self) -> None:
        """What says how images are prepared for a network."""
        settings = self._settings
        if (settings.mean is None) != (settings.spread is None):
            raise SettingError("--mean and --spread go together; give both, or neither to take them from the data")
        self(settings.channels in (None, 1, 3), "channels", "1 for grey images, 3 for colour, or nothing")
        sized = settings.image_size is None or SMALLEST_IMAGE <= settings.image_size <= LARGEST_IMAGE
        self(sized, "image_size", f"a whole number from {SMALLEST_IMAGE} to {LARGEST_IMAGE}, or nothing")


def option_name(name: str) -> str:
    """The option that sets a field."""
    return f"--{name.replace('_', '-')}"


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """What stands between the commas of an option."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise SettingError(f"{option} {text!r}: expected numbers with commas between them, e.g. 0.5,0.5,0.5") from None
