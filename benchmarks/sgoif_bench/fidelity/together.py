"""Many small networks trained as one: their weights stacked, one product for all of them at every step.

SGD with momentum acts on every weight alone, so stacked networks go exactly the way that each would go by itself with
`Problem.fit`, up to rounding. It pays where a step of one network is too small to keep a processor busy. Networks with
buffers or dropout, augmented images and sets of different sizes are trained one by one (`can_stack` says which).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from sgoif_bench.fidelity.study import Study
from sgoif_bench.labels.problem import Labels, Rows

SMALL = 2**18
"""Most weights of a network that is worth stacking."""


def can_stack(study: Study) -> bool:
    """Whether networks of this study can be trained together, and should be."""
    model = study.problem.new_model()
    plain = not list(model.buffers()) and not any(isinstance(part, nn.Dropout) for part in model.modules())
    small = sum(parameter.numel() for parameter in model.parameters()) <= SMALL
    return plain and small and not study.problem.recipe.augment and not study.problem.on_gpu


def train_together(
    study: Study,
    sets: Sequence[Rows],
    numbers: Sequence[int],
    counts: Sequence[NDArray[np.float32]] | None = None,
    labels: Sequence[Labels] | None = None,
) -> list[nn.Module]:
    """Networks trained on these rows, which are equally many, with the weights and batches of these numbers.

    `counts` [K, N] says how much each example counts for each network, by default 1: the loss of a batch is the sum of
    its losses times these, over its size. `labels` [K, N] replaces the given ones.
    """
    problem = study.problem
    models = [problem.new_model(number) for number in numbers]
    stacked, _ = stack_module_state(models)
    weights = nn.ParameterDict({name.replace(".", "/"): nn.Parameter(value) for name, value in stacked.items()})
    images, given = study.train_tensors()
    told = given.expand(len(sets), -1) if labels is None else torch.from_numpy(np.stack(labels))
    count_of = None if counts is None else torch.from_numpy(np.stack(counts))
    skeleton = models[0]

    def losses(parameters: dict[str, Tensor], x: Tensor, y: Tensor, count: Tensor) -> Tensor:
        return (count * F.cross_entropy(functional_call(skeleton, parameters, (x,)), y, reduction="none")).mean()

    def plain_losses(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(skeleton, parameters, (x,)), y)

    batch = min(problem.recipe.batch_size, len(sets[0]))
    count = -(-len(sets[0]) // batch)
    optimizer, schedule = problem.optimizer(weights, problem.recipe.epochs * count)
    where = torch.stack([torch.from_numpy(rows) for rows in sets])
    for chosen in _orders(len(sets[0]), problem.seed, numbers, problem.recipe.epochs, count):
        rows = where.gather(1, chosen)
        parameters = {name.replace("/", "."): value for name, value in weights.items()}
        x, y = images[rows], told.gather(1, rows)
        if count_of is None:
            vmap(plain_losses)(parameters, x, y).sum().backward()
        else:
            vmap(losses)(parameters, x, y, count_of.gather(1, rows)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    with torch.no_grad():
        for place, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name.replace(".", "/")][place])
    return models


def _orders(size: int, seed: int, numbers: Sequence[int], epochs: int, count: int) -> Iterator[Tensor]:
    """Places within the sets of the batches of all epochs, [K, B] each: the very order of `Problem.batches`."""
    generators = [torch.Generator().manual_seed(1000 * seed + number) for number in numbers]
    for _ in range(epochs):
        orders = torch.stack([torch.randperm(size, generator=generator) for generator in generators])
        yield from orders.tensor_split(count, dim=1)
