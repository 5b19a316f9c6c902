"""Settings of the fault harness."""

from __future__ import annotations

from dataclasses import dataclass

from sgoif.errors import SettingError
from sgoif_bench.command import setting


@dataclass(frozen=True)
class FaultSettings:
    """How much is tried."""

    kills: int = setting(200, help="audits are killed at so many random moments in all; 0: none")
    inputs: bool = setting(True, help="try every bad input of the list")
    fuzz_minutes: float = setting(0.0, help="feed damaged files to every file reader for so long; 0: not at all")
    epochs: int = setting(8, help="epochs of the audits that are killed")
    seed: int = setting(0, help="seed of the moments and of the damage")

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, expected: str) -> None:
            if not ok:
                raise SettingError(f"{name}={getattr(self, name)!r} is not valid: expected {expected}")

        need(self.kills >= 0, "kills", "a whole number from 0 up")
        need(0 <= self.fuzz_minutes < 60 * 24, "fuzz_minutes", "minutes from 0 up, less than a day")
        need(self.epochs >= 1, "epochs", "a whole number of at least 1")
        need(self.seed >= 0, "seed", "a whole number from 0 up")
        need(
            self.kills > 0 or self.inputs or self.fuzz_minutes > 0, "kills", "some, or --inputs, or some --fuzz-minutes"
        )
