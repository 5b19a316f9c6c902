"""ODIN: softmax at a high temperature, after a small step of the input towards the class it is taken for.

Liang, Li, Srikant: Enhancing the Reliability of Out-of-distribution Image Detection in Neural Networks. ICLR 2018.

With S(x) = max_k softmax(z(x) / T)_k, the step raises S, and raises it more for inputs of the training distribution:

    x̃     = x − ε sign(−∇_x log S(x))
    score = −S(x̃)

Images come normalised, x = (pixel − mean) / σ. As in the authors' code, the step is divided by σ of each channel, so
that every pixel moves by ε on the scale from 0 to 1; σ is given as `spread`. Without it the step is ε in the units of
the images. As in their code, a pixel whose gradient is exactly zero is moved like one with a positive gradient.

The score needs a second and a third pass through the network. Only the gradient by the images is computed: the
network's parameters get none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.ood.detector import Bank, Detector

TEMPERATURE = 1000.0
"""T of the paper and of OpenOOD's configuration."""
NOISE = 0.0014
"""ε of the authors' code for a DenseNet on CIFAR-10 and of OpenOOD's configuration. The paper tunes it on outliers,
which are not to be had here."""


class ODIN(Detector):
    """The largest softmax probability at temperature T, after the input has been moved to raise it."""

    name = "odin"
    title = "ODIN"
    paper = (
        "Liang, Li, Srikant: Enhancing the Reliability of Out-of-distribution Image Detection in Neural Networks. "
        "ICLR 2018"
    )

    def __init__(
        self, *, temperature: float = TEMPERATURE, noise: float = NOISE, spread: Sequence[float] | None = None
    ) -> None:
        if not 0 < temperature < float("inf"):
            raise SettingError(f"temperature = {temperature} must be a positive number")
        if not 0 <= noise < float("inf"):
            raise SettingError(f"noise = {noise} must be 0 or more")
        if spread is not None and not (len(spread) > 0 and all(0 < value < float("inf") for value in spread)):
            raise SettingError(f"spread = {spread} must hold a positive number for every channel of the images")
        self.temperature = temperature
        self.noise = noise
        self.spread = None if spread is None else tuple(spread)
        self._network: Network | None = None

    def fit(self, bank: Bank) -> Self:
        self._network = bank.network
        return self

    def score(self, seen: Seen) -> Tensor:
        if self._network is None:
            raise SettingError("ODIN has no network to pass the images through: call fit(bank) before score(seen)")
        moved = self._moved(self._network, seen.images)
        with torch.no_grad():
            logits: Tensor = self._network.model(moved)
        # No 1 − S as in MSP: at T = 1000 all S lie near 1 / classes, and their differences would drown in the 1.
        return -(logits.float() / self.temperature).softmax(dim=1).amax(dim=1)

    def _moved(self, network: Network, images: Tensor) -> Tensor:
        """x̃, without a graph."""
        with torch.enable_grad():
            leaf = images.detach().requires_grad_()
            logits = network.model(leaf).float()
            # The gradient of log S, whose largest class does not depend on T. A sum, not a mean: the step of an image
            # must not depend on how many others are in its batch.
            loss = F.cross_entropy(logits / self.temperature, logits.argmax(dim=1), reduction="sum")
            (gradient,) = torch.autograd.grad(loss, leaf)
        return images - self.noise * torch.where(gradient >= 0, 1.0, -1.0) / self._divisor(images)

    def _divisor(self, images: Tensor) -> Tensor:
        """σ in the shape of one image's channels."""
        if self.spread is None:
            return images.new_ones(())
        if len(self.spread) != images.shape[1]:
            raise SettingError(f"spread has {len(self.spread)} values for images of {images.shape[1]} channels")
        return images.new_tensor(self.spread).reshape(-1, *(1,) * (images.dim() - 2))
