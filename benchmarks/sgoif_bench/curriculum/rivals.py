"""Rivals that train so as to withstand wrong labels, trained as in `bench.labels`; here their network is tested."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from sgoif.tasks.curriculum import robust_loss
from sgoif_bench.curriculum.study import Study, Trained
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.rivals import coteaching as pairs
from sgoif_bench.labels.rivals import mixup as mixing
from sgoif_bench.labels.rivals import sce as symmetric
from sgoif_bench.labels.rivals.common import MeanPerExample


def symmetric_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Symmetric cross entropy with the paper's log 0 = −4; labels are classes [B] or probabilities [B, C]."""
    return robust_loss.symmetric_cross_entropies(logits, labels).mean()


def sce_network(problem: Problem, on_epoch: Callable[[nn.Module, int], None]) -> nn.Module:
    """A network that was trained with symmetric cross entropy; `on_epoch` sees it after every epoch."""
    return symmetric.train(problem, on_epoch, symmetric_loss)


def sce(study: Study) -> Trained:
    """Symmetric cross entropy."""
    sce_network(study.problem, lambda model, epoch: study.look(model))
    return Trained(details={"alpha": robust_loss.ALPHA, "beta": robust_loss.BETA})


def mixup(study: Study) -> Trained:
    """Mixup."""
    mixing.train(study.problem, lambda model, epoch: study.look(model))
    return Trained(details={"alpha": mixing.ALPHA})


def coteaching(study: Study) -> Trained:
    """Co-teaching; what is reported is the mean of its two networks, as its authors test both."""
    problem = study.problem
    forget_rate, cost = pairs.estimate_forget_rate(problem, study.tell)
    kept = MeanPerExample(len(problem), problem.device)

    def on_look(epoch: int, index: Tensor, look: pairs.Look) -> None:
        kept.add(index, look.kept_share())

    def on_epoch(pair: pairs.Pair, epoch: int) -> None:
        nonlocal kept
        study.look(*pair.models, weights=kept.result().astype(np.float32))
        kept = MeanPerExample(len(problem), problem.device)

    pairs.train(problem, forget_rate, on_look, study.tell, on_epoch)
    return Trained(2 + cost, {"forget_rate": forget_rate})
