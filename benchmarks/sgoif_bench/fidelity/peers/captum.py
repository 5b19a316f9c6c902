"""captum: TracInCP (Pruthi et al., 2020) over all layers, and TracInCPFast over the last one; five checkpoints.

Gradients of the training loss and of the queries' negative margin are multiplied and summed over checkpoints, weighted
by the learning rate of the epoch that led to each.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif.core.losses import negative_margin
from sgoif_bench.fidelity.answer import Answer, Cost, Trained
from sgoif_bench.fidelity.peers.common import ended, examples, label_changes, need, queries, with_new_labels
from sgoif_bench.labels.problem import last_linear

BATCH = 256


class NegativeMargin(nn.Module):
    """Σ_q −f(q), a loss in captum's terms."""

    reduction = "sum"

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return negative_margin(logits, labels).sum()


def tracin(trained: Trained, fast: bool) -> Answer:
    """Scores by TracInCP, or by TracInCPFast."""
    core = need("captum.influence", "captum")
    study, device, wanted = trained.study, trained.study.problem.device, trained.relabelled
    model, cost = ended(trained), Cost(device)
    train = DataLoader(_on(examples(study), device), batch_size=BATCH)
    asked = _on(queries(study), device).tensors
    with tempfile.TemporaryDirectory() as folder:
        rates: dict[str, float] = {}
        for checkpoint in trained.checkpoints:
            path = str(Path(folder) / f"{checkpoint.epoch}.pt")
            torch.save(checkpoint.state, path)
            rates[path] = checkpoint.learning_rate

        def load(network: nn.Module, path: str) -> float:
            network.load_state_dict(torch.load(path, map_location=device, weights_only=True))
            return rates[path]

        shared: dict[str, Any] = {
            "checkpoints": list(rates),
            "checkpoints_load_func": load,
            "loss_fn": nn.CrossEntropyLoss(reduction="sum"),
            "test_loss_fn": NegativeMargin(),
            "batch_size": None,
        }

        def influence(data: DataLoader[Any]) -> Any:
            if fast:
                method = core.TracInCPFast(model, final_fc_layer=last_linear(model), train_dataset=data, **shared)
            else:
                method = core.TracInCP(model, sample_wise_grads_per_batch=True, train_dataset=data, **shared)
            return method.influence(asked).float().cpu().numpy()

        with cost.counted():
            scores = influence(train)
        changes = None
        if wanted is not None:
            relabelled = DataLoader(_on(with_new_labels(study, wanted), device), batch_size=BATCH)
            changes = label_changes(scores, influence(relabelled), wanted)
    return Answer(scores, cost.seconds, cost.memory, relabelled=changes)


def _on(data: Any, device: torch.device) -> Any:
    return torch.utils.data.TensorDataset(*(part.to(device) for part in data.tensors))
