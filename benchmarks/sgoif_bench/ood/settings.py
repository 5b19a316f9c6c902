"""What is asked for on the command line of `sgoif-bench ood`, and the jobs that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sgoif.errors import SettingError
from sgoif_bench.command import Device, listed, seeds_of, setting
from sgoif_bench.labels.noises import parse
from sgoif_bench.labels.recipes import changed, file_identity
from sgoif_bench.ood.datasets import outliers_identity, read_outliers
from sgoif_bench.ood.grid import Job, plan
from sgoif_bench.ood.protocol import protocol_of
from sgoif_bench.ood.recipes import TRAININGS, OodTraining
from sgoif_bench.ood.registry import METHODS, choose

LEAST_TESTED = 2


@dataclass(frozen=True)
class OodSettings:
    """One grid. What is left unset comes from the data set's recipe."""

    data: str | None = setting(None, help="folder that holds the data sets, in the layouts of their publishers")
    protocol: str = setting("v1.5", help="near and far sets: v1.5 or v1 (OpenOOD's), or house (few and small)")
    sets: str = setting("cifar10", help="in-distribution sets, separated by commas: mnist, cifar10, cifar100, imagenet")
    methods: str = setting(
        "all",
        help="all, post-hoc (share a network), trained (train their own way), ablations, or names: "
        + ", ".join(METHODS),
    )
    seeds: str = setting("0", help="seeds of noise, initial weights and batches, separated by commas")
    noise: str = setting("none", help="wrong labels to train with, as in `sgoif-bench labels`, such as symmetric-20")
    epochs: int | None = setting(None, help="epochs of training; unset: by data set (CIFAR 30, MNIST 10)")
    batch_size: int | None = setting(None, help="examples in a batch; unset: by data set")
    learning_rate: float | None = setting(None, help="peak of the one-cycle schedule; unset: by data set")
    model: str | None = setting(
        None, help="network: lenet, resnet18, resnet50, resnet9, small-cnn or tiny-vit; unset: by data set"
    )
    image: int | None = setting(None, help="pixels a side to which images are brought; unset: by data set")
    augment: bool | None = setting(None, help="move and mirror images at random; unset: by data set")
    limit: int | None = setting(None, help="train on only so many examples of each data set")
    test_limit: int | None = setting(None, help="test on only so many images of each set")
    human: str | None = setting(
        None, help="file with human labels, as published (.pt) or .npz, .npy, .csv; for a noise that starts with human"
    )
    outliers: str | None = setting(
        None,
        help="images without labels for methods that train with outliers (udg): folder, FILE.npz with x, or procedural"
        " (pictures that are generated)",
    )
    weights: str | None = setting(
        None, help="FILE.pt with weights of the network; post-hoc detectors then look at it and nothing is trained"
    )
    networks: str | None = setting(
        None, help="folder that keeps trained networks, so that further post-hoc detectors look at the same ones"
    )
    workers: int = setting(1, help="processes that train at the same time, dealt out over the GPUs")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers = {self.workers} must be at least 1")
        if self.test_limit is not None and self.test_limit < LEAST_TESTED:
            raise SettingError(f"test_limit = {self.test_limit} must be at least {LEAST_TESTED}")
        parse(self.noise)
        if self.outliers is not None:
            read_outliers(Path(self.outliers))
        self.jobs()

    def trainings(self) -> dict[str, OodTraining]:
        """The recipe of every data set."""
        protocol = protocol_of(self.protocol)
        changes = ("epochs", "batch_size", "learning_rate", "model", "image", "augment", "limit")
        wanted = {change: getattr(self, change) for change in changes}
        names = listed(self.sets, "sets")
        for name in names:
            protocol.groups(name)
        return {name: changed(TRAININGS, name, **wanted) for name in names}

    def chosen(self) -> tuple[list[str], list[str]]:
        """The methods that are asked for and can be run, and those that lack outliers to train with."""
        asked = choose(self.methods)
        without = [name for name in asked if METHODS[name].needs_outliers and self.outliers is None]
        left = [name for name in asked if name not in without]
        if not left:
            raise SettingError(
                f"{', '.join(without)} trains with outliers: give --outliers, a folder, an .npz file or procedural"
            )
        return left, without

    def jobs(self) -> list[Job]:
        """Everything that is asked for, done or not."""
        methods, _ = self.chosen()
        human = None
        if self.human is not None and self.noise.startswith("human"):
            human = file_identity(Path(self.human))
        outliers = ""
        if self.outliers is not None and any(METHODS[name].needs_outliers for name in methods):
            outliers = f"outliers {outliers_identity(Path(self.outliers))}"
        return plan(
            self.trainings(),
            self.protocol,
            self.noise,
            methods,
            seeds_of(self.seeds),
            human=human,
            test_limit=self.test_limit,
            outliers=outliers,
            weights="" if self.weights is None else f"weights {file_identity(Path(self.weights))}",
        )
