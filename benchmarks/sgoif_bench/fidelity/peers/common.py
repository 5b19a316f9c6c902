"""What the adaptors share."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sgoif.errors import MissingExtraError
from sgoif_bench.fidelity.answer import Relabelled, Trained
from sgoif_bench.fidelity.study import Floats, Study

LARGE = 2**20
"""Weights from which on queries are solved for a few at a time; below, all together."""


class MissingPeerError(MissingExtraError):
    """A library that is compared with is not installed."""

    def __init__(self, missing: str, package: str) -> None:
        what = f"The comparison with {package} needs the package {missing!r}"
        ImportError.__init__(self, f"{what}; install it with: pip install -e 'benchmarks[peers]'")


def need(module: str, package: str) -> Any:
    """A module of an optional package, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = getattr(error, "name", None) or package
        raise MissingPeerError(missing.partition(".")[0], package) from error


def examples(study: Study) -> TensorDataset:
    """Every training example as a library sees it, on the CPU."""
    x, y = study.train_tensors()
    return TensorDataset(x.cpu(), y.cpu())


def queries(study: Study) -> TensorDataset:
    """Every query, on the CPU."""
    x, y = study.query_tensors()
    return TensorDataset(x.cpu(), y.cpu())


def with_new_labels(study: Study, asked: Relabelled) -> TensorDataset:
    """The examples that are asked about, with their new labels, on the CPU."""
    x, y = asked.tensors(study)
    return TensorDataset(x.cpu(), y.cpu())


def label_changes(scores: Floats, new: Floats, asked: Relabelled) -> Floats:
    """What a new label does, [Q, J], from scores [Q, N] as labelled and [Q, J] with the new labels."""
    return new - scores[:, asked.rows]


def ended(trained: Trained) -> nn.Module:
    """A copy of the network as training left it, in evaluation mode and the usual layout of memory."""
    model = copy.deepcopy(trained.model).eval()
    return model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload, no-any-return]


def batches(data: TensorDataset, size: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """The data in order, in batches on a device."""
    x, y = data.tensors
    return [(a.to(device), b.to(device)) for a, b in zip(x.split(size), y.split(size), strict=True)]
