"""What is asked for on the command line of `sgoif-bench curriculum`, and the jobs that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sgoif.errors import SettingError
from sgoif.tasks.curriculum import CurriculumSettings
from sgoif_bench.command import Device, listed, seeds_of, setting
from sgoif_bench.curriculum.grid import Job, plan
from sgoif_bench.curriculum.recipes import TRAININGS, CurriculumTraining
from sgoif_bench.curriculum.registry import choose
from sgoif_bench.labels.noises import parse
from sgoif_bench.labels.recipes import changed, file_identity

OPTIONS = ("joined", "warm_up", "speed", "sharpness", "floor", "fade")
"""What can be asked of our curriculum."""


def check_options(options: Mapping[str, float]) -> None:
    """Raise where a curriculum cannot be made with these."""
    joined = options.get("joined", 0.0)
    if not 0 <= joined < 1:
        raise SettingError(f"joined = {joined} must be a share in [0, 1) of the epochs")
    curriculum_settings(options)


def curriculum_settings(options: Mapping[str, float], *, robust: bool = False) -> CurriculumSettings:
    """Those of our curriculum; when the hold-out joins is none of them."""
    ours: dict[str, Any] = {name: value for name, value in options.items() if name != "joined"}
    return CurriculumSettings(**ours, robust=robust)


@dataclass(frozen=True)
class CurriculumBenchSettings:
    """One grid. What is left unset comes from the data set's recipe."""

    data: str | None = setting(None, help="folder that holds the data sets; digits needs none")
    sets: str = setting("digits", help="data sets, separated by commas")
    noises: str = setting(
        "class-dependent-20,symmetric-40,none", help="kinds of wrong labels, separated by commas, as in bench labels"
    )
    tail: str = setting("none", help="none, or ratios of the largest to the smallest class, such as none,50")
    methods: str = setting("all", help="all, ours, rivals (plain training among them), or names")
    seeds: str = setting("0", help="seeds of noise, split, initial weights and batches, separated by commas")
    epochs: int | None = setting(None, help="epochs of training; unset: by data set")
    batch_size: int | None = setting(None, help="examples in a batch; unset: by data set")
    learning_rate: float | None = setting(None, help="peak of the one-cycle schedule; unset: by data set")
    model: str | None = setting(
        None, help="network: resnet9, resnet18, small-cnn, tiny-vit, digits-net or mlp; unset: by data set"
    )
    image: int | None = setting(None, help="pixels a side to which images are brought; unset: by data set")
    augment: bool | None = setting(None, help="move and mirror images at random; unset: by data set")
    anchors: int | None = setting(None, help="held-out examples of ours, with their noisy labels")
    limit: int | None = setting(None, help="train on only so many examples of each data set")
    joined: float | None = setting(None, help="share of the epochs, at the end, in which our hold-out is trained on")
    warm_up: float | None = setting(None, help="of our curriculum, as are the next four; unset: its defaults")
    speed: float | None = setting(None, help="part of the way that its weights move at a judgement")
    sharpness: float | None = setting(None, help="how decided its weights are")
    floor: float | None = setting(None, help="least share of its weight that an example keeps")
    fade: float | None = setting(None, help="what an answer counts for over what it counted for a judgement before")
    human: str | None = setting(
        None, help="file with human labels, as published (.pt) or .npz, .npy, .csv; for noises that start with human"
    )
    workers: int = setting(1, help="processes that train at the same time, dealt out over the GPUs")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers = {self.workers} must be at least 1")
        for noise in listed(self.noises, "noises"):
            parse(noise)
        check_options(dict(self.options()))
        self.jobs()

    def options(self) -> tuple[tuple[str, float], ...]:
        """What is asked of our curriculum beside its defaults."""
        given = ((name, getattr(self, name)) for name in OPTIONS)
        return tuple((name, float(value)) for name, value in given if value is not None)

    def tails(self) -> list[float | None]:
        """The ratios that are asked for; None: the data set as it is."""
        found: list[float | None] = []
        for word in listed(self.tail, "tail"):
            try:
                found.append(None if word == "none" else float(word))
            except ValueError as error:
                raise SettingError(f"--tail takes none or numbers such as 50; got {word!r}") from error
        return found

    def trainings(self) -> list[tuple[str, CurriculumTraining]]:
        """Every data set with each tail, and its recipe."""
        changes = ("epochs", "batch_size", "learning_rate", "model", "image", "augment", "anchors", "limit")
        wanted = {change: getattr(self, change) for change in changes}
        return [
            (name, replace(changed(TRAININGS, name, **wanted), tail=tail))
            for name in listed(self.sets, "sets")
            for tail in self.tails()
        ]

    def jobs(self) -> list[Job]:
        """Everything that is asked for, done or not."""
        noises, human = listed(self.noises, "noises"), None
        if self.human is not None and any(noise.startswith("human") for noise in noises):
            human = file_identity(Path(self.human))
        return plan(self.trainings(), noises, choose(self.methods), seeds_of(self.seeds), human, self.options())
