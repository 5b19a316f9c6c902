"""Data sets that jobs share: one at a time is kept in memory, since jobs come set by set."""

from __future__ import annotations

from dataclasses import dataclass, field

from sgoif_bench.command import Say
from sgoif_bench.labels.datasets import LabelledData, load
from sgoif_bench.labels.recipes import Training


@dataclass
class KeptSets:
    """Training and test part of the data set that was asked for last."""

    root: str | None
    tell: Say
    test_limit: int | None = None
    """Test on only so many images."""
    _loaded: dict[tuple[str, bool], LabelledData] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return (name, True) in self._loaded or (name, False) in self._loaded

    def get(self, name: str, training: Training, *, train: bool = True) -> LabelledData:
        """A part of a data set as the recipe wants it."""
        if (name, train) not in self._loaded:
            if name not in self:
                self.clear()
            limit = training.limit if train else self.test_limit
            self._loaded[name, train] = load(
                name, self.root, train=train, size=training.image, limit=limit, tell=self.tell
            )
        return self._loaded[name, train]

    def clear(self) -> None:
        """Give the memory back."""
        self._loaded.clear()
