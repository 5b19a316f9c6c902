"""Empirical Fisher over a sliding window, inverted exactly.

    H = (1/m) Σ_j g_j g_jᵀ = VᵀV,    V = [g_1 … g_m]ᵀ / √m   [m, P],    λ = damping · ‖V‖² / P

over the last m ≤ `window` per-example gradients; the window forgets, so `decay` is not used. Only an m × m matrix is
ever factored (Woodbury, here for any diagonal E, as the low-rank backend needs it too; E = λI for the Fisher):

    (E + VᵀV)⁻¹ x = E⁻¹x − E⁻¹Vᵀ (I + V E⁻¹ Vᵀ)⁻¹ V E⁻¹ x

The difference cancels along the large eigenvectors of VᵀV, hence float64, over a few columns at a time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.core.parameter_layout import Layout
from sgoif.core.precision import full_precision
from sgoif.curvature.base import Curvature, Factors, Spectrum, all_finite, to_float64, until_update
from sgoif.errors import SettingError

# Entries of a float64 copy held at once (64 MiB).
CHUNK = 2**23


def column_slices(height: int, width: int) -> Iterator[slice]:
    """Column ranges that cover a height × width matrix, each of bounded size."""
    step = max(1, CHUNK // max(1, height))
    return (slice(start, start + step) for start in range(0, width, step))


def gram(rows: Tensor, inverse_diagonal: Tensor | None = None) -> Tensor:
    """V E⁻¹ Vᵀ in float64 for rows V [m, P] and E⁻¹ [P] (E = I when left out)."""
    total = to_float64(rows.new_zeros(len(rows), len(rows)))
    for part in column_slices(*rows.shape):
        v = to_float64(rows[:, part])
        weighted = v if inverse_diagonal is None else v * to_float64(inverse_diagonal[part])
        total += weighted @ v.T
    return (total + total.T) / 2


def factor_capacitance(rows: Tensor, inverse_diagonal: Tensor) -> Tensor:
    """Cholesky factor of I + V E⁻¹ Vᵀ, float64."""
    capacitance = gram(rows, inverse_diagonal)
    capacitance.diagonal().add_(1)
    factor: Tensor = torch.linalg.cholesky(capacitance)
    return factor


def woodbury(vectors: Tensor, rows: Tensor, inverse_diagonal: Tensor, cholesky: Tensor) -> Tensor:
    """(E + VᵀV)⁻¹ x for vectors [K, P], in their type; `cholesky` from `factor_capacitance`."""
    slices = list(column_slices(len(rows) + len(vectors), rows.shape[1]))
    projected = to_float64(vectors.new_zeros(len(vectors), len(rows)))
    for part in slices:
        projected += (to_float64(vectors[:, part]) * to_float64(inverse_diagonal[part])) @ to_float64(rows[:, part]).T
    coefficients = torch.cholesky_solve(projected.T, cholesky).T
    solution = torch.empty_like(vectors)
    for part in slices:
        difference = to_float64(vectors[:, part]) - coefficients @ to_float64(rows[:, part])
        solution[:, part] = (difference * to_float64(inverse_diagonal[part])).to(vectors)
    return solution


def pick(factors: Sequence[Factors], count: int, turn: int) -> list[Factors]:
    """At most `count` examples of a batch, evenly spaced, the start moving on by one with each `turn`.

    Every position of a batch has its turn equally often, so the choice has no bias even when batches are sorted.
    """
    picked = []
    for factor in factors:
        batch = len(factor.delta)
        if batch > count:
            index = (torch.arange(count, device=factor.delta.device) * batch // count + turn) % batch
            factor = Factors(factor.inputs[index], factor.delta[index], factor.elementwise)
        picked.append(factor)
    return picked


class Window:
    """The last `capacity` gradients as rows of a ring buffer; empty rows are zero.

    Cursor and count live on the device, because whether a batch was valid is known only there.
    """

    def __init__(self, capacity: int, size: int, device: torch.device) -> None:
        self.rows = torch.zeros(capacity, size, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)

    def push(self, gradients: Tensor, valid: Tensor) -> None:
        """Write gradients [b, P], b ≤ capacity, over the oldest rows; nothing where `valid` is false."""
        capacity, fresh = len(self.rows), len(gradients)
        slots = (self.cursor + torch.arange(fresh, device=self.rows.device)) % capacity
        self.rows.index_copy_(0, slots, torch.where(valid, gradients, self.rows[slots]))
        self.cursor = torch.where(valid, (self.cursor + fresh) % capacity, self.cursor)
        self.count = torch.where(valid, (self.count + fresh).clamp_max(capacity), self.count)

    def clear(self) -> None:
        for tensor in (self.rows, self.cursor, self.count):
            tensor.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        return {"rows": self.rows.clone(), "cursor": self.cursor.clone(), "count": self.count.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows.copy_(state["rows"])
        self.cursor = state["cursor"].to(self.cursor, copy=True)
        self.count = state["count"].to(self.count, copy=True)


class EmpiricalFisher(Curvature):
    """Exact H of the last `window` per-example gradients; needs window × P memory, so best for a head."""

    name = "fisher"

    def __init__(
        self,
        layout: Layout,
        *,
        damping: float = 0.01,
        decay: float = 0.95,
        device: torch.device | str = "cpu",
        window: int = 256,
    ) -> None:
        super().__init__(layout, damping=damping, decay=decay, device=device)
        if window < 1:
            raise SettingError(f"window must be at least 1 gradient; got {window}")
        self.window = window
        self._window = Window(window, layout.size, self.device)

    @full_precision
    def update(self, factors: Sequence[Factors]) -> None:
        picked = pick(self._prepare(factors), self.window, self.updates)
        gradients = self.layout.join([factor.gradient() for factor in picked])
        # Norms rather than entries: a square that overflows would spoil the mean diagonal as well.
        norms = torch.linalg.vector_norm(gradients, dim=1)
        self._window.push(gradients, all_finite([norms.square()]))
        self.updates += 1
        self._cache.clear()

    @full_precision
    def matvec(self, vectors: Tensor) -> Tensor:
        vectors = self._vectors(vectors)
        rows = self._window.rows
        return (vectors @ rows.T) @ rows / self._seen() + self._damping() * vectors

    @full_precision
    def solve(self, vectors: Tensor) -> Tensor:
        # Scaling E by m instead of the rows by 1/√m saves a copy of the window: (E + VᵀV)⁻¹ = m (mE + mVᵀV)⁻¹.
        return woodbury(self._vectors(vectors), self._window.rows, self._inverse(), self._cholesky()) * self._seen()

    @full_precision
    def diagonal(self) -> Tensor:
        return self._square() + self._damping()

    @full_precision
    @until_update
    def spectrum(self) -> Spectrum:
        eigenvalues = torch.linalg.eigvalsh(gram(self._window.rows)) / float(self._seen())
        # Ascending; a window of fewer rows than weights leaves directions that no gradient has, where H is zero.
        spare = self.window - self.layout.size
        smallest = float(eigenvalues[spare].clamp_min(0)) if spare >= 0 else 0.0
        damping = float(self._damping())
        return Spectrum(smallest + damping, float(eigenvalues[-1].clamp_min(0)) + damping)

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "updates": self.updates, **self._window.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_state(state, {"rows": (self.window, self.layout.size), "cursor": (), "count": ()})
        self._window.load_state_dict(state)
        self.updates = int(state["updates"])
        self._cache.clear()

    def _seen(self) -> Tensor:
        """m, at least one."""
        return self._window.count.clamp_min(1).float()

    @until_update
    def _square(self) -> Tensor:
        """Diagonal of H."""
        # The norm along a dimension does not make a squared copy of the window.
        norms: Tensor = torch.linalg.vector_norm(self._window.rows, dim=0)
        return norms.square() / self._seen()

    @until_update
    def _damping(self) -> Tensor:
        return self._ridge(self._square().mean(), self._window.count)

    def _inverse(self) -> Tensor:
        """1 / mλ for every weight."""
        return (self._damping() * self._seen()).reciprocal().expand(self.layout.size)

    @until_update
    def _cholesky(self) -> Tensor:
        return factor_capacitance(self._window.rows, self._inverse())
