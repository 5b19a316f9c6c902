"""Low rank plus diagonal, with a streaming basis.

    H ≈ D + Q Λ Qᵀ,    D = max(diag(H) − diag(Q Λ Qᵀ), 0),    λ = damping · mean diagonal of this H

diag(H) is the running mean of g_i², as in the diagonal backend, so the surrogate has exactly that diagonal wherever the
low-rank part does not overshoot it. Q [P, r] follows the leading eigenvectors of the running H: every `refresh` updates
(T_r) the k updates since the last time, of which a buffer G [b, P] kept some per-example gradients, are merged in

    ρ = decay^k,    w ← ρ w + (1 − ρ),    Q Λ Qᵀ ← top r of  ( ρ w_old Q Λ Qᵀ + (1 − ρ) GᵀG / b ) / w

which is a thin SVD of r + b tall columns, done through their Gram matrix in float64. The inverse is Woodbury's, with
E = D + λI as the diagonal. Directions that are not (yet) filled are zero columns of Q with zero eigenvalues.
The decomposition waits for the GPU, so one update in `refresh` does; the others do not.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.core.parameter_layout import Layout
from sgoif.core.precision import full_precision
from sgoif.core.serialization import nest, unnest
from sgoif.curvature.base import Curvature, Factors, Spectrum, accumulate, all_finite, to_float64, until_update
from sgoif.curvature.diagonal import mean_square
from sgoif.curvature.fisher import Window, column_slices, factor_capacitance, gram, pick, woodbury
from sgoif.errors import SettingError

# Eigenvalues below this share of the largest are rounding noise of the Gram matrix.
NEGLIGIBLE = 1e-10


def leading_eigenpairs(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Orthonormal [rank, P] and eigenvalues [rank], descending, of CᵀC for rows C [m, P], m ≥ rank; zeros if none."""
    values, vectors = torch.linalg.eigh(gram(rows))
    values, vectors = values.flip(0)[:rank].clamp_min(0), vectors.flip(1)[:, :rank]
    kept = values > NEGLIGIBLE * values[0]
    values = torch.where(kept, values, 0.0)
    combine = vectors * torch.where(kept, values, torch.inf).rsqrt()
    basis = rows.new_empty(rank, rows.shape[1])
    for part in column_slices(*rows.shape):
        basis[:, part] = (combine.T @ to_float64(rows[:, part])).to(basis)
    return basis, values.to(basis)


class LowRankDiagonal(Curvature):
    """H as a diagonal plus its `rank` leading directions; memory (rank + buffer) × P."""

    name = "lowrank"

    def __init__(
        self,
        layout: Layout,
        *,
        damping: float = 0.01,
        decay: float = 0.95,
        device: torch.device | str = "cpu",
        rank: int = 16,
        refresh: int = 10,
        buffer: int = 64,
    ) -> None:
        super().__init__(layout, damping=damping, decay=decay, device=device)
        for name, value in (("rank", rank), ("refresh", refresh), ("buffer", buffer)):
            if value < 1:
                raise SettingError(f"{name} must be at least 1; got {value}")
        self.rank = rank
        self.refresh = refresh
        # Each update gives the same number of gradients, so that the buffer weighs all of them alike.
        self._share = -(-buffer // refresh)
        self._window = Window(self._share * refresh, layout.size, self.device)
        self._square = torch.zeros(layout.size, device=self.device)
        self._weight = torch.zeros((), device=self.device)
        self._rows = torch.zeros(rank, layout.size, device=self.device)
        self._values = torch.zeros(rank, device=self.device)
        # ρ of the updates since the last merge, and w of the merged part.
        self._discount = torch.ones((), device=self.device)
        self._merged = torch.zeros((), device=self.device)

    @property
    def basis(self) -> Tensor:
        """Q, [P, rank]: orthonormal columns, zero columns last."""
        return self._rows.T

    @property
    def eigenvalues(self) -> Tensor:
        """Λ, [rank], descending, without damping."""
        return self._values

    @full_precision
    def update(self, factors: Sequence[Factors]) -> None:
        prepared = self._prepare(factors)
        square = self.layout.join([mean_square(factor) for factor in prepared])
        gradients = self.layout.join([factor.gradient() for factor in pick(prepared, self._share, self.updates)])
        valid = all_finite([square, gradients])
        accumulate(self._square, square, self.decay, valid)
        accumulate(self._weight, torch.ones_like(self._weight), self.decay, valid)
        self._window.push(gradients, valid)
        self._discount = torch.where(valid, self._discount * self.decay, self._discount)
        # The first update merges at once, so that there is a basis from the start.
        if self.updates % self.refresh == 0:
            self._merge()
        self.updates += 1
        self._cache.clear()

    @full_precision
    def set_rank(self, rank: int) -> None:
        """Keep the `rank` leading directions; new ones are filled from the next refresh on."""
        if rank < 1:
            raise SettingError(f"rank must be at least 1; got {rank}")
        kept = min(rank, self.rank)
        rows, values = self._rows.new_zeros(rank, self.layout.size), self._values.new_zeros(rank)
        rows[:kept], values[:kept] = self._rows[:kept], self._values[:kept]
        self._rows, self._values, self.rank = rows, values, rank
        self._cache.clear()

    @full_precision
    def matvec(self, vectors: Tensor) -> Tensor:
        vectors = self._vectors(vectors)
        return vectors * self._remainder() + ((vectors @ self._rows.T) * self._values) @ self._rows

    @full_precision
    def solve(self, vectors: Tensor) -> Tensor:
        return woodbury(self._vectors(vectors), self._scaled(), self._inverse(), self._cholesky())

    @full_precision
    def diagonal(self) -> Tensor:
        return self._remainder() + self._low_rank_diagonal()

    @full_precision
    def spectrum(self) -> Spectrum:
        """Bounds min E and max E + max Λ; the second is at most twice the largest eigenvalue."""
        smallest, largest = torch.stack(self._remainder().aminmax()).tolist()
        return Spectrum(smallest, largest + float(self._values[0]))

    def state_dict(self) -> dict[str, Any]:
        tensors = {key: getattr(self, f"_{key}").clone() for key in self._shapes(self.rank)}
        window = nest("window", self._window.state_dict())
        return {"name": self.name, "updates": self.updates, "rank": self.rank, **tensors, **window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # A state may have another rank than this object was made with: the controller moves it.
        rank = int(state.get("rank", self.rank))
        shapes = self._shapes(rank)
        window = {"window.rows": tuple(self._window.rows.shape), "window.cursor": (), "window.count": ()}
        self._check_state(state, {**shapes, **window})
        for key in shapes:
            setattr(self, f"_{key}", state[key].to(self.device, torch.float32, copy=True))
        self._window.load_state_dict(unnest("window", state))
        self.rank = rank
        self.updates = int(state["updates"])
        self._cache.clear()

    def _shapes(self, rank: int) -> dict[str, tuple[int, ...]]:
        """Every tensor attribute (without its underscore) that is saved, and its shape."""
        scalars: dict[str, tuple[int, ...]] = {"weight": (), "discount": (), "merged": ()}
        return {"square": (self.layout.size,), "rows": (rank, self.layout.size), "values": (rank,), **scalars}

    def _merge(self) -> None:
        """Fold the buffer into the basis and empty it."""
        merged = self._discount * self._merged + (1 - self._discount)
        scale = torch.where(merged > 0, merged, 1.0)
        old = (self._discount * self._merged * self._values / scale).sqrt()
        new = ((1 - self._discount) / (self._window.count.clamp_min(1) * scale)).sqrt()
        rows = torch.cat([old[:, None] * self._rows, new * self._window.rows])
        self._rows, self._values = leading_eigenpairs(rows, self.rank)
        self._merged = merged
        self._discount = torch.ones_like(self._discount)
        self._window.clear()

    @until_update
    def _scaled(self) -> Tensor:
        """Λ^½ Qᵀ, [rank, P]."""
        return self._values.sqrt()[:, None] * self._rows

    @until_update
    def _inverse(self) -> Tensor:
        """E⁻¹, [P]."""
        return self._remainder().reciprocal()

    @until_update
    def _cholesky(self) -> Tensor:
        return factor_capacitance(self._scaled(), self._inverse())

    def _low_rank_diagonal(self) -> Tensor:
        # Row by row, so that no squared copy of the whole basis is made.
        total = torch.zeros_like(self._square)
        for value, row in zip(self._values, self._rows, strict=True):
            total.addcmul_(row * value, row)
        return total

    @until_update
    def _remainder(self) -> Tensor:
        """E = D + λ, [P]."""
        target = self._square / torch.where(self._weight > 0, self._weight, 1.0)
        low_rank = self._low_rank_diagonal()
        ridge = self._ridge(torch.maximum(target, low_rank).mean(), self._weight)
        return (target - low_rank).clamp_min(0) + ridge
