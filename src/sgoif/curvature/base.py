"""What every curvature backend offers.

A backend keeps a running estimate of H = E_i[g_i g_iᵀ] over the watched layers, g_i being the gradient of one
example's loss, and adds damping: the operator is H + λI, symmetric positive definite, with λ = `damping` × the mean
diagonal of H. It sees gradients as factors, never as a P × P matrix:

    block gradient of example i  =  Σ_t  δ_it ⊗ a_it           (`elementwise` False: linear, convolution, embedding)
                                 =  Σ_t  δ_it[:, None] · a_it   (`elementwise` True: scale and shift of a norm layer)

with t running over positions (pixels of a feature map, tokens of a sequence; one position for a plain linear layer).
Vectors are [K, P] tensors laid out by `sgoif.core.parameter_layout.Layout`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from sgoif.core.parameter_layout import Layout
from sgoif.errors import LayerError, SettingError, StateError

# Smallest λ once there is data: a curvature that is exactly zero must still be invertible in float32.
RIDGE_FLOOR = 1e-16

Result = TypeVar("Result")


def to_float64(tensor: Tensor) -> Tensor:
    """`tensor` in float64, on the CPU where its own device has no such type."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Whether every entry is finite, as a tensor on the device, so that asking does not wait for the GPU."""
    # A sum is finite only if its parts are, and only then zero times it is zero: asking takes more operations.
    return torch.stack([tensor.sum() for tensor in tensors]).sum() * 0 == 0


def accumulate(average: Tensor, batch: Tensor, decay: float, valid: Tensor) -> None:
    """In place average ← decay · average + (1 − decay) · batch, or nothing at all where `valid` is false."""
    # lerp towards itself returns the very same bits, so an invalid batch leaves no trace.
    average.lerp_(torch.where(valid, batch, average), 1 - decay)


def until_update(build: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Have what a method of a curvature returns computed once between two updates."""

    @wraps(build)
    def cached(self: Any) -> Result:
        if build.__name__ not in self._cache:
            self._cache[build.__name__] = build(self)
        result: Result = self._cache[build.__name__]
        return result

    return cached


@dataclass(frozen=True)
class Factors:
    """Inputs and output gradients of one layer for B examples, in float32.

    `delta` is [B, T, rows]. `inputs` is [B, T, cols], or [B, T, rows, cols] for an elementwise layer.
    """

    inputs: Tensor
    delta: Tensor
    elementwise: bool = False

    def gradient(self) -> Tensor:
        """Per-example block gradients [B, rows, cols]; meant for a few examples or small blocks."""
        if self.elementwise:
            return (self.delta.unsqueeze(-1) * self.inputs).sum(1)
        return torch.einsum("btr,btc->brc", self.delta, self.inputs)


@dataclass(frozen=True)
class Spectrum:
    """Estimated extreme eigenvalues of a damped operator."""

    smallest: float
    largest: float

    @property
    def condition(self) -> float:
        """Γ, the condition number proxy."""
        return self.largest / self.smallest


class Curvature(ABC):
    """A damped curvature estimate that is updated from training batches."""

    name: str

    def __init__(
        self, layout: Layout, *, damping: float = 0.01, decay: float = 0.95, device: torch.device | str = "cpu"
    ):
        if not damping > 0:
            raise SettingError(f"damping must be positive, so that the curvature can be inverted; got {damping}")
        if not 0 <= decay < 1:
            raise SettingError(f"decay must lie in [0, 1); got {decay}")
        self.layout = layout
        self.damping = damping
        self.decay = decay
        self.device = torch.device(device)
        self.updates = 0
        self._cache: dict[str, Any] = {}

    @property
    def ready(self) -> bool:
        """Whether there is anything to invert yet."""
        return self.updates > 0

    @abstractmethod
    def update(self, factors: Sequence[Factors]) -> None:
        """Fold one batch in; one `Factors` per block, in the layout's order."""

    @abstractmethod
    def matvec(self, vectors: Tensor) -> Tensor:
        """(H + λI) applied to each of the vectors [K, P]."""

    @abstractmethod
    def solve(self, vectors: Tensor) -> Tensor:
        """(H + λI)⁻¹ applied to each of the vectors [K, P]."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """Diagonal of H + λI, [P]."""

    @abstractmethod
    def spectrum(self) -> Spectrum:
        """Extreme eigenvalues of H + λI: exact where that is cheap, bounds or a power iteration elsewhere."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly: tensors and plain numbers, flat."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; raises `StateError` when shapes differ."""

    def _check_state(self, state: dict[str, Any], expected: dict[str, tuple[int, ...]]) -> None:
        """Raise unless `state` is of this backend and its tensors have the expected shapes."""
        if state.get("name") != self.name:
            raise StateError(
                f"the saved curvature is {state.get('name')!r}, this monitor uses {self.name!r}; "
                "resume with the same setting"
            )
        for key, shape in expected.items():
            found = tuple(state[key].shape) if key in state else None
            if found != shape:
                raise StateError(
                    f"saved curvature entry {key!r} has shape {found}, expected {shape}: "
                    "the state is from another model"
                )

    def _prepare(self, factors: Sequence[Factors]) -> list[Factors]:
        """The factors in float32 on this device, after a look at their shapes."""
        if len(factors) != len(self.layout.blocks):
            raise LayerError(
                f"got factors of {len(factors)} layers, expected {len(self.layout.blocks)}: one per watched layer"
            )
        prepared = []
        for factor, block in zip(factors, self.layout.blocks, strict=True):
            wide = (block.rows, block.cols) if factor.elementwise else (block.cols,)
            batch = tuple(factor.delta.shape[:2])
            if tuple(factor.delta.shape) != (*batch, block.rows) or tuple(factor.inputs.shape) != (*batch, *wide):
                raise LayerError(
                    f"layer {block.name!r}: output gradients {tuple(factor.delta.shape)} and inputs "
                    f"{tuple(factor.inputs.shape)} do not fit; expected [B, T, {block.rows}] "
                    f"and [B, T, {', '.join(map(str, wide))}]"
                )
            inputs, delta = (x.detach().to(self.device, torch.float32) for x in (factor.inputs, factor.delta))
            prepared.append(Factors(inputs, delta, factor.elementwise))
        return prepared

    def _vectors(self, vectors: Tensor) -> Tensor:
        """Vectors [K, P] in float32 on this device."""
        return vectors.to(self.device, torch.float32)

    def _ridge(self, mean_diagonal: Tensor, weight: Tensor) -> Tensor:
        """λ, given the mean diagonal of H; `damping` itself while nothing was seen (`weight` zero: H = 0)."""
        return torch.where(weight > 0, (self.damping * mean_diagonal).clamp_min(RIDGE_FLOOR), self.damping)
