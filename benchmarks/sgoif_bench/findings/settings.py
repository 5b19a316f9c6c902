"""What is asked for on the command line of `sgoif-bench findings`, and the jobs that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sgoif.errors import SettingError
from sgoif.tasks.crossfit.head import RECIPE
from sgoif_bench.command import Device, choose_device, listed, seeds_of, setting
from sgoif_bench.findings.grid import Job
from sgoif_bench.findings.kinds import choose
from sgoif_bench.findings.labels import KINDS as LABELS
from sgoif_bench.findings.pictures import GENERATED, NAMES


@dataclass(frozen=True)
class FindingsSettings:
    """One grid."""

    data: str | None = setting(None, help="folder that holds the data sets; generated images and digits need none")
    scratch: str = setting("runs/findings", help="folder for images, which are removed after each job")
    sets: str = setting(GENERATED, help=f"images, separated by commas: {', '.join(NAMES)}")
    kinds: str = setting("all", help="kinds of findings, separated by commas")
    seeds: str = setting("0", help="seeds of what is planted where, separated by commas")
    rate: float = setting(0.005, help="share of the images in which each part of each kind is planted; 8 at least")
    wrong: float = setting(0.1, help="share of the labels to train on that are made wrong, in a folder of their own")
    limit: int | None = setting(None, help="use only so many images of each set")
    backbone: str = setting("none", help="network for the kinds that need features, such as lite0; none: without them")
    jobs: int = setting(1, help="folders at once")
    device: Device = setting("auto", help="where the network runs")

    def __post_init__(self) -> None:
        for name in listed(self.sets, "sets"):
            if name not in NAMES:
                raise SettingError(f"there is no set {name!r}; choose from {', '.join(NAMES)}")
        choose(self.kinds, features=self.backbone != "none")
        seeds_of(self.seeds)
        if not 0 < self.rate <= 0.02:
            raise SettingError(f"--rate {self.rate}: above 0 and at most 0.02 is expected")
        if not 0 < self.wrong <= 0.5:
            raise SettingError(f"--wrong {self.wrong}: above 0 and at most 0.5 is expected")
        if self.jobs < 1:
            raise SettingError(f"--jobs {self.jobs}: at least 1 is expected")

    def asked(self) -> list[Job]:
        """Everything that is asked for, done or not; set by set."""
        kinds = choose(self.kinds, features=self.backbone != "none")
        network = {"backbone": self.backbone, "device": choose_device(self.device).type}
        recipes: list[tuple[tuple[str, ...], dict[str, Any]]] = [
            (tuple(kind for kind in kinds if kind not in LABELS), {"limit": self.limit, "rate": self.rate, **network}),
            (
                tuple(kind for kind in kinds if kind in LABELS),
                {"limit": self.limit, "wrong": self.wrong, **network, "heads": RECIPE},
            ),
        ]
        return [
            Job(name, seed, some, recipe)
            for name in listed(self.sets, "sets")
            for seed in seeds_of(self.seeds)
            for some, recipe in recipes
            if some
        ]
