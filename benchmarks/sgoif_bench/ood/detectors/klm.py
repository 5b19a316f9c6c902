"""KL matching: how far the softmax probabilities are from the typical ones of the nearest class.

Hendrycks, Basart, Mazeika, Zou, Kwon, Mostajabi, Steinhardt, Song: Scaling Out-of-Distribution Detection for Real-World
Settings. ICML 2022.

The template of class k is the mean of the probabilities of those examples that the network takes for k; labels are not
used. The score is the divergence from the nearest template:

    d_k   = mean { p(x) : argmax p(x) = k }
    score = min_k KL(p ‖ d_k) = min_k Σ_j p_j log p_j − p_j log d_kj

A class that the network predicts for no example has no template. The authors take examples that the network was not
trained on; here, as every detector, it is given the training data. Means are taken in the logarithm, where no
probability is too small to be told from zero.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Bank, Detector


class KLM(Detector):
    """The smallest divergence from the mean probabilities of a predicted class. It has no settings."""

    name = "klm"
    title = "KL matching"
    paper = (
        "Hendrycks, Basart, Mazeika, Zou, Kwon, Mostajabi, Steinhardt, Song: Scaling Out-of-Distribution Detection for "
        "Real-World Settings. ICML 2022"
    )

    def __init__(self) -> None:
        self.log_templates: Tensor | None = None
        """log d_k, [classes that were predicted, classes], float64."""

    def fit(self, bank: Bank) -> Self:
        predicted = bank.logits.argmax(dim=1)
        templates = []
        for label in predicted.unique():
            logs = bank.logits[predicted == label].double().log_softmax(dim=1)
            templates.append(logs.logsumexp(dim=0) - math.log(len(logs)))
        self.log_templates = torch.stack(templates)
        return self

    def score(self, seen: Seen) -> Tensor:
        if self.log_templates is None:
            raise SettingError("KL matching has no templates to compare with: call fit(bank) before score(seen)")
        logs = seen.logits.double().log_softmax(dim=1)
        probabilities = logs.exp()
        negative_entropy = (probabilities * logs).sum(dim=1)
        return (negative_entropy - (probabilities @ self.log_templates.T).amax(dim=1)).float()
