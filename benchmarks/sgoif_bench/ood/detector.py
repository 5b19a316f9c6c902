"""What every post-hoc detector is given, and what it must return.

A detector looks at a trained network. It is fitted on the in-distribution training data as that network sees them and
then scores batches; higher = more out of distribution, for every detector. The forward pass is made once for all of
them: what they need of it is in `Seen` for a batch and in `Bank` for the training data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Self

import torch
from torch import Tensor

from sgoif.tasks.ood.network import Network, Seen

Loader = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Called for every pass over the training data: (images as the network takes them, labels), in the same order."""


class Bank:
    """The in-distribution training data as the network sees them, without augmentation.

    Logits, features and pooled stages of all examples are kept, on the network's device; whatever is larger is made
    again batch by batch.
    """

    def __init__(self, network: Network, loader: Loader) -> None:
        self.network = network
        self._loader = loader
        logits, features, labels, pooled = [], [], [], []
        for images, given in loader():
            seen = network.see(images)
            logits.append(seen.logits)
            features.append(seen.features)
            labels.append(given.to(seen.logits.device))
            pooled.append(seen.pooled)
        self.logits = torch.cat(logits)
        """[N, classes]"""
        self.features = torch.cat(features)
        """[N, D]"""
        self.labels = torch.cat(labels)
        """[N]"""
        self.pooled = tuple(torch.cat(parts) for parts in zip(*pooled, strict=True))
        """For every stage [N, D_l]."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return self.network.classes

    def batches(self) -> Iterator[tuple[Seen, Tensor]]:
        """Every example once more, with all stages, in the order of `labels`."""
        for images, labels in self._loader():
            seen = self.network.see(images)
            yield seen, labels.to(seen.logits.device)


class Detector(ABC):
    """One way to tell from a trained network whether an input belongs."""

    name: ClassVar[str]
    """On the command line."""
    title: ClassVar[str]
    """In a table."""
    paper: ClassVar[str]

    def fit(self, bank: Bank) -> Self:
        """Learn from the training data; a detector that needs none only keeps what it must know of the network."""
        del bank
        return self

    @abstractmethod
    def score(self, seen: Seen) -> Tensor:
        """How far out of distribution each input is, [n]."""
