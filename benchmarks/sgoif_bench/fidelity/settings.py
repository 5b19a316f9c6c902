"""What is asked for on the command line of `sgoif-bench fidelity`, and the jobs that come of it."""

from __future__ import annotations

from dataclasses import dataclass

from sgoif.errors import SettingError
from sgoif_bench.command import Device, listed, seeds_of, setting
from sgoif_bench.fidelity.grid import Job, Judging, plan
from sgoif_bench.fidelity.recipes import FidelityTraining, training_for
from sgoif_bench.fidelity.registry import choose

JUDGING: dict[str, Judging] = {
    "digits": Judging(subsets=100, left_out=(20,), brittle=4),
    "mnist": Judging(subsets=50),
    "cifar10": Judging(queries=200, subsets=100, trainings=1),
}
"""Queries and networks by data set, as many as are quick to train."""
FEWEST = 4


@dataclass(frozen=True)
class FidelitySettings:
    """Data sets, methods, seeds, and what scores are judged by. What is left unset comes from the data set."""

    data: str | None = setting(None, help="folder that holds the data sets; digits needs none")
    sets: str = setting("digits", help="data sets, separated by commas: digits, mnist, cifar10")
    methods: str = setting("all", help="methods, separated by commas; all, ours, peers and rivals stand for several")
    wrong_shares: str = setting("0.1", help="shares of training labels that are made wrong, separated by commas")
    seeds: str = setting("0", help="seeds of wrong labels, queries, subsets, weights and batches")
    queries: int | None = setting(None, help="test images asked about; unset: by data set")
    subsets: int | None = setting(None, help="subsets on which networks are trained again; unset: by data set")
    trainings: int | None = setting(None, help="networks per subset; unset: by data set")
    share: float = setting(0.5, help="share of the training examples in a subset")
    left_out: str | None = setting(
        None, help="sizes of groups that are left out, separated by commas, or none; unset: by data set"
    )
    groups: int | None = setting(None, help="groups of each of these sizes; unset: by data set")
    brittle: int | None = setting(
        None, help="queries whose most helpful examples are removed, for every method; unset: by data set"
    )
    alone: int | None = setting(
        None, help="examples that are left out one by one, each in pairs of trainings that differ in nothing else"
    )
    relabelled: str | None = setting(
        None, help="sizes of sets of examples whose label is changed, separated by commas, or none"
    )
    changes: int | None = setting(None, help="sets of each of these sizes; unset: by data set")
    pairs: int | None = setting(None, help="pairs of trainings for each of these changes; unset: by data set")
    epochs: int | None = setting(None, help="epochs of training; unset: by data set")
    batch_size: int | None = setting(None, help="examples in a batch; unset: by data set")
    learning_rate: float | None = setting(None, help="peak of the one-cycle schedule; unset: by data set")
    model: str | None = setting(
        None, help="network: mlp, cnn, linear, resnet9, resnet18, small-cnn, tiny-vit or digits-net; unset: by data set"
    )
    augment: bool | None = setting(None, help="move and mirror images at random; unset: by data set")
    limit: int | None = setting(None, help="use only so many training examples of each data set; unset: by data set")
    cache: str | None = setting(None, help="folder for the networks' answers; unset: beside --out")
    workers: int = setting(1, help="processes that train the truth at the same time, dealt out over the GPUs")
    device: Device = setting("auto", help="where to train")

    def __post_init__(self) -> None:
        least = {"workers": 1, "queries": 2, "subsets": 4, "trainings": 1, "groups": 4, "brittle": 0, "alone": 0}
        for name, smallest in {**least, "changes": 4, "pairs": 1}.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise SettingError(f"{name} = {value} must be at least {smallest}")
        if self.alone is not None and 0 < self.alone < FEWEST:
            raise SettingError(f"alone = {self.alone} examples are too few to rank; 0 for none, or at least {FEWEST}")
        if not 0 < self.share < 1:
            raise SettingError(f"share = {self.share} must lie strictly between 0 and 1")
        self.jobs()

    def trainings_by_set(self) -> dict[str, FidelityTraining]:
        """The recipe of every data set."""
        changes = ("epochs", "batch_size", "learning_rate", "model", "augment", "limit")
        wanted = {change: getattr(self, change) for change in changes}
        return {name: training_for(name, **wanted) for name in listed(self.sets, "sets")}

    def judging(self, name: str) -> Judging:
        """What scores on a data set are judged by."""
        usual = JUDGING.get(name, Judging())

        def pick(field: str) -> int:
            given: int | None = getattr(self, field)
            found: int = getattr(usual, field) if given is None else given
            return found

        sizes = usual.left_out if self.left_out is None else _sizes(self.left_out, "left-out")
        relabelled = usual.relabelled if self.relabelled is None else _sizes(self.relabelled, "relabelled")
        return Judging(
            queries=pick("queries"),
            subsets=pick("subsets"),
            trainings=pick("trainings"),
            share=self.share,
            left_out=sizes,
            groups=pick("groups"),
            brittle=pick("brittle"),
            alone=pick("alone"),
            relabelled=relabelled,
            changes=pick("changes"),
            pairs=pick("pairs"),
        )

    def jobs(self) -> list[Job]:
        """Every study that is asked for, done or not."""
        trainings = self.trainings_by_set()
        judging = {name: self.judging(name) for name in trainings}
        return plan(trainings, _shares(self.wrong_shares), choose(self.methods), seeds_of(self.seeds), judging)


def _shares(text: str) -> list[float]:
    found = []
    for word in listed(text, "wrong-shares"):
        try:
            share = float(word)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            raise SettingError(f"--wrong-shares takes numbers from 0 to below 1, separated by commas; got {word!r}")
        found.append(share)
    return found


def _sizes(text: str, option: str) -> tuple[int, ...]:
    words = listed(text, option)
    if words == ["none"]:
        return ()
    for word in words:
        if not word.isdecimal() or int(word) < 1:
            raise SettingError(f"--{option} takes whole numbers from 1 up, separated by commas, or none; got {word!r}")
    return tuple(int(word) for word in words)
