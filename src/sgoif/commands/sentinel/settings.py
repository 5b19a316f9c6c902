"""How a sentinel is fitted, and how one is opened: validated when made."""

from dataclasses import dataclass
from pathlib import Path

from sgoif.commands.settings import ModelSettings, require_computing
from sgoif.device.selection import Device
from sgoif.errors import SettingError


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
        if self.backbone is not None and self.ignore_labels:
            raise SettingError("--backbone learns its head from labels; leave --ignore-labels away, or give --model")


@dataclass(frozen=True)
class OpenSettings:
    """A sentinel that was fitted, and what may be said otherwise than its file says it."""

    path: Path
    model: str | None = None
    backbone: str | None = None
    weights: Path | None = None
    device: Device = "auto"
    batch_size: int = 128

    def __post_init__(self) -> None:
        require_computing(self.batch_size, self.device)
