"""Every setting of the sentinel's commands: one place, validated when made."""

from dataclasses import dataclass
from pathlib import Path

from sgoif.audit.settings import DataSettings, folder_name
from sgoif.commands.settings import ModelSettings, Requirements
from sgoif.device.selection import Device
from sgoif.errors import SettingError

MOST_SHOWN = 2000


@dataclass(frozen=True)
class FitSettings(ModelSettings):
    """A model and images that belong."""

    calibration: Path | None = None
    """Images that the model was not trained on. None: those a run held out, else one image in five."""
    out: Path = Path("sentinel.npz")
    ignore_labels: bool = False
    """The network's answers name the classes instead."""
    gate: bool = True
    """Count an image by how far the model agrees with its label."""

    def __post_init__(self) -> None:
        self.check("there is nothing to learn from: give DATA, images that belong, or --run RUN_DIR")


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
