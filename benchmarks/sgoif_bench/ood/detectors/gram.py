"""Gram matrices: correlations of channels that lie outside the range they had in training.

Sastry, Oore: Detecting Out-of-Distribution Examples with Gram Matrices. ICML 2020.

For a map F [D_l, positions] of an input and powers p = 1 … 10, the row sums of the Gram matrix of order p,

    G_p = (F^p (F^p)ᵀ 1)^(1/p)        F^p by elements, the root of the modulus with the sign kept

are compared with the smallest and largest ones, m and M, among training examples that the network takes for the same
class ŷ:

    δ(m, M, v) = (m − v)/|m|  if v < m,    (v − M)/|M|  if v > M,    else 0
    δ_l(x)     = Σ_p Σ_channels δ(m, M, G_p) / max_c softmax z(x)
    score      = Σ_l δ_l(x) / mean of δ_l on held-out data

Powers, the sums over rows and the division by the confidence are the authors', and so are the maps: what comes out of
every convolution and every activation (OpenOOD takes the stages alone). A network without any, such as a transformer of
tokens, is looked at by its stages. The authors' held-out data are a tenth of the test set; here they are a tenth of the
training data, left out of m and M. An input taken for a class that no training example was taken for is compared with
the range over all classes. A score takes a second pass through the network, whose maps are not kept but summed as they
come.

Row sums need no Gram matrix: F^p (F^p)ᵀ 1 = F^p s with s the sum of F^p over channels. Double precision holds the
twentieth powers that occur.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sgoif.errors import LayerError, SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors.neighbours import held_out

IN_RANGE = 1e-6
"""Added to m and M before the division, which may be by zero; the authors' value."""
IN_MEAN = 1e-7
"""Added to the mean deviation of a stage, which may be zero; the authors' value."""
CHUNK_BYTES = 2**26
LOOKED_AT = frozenset(
    {F.conv2d, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_, torch.tanh, torch.sigmoid}
    | {F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.hardswish, F.selu, F.celu, F.softplus, F.prelu}
)
"""Convolutions and activations, as modules and as functions call them."""

OnMap = Callable[[int, Tensor], None]
"""Told the number of a map, in the order of the forward pass, and the map [n, D, H, W]."""


class Maps(TorchFunctionMode):
    """Tells of every map that comes out of a convolution or an activation while it is entered."""

    def __init__(self, on_map: OnMap) -> None:
        super().__init__()
        self._on_map, self._number = on_map, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in LOOKED_AT and isinstance(found, Tensor) and found.dim() == 4:
            self._on_map(self._number, found.float())
            self._number += 1
        return found


@torch.no_grad()
def each_map(network: Network, seen: Seen, on_map: OnMap) -> None:
    """All maps of a batch; of a network without maps its stages."""
    count = 0

    def note(number: int, found: Tensor) -> None:
        nonlocal count
        count = number + 1
        on_map(number, found)

    with Maps(note):
        network.model(seen.images)
    if not count:
        for number, stage in enumerate(seen.stages):
            on_map(number, stage)


def row_sums(stage: Tensor, powers: int) -> Tensor:
    """G_1 … G_powers of stages [n, D_l, positions…], float64 [n, powers, D_l]."""
    values = stage.flatten(2).double()
    raised, sums = torch.ones_like(values), []
    for power in range(1, powers + 1):
        raised = raised * values
        rows = (raised @ raised.sum(dim=1).unsqueeze(2)).squeeze(2)
        sums.append(rows.sign() * rows.abs() ** (1 / power))
    return torch.stack(sums, dim=1)


class Gram(Detector):
    """Normalised deviation of Gram row sums from the range of the predicted class."""

    name = "gram"
    title = "Gram"
    paper = "Sastry, Oore: Detecting Out-of-Distribution Examples with Gram Matrices. ICML 2020"

    def __init__(self, *, powers: int = 10, held_out_share: float = 0.1, seed: int = 0) -> None:
        if powers < 1:
            raise SettingError(f"powers = {powers}: at least the first power is needed")
        if not 0 < held_out_share < 1:
            raise SettingError(f"held_out_share = {held_out_share}: must lie between 0 and 1, both excluded")
        self.powers, self.held_out_share, self.seed = powers, held_out_share, seed
        self._network: Network | None = None

    def fit(self, bank: Bank) -> Self:
        self._network = bank.network
        held = held_out(len(bank), self.held_out_share, self.seed).to(bank.labels.device)
        self._learn_range(bank, ~held)
        if not self._least:
            raise LayerError("Gram matrices are made of the maps of a network; this one has none, nor any tokens")
        total = torch.zeros(len(self._least), dtype=torch.float64, device=bank.labels.device)
        for seen in _chosen(bank, held):
            total += self.deviations(seen).sum(dim=0)
        self._expected = total / held.sum() + IN_MEAN
        return self

    def score(self, seen: Seen) -> Tensor:
        return (self.deviations(seen) / self._expected).sum(dim=1).float()

    def deviations(self, seen: Seen) -> Tensor:
        """δ_l of every example, float64 [n, maps]."""
        if self._network is None:
            raise SettingError("Gram has no network to pass the images through: call fit(bank) before score(seen)")
        confidence, predicted = seen.logits.double().softmax(dim=1).max(dim=1)
        found = confidence.new_zeros(len(seen), len(self._least))

        def compare(number: int, values: Tensor) -> None:
            for rows, sums in self._chunks(values):
                low, high = self._least[number][predicted[rows]], self._most[number][predicted[rows]]
                below = (low - sums).clamp_min(0) / (low + IN_RANGE).abs()
                above = (sums - high).clamp_min(0) / (high + IN_RANGE).abs()
                found[rows, number] = (below + above).sum(dim=(1, 2))

        each_map(self._network, seen, compare)
        return found / confidence.unsqueeze(1)

    def _learn_range(self, bank: Bank, used: Tensor) -> None:
        """m and M of every class, power and channel, as running extremes over the examples to be used."""
        self._least: list[Tensor] = []
        self._most: list[Tensor] = []
        for seen in _chosen(bank, used):
            predicted = seen.logits.argmax(dim=1)

            def widen(number: int, values: Tensor, predicted: Tensor = predicted) -> None:
                if number == len(self._least):
                    self._least.append(self._filled(bank, values, torch.inf))
                    self._most.append(self._filled(bank, values, -torch.inf))
                for rows, sums in self._chunks(values):
                    of_class = predicted[rows, None, None].expand_as(sums)
                    self._least[number].scatter_reduce_(0, of_class, sums, "amin")
                    self._most[number].scatter_reduce_(0, of_class, sums, "amax")

            each_map(bank.network, seen, widen)
        for least, most in zip(self._least, self._most, strict=True):
            never = least[:, 0, 0].isposinf()
            least[never], most[never] = least.amin(dim=0), most.amax(dim=0)

    def _filled(self, bank: Bank, layer: Tensor, value: float) -> Tensor:
        shape = bank.classes, self.powers, layer.shape[1]
        return torch.full(shape, value, dtype=torch.float64, device=layer.device)

    def _chunks(self, stage: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Row sums of a few examples at a time: the powers of a stage in double precision are large."""
        size = max(1, CHUNK_BYTES // (8 * max(1, stage[0].numel()))) if len(stage) else 1
        for start in range(0, len(stage), size):
            rows = slice(start, min(start + size, len(stage)))
            yield rows, row_sums(stage[rows], self.powers)


def _chosen(bank: Bank, mask: Tensor) -> Iterator[Seen]:
    """The examples of the bank that a mask names, batch by batch."""
    start = 0
    for seen, _ in bank.batches():
        of_batch = mask[start : start + len(seen)]
        start += len(seen)
        stages = tuple(stage[of_batch] for stage in seen.stages)
        yield Seen(seen.images[of_batch], seen.logits[of_batch], seen.features[of_batch], stages)
