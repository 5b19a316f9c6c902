"""TRAK (Park et al., 2023) by the package `traker`: projected gradients of the margin, averaged over networks.

The projection has 2,048 dimensions, the package's default, or a third of the number of examples where that is fewer:
its normal equations are not regularised. Networks beyond the first are trained by the same recipe on all examples, and
their trainings count. The package also takes a ridge, which it adds to XᵀX and leaves at zero; with few examples it
decides, so there is a row for each of several. The number that the package wants is absolute, and XᵀX grows with the
examples and with the scale of the gradients; here a ridge is given as a share of the mean eigenvalue of XᵀX. Without
its CUDA extension (`fast_jl`) it projects with plain torch, which is slower.
"""

from __future__ import annotations

import logging
import tempfile

import torch
from torch import nn

from sgoif_bench.fidelity.answer import Answer, Cost, Trained
from sgoif_bench.fidelity.peers.common import batches, ended, examples, need, queries
from sgoif_bench.fidelity.together import can_stack, train_together

DIMENSIONS = 2048
LEAST_DIMENSIONS = 128
"""Up to 100, its plain projector works in one block and forgets it between features and scores."""
BATCH = 100
FIRST_NUMBER = 500_000
"""Further networks have weights and batches that no network of the truth has."""


def trak(trained: Trained, networks: int, ridge: float = 0.0) -> Answer:
    """Scores from so many networks; `ridge` is a share of the mean eigenvalue of the features' Gram matrix."""
    module = need("trak", "traker")
    study, device = trained.study, trained.study.problem.device
    train, asked = examples(study), queries(study)
    cost = Cost(device)
    with tempfile.TemporaryDirectory() as folder, cost.counted():
        models = [ended(trained), *(model.eval() for model in further(trained, networks - 1))]
        traker = module.TRAKer(
            model=models[0],
            task="image_classification",
            train_set_size=len(study),
            save_dir=folder,
            device=str(device),
            proj_dim=min(DIMENSIONS, max(LEAST_DIMENSIONS, len(study) // 3)),
            use_half_precision=device.type == "cuda",
            logging_level=logging.CRITICAL,
        )
        for number, model in enumerate(models):
            traker.load_checkpoint(model.state_dict(), model_id=number)
            for x, y in batches(train, BATCH, device):
                traker.featurize(batch=(x, y), num_samples=len(x))
        if ridge:
            features = torch.as_tensor(traker.saver.current_store["grads"][:]).double()
            traker.score_computer.lambda_reg = ridge * float(features.square().sum() / features.shape[1])
        traker.finalize_features()
        for number, model in enumerate(models):
            traker.start_scoring_checkpoint("queries", model.state_dict(), model_id=number, num_targets=len(asked))
            for x, y in batches(asked, BATCH, device):
                traker.score(batch=(x, y), num_samples=len(x))
        scores = torch.as_tensor(traker.finalize_scores("queries")).float().T.contiguous().cpu().numpy().copy()
    return Answer(scores, cost.seconds, cost.memory, trainings=networks - 1, details={"networks": networks})


def further(trained: Trained, count: int) -> list[nn.Module]:
    """More networks, trained as the first."""
    study = trained.study
    numbers = [FIRST_NUMBER + place for place in range(count)]
    if count > 1 and can_stack(study):
        return train_together(study, [study.problem.rows()] * count, numbers)
    return [study.train(number=number).to(memory_format=torch.contiguous_format) for number in numbers]  # type: ignore[call-overload]
