"""Kronecker-factored curvature (K-FAC).

Per block, with a_it the inputs and δ_it the output gradients of example i at position t,

    A = E_i[ mean_t a_it a_itᵀ ]    [cols, cols]        S = E_i[ Σ_t δ_it δ_itᵀ ]    [rows, rows]
    H ≈ S ⊗ A,  that is  X ↦ S X A + λX,    λ = damping · tr S · tr A / (rows · cols)

both running averages corrected for their start at zero. Blocks do not interact. With S = U diag(s) Uᵀ and
A = W diag(α) Wᵀ any function f of the damped operator is exact and cheap in the eigenbases:

    f(H + λI) X = U ( f(s αᵀ + λ) ∘ (Uᵀ X W) ) Wᵀ

Elementwise blocks (norm layers) have few weights and no such structure; they keep E_i[g_i²] as a diagonal.
Updates are a product per factor; the eigenbases are found when first asked for after an update.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgoif.core.parameter_layout import Layout
from sgoif.core.precision import full_precision
from sgoif.curvature.base import Curvature, Factors, Spectrum, accumulate, all_finite, to_float64, until_update
from sgoif.curvature.diagonal import mean_square
from sgoif.errors import LayerError, StateError

# A layer that gets (nearly) no gradient is damped as if its mean diagonal were this share of the average layer's:
# otherwise one dead layer makes the condition number of the whole operator meaningless.
DEAD_BLOCK = 1e-8

INPUTS, DELTA, SQUARE = "inputs", "delta", "square"
ON_HOST = 25
"""Matrices with at most so many rows are decomposed by the host of a GPU, which is quicker. With more it would wake all
its threads, and where others keep the cores busy these wait for each other for seconds."""


@dataclass(frozen=True)
class Eigen:
    """One block's eigenvalues without damping [rows, cols] (float64), and eigenbases unless it is diagonal."""

    values: Tensor
    left: Tensor | None = None
    right: Tensor | None = None


def statistics(factors: Factors) -> dict[str, Tensor]:
    """What one batch adds to the running averages of one block."""
    if factors.elementwise:
        return {SQUARE: mean_square(factors)}
    batch, positions, _ = factors.delta.shape
    inputs, delta = factors.inputs.flatten(0, 1), factors.delta.flatten(0, 1)
    return {INPUTS: inputs.T @ inputs / (batch * positions), DELTA: delta.T @ delta / batch}


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (float64, none negative) and eigenvectors (in the matrix's own type and place)."""
    elsewhere = matrix.is_cuda and matrix.shape[-1] <= ON_HOST
    values, vectors = torch.linalg.eigh(to_float64(matrix.cpu() if elsewhere else matrix))
    return (values.to(matrix.device) if elsewhere else values).clamp_min(0), vectors.to(matrix)


class KFAC(Curvature):
    """H as one Kronecker product per layer: sees correlations between inputs and between outputs."""

    name = "kfac"

    def __init__(
        self, layout: Layout, *, damping: float = 0.01, decay: float = 0.95, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(layout, damping=damping, decay=decay, device=device)
        # Which averages a block keeps is known only once its first factors are seen.
        self._averages: list[dict[str, Tensor]] = []
        self._weight = torch.zeros((), device=self.device)

    @full_precision
    def update(self, factors: Sequence[Factors]) -> None:
        batch = [statistics(factor) for factor in self._prepare(factors)]
        if not self._averages:
            self._averages = [{key: torch.zeros_like(value) for key, value in block.items()} for block in batch]
        valid = all_finite([value for block in batch for value in block.values()])
        for block, averages, new in zip(self.layout.blocks, self._averages, batch, strict=True):
            if averages.keys() != new.keys():
                raise LayerError(f"layer {block.name!r} changed between elementwise and matrix gradients within a run")
            for key, value in new.items():
                accumulate(averages[key], value, self.decay, valid)
        accumulate(self._weight, torch.ones_like(self._weight), self.decay, valid)
        self.updates += 1
        self._cache.clear()

    @full_precision
    def matvec(self, vectors: Tensor) -> Tensor:
        vectors = self._vectors(vectors)
        if not self._averages:
            return self.damping * vectors
        products = vectors * self._own()
        places = zip(self.layout.split(vectors), self.layout.split(products), self._corrected(), strict=True)
        for x, product, averages in places:
            if SQUARE not in averages:
                product.baddbmm_(averages[DELTA].expand(len(x), -1, -1), x @ averages[INPUTS])
        return products

    @full_precision
    def solve(self, vectors: Tensor) -> Tensor:
        return self.apply_function(vectors, torch.reciprocal)

    @full_precision
    def apply_function(self, vectors: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """f(H + λI) applied to vectors [K, P].

        `function` acts on every damped eigenvalue alone; it is called once, with all of them in float64, [P].
        """
        factors = function(self._eigenvalues()).to(self.device, torch.float32)
        results = []
        for x, factor, eigen in zip(
            self.layout.split(self._vectors(vectors)), self.layout.split(factors), self._eigen(), strict=True
        ):
            if eigen.left is None or eigen.right is None:
                results.append(factor * x)
            else:
                results.append(eigen.left @ (factor * (eigen.left.T @ x @ eigen.right)) @ eigen.right.T)
        return self.layout.join(results)

    @full_precision
    def diagonal(self) -> Tensor:
        return self.layout.join(self._diagonals()) + self._ridge_vector()

    @full_precision
    @until_update
    def spectrum(self) -> Spectrum:
        smallest, largest = torch.stack(self._eigenvalues().aminmax()).tolist()
        return Spectrum(smallest, largest)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"name": self.name, "updates": self.updates, "weight": self._weight.clone()}
        for index, averages in enumerate(self._averages):
            state.update({f"{index}.{key}": value.clone() for key, value in averages.items()})
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_state(state, {"weight": ()})
        averages: list[dict[str, Tensor]] = []
        for index, block in enumerate(self.layout.blocks if int(state["updates"]) else ()):
            shapes = {INPUTS: (block.cols, block.cols), DELTA: (block.rows, block.rows)}
            if f"{index}.{SQUARE}" in state:
                shapes = {SQUARE: (block.rows, block.cols)}
            self._check_state(state, {f"{index}.{key}": shape for key, shape in shapes.items()})
            averages.append({key: state[f"{index}.{key}"].to(self.device, torch.float32, copy=True) for key in shapes})
        known = {"name", "updates", "weight"} | {f"{i}.{key}" for i, block in enumerate(averages) for key in block}
        if state.keys() - known:
            raise StateError(
                f"saved curvature has unknown entries {sorted(state.keys() - known)}: the state is from another model"
            )
        self._averages = averages
        self._weight = state["weight"].to(self.device, torch.float32, copy=True)
        self.updates = int(state["updates"])
        self._cache.clear()

    @until_update
    def _corrected(self) -> list[dict[str, Tensor]]:
        """The running averages, corrected for their start at zero."""
        weight = torch.where(self._weight > 0, self._weight, 1.0)
        return [{key: average / weight for key, average in block.items()} for block in self._averages]

    def _diagonals(self) -> list[Tensor]:
        """Diagonal of H per block, [rows, cols]."""
        if not self._averages:
            return [torch.zeros(block.rows, block.cols, device=self.device) for block in self.layout.blocks]
        return [
            averages[SQUARE]
            if SQUARE in averages
            else torch.outer(averages[DELTA].diagonal(), averages[INPUTS].diagonal())
            for averages in self._corrected()
        ]

    @until_update
    def _ridge_vector(self) -> Tensor:
        """λ of every weight, [P]; it is the same within a block."""
        means = torch.stack([diagonal.mean() for diagonal in self._diagonals()])
        ridges = self._ridge(means.clamp_min(DEAD_BLOCK * means.mean()), self._weight)
        sizes = torch.tensor([block.size for block in self.layout.blocks], device=self.device)
        return ridges.repeat_interleave(sizes, output_size=self.layout.size)

    @until_update
    def _own(self) -> Tensor:
        """What multiplies a vector entry by entry, [P]: λ, and the squares of elementwise blocks."""
        squares = [
            averages[SQUARE] if SQUARE in averages else torch.zeros(block.rows, block.cols, device=self.device)
            for block, averages in zip(self.layout.blocks, self._corrected(), strict=True)
        ]
        return self._ridge_vector() + self.layout.join(squares)

    @until_update
    def _eigenvalues(self) -> Tensor:
        """All damped eigenvalues, float64 [P]."""
        values = self.layout.join([eigen.values for eigen in self._eigen()])
        return values + self._ridge_vector().to(values)

    @until_update
    def _eigen(self) -> list[Eigen]:
        """Eigenvalues and eigenvectors of every block; factors of one size are decomposed together."""
        if not self._averages:
            return [Eigen(to_float64(diagonal)) for diagonal in self._diagonals()]
        corrected = self._corrected()
        sizes: dict[int, list[tuple[int, str]]] = {}
        for index, averages in enumerate(self._averages):
            for key in (DELTA, INPUTS):
                if key in averages:
                    sizes.setdefault(len(averages[key]), []).append((index, key))
        parts: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        for places in sizes.values():
            values, vectors = eigh(torch.stack([corrected[index][key] for index, key in places]))
            parts.update(zip(places, zip(values, vectors, strict=True), strict=True))
        found = []
        for index, averages in enumerate(self._averages):
            if SQUARE in averages:
                found.append(Eigen(to_float64(corrected[index][SQUARE])))
                continue
            (s, left), (alpha, right) = parts[index, DELTA], parts[index, INPUTS]
            found.append(Eigen(torch.outer(s, alpha), left, right))
        return found
