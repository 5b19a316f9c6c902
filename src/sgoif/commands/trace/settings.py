"""Every setting of `sgoif trace`: one place, validated when made."""

from dataclasses import dataclass
from pathlib import Path

from sgoif.audit.settings import folder_name
from sgoif.commands.settings import ModelSettings, require
from sgoif.errors import SettingError

MOST_SHOWN = 200
AUDIT_PREFIX = "sgoif-audit-"


@dataclass(frozen=True)
class TraceSettings(ModelSettings):
    """A trained model with its training images, and what it does wrong."""

    victims: Path | None = None
    """Images that are answered wrongly. None: nothing is known."""
    label: str | None = None
    """The wrong label of all victims. None: what the model answers."""
    out: Path | None = None
    """None: `sgoif-trace-<name>` in the current directory."""
    show: int = 24
    """Victims on the page."""

    def __post_init__(self) -> None:
        self.check(
            "there is nothing to trace in: give the run directory of a finished `sgoif audit`, or --data PATH with"
            " --model and --weights",
            "data",
        )
        if self.label is not None and self.victims is None:
            raise SettingError("--label says what victims are called; give them with --victims, or leave --label away")
        require(1 <= self.show <= MOST_SHOWN, "show", self.show, f"a whole number from 1 to {MOST_SHOWN}")

    @property
    def directory(self) -> Path:
        """Where the results go."""
        if self.out is not None:
            return self.out
        assert self.run is not None or self.data is not None
        source = self.run if self.run is not None else self.data.path  # type: ignore[union-attr]
        return Path(f"sgoif-trace-{folder_name(source).removeprefix(AUDIT_PREFIX)}")
