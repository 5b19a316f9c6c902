"""The energy of logits, and what a network does to the answers of its head before it calls them logits.

    E(z; T) = −T log Σ_k exp(z_k / T)

Detectors that change the features go through the head again. Where a network multiplies what its head answers by a
constant (ResNet-9 by 1/8), the energy of its logits is not the energy of the head's answers, so the constant s is read
off the training data:

    s = argmin_s Σ_i ‖z_i − s (W φ_i + b)‖² = Σ_i ⟨z_i, W φ_i + b⟩ / Σ_i ‖W φ_i + b‖²
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgoif.tasks.ood.network import Network
from sgoif_bench.ood.detector import Bank


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """E(z; T) of every row, [n]; higher = more out of distribution."""
    return -temperature * torch.logsumexp(logits / temperature, dim=1)


def head_answer(network: Network, features: Tensor) -> Tensor:
    """The head's logits for features that may have been changed."""
    bias = None if network.head.bias is None else network.head.bias.detach().float()
    return torch.nn.functional.linear(features, network.head.weight.detach().float(), bias)


def logit_scale(bank: Bank) -> float:
    """The constant s between the head's answers and the logits; 1 where the head comes last."""
    answers = head_answer(bank.network, bank.features).double()
    size = float(answers.square().sum())
    return float((bank.logits.double() * answers).sum()) / size if size > 0 else 1.0
