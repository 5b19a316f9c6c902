"""What is asked for on the command line of `sgoif-bench audits`, and the jobs that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from sgoif.audit.settings import AuditSettings
from sgoif.errors import SettingError
from sgoif.tasks.crossfit.head import RECIPE
from sgoif_bench.audits.grid import Job
from sgoif_bench.audits.ways import WAYS, by_family, choose
from sgoif_bench.command import Device, choose_device, listed, seeds_of, setting
from sgoif_bench.labels.noises import parse
from sgoif_bench.pretrained.sets import SETS


@dataclass(frozen=True)
class AuditsSettings:
    """One grid."""

    data: str | None = setting(None, help="folder that holds the data sets; digits needs none")
    scratch: str = setting(
        "runs/audits", help="folder for images and run directories, which are removed after each audit"
    )
    sets: str = setting("digits", help=f"data sets, separated by commas: {', '.join(SETS)}")
    noises: str | None = setting(
        None,
        help="kinds of wrong labels, separated by commas, as in bench labels; unset: those of bench pretrained",
    )
    ways: str = setting("automatic,from-scratch", help=f"ways of an audit, separated by commas: all, {', '.join(WAYS)}")
    seeds: str = setting("0", help="seeds of noise and audit, separated by commas")
    limit: int | None = setting(None, help="use only so many images of each data set")
    threads: int | None = setting(None, help="threads of torch in each audit; unset: the cores, shared by the audits")
    jobs: int = setting(1, help="audits at once; where times matter, no more than cores / threads")
    device: Device = setting("auto", help="where networks run")

    def __post_init__(self) -> None:
        for name in listed(self.sets, "sets"):
            if name not in SETS:
                raise SettingError(f"there is no data set {name!r}; choose from {', '.join(SETS)}")
        for noise in listed(self.noises, "noises") if self.noises is not None else ():
            parse(noise)
        seeds_of(self.seeds)
        choose(self.ways)
        for option, value in {"threads": self.threads, "jobs": self.jobs}.items():
            if value is not None and value < 1:
                raise SettingError(f"--{option} {value}: at least 1 is expected")

    def asked(self) -> list[Job]:
        """Everything that is asked for, done or not; data set by data set."""
        recipe = {
            "limit": self.limit,
            "threads": self.threads,
            "device": choose_device(self.device).type,
            "backbone": AuditSettings.backbone,
            "heads": RECIPE,
        }
        found = []
        for name in listed(self.sets, "sets"):
            noises = SETS[name].noises if self.noises is None else listed(self.noises, "noises")
            found += [
                Job(name, noise, seed, family, ways, recipe)
                for noise, seed, (family, ways) in product(
                    noises, seeds_of(self.seeds), by_family(choose(self.ways)).items()
                )
            ]
        return found
