"""Every setting of the unlearning commands: one place, validated when made."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sgoif.commands.settings import Requirements
from sgoif.device.selection import Device
from sgoif.errors import SettingError
from sgoif.tasks.unlearning.settings import UnlearnerSettings


@dataclass(frozen=True, kw_only=True)
class InitSettings:
    """Where features come from, and where state and log go."""

    run: Path | None
    """Run directory of a finished `sgoif audit`."""
    model: str | None
    """`package.module:factory` of the user's own network that the run trained."""
    features: Path | None
    """An .npz archive of features and labels."""
    state: Path
    log: Path
    continue_log: bool
    """The network was trained again; the log goes on, and the state is replaced."""
    head: UnlearnerSettings
    batch_size: int
    device: Device

    def __post_init__(self) -> None:
        if (self.run is None) == (self.features is None):
            raise SettingError(
                "give either RUN, the run directory of a finished `sgoif audit`, or --features FILE.npz with features"
                " and labels"
            )
        if self.model is not None and self.run is None:
            raise SettingError("--model says what network RUN trained, and --features needs none; leave --model away")
        Requirements(self).batches_on_a_device()
        if self.state.resolve() == self.log.resolve():
            raise SettingError(f"--state and --log are the same file, {self.state}; give two")
        if self.state.exists() and not self.continue_log:
            raise SettingError(
                f"--state {self.state} exists, and with it requests that must not be lost; use it, or give another"
                " name. For a network that was trained again, give --continue"
            )


def check_device(device: str) -> None:
    """Raise where a device is none of those known."""
    if device not in get_args(Device):
        raise SettingError(f"--device {device} is not valid: expected one of {', '.join(get_args(Device))}")
