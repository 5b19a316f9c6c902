"""One run: PyTorch's MNIST example for so many steps, with as many examples as that takes, beside so many anchors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.core.provenance import plain
from sgoif.errors import SettingError
from sgoif_bench.command import Say, say
from sgoif_bench.jobs import OneDevice
from sgoif_bench.journal import Line
from sgoif_bench.labels.datasets import LabelledData, load
from sgoif_bench.labels.noises import make_noise
from sgoif_bench.lengths.grid import BATCH, EPOCHS, Job
from sgoif_bench.loops.corpus.mnist_example import Net
from sgoif_bench.loops.digits import Digits, all_digits
from sgoif_bench.loops.measures import efforts, found
from sgoif_bench.loops.study import Trained

LEAST_EXAMPLES = 100
"""A run trains on this many at least."""


@dataclass
class Runner(OneDevice[Job]):
    """Does runs, one after the other, on one device."""

    data: str | None
    command: str
    device: torch.device
    tell: Say = say

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is trained that a data set is missing or too small, or that a noise does not fit."""
        for job in jobs:
            if job.anchors + LEAST_EXAMPLES > (examples := len(_whole(job.set, self.data))):
                raise SettingError(
                    f"anchors = {job.anchors} leave nothing to train on: {job.set} has {examples} examples; give fewer,"
                    " or --data ROOT with the files of MNIST"
                )
        for job in {job.noise: job for job in jobs}.values():
            make_noise(job.noise, _whole(job.set, self.data), seed=0)

    def forget(self) -> None:
        """Give the data set's memory back."""
        _whole.cache_clear()

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        examples = some_examples(_whole(job.set, self.data), job)
        start = time.perf_counter()
        trained = train(examples, job, self.device)
        end = time.perf_counter()
        line = {
            **self.origin(job, job.family),
            "examples": len(examples.given) - job.anchors,
            "metrics": found(trained, examples),
            "efforts": efforts(trained.monitor),
            "seconds": end - start,
        }
        return [plain(line)], {}


@cache
def _whole(name: str, root: str | None) -> LabelledData:
    """All examples of a data set, or those of its training part."""
    return all_digits() if name == "digits" else load(name, root)


def some_examples(data: LabelledData, job: Job) -> Digits:
    """Examples for the anchors and for so many epochs of the run, drawn at random."""
    count = min(job.anchors + max(LEAST_EXAMPLES, job.steps * BATCH // EPOCHS), len(data))
    given = make_noise(job.noise, data, job.seed).labels
    drawn = np.random.default_rng(job.seed).permutation(len(data))[:count]
    images = data.images[torch.from_numpy(drawn)].float()
    return Digits((images - images.mean()) / images.std(), given[drawn], data.labels[drawn])


def train(examples: Digits, job: Job, device: torch.device) -> Trained:
    """The example's loop, which ends after so many steps; the rate is cut by 0.7 after each of its epochs."""
    torch.manual_seed(job.seed)
    share = job.anchors / len(examples.given)
    train_set, holdout_set = split_holdout(examples.dataset(), share=share, seed=job.seed)
    loader = DataLoader(indexed(train_set), batch_size=BATCH, shuffle=True)

    model = Net(side=examples.images.shape[-1]).to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=-(-job.steps // EPOCHS), gamma=0.7)
    monitor = InfluenceMonitor(model, optimizer, anchors=holdout_set)
    model.train()
    for _, (x, y, index) in zip(range(job.steps), _batches(loader), strict=False):
        optimizer.zero_grad()
        with monitor.step(index):
            F.nll_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        scheduler.step()
    return Trained(model, monitor, answer=lambda images: model(images.to(device)).cpu())


def _batches(loader: DataLoader[list[Tensor]]) -> Iterator[list[Tensor]]:
    """One epoch after the other, without end."""
    while True:
        yield from loader
