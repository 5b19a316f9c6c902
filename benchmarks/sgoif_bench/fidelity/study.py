"""What is asked about: training examples, queries, and the figure of a query that influence is to predict.

The figure is the margin of a query, the log-odds of its class under the model,

    f(q) = log p_y / (1 − p_y) = z_y − log Σ_{c≠y} exp z_c ,

as in the papers on data models; it neither saturates like the loss nor depends on the scale of the other classes. All
methods are asked for the influence on f, so that a score s(q, i) > 0 says that example i raises the margin of query q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from sgoif.core.losses import margin
from sgoif.errors import SettingError
from sgoif_bench.batches import normalise
from sgoif_bench.fidelity.recipes import FidelityTraining
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.labels.problem import Problem, Rows
from sgoif_bench.noise import symmetric

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass
class Study:
    """Training examples, of which some may have wrong labels, and queries from the test set."""

    problem: Problem
    queries: Problem
    wrong: Mask
    """Training examples whose label was made wrong."""

    def __len__(self) -> int:
        return len(self.problem)

    def query_tensors(self) -> tuple[Tensor, Tensor]:
        """Normalised images and labels of all queries, on the device."""
        q = self.queries
        return normalise(q.images.to(q.device), q.mean, q.spread), torch.from_numpy(q.labels).to(q.device)

    def train_tensors(self, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
        """Normalised images, not augmented, and given labels of training examples, on the device."""
        p = self.problem
        where = torch.from_numpy(p.rows() if rows is None else rows)
        images = normalise(p.images[where].to(p.device), p.mean, p.spread)
        return images, torch.from_numpy(p.labels)[where].to(p.device)

    def train(self, rows: Rows | None = None, number: int = 0, **options: Any) -> nn.Module:
        """A network trained by the recipe on these rows, by default all; `number` sets weights and batches."""
        return self.problem.fit(self.problem.new_model(number), self.problem.batches(rows, number=number), **options)

    def answers(self, model: nn.Module) -> Floats:
        """Logits of all queries, [Q, C]."""
        found: Floats = self.queries.predict(model).cpu().numpy()
        return found

    def margins(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """f of every query from logits [..., Q, C]."""
        values = torch.from_numpy(np.asarray(logits, dtype=np.float64))
        return margin(values, torch.from_numpy(self.queries.labels)).numpy()

    def losses(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """Cross-entropy of every query from logits [..., Q, C]."""
        values = torch.from_numpy(np.asarray(logits, dtype=np.float64))
        labels = torch.from_numpy(self.queries.labels).expand(values.shape[:-1])
        return F.cross_entropy(values.movedim(-1, 1) if values.dim() > 2 else values, labels, reduction="none").numpy()


def make_study(
    data: LabelledData,
    test: LabelledData,
    training: FidelityTraining,
    noise: float,
    queries: int,
    device: torch.device,
    seed: int,
) -> Study:
    """The study of a data set: `noise` of the labels wrong, queries drawn from the test set class by class."""
    if queries > len(test):
        raise SettingError(f"queries = {queries} is more than the {len(test)} test images that {data.name} has here")
    recipe = training.recipe(int(data.images.shape[-1]))
    labels, wrong = data.labels, np.zeros(len(data), dtype=np.bool_)
    if noise:
        noisy = symmetric(labels, len(data.classes), noise, seed)
        labels, wrong = noisy.labels, noisy.is_wrong
    problem = Problem(data.images, labels, len(data.classes), recipe, device, seed)
    rows = balanced(test.labels, queries, seed)
    asked = Problem(test.images[torch.from_numpy(rows)], test.labels[rows], len(data.classes), recipe, device, seed)
    asked.mean, asked.spread = problem.mean, problem.spread
    return Study(problem, asked, wrong)


def balanced(labels: NDArray[np.int64], count: int, seed: int) -> Rows:
    """So many rows, drawn from every class in turn."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels))
    seen: dict[int, int] = {}
    turn = []
    for row in order:
        label = int(labels[row])
        seen[label] = seen.get(label, 0) + 1
        turn.append(seen[label])
    return np.sort(order[np.argsort(turn, kind="stable")[:count]])


Tell = Callable[[str], None]
