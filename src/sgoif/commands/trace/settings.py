"""Every setting of `sgoif trace`: one place, validated when made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sgoif.audit.settings import folder_name
from sgoif.commands.settings import DataSettings, Requirements, option_name
from sgoif.device.selection import Device
from sgoif.errors import SettingError

MOST_SHOWN = 200
AUDIT_PREFIX = "sgoif-audit-"


@dataclass(frozen=True)
class TraceSettings:
    """A trained model with its training images, and what it does wrong. None means: taken from the run or the data."""

    run: Path | None = None
    """Run directory of a finished `sgoif audit`, with its model, weights and images."""
    data: DataSettings | None = None
    """The training images, where there is no run."""
    model: str | None = None
    """A built-in model, or `package.module:factory` for your own, which a run cannot bring along."""
    weights: Path | None = None
    """A safetensors file. None: the factory loads weights itself."""
    victims: Path | None = None
    """Images that are answered wrongly. None: nothing is known."""
    label: str | None = None
    """The wrong label of all victims. None: what the model answers."""
    out: Path | None = None
    """None: `sgoif-trace-<name>` in the current directory."""
    classes: str | None = None
    """Number of the model's outputs, or a file with their names. None: the classes of the data."""
    image_size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] | None = None
    """Of every channel, with white as 1. None: of the data."""
    spread: tuple[float, ...] | None = None
    show: int = 24
    """Victims on the page."""
    batch_size: int = 256
    device: Device = "auto"

    def __post_init__(self) -> None:
        if self.run is None and self.data is None:
            raise SettingError(
                "there is nothing to trace in: give the run directory of a finished `sgoif audit`, or --data PATH with"
                " --model and --weights"
            )
        if self.run is not None:
            brought = ("data", "weights", "classes", "image_size", "channels", "mean", "spread")
            given = [name for name in brought if getattr(self, name) is not None]
            if given:
                options = ", ".join(map(option_name, given))
                raise SettingError(f"the run brings its weights and images along; leave away {options}, or the run")
        elif self.model is None:
            raise SettingError(
                "there is no model: name one with --model package.module:factory and --weights FILE.safetensors, or"
                " give the run directory of a finished audit"
            )
        if self.label is not None and self.victims is None:
            raise SettingError("--label says what victims are called; give them with --victims, or leave --label away")
        need = Requirements(self)
        need.image_options()
        need.batches_on_a_device()
        need(1 <= self.show <= MOST_SHOWN, "show", f"a whole number from 1 to {MOST_SHOWN}")
        if self.mean is not None and self.spread is not None:
            fits = len(self.mean) == len(self.spread) in ((1, 3) if self.channels is None else (self.channels,))
            ranges = all(0 <= m <= 1 for m in self.mean) and all(0 < s <= 1 for s in self.spread)
            need(fits and ranges, "mean", "as --spread one number up to 1 for every channel, where 1 is white")

    @property
    def directory(self) -> Path:
        """Where the results go."""
        if self.out is not None:
            return self.out
        assert self.run is not None or self.data is not None
        source = self.run if self.run is not None else self.data.path  # type: ignore[union-attr]
        return Path(f"sgoif-trace-{folder_name(source).removeprefix(AUDIT_PREFIX)}")
