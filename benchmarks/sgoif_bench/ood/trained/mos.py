"""MOS: classes in groups, an "others" in every group, and an input that is "others" everywhere does not belong.

Huang, Li: MOS: Towards Scaling Out-of-distribution Detection for Large Semantic Space. CVPR 2021.

The head gives group g with the classes C_g one logit for each class and one more for "others". With the softmax p^g
within the group, an example of class y has the target y in its own group and "others" in all the rest:

    L = Σ_g CE(p^g, y if y ∈ C_g else others)
    score = min_g p^g(others),    prediction = argmax over all groups and classes of p^g(class)

As in the paper a network that was trained plainly on the same classes is the start: its body is kept as it is, and only
the new head, at first zero, is trained (the authors' main setting, no block of the body opened). Groups come from the
paper's feature clustering: k-means of the mean features of the classes; or they are given. The authors take 8 groups of
1000 classes. classes^0.3 passes through that point and makes 2 groups of 10 classes and 4 of 100.

The head trains for 30% of the recipe's epochs (OpenOOD: 30 after 100), by the recipe, where the authors fine-tune by
the rule of BiT, whose mixup is part of the baselines as well and is left out for all.

Score. min_g p^g(others). Cost: one training and the forward passes of 30% of another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.rivals.common import torch_stream
from sgoif_bench.ood.trained.common import headless, kmeans, nearest, scored
from sgoif_bench.ood.trained.method import Scorer

GROUPS_POWER = 0.3
TUNING_SHARE = 30 / 100
FORWARD_SHARE = 1 / 3
"""A forward pass, as a share of a step of training: a backward pass costs about two more."""
KMEANS_ITERATIONS = 100
KMEANS_STARTS = 20
_CLUSTER_STREAM = 421


class Groups:
    """Which classes stand together. The outputs of the head are the classes in their order, then "others" by group."""

    def __init__(self, group_of: Sequence[int], device: torch.device) -> None:
        numbers = sorted(set(group_of))
        if numbers != list(range(len(numbers))) or len(numbers) < 2:
            raise SettingError(f"groups {list(group_of)} of MOS must be numbered 0, 1, … without a gap, at least two")
        self.group_of = torch.tensor(group_of, device=device)
        """[classes]"""
        self.classes, self.count = len(group_of), len(numbers)

    @property
    def outputs(self) -> int:
        """Of the head."""
        return self.classes + self.count

    def log_probabilities(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """log p^g of every class within its own group [n, classes], and of "others" in every group [n, groups]."""
        classes, others = logits.split([self.classes, self.count], dim=1)
        member = F.one_hot(self.group_of, self.count).T.bool()
        within = classes.unsqueeze(1).masked_fill(~member, -torch.inf)
        total = torch.cat([within, others.unsqueeze(2)], dim=2).logsumexp(dim=2)
        return classes - total[:, self.group_of], others - total

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy summed over the groups, mean over the batch."""
        classes, others = self.log_probabilities(logits)
        own = classes.gather(1, labels.unsqueeze(1)).squeeze(1)
        elsewhere = others.sum(dim=1) - others.gather(1, self.group_of[labels].unsqueeze(1)).squeeze(1)
        return -(own + elsewhere).mean()

    def score(self, logits: Tensor) -> Tensor:
        """min_g p^g(others), [n]."""
        return self.log_probabilities(logits)[1].min(dim=1).values.exp()


class GroupNetwork(nn.Module):
    """A body that no longer learns, and a head for the groups."""

    def __init__(self, body: nn.Module, width: int, groups: Groups) -> None:
        super().__init__()
        self.body = body.requires_grad_(False)
        self.head = skip_init(nn.Linear, width, groups.outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def train(self, mode: bool = True) -> GroupNetwork:
        """The body stays in evaluation mode: its batch statistics belong to what it has learned."""
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.body(images)
        logits: Tensor = self.head(features)
        return logits


class GroupClassifier(nn.Module):
    """Images to the log-probability of every class within its group; its largest is the prediction of MOS."""

    def __init__(self, network: GroupNetwork, groups: Groups) -> None:
        super().__init__()
        self.network, self.groups = network, groups

    def forward(self, images: Tensor) -> Tensor:
        return self.groups.log_probabilities(self.network(images).float())[0]


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean feature of every class, [classes, D]; 0 for a class without examples."""
    sums = torch.zeros(classes, features.shape[1], device=features.device).index_add_(0, labels, features)
    return sums / torch.bincount(labels, minlength=classes).clamp_min(1).unsqueeze(1)


def cluster_classes(means: Tensor, groups: int, generator: torch.Generator) -> list[int]:
    """The group of every class: the best of several runs of k-means on their mean features."""
    best, least = None, math.inf
    for _ in range(KMEANS_STARTS):
        which, centres = kmeans(means, groups, KMEANS_ITERATIONS, generator)
        spread = float(nearest(means, centres)[1].sum())
        if best is None or spread < least:
            best, least = which, spread
    assert best is not None
    return [int(group) for group in best]


def default_groups(classes: int) -> int:
    """classes^0.3, at least two."""
    return max(2, round(math.pow(classes, GROUPS_POWER)))


def mos(problem: Problem, outliers: Tensor | None, tell: Say, *, groups: int | Sequence[int] | None = None) -> Scorer:
    """Train plainly, group the classes, train a head for the groups; `groups` is their number or one for each class."""
    del outliers
    classes, epochs = problem.classes, problem.recipe.epochs
    if isinstance(groups, int) and not 2 <= groups <= classes:
        raise SettingError(f"groups = {groups} of MOS must lie between 2 and {classes}, the number of classes")
    if isinstance(groups, Sequence) and len(groups) != classes:
        raise SettingError(f"groups of MOS name {len(groups)} classes, but there are {classes}")
    plain = problem.fit(
        problem.new_model(),
        problem.batches(),
        on_epoch=lambda epoch: tell(f"mos, plain network: epoch {epoch} of {epochs}"),
    )
    if not isinstance(groups, Sequence):
        means = class_means(problem.features(plain), torch.from_numpy(problem.labels).to(problem.device), classes)
        count = default_groups(classes) if groups is None else groups
        groups = cluster_classes(means, count, torch_stream(problem, _CLUSTER_STREAM))
    parted = Groups(groups, problem.device)
    network = GroupNetwork(*headless(plain), parted).to(problem.device)
    batches, tuning = problem.batches(number=1), max(1, round(TUNING_SHARE * epochs))
    problem.fit(
        network,
        batches,
        epochs=tuning,
        optimizer=problem.optimizer(network.head, tuning * len(batches)),
        loss=lambda logits, labels, index: parted.loss(logits, labels),
        on_epoch=lambda epoch: tell(f"mos, head: epoch {epoch} of {tuning}"),
    )
    return Scorer(
        scored(network, parted.score),
        GroupClassifier(network, parted),
        trainings=1 + FORWARD_SHARE * tuning / epochs,
        details={"groups": np.array(groups).tolist(), "tuning_epochs": tuning},
    )
