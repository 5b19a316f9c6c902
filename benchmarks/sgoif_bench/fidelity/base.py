"""The one training run of a study, with the checkpoints that some methods ask for."""

from __future__ import annotations

import torch

from sgoif_bench.fidelity.answer import Checkpoint, Relabelled, Trained, clock
from sgoif_bench.fidelity.study import Study, Tell

CHECKPOINTS = 5
"""Checkpoints along the run, as TracInCP's authors use a handful."""


def train_once(study: Study, tell: Tell = lambda message: None, relabelled: Relabelled | None = None) -> Trained:
    """Train by the recipe and keep a few checkpoints, evenly spread, the last one at the end."""
    problem = study.problem
    model, batches = problem.new_model(), problem.batches()
    optimizer, schedule = problem.optimizer(model, problem.recipe.epochs * len(batches))
    epochs = problem.recipe.epochs
    wanted = {round((place + 1) * epochs / CHECKPOINTS) for place in range(CHECKPOINTS)} | {epochs}
    kept: list[Checkpoint] = []
    rates: list[float] = []

    def on_step(*_: torch.Tensor) -> None:
        rates.append(float(optimizer.param_groups[0]["lr"]))

    def on_epoch(epoch: int) -> None:
        if epoch in wanted:
            state = {name: value.detach().clone() for name, value in model.state_dict().items()}
            mean = sum(rates[-len(batches) :]) / len(batches)
            kept.append(Checkpoint(epoch, mean, state))

    start = clock(problem.device)
    problem.fit(model, batches, optimizer=(optimizer, schedule), on_step=on_step, on_epoch=on_epoch)
    return Trained(study, model, kept, clock(problem.device) - start, tell, relabelled)
