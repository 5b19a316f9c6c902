"""One job: write the folder, audit it in every way that is asked for, and write down what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sgoif.audit.settings import AuditSettings
from sgoif.backbones.efficientnet_lite import VARIANTS
from sgoif.errors import MissingExtraError
from sgoif_bench.audits.folders import write_folder
from sgoif_bench.audits.grid import Job
from sgoif_bench.audits.left import read_left
from sgoif_bench.audits.process import run_audit
from sgoif_bench.audits.settings import AuditsSettings
from sgoif_bench.audits.ways import WAYS
from sgoif_bench.command import Say, say
from sgoif_bench.jobs import OneDevice
from sgoif_bench.journal import Line
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.pretrained.sets import noisy, originals, read

SIZE = VARIANTS[AuditSettings.backbone].size
"""Pixels a side at which noise sees images of many sizes, as in `sgoif-bench pretrained`."""
NEEDED = {"typer": "cli", "rich": "cli", "PIL": "audit"}
"""Packages that the command takes, and the extra that brings them."""


@dataclass
class Runner(OneDevice[Job]):
    """Does jobs, one after the other."""

    settings: AuditsSettings
    command: str
    device: torch.device
    tell: Say = say

    def __post_init__(self) -> None:
        self._data: LabelledData | None = None

    def data(self, job: Job) -> LabelledData:
        """The images of a job; one data set is kept in memory, as jobs come set by set."""
        if self._data is None or self._data.name != job.set:
            self.forget()
            self._data = read(job.set, self.settings.data, SIZE, self.settings.limit, self.tell)
        return self._data

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is computed that a package is missing, or that data or noise do not fit."""
        for package, extra in NEEDED.items():
            if jobs and find_spec(package) is None:
                raise MissingExtraError(package, extra, "`sgoif audit`")
        for job in {(job.set, job.noise): job for job in reversed(jobs)}.values():
            noisy(job.set, job.noise, self.data(job), job.seed, self.settings.data)

    def forget(self) -> None:
        """Give the images' memory back."""
        self._data = None

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        data = self.data(job)
        noise = noisy(job.set, job.noise, data, job.seed, self.settings.data)
        threads = self.settings.threads or torch.get_num_threads()
        scratch = Path(self.settings.scratch)
        scratch.mkdir(parents=True, exist_ok=True)
        lines = []
        with TemporaryDirectory(prefix=f"{job.set}-{job.noise}-{job.seed}-{job.family}-", dir=scratch) as name:
            place = Path(name).absolute()
            files = originals(job.set, self.settings.data, data.rows)
            numbers = write_folder(place / "images", noise.labels, job.seed, data.images, files)
            is_wrong = noise.is_wrong.copy()
            is_wrong[numbers] = noise.is_wrong
            environment = {"SGOIF_CACHE": str(place / "features"), "OMP_NUM_THREADS": str(threads)}
            for way in dict.fromkeys((job.family, *job.methods)):
                run = place / way
                options = ["--seed", str(job.seed), "--device", self.device.type, *WAYS[way].options]
                taken = run_audit([str(place / "images"), "--out", str(run), *options], environment)
                origin = self.origin(job, way)
                origin["machine"] |= {"torch_threads": threads}
                lines.append({**origin, **read_left(run, is_wrong), **asdict(taken)})
        return [line for line in lines if line["way"] in job.methods], {}
