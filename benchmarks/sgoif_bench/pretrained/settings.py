"""What is asked for on the command line of `sgoif-bench pretrained`, and the jobs that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from sgoif.audit.plan import TUNED_EPOCHS
from sgoif.backbones import Backbone
from sgoif.errors import SettingError
from sgoif_bench.command import Device, listed, seeds_of, setting
from sgoif_bench.labels.noises import parse
from sgoif_bench.pretrained.grid import Job
from sgoif_bench.pretrained.recipes import Recipe, Views
from sgoif_bench.pretrained.registry import by_family, choose
from sgoif_bench.pretrained.sets import SETS


@dataclass(frozen=True)
class PretrainedSettings:
    """One grid."""

    data: str | None = setting(None, help="folder that holds the data sets; digits needs none")
    scratch: str = setting(
        "runs/pretrained",
        help="folder for features and out-of-fold probabilities; files that another machine made are used from there",
    )
    sets: str = setting("digits", help=f"data sets, separated by commas: {', '.join(SETS)}")
    noises: str | None = setting(
        None,
        help="kinds of wrong labels, separated by commas, as in bench labels; unset: what people said for CIFAR, 15%%"
        " planted for others",
    )
    methods: str = setting("all", help="all, frozen, finetuned, ours, rivals, or names")
    seeds: str = setting("0", help="seeds of noise, folds, weights and batches, separated by commas")
    backbone: str = setting("lite0", help="pretrained network, as load_backbone knows it")
    size: int | None = setting(None, help="pixels a side that it sees; unset: five times the images' side, or its own")
    limit: int | None = setting(None, help="use only so many examples of each data set")
    epochs: int = setting(TUNED_EPOCHS, help="epochs of a fine-tuning")
    views: Views = setting(
        "images", help="what an epoch of SimiFeat looks at: images changed anew, or half of the kept features"
    )
    device: Device = setting("auto", help="where networks run")

    def __post_init__(self) -> None:
        for name in listed(self.sets, "sets"):
            if name not in SETS:
                raise SettingError(f"there is no data set {name!r}; choose from {', '.join(SETS)}")
        for noise in listed(self.noises, "noises") if self.noises is not None else ():
            parse(noise)
        seeds_of(self.seeds)
        choose(self.methods)

    def jobs(self, backbone: Backbone) -> list[Job]:
        """Everything that is asked for, done or not; data set by data set."""
        families = by_family(choose(self.methods))
        found = []
        for name in listed(self.sets, "sets"):
            noises = SETS[name].noises if self.noises is None else listed(self.noises, "noises")
            recipe = self.recipe(name, backbone)
            found += [
                Job(name, noise, seed, family, tuple(methods), recipe)
                for seed, noise, (family, methods) in product(seeds_of(self.seeds), noises, families.items())
            ]
        return found

    def recipe(self, name: str, backbone: Backbone) -> Recipe:
        """That of a data set."""
        side = SETS[name].side
        usual = backbone.size if side is None else backbone.resolution_for(side)
        size = usual if self.size is None else backbone.checked_size(self.size)
        return Recipe(
            backbone=self.backbone.partition(":")[0],
            digest=backbone.digest[:12],
            size=size,
            limit=self.limit,
            views=self.views,
            epochs=self.epochs,
        )
