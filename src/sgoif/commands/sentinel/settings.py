"""Every setting of the sentinel's commands: one place, validated when made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sgoif.audit.settings import folder_name
from sgoif.commands.settings import DataSettings, Requirements, option_name
from sgoif.device.selection import Device
from sgoif.errors import SettingError

MOST_SHOWN = 2000


@dataclass(frozen=True)
class FitSettings:
    """A model, images that belong, and how they are prepared for it. None means: taken from the data or the run."""

    data: DataSettings | None = None
    """Images that belong. None: those of the run."""
    run: Path | None = None
    """Run directory of a finished `sgoif audit`, with its model, weights and preparation."""
    model: str | None = None
    """A built-in model, or `package.module:factory` for your own, which a run cannot bring along."""
    weights: Path | None = None
    """A safetensors file. None: the factory loads weights itself."""
    calibration: Path | None = None
    """Images that the model was not trained on. None: those a run held out, else one image in five."""
    out: Path = Path("sentinel.npz")
    classes: str | None = None
    """Number of the model's outputs, or a file with their names. None: the classes of the data."""
    ignore_labels: bool = False
    """The network's answers name the classes instead."""
    gate: bool = True
    """Count an image by how far the model agrees with its label."""
    image_size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] | None = None
    """Of every channel, with white as 1. None: of the data."""
    spread: tuple[float, ...] | None = None
    batch_size: int = 128
    device: Device = "auto"

    def __post_init__(self) -> None:
        need = Requirements(self)
        if self.run is not None:
            brought = ("weights", "classes", "image_size", "channels", "mean", "spread")
            given = [name for name in brought if getattr(self, name) is not None]
            if given:
                raise SettingError(
                    "--run brings the weights and their preparation along; leave away"
                    f" {', '.join(map(option_name, given))}, or leave --run away"
                )
        elif self.data is None:
            raise SettingError("there is nothing to learn from: give DATA, images that belong, or --run RUN_DIR")
        elif self.model is None:
            raise SettingError(
                "there is no model: name one with --model resnet9 or --model package.module:factory, or give --run"
                " RUN_DIR of a finished audit"
            )
        need.image_options()
        if self.mean is not None and self.spread is not None:
            self._check_normalisation(self.mean, self.spread)
        need.batches_on_a_device()

    def _check_normalisation(self, mean: tuple[float, ...], spread: tuple[float, ...]) -> None:
        counts = (1, 3) if self.channels is None else (self.channels,)
        if len(mean) != len(spread) or len(mean) not in counts:
            raise SettingError(
                f"--mean has {len(mean)} numbers and --spread {len(spread)}; expected is one for every channel of the"
                f" images, {' or '.join(map(str, counts))}"
            )
        if not all(0 <= value <= 1 for value in mean) or not all(0 < value <= 1 for value in spread):
            raise SettingError(
                f"--mean {_listed(mean)} --spread {_listed(spread)}: expected are numbers up to 1, where 0 is black and"
                " 1 is white, e.g. --mean 0.49,0.48,0.45 --spread 0.25,0.24,0.26. Divide numbers up to 255 by 255"
            )


@dataclass(frozen=True)
class OpenSettings:
    """A sentinel that was fitted, and what may be said otherwise than its file says it."""

    path: Path
    model: str | None = None
    weights: Path | None = None
    device: Device = "auto"
    batch_size: int = 128

    def __post_init__(self) -> None:
        Requirements(self).batches_on_a_device()


@dataclass(frozen=True)
class ScoreSettings:
    """Images to score, and what to call strange."""

    data: DataSettings
    sentinel: OpenSettings
    out: Path | None = None
    """None: `sgoif-scores-<name>` in the current directory."""
    false_alarms: float = 0.05
    """Share of the images that belong which may be called strange."""
    show: int = 200
    """Images on the page."""

    def __post_init__(self) -> None:
        need = Requirements(self)
        need.share("false_alarms")
        need(1 <= self.show <= MOST_SHOWN, "show", f"a whole number from 1 to {MOST_SHOWN}")

    @property
    def directory(self) -> Path:
        """Where the results go."""
        return self.out or Path(f"sgoif-scores-{folder_name(self.data.path)}")


@dataclass(frozen=True)
class WatchSettings:
    """A stream of images: those of a path in order, or a list of paths."""

    sentinel: OpenSettings
    data: DataSettings | None = None
    listing: Path | None = None
    """A file with one path per line; "-" is standard input."""
    false_alarms: float = 0.01
    """Bound on the probability of ever raising an alarm without a change."""

    def __post_init__(self) -> None:
        Requirements(self).share("false_alarms")
        if self.data is None and self.listing is None:
            raise SettingError("there is nothing to watch: give DATA, or --list FILE with one path per line")


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)
