"""Which labels are wrong, by features that somebody else's network gives: every example is held out once.

The examples are dealt into folds. One head a fold is trained on the others with a monitor attached (`head`), which
takes seconds, and so every example is seen in two ways: by the heads that trained on it, which fit it late or never if
its label is wrong, and by the one head that did not. A third opinion needs no training: the labels of its neighbours.

    v = z(v of training) + z(v of holding out) + what the neighbours say

The first two are those of `tasks.labels.ranking`, the third is that of `tasks.neighbours`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Array, Indices
from sgoif.errors import SettingError, SgoifError
from sgoif.features.reduced import principal
from sgoif.tasks import neighbours
from sgoif.tasks.crossfit.head import SCORES, Head, evidence, train_head
from sgoif.tasks.deviations import standard
from sgoif.tasks.labels.evidence import Evidence
from sgoif.tasks.labels.findings import LabelFindings
from sgoif.tasks.labels.judgement import judge

FOLDS, PARTS = 4, 100
"""Heads, and the parts of the work on each that progress is told in."""
SMALLEST_CLASS = 3
"""Examples of a class from which on they are held out; fewer could not be learned without the one that is."""


class CrossFit:
    """Finds wrong labels by features.

    Args:
        features: [n, width], one row per example, of any network.
        labels: the class number of every example.
        class_names: one name for every class.
        seed: of folds, first weights, batches.
        copies: rows that show the same thing, group by group; no head is trained on one and judges the other.
        device: where heads are trained.

    Example:
        ```python
        import numpy as np

        from sgoif.tasks.crossfit import CrossFit

        rng = np.random.default_rng(0)
        right = rng.integers(0, 3, 300)
        features = rng.normal(size=(300, 16)) + 4 * np.eye(3, 16)[right]
        given = np.where(rng.random(300) < 0.1, (right + 1) % 3, right)
        found = CrossFit(features, given, ["cat", "dog", "owl"]).findings()
        print(found)
        found.table()                                   # one row per example
        ```
    """

    def __init__(
        self,
        features: Array,
        labels: Array,
        class_names: Sequence[str],
        *,
        seed: int = 0,
        copies: Iterable[Sequence[int]] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        if len(features) != len(labels) or features.ndim != 2:
            raise SettingError(
                f"features of shape {tuple(features.shape)} do not fit {len(labels):,} labels; expected a row for each"
            )
        self.features, self.seed = principal(features).to(device), seed
        self.labels = torch.from_numpy(np.array(labels, dtype=np.int64))
        self.class_names, self.classes = list(class_names), len(class_names)
        if len(labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.classes:
            raise SettingError(f"labels must lie between 0 and {self.classes - 1}, one of the classes")
        self.group = np.arange(len(labels))
        for rows in copies:
            self.group[list(rows)] = min(rows)
        self.fold = folds_of(self.labels.numpy(), self.group, seed)
        if len(np.unique(self.fold[self.fold >= 0])) < FOLDS:
            raise SgoifError(
                f"{len(labels)} examples are too few to be held out in {FOLDS} parts: at least two classes need"
                f" {SMALLEST_CLASS} examples or more"
            )
        self.heads: dict[int, Head] = {}

    @property
    def held(self) -> Indices:
        """Examples that are held out by a head."""
        return np.flatnonzero(self.fold >= 0)

    def train(self, fold: int, advance: Callable[[int, int], None] = lambda done, total: None) -> Head:
        """Train the head that holds out a fold, and keep what it says; `advance` is told how much of all is done."""
        rows, held = np.flatnonzero(self.fold != fold), np.flatnonzero(self.fold == fold)
        earlier = [np.flatnonzero(self.fold != other) for other in self.heads]
        named = np.setdiff1d(rows, np.concatenate(earlier) if earlier else [])
        seed = int(np.random.SeedSequence((self.seed, fold)).generate_state(1)[0])
        self.heads[fold] = train_head(
            self.features,
            self.labels,
            self.classes,
            rows,
            held,
            seed=seed,
            explained=named,
            advance=lambda step, steps: advance(PARTS * fold + PARTS * step // steps, PARTS * FOLDS),
        )
        return self.heads[fold]

    def findings(self, checked: Mapping[int, int] | None = None) -> LabelFindings:
        """What all heads and the neighbours say; heads that are missing are trained first."""
        for fold in range(FOLDS):
            if fold not in self.heads:
                self.train(fold)
        training, held_out = self._evidence()
        against = neighbours.against(
            [self.features], self.labels, self.classes, held_out.agreement(), torch.from_numpy(self.group)
        )
        judged = judge(training, held_out, self.classes, checked, against, cross_fitted=True)
        return LabelFindings(judged, self._scores(), self.class_names, labels=lambda i: self.labels[i].tolist())

    def agreement(self, rows: Indices) -> float:
        """The share of some labels that is the likeliest class to the head that held the example out."""
        agrees = np.zeros(len(self.labels), dtype=bool)
        for head in self.heads.values():
            agrees[head.held_out.index] = head.held_out.agrees
        return float(agrees[rows].mean())

    def harmed(self, indices: Indices) -> Indices:
        """The held-out examples that each of these hurts most, by index, [n, 4]; −1: no more."""
        return np.asarray(np.stack([head.harmed for head in self.heads.values()]).max(0)[indices])

    def _evidence(self) -> tuple[Evidence, Evidence]:
        """Means over the heads that trained on an example, and what the one says that held it out."""
        heads, labels = self.heads.values(), self.labels.numpy()
        training = averaged([head.training for head in heads], labels, self.classes)
        return training, averaged([head.held_out for head in heads], labels, self.classes)

    def _scores(self) -> ScoreTable:
        """The scores of all heads that trained on an example, averaged; the number of observations is their sum."""
        n = len(self.labels)
        total, count = {name: np.zeros(n) for name in SCORES}, np.zeros(n)
        for head in self.heads.values():
            trained = ~np.isin(head.scores["index"], head.held_out.index)
            index = head.scores["index"][trained]
            count[index] += 1
            for name in SCORES:
                total[name][index] += head.scores[name][trained]
        found = {name: values / np.maximum(count, 1) for name, values in total.items()}
        found["n_observations"] = total["n_observations"].astype(np.int64)
        return ScoreTable({"index": np.arange(n), **found})


def folds_of(labels: Indices, group: Indices, seed: int) -> Indices:
    """The fold of every example: those of each class dealt evenly, copies to one fold; −1: a class of too few."""
    rng = np.random.default_rng((seed, 0))
    fold = np.full(len(labels), -1)
    for label in np.unique(labels):
        first = rng.permutation(np.flatnonzero((labels == label) & (group == np.arange(len(labels)))))
        if np.count_nonzero(labels == label) >= SMALLEST_CLASS:
            fold[first] = (np.arange(len(first)) + rng.integers(FOLDS)) % FOLDS
    return np.asarray(fold[group])


def averaged(parts: Sequence[Evidence], labels: Indices, classes: int) -> Evidence:
    """The mean of several pieces of evidence, by example; influence, whose scale is that of its head, in deviations."""
    n = len(labels)
    names = ("influence", "margin", "logit_margin", "loss")
    total: dict[str, Any] = {name: np.zeros(n) for name in names}
    p, count = np.zeros((n, classes), dtype=np.float32), np.zeros(n)
    for part in parts:
        count[part.index] += 1
        p[part.index] += part.probabilities(classes).astype(np.float32)
        for name in names:
            values = getattr(part, name)
            total[name][part.index] += standard(values) if name == "influence" else values
    seen = np.flatnonzero(count)
    signals = {name: values[seen] / count[seen] for name, values in total.items()}
    return evidence({"index": seen, "given": labels[seen], **signals}, p[seen] / count[seen, None].astype(np.float32))
