"""UDG: cluster labelled and unlabelled images together; unlabelled ones in a pure cluster get its class.

Yang, Wang, Feng, Yan, Zheng, Zhang, Liu: Semantically Coherent Out-of-Distribution Detection. ICCV 2021. The method is
their unsupervised dual grouping.

The unlabelled set may hold images of the known classes, which must not be taught as outliers. Before every epoch:

    group   features of all images (evaluation mode, no augmentation) are whitened on their leading 256 principal
            directions and brought to length 1; k-means makes 1000 clusters of them
    filter  where more than τ = 0.8 of a cluster has one and the same label, every unlabelled image in it gets that
            label until the next epoch; all other unlabelled images have the label "unknown". Shares are of the labels
            of the epoch before, in which filtered images count with the label they had

Then the network learns with a second head on the same features, which starts anew in every epoch:

    L = CE over labelled and filtered images
      + 0.5 · mean of −(1/K) Σ_k log p_k over unknown images                          (their answers become uniform)
      + 0.1 · mean of r_c CE(second head, cluster c) over all images                  (deep clustering)
    r_c = |c|^−½ / mean of |c|^−½ over the clusters

A batch of labelled images comes with one twice as large of unlabelled ones (128 and 256). All values are the authors'
for CIFAR-10, OpenOOD's too. At these values their extra weight for clusters of unknown images has no effect, since it
is looked at only where no label has more than τ; it is left out.

Score. log(1 − max_k p_k), the order of MSP. Cost: labelled and unlabelled images seen, so about three trainings, and a
forward pass of all images in every epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from sgoif.errors import SettingError
from sgoif_bench.batches import Batches
from sgoif_bench.command import Say
from sgoif_bench.labels.problem import Problem, last_linear
from sgoif_bench.labels.rivals.common import torch_stream
from sgoif_bench.ood.trained.common import Tap, check_outliers, kmeans, log_doubt, scored
from sgoif_bench.ood.trained.method import Scorer

CLUSTERS = 1000
PURITY = 0.8
UNIFORM_WEIGHT = 0.5
CLUSTER_WEIGHT = 0.1
PRINCIPAL = 256
KMEANS_ITERATIONS = 20
BATCH_RATIO = 2
SECOND_HEAD_SPREAD = 0.01
LEAST_PER_CLUSTER = 40
"""Images that a cluster must hold on average; small sets have fewer clusters."""
UNKNOWN = -1
_CLUSTER_STREAM, _HEAD_STREAM = 431, 432


class Grouping(NamedTuple):
    """What an epoch is taught, for every image: the labelled ones, then the unlabelled."""

    clusters: Tensor
    weights: Tensor
    """r of the image's cluster."""
    labels: Tensor
    """UNKNOWN for unlabelled images outside pure clusters."""


def whitened(features: Tensor, directions: int = PRINCIPAL) -> Tensor:
    """Principal components scaled to equal variance, each row then brought to length 1."""
    centred = (features - features.mean(dim=0)).double()
    variance, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
    # Directions without variance, such as those of units that are never active, would only add noise.
    chosen = (variance > 1e-6 * variance[-1]).nonzero().flatten().flip(0)[:directions]
    if not len(chosen):
        return F.normalize(features, dim=1)
    turned = centred @ (axes[:, chosen] / variance[chosen].sqrt())
    return F.normalize(turned.to(features.dtype), dim=1)


def filtered(clusters: Tensor, labels: Tensor, count: int, classes: int, purity: float) -> Tensor:
    """For every image the label that more than `purity` of its cluster has, or UNKNOWN."""
    tally = torch.zeros(count, classes + 1, device=labels.device)
    tally.index_put_((clusters, labels - UNKNOWN), torch.ones_like(labels, dtype=tally.dtype), accumulate=True)
    share, most = (tally / tally.sum(dim=1, keepdim=True).clamp_min(1)).max(dim=1)
    return torch.where(share > purity, most + UNKNOWN, UNKNOWN)[clusters]


def cluster_weights(clusters: Tensor, count: int) -> Tensor:
    """r of every image's cluster."""
    sizes = torch.bincount(clusters, minlength=count).float()
    weight = sizes.clamp_min(1).rsqrt()
    return (weight / weight[sizes > 0].mean())[clusters]


def regroup(
    features: Tensor, labels: Tensor, labelled: int, count: int, classes: int, purity: float, generator: torch.Generator
) -> Grouping:
    """Cluster all images and give labels to unlabelled ones; the first `labelled` keep theirs."""
    clusters, _ = kmeans(whitened(features), count, KMEANS_ITERATIONS, generator)
    found = filtered(clusters, labels, count, classes, purity)
    return Grouping(clusters, cluster_weights(clusters, count), torch.cat([labels[:labelled], found[labelled:]]))


def udg_loss(logits: Tensor, second: Tensor, labels: Tensor, clusters: Tensor, weights: Tensor) -> Tensor:
    """The three terms for a batch of labelled and unlabelled images together."""
    known = labels != UNKNOWN
    logs = logits.log_softmax(dim=1)
    supervised = F.nll_loss(logs[known], labels[known])
    unsure = -logs[~known].mean(dim=1).sum() / (~known).sum().clamp_min(1)
    grouped = (weights * F.cross_entropy(second, clusters, reduction="none")).mean()
    return supervised + UNIFORM_WEIGHT * unsure + CLUSTER_WEIGHT * grouped


def unlabelled_problem(problem: Problem, outliers: Tensor) -> Problem:
    """The outliers as a problem of their own, with the same normalisation and larger batches."""
    recipe = dataclasses.replace(problem.recipe, batch_size=BATCH_RATIO * problem.recipe.batch_size)
    unlabelled = dataclasses.replace(
        problem, images=outliers, labels=np.zeros(len(outliers), dtype=np.int64), recipe=recipe
    )
    unlabelled.mean, unlabelled.spread = problem.mean, problem.spread
    return unlabelled


def _endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    while True:
        yield from batches


def cluster_count(images: int, clusters: int) -> int:
    """At most `clusters`, and few enough that they hold 40 images on average."""
    return max(1, min(clusters, images // LEAST_PER_CLUSTER))


def udg(
    problem: Problem,
    outliers: Tensor | None,
    tell: Say,
    *,
    clusters: int = CLUSTERS,
    purity: float = PURITY,
) -> Scorer:
    """Train on the problem and the unlabelled images; the score is the log of one minus the largest probability."""
    if clusters < 1:
        raise SettingError(f"clusters = {clusters} of UDG must be at least 1")
    if not 0 < purity < 1:
        raise SettingError(f"purity = {purity} of UDG must lie strictly between 0 and 1")
    unlabelled = unlabelled_problem(problem, check_outliers(problem, outliers, "UDG"))
    labelled, epochs = len(problem), problem.recipe.epochs
    count = cluster_count(labelled + len(unlabelled), clusters)
    model = problem.new_model()
    second = skip_init(nn.Linear, last_linear(model).in_features, count, device=problem.device)
    batches, further = problem.batches(), unlabelled.batches(number=1)
    optimizer, schedule = problem.optimizer(nn.ModuleList([model, second]), epochs * len(batches))
    streams = torch_stream(problem, _CLUSTER_STREAM), torch_stream(problem, _HEAD_STREAM)
    given = torch.from_numpy(problem.labels).to(problem.device)
    labels = torch.cat([given, given.new_full((len(unlabelled),), UNKNOWN)])
    stream, taught, filtered_counts = _endless(further), 0, []
    for epoch in range(1, epochs + 1):
        features = torch.cat([problem.features(model), unlabelled.features(model)])
        groups = regroup(features, labels, labelled, count, problem.classes, purity, streams[0])
        labels = groups.labels
        filtered_counts.append(int((labels[labelled:] != UNKNOWN).sum()))
        nn.init.normal_(second.weight, std=SECOND_HEAD_SPREAD, generator=streams[1])
        nn.init.zeros_(second.bias)
        model.train()
        for x, _, index in batches:
            u, _, which = next(stream)
            rows = torch.cat([index, which + labelled]).to(problem.device)
            parts = []
            with Tap(model) as tap, problem.autocast():
                # Two passes, as by the authors: batch norm sees labelled and unlabelled images apart.
                for images in (x, u):
                    logits = model(images)
                    parts.append((logits, second(tap.features)))
            logits, assigned = (torch.cat(both).float() for both in zip(*parts, strict=True))
            udg_loss(logits, assigned, labels[rows], groups.clusters[rows], groups.weights[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            taught += len(rows)
        tell(f"udg: epoch {epoch} of {epochs}, {filtered_counts[-1]} unlabelled images filtered")
    return Scorer(
        scored(model, log_doubt),
        model,
        trainings=taught / (epochs * labelled),
        details={"clusters": count, "purity": purity, "filtered": filtered_counts},
    )
