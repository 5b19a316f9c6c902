"""What is asked for on the command line of `sgoif-bench unlearning`, and the runs that come of it."""

from __future__ import annotations

from dataclasses import dataclass

from sgoif.errors import SettingError
from sgoif_bench.command import Device, listed, seeds_of, setting
from sgoif_bench.ood.recipes import OodTraining
from sgoif_bench.unlearning.grid import Deletions, Job
from sgoif_bench.unlearning.recipes import training_for

FULL_GROUPS = {"digits": 12}
"""Groups without which the whole network is trained again, where that is quick."""


@dataclass(frozen=True)
class UnlearningSettings:
    """Data sets and seeds. What is left unset comes from the data set's recipe."""

    data: str | None = setting(None, help="folder that holds the data sets; digits needs none")
    sets: str = setting("digits", help="data sets, separated by commas: digits, mnist, cifar10, ...")
    seeds: str = setting("0", help="seeds of split, initial weights, batches and deletions, separated by commas")
    singles: int = setting(200, help="deletions of one example, half at random, half the most influential")
    groups: int = setting(60, help="deletions of groups: at random, of one class, neighbours of each other")
    smallest: int = setting(10, help="smallest group")
    largest: int = setting(50, help="largest group")
    l2: float = setting(5e-4, help="L2 penalty of the head; the weight decay of the training")
    full_groups: int | None = setting(
        None, help="also train the whole network again without so many groups; unset: 12 for digits, else none"
    )
    full_seeds: int = setting(4, help="trainings of the whole network per group")
    epochs: int | None = setting(None, help="epochs of training; unset: by data set")
    batch_size: int | None = setting(None, help="examples in a batch; unset: by data set")
    learning_rate: float | None = setting(None, help="peak of the one-cycle schedule; unset: by data set")
    model: str | None = setting(
        None, help="network: resnet9, resnet18, small-cnn, tiny-vit, lenet or digits-net; unset: by data set"
    )
    augment: bool | None = setting(None, help="move and mirror images at random; unset: by data set")
    anchors: int | None = setting(None, help="held-out examples that a deletion is judged by; unset: by data set")
    limit: int | None = setting(None, help="use only so many training examples of each data set")
    workers: int = setting(1, help="processes that work at the same time, dealt out over the GPUs")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        least = {"workers": 1, "singles": 4, "groups": 3, "smallest": 1, "full_seeds": 2}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise SettingError(f"{name} = {getattr(self, name)} must be at least {smallest}")
        if self.largest < self.smallest:
            raise SettingError(f"largest = {self.largest} must not be below smallest = {self.smallest}")
        if not self.l2 > 0:
            raise SettingError(f"l2 = {self.l2} must be positive")
        if self.full_groups is not None and not 0 <= self.full_groups <= self.groups:
            raise SettingError(f"full_groups = {self.full_groups} must lie between 0 and groups = {self.groups}")
        self.jobs()

    def trainings(self) -> dict[str, OodTraining]:
        """The recipe of every data set."""
        changes = ("epochs", "batch_size", "learning_rate", "model", "augment", "anchors", "limit")
        wanted = {change: getattr(self, change) for change in changes}
        return {name: training_for(name, **wanted) for name in listed(self.sets, "sets")}

    def jobs(self) -> list[Job]:
        """Everything that is asked for, done or not."""
        return [
            Job(name, seed, training, self.deletions(name))
            for name, training in self.trainings().items()
            for seed in seeds_of(self.seeds)
        ]

    def deletions(self, name: str) -> Deletions:
        """What is deleted from a data set."""
        full = min(FULL_GROUPS.get(name, 0), self.groups) if self.full_groups is None else self.full_groups
        sizes = self.singles, self.groups, self.smallest, self.largest
        return Deletions(*sizes, self.l2, full, self.full_seeds)
