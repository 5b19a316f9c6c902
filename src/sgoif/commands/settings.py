"""What the settings of several commands have in common: images, what is required of a value, lists of numbers."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sgoif.audit.settings import LARGEST_IMAGE, SMALLEST_IMAGE, DataSettings
from sgoif.device.selection import Device
from sgoif.errors import SettingError

BROUGHT = ("backbone", "weights", "classes", "image_size", "channels", "mean", "spread")
"""Settings of a model that a finished audit answers."""


@dataclass(frozen=True)
class ModelSettings:
    """A trained model, and how images are prepared for it. None means: taken from the data or the run."""

    run: Path | None = None
    """Run directory of a finished `sgoif audit`, with its model, weights, images and preparation."""
    data: DataSettings | None = None
    """Images that were trained on, or that belong. None: those of the run."""
    model: str | None = None
    """A built-in model, or `package.module:factory` for your own, which a run cannot bring along."""
    backbone: str | None = None
    """A pretrained network in the place of a trained model; a linear head is learned from the data."""
    weights: Path | None = None
    """A safetensors file. None: the factory loads weights itself."""
    classes: str | None = None
    """Number of the model's outputs, or a file with their names. None: the classes of the data."""
    image_size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] | None = None
    """Of every channel, with white as 1. None: of the data."""
    spread: tuple[float, ...] | None = None
    batch_size: int = 128
    device: Device = "auto"

    def check(self, nothing: str, *brought: str) -> None:
        """Raise where what is said does not fit together; `brought` is what a run brings along beside its model."""
        if self.run is not None:
            given = [name for name in (*brought, *BROUGHT) if getattr(self, name) is not None]
            if given:
                options = ", ".join(map(option_name, given))
                raise SettingError(f"the run brings its weights and images along; leave away {options}, or the run")
        elif self.data is None:
            raise SettingError(nothing)
        elif self.backbone is not None:
            unfit = ("model", "weights", "classes", "channels", "mean", "spread")
            if given := [option_name(name) for name in unfit if getattr(self, name) is not None]:
                raise SettingError(
                    f"--backbone brings its weights and preparation along; leave away {', '.join(given)}"
                )
        elif self.model is None:
            raise SettingError(
                "there is no model: name one with --model resnet9 or --model package.module:factory and --weights"
                " FILE.safetensors, take a pretrained one with --backbone lite0, or give the run directory of a"
                " finished audit"
            )
        if (self.mean is None) != (self.spread is None):
            raise SettingError("--mean and --spread go together; give both, or neither to take them from the data")
        channels, size = self.channels, self.image_size
        require(channels in (None, 1, 3), "channels", channels, "1 for grey images, 3 for colour, or nothing")
        sized = size is None or SMALLEST_IMAGE <= size <= LARGEST_IMAGE
        require(sized, "image_size", size, f"a whole number from {SMALLEST_IMAGE} to {LARGEST_IMAGE}, or nothing")
        if self.mean is not None and self.spread is not None:
            self._check_normalisation(self.mean, self.spread)
        require_computing(self.batch_size, self.device)

    def _check_normalisation(self, mean: tuple[float, ...], spread: tuple[float, ...]) -> None:
        counts = (1, 3) if self.channels is None else (self.channels,)
        if len(mean) != len(spread) or len(mean) not in counts:
            raise SettingError(
                f"--mean has {len(mean)} numbers and --spread {len(spread)}; expected is one for every channel of the"
                f" images, {' or '.join(map(str, counts))}"
            )
        if not all(0 <= value <= 1 for value in mean) or not all(0 < value <= 1 for value in spread):
            given = " ".join(
                f"--{name} {','.join(f'{value:g}' for value in values)}"
                for name, values in (("mean", mean), ("spread", spread))
            )
            raise SettingError(
                f"{given}: expected are numbers up to 1, where 0 is black and 1 is white, e.g. --mean 0.49,0.48,0.45"
                " --spread 0.25,0.24,0.26. Divide numbers up to 255 by 255"
            )


def require(ok: bool, name: str, value: object, expected: str) -> None:
    """Raise where the value of an option is not what is expected."""
    if not ok:
        raise SettingError(f"{option_name(name)} {value} is not valid: expected {expected}")


def require_share(name: str, value: float) -> None:
    """Raise where a share is none."""
    require(0 < value < 1, name, value, "a share strictly between 0 and 1, for instance 0.05")


def require_computing(batch_size: int, device: str) -> None:
    """Raise where a network cannot be run in such batches or there."""
    require(batch_size >= 1, "batch_size", batch_size, "a whole number of at least 1")
    require_device(device)


def require_device(device: str) -> None:
    """Raise where a device is none of those known."""
    require(device in get_args(Device), "device", device, f"one of {', '.join(get_args(Device))}")


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
