"""What is asked for on the command line of `sgoif-bench poisoning`, and the jobs that come of it."""

from __future__ import annotations

from dataclasses import dataclass

from sgoif.errors import SettingError
from sgoif_bench.command import Device, listed, seeds_of, setting
from sgoif_bench.labels.recipes import changed
from sgoif_bench.poisoning.attacks.naming import full_name
from sgoif_bench.poisoning.grid import Job, plan
from sgoif_bench.poisoning.recipes import TRAININGS, PoisonTraining
from sgoif_bench.poisoning.registry import choose


@dataclass(frozen=True)
class PoisoningSettings:
    """One grid. What is left unset comes from the data set's recipe."""

    data: str | None = setting(None, help="folder that holds the data sets; digits needs none")
    sets: str = setting("digits", help="data sets, separated by commas: digits, mnist, fashion-mnist, cifar10")
    attacks: str = setting(
        "badnets-1,blended-1",
        help="attacks with their rates in percent, separated by commas: badnets, blended, clean-label, label-flip,"
        " gradient-matching, or none",
    )
    methods: str = setting("all", help="all, known (start from victims), unknown, ours, rivals, or names")
    seeds: str = setting("0", help="seeds of attack, split, initial weights and batches, separated by commas")
    known: int = setting(10, help="triggered test inputs that are known; success is measured on others")
    retrain: str = setting(
        "all", help="methods for which a network is trained without what they remove, named as in --methods; or none"
    )
    epochs: int | None = setting(None, help="epochs of training; unset: by data set")
    batch_size: int | None = setting(None, help="examples in a batch; unset: by data set")
    learning_rate: float | None = setting(None, help="peak of the one-cycle schedule; unset: by data set")
    model: str | None = setting(
        None, help="network: resnet9, resnet18, small-cnn, tiny-cnn, tiny-vit or digits-net; unset: by data set"
    )
    image: int | None = setting(None, help="pixels a side to which images are brought; unset: as they are")
    augment: bool | None = setting(None, help="move and mirror images at random; unset: by data set")
    anchors: int | None = setting(None, help="held-out examples of the poisoned data; unset: by data set")
    limit: int | None = setting(None, help="use only so many training examples of each data set")
    test_limit: int | None = setting(None, help="test on only so many images of each set")
    workers: int = setting(1, help="processes that train at the same time, dealt out over the GPUs")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        for name in ("workers", "known"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.test_limit is not None and self.test_limit < 2:
            raise SettingError(f"test_limit = {self.test_limit} must be at least 2")
        self.retrained()
        if not self.jobs():
            raise SettingError(
                "nothing is left to do: without an attack there are no victims, and all of --methods start from them"
            )

    def trainings(self) -> dict[str, PoisonTraining]:
        """The recipe of every data set."""
        changes = ("epochs", "batch_size", "learning_rate", "model", "image", "augment", "anchors", "limit")
        wanted = {change: getattr(self, change) for change in changes}
        return {name: changed(TRAININGS, name, **wanted) for name in listed(self.sets, "sets")}

    def retrained(self) -> set[str]:
        """The methods for which a network is trained again."""
        return set() if self.retrain.strip() == "none" else set(choose(self.retrain))

    def jobs(self) -> list[Job]:
        """Everything that is asked for, done or not."""
        attacks = list(dict.fromkeys(full_name(name) for name in listed(self.attacks, "attacks")))
        methods, seeds = choose(self.methods), seeds_of(self.seeds)
        return plan(self.trainings(), attacks, methods, seeds, known=self.known, test_limit=self.test_limit)
