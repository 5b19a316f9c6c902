"""What is asked for on the command line of `sgoif-bench labels`, and the jobs that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sgoif.errors import SettingError
from sgoif_bench.command import Device, listed, seeds_of, setting
from sgoif_bench.labels.grid import Job, plan
from sgoif_bench.labels.noises import parse
from sgoif_bench.labels.recipes import Training, file_identity, training_for
from sgoif_bench.labels.registry import choose


@dataclass(frozen=True)
class LabelsSettings:
    """One grid. What is left unset comes from the data set's recipe."""

    data: str | None = setting(None, help="folder that holds the data sets; digits needs none")
    sets: str = setting("digits", help="data sets, separated by commas")
    noises: str = setting(
        "symmetric-20,class-dependent-20",
        help="kinds of wrong labels, separated by commas; also package.module:function",
    )
    methods: str = setting(
        "all",
        help="all, simple (share a training), heavy (train their own way), ablations, names, package.module:function",
    )
    seeds: str = setting("0", help="seeds of noise, split, initial weights and batches, separated by commas")
    epochs: int | None = setting(None, help="epochs of training; unset: by data set")
    batch_size: int | None = setting(None, help="examples in a batch; unset: by data set")
    learning_rate: float | None = setting(None, help="peak of the one-cycle schedule; unset: by data set")
    model: str | None = setting(
        None, help="network: resnet9, resnet18, small-cnn, tiny-vit or digits-net; unset: by data set"
    )
    image: int | None = setting(None, help="pixels a side to which images are brought; unset: by data set")
    augment: bool | None = setting(None, help="move and mirror images at random; unset: by data set")
    anchors: int | None = setting(None, help="held-out examples, with their noisy labels")
    limit: int | None = setting(None, help="use only so many examples of each data set")
    human: str | None = setting(
        None, help="file with human labels, as published (.pt) or .npz, .npy, .csv; for noises that start with human"
    )
    solo: bool = setting(False, help="train for every method alone, for honest cost figures")
    remove: float | None = setting(
        None,
        help="also train again without what the method flags, or without this share, and test that network;"
        " 0 with a method that flags nothing trains on everything",
    )
    workers: int = setting(1, help="processes that train at the same time, dealt out over the GPUs")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers = {self.workers} must be at least 1")
        if self.remove is not None and not 0 <= self.remove < 1:
            raise SettingError(f"remove = {self.remove} must be at least 0 and below 1")
        for noise in listed(self.noises, "noises"):
            parse(noise)
        self.jobs()

    def trainings(self) -> dict[str, Training]:
        """The recipe of every data set."""
        changes = ("epochs", "batch_size", "learning_rate", "model", "image", "augment", "anchors", "limit")
        return {
            name: training_for(name, **{change: getattr(self, change) for change in changes})
            for name in listed(self.sets, "sets")
        }

    def jobs(self) -> list[Job]:
        """Everything that is asked for, done or not."""
        noises, human = listed(self.noises, "noises"), None
        if self.human is not None and any(noise.startswith("human") for noise in noises):
            human = file_identity(Path(self.human))
        seeds = seeds_of(self.seeds)
        return plan(self.trainings(), noises, choose(self.methods), seeds, human=human, solo=self.solo)
