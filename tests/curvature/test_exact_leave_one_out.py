"""Leave-one-out: what the exact operator predicts against what retraining without the example gives.

With w* the minimum of F(w) = (1/n) Σ_i ℓ_i(w) + (λ/2)‖w‖², leaving out example i minimises
(1/n) Σ_{j≠i} ℓ_j + (λ/2)‖w‖² and moves the minimum by H⁻¹ g_i / n to first order, H the Hessian of F. The held-out loss
then changes by g_vᵀ H⁻¹ g_i / n. Influence as the engine defines it is I_i = −g_vᵀ H⁻¹ g_i, positive for a harmful
example, so the change is −I_i / n: leaving a harmful example out lowers the held-out loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from exact_cases import ExactHessian, solved
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.core.parameter_layout import Layout
from sgoif.curvature import ExactGGN
from sgoif.tracking.functional_model import watched_output
from sgoif.tracking.layers.linear import LinearLayer

TRAIN, HELD_OUT, REMOVED, DECAY, WRONG = 300, 300, 120, 0.02, 30


@dataclass
class Problem:
    model: nn.Linear
    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor

    @property
    def weights(self) -> Tensor:
        """The minimum as [10 × 65], bias last, flattened as the engine does."""
        return torch.cat([self.model.weight, self.model.bias.unsqueeze(1)], dim=1).detach().flatten()


def objective(weights: Tensor, x: Tensor, y: Tensor, total: int) -> Tensor:
    matrix = weights.view(10, -1)
    losses = F.cross_entropy(F.linear(x, matrix[:, :-1], matrix[:, -1]), y, reduction="sum") / total
    return losses + DECAY / 2 * weights.square().sum()


def held_out_loss(problem: Problem, weights: Tensor) -> Tensor:
    matrix = weights.view(10, -1)
    return F.cross_entropy(F.linear(problem.held_x, matrix[:, :-1], matrix[:, -1]), problem.held_y)


def minimise(x: Tensor, y: Tensor, start: Tensor) -> Tensor:
    """L-BFGS until the gradient is gone; the sum of losses is always divided by the full number of examples."""
    weights = start.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=400, history_size=30, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective(weights, x, y, TRAIN)
        value.backward()
        return value

    optimizer.step(closure)
    assert weights.grad is not None
    assert float(weights.grad.abs().max()) < 1e-6, "training did not converge"
    return weights.detach()


@pytest.fixture(scope="module")
def problem() -> Problem:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(digits.data, dtype=torch.float64)[order] / 16
    y = torch.tensor(digits.target)[order]
    held_x, held_y = x[TRAIN : TRAIN + HELD_OUT], y[TRAIN : TRAIN + HELD_OUT]
    x, y = x[:TRAIN], y[:TRAIN].clone()
    y[:WRONG] = (y[:WRONG] + 1) % 10  # some labels are wrong, so that there is harm to find
    weights = minimise(x, y, torch.zeros(650, dtype=torch.float64)).view(10, -1)
    model = nn.Linear(64, 10).double()
    with torch.no_grad():
        model.weight.copy_(weights[:, :-1])
        model.bias.copy_(weights[:, -1])
    return Problem(model, x, y, held_x, held_y)


@pytest.fixture(scope="module")
def retrained(problem: Problem) -> Tensor:
    """Real change of the held-out loss for every removed example: all of them retrained at once, to the minimum.

    Steps are taken with the inverse Hessian of the full problem; whatever the steps, the minimum is where the gradient
    of the objective without the example is zero, and that is checked.
    """

    def without(weights: Tensor, removed: Tensor) -> Tensor:
        kept = torch.ones(TRAIN, dtype=torch.float64).scatter(0, removed.unsqueeze(0), 0.0)
        matrix = weights.view(10, -1)
        losses = F.cross_entropy(F.linear(problem.x, matrix[:, :-1], matrix[:, -1]), problem.y, reduction="none")
        return (kept * losses).sum() / TRAIN + DECAY / 2 * weights.square().sum()

    hessian = torch.func.hessian(lambda w: objective(w, problem.x, problem.y, TRAIN))(problem.weights)
    factor = torch.linalg.cholesky(hessian)
    gradient = torch.func.vmap(torch.func.grad(without))
    weights, removed = problem.weights.repeat(REMOVED, 1), torch.arange(REMOVED)
    for _ in range(60):
        slope = gradient(weights, removed)
        if float(slope.abs().max()) < 1e-11:
            break
        weights = weights - torch.cholesky_solve(slope.T, factor).T
    assert float(gradient(weights, removed).abs().max()) < 1e-11, "retraining did not converge"
    base = held_out_loss(problem, problem.weights)
    return torch.stack([held_out_loss(problem, row) - base for row in weights])


def test_retraining_is_retraining(problem: Problem, retrained: Tensor) -> None:
    """The same from scratch and with another optimizer, for a few examples."""
    base = held_out_loss(problem, problem.weights)
    for i in (0, REMOVED - 1):
        keep = torch.arange(TRAIN) != i
        weights = minimise(problem.x[keep], problem.y[keep], torch.zeros(650, dtype=torch.float64))
        torch.testing.assert_close(held_out_loss(problem, weights) - base, retrained[i], rtol=1e-3, atol=1e-8)


def influence(problem: Problem, operator: type[ExactGGN]) -> Tensor:
    """I_i = −g_vᵀ H⁻¹ g_i for every training example."""
    layer = LinearLayer("", problem.model)
    layout = Layout((layer.block,))
    output, point = watched_output(problem.model, [layer], layout, problem.x)
    curvature = operator(output, lambda z: F.cross_entropy(z, problem.y), point, damping=DECAY)

    def gradients(x: Tensor, y: Tensor) -> Tensor:
        delta = torch.softmax(problem.model(x), dim=1) - F.one_hot(y, 10)
        inputs = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
        return (delta.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1).detach()

    direction = solved(curvature, gradients(problem.held_x, problem.held_y).mean(0, keepdim=True))
    return -(gradients(problem.x, problem.y) @ direction[0])


def pearson(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1])


@pytest.mark.parametrize("operator", [ExactHessian, ExactGGN])
def test_exact_operators_predict_retraining(problem: Problem, retrained: Tensor, operator: type[ExactGGN]) -> None:
    scores = influence(problem, operator)[:REMOVED]
    predicted = -scores / TRAIN
    assert pearson(predicted, retrained) >= 0.99
    slope = float((predicted * retrained).sum() / predicted.square().sum())
    assert 0.9 < slope < 1.5, "the prediction has the size of the real change, not only its order"


def test_harmful_means_that_leaving_out_helps(problem: Problem, retrained: Tensor) -> None:
    scores = influence(problem, ExactHessian)[:REMOVED]
    clear = scores.abs() > scores.abs().median()
    assert bool((scores[clear] > 0).any())
    assert bool((scores[clear] < 0).any())
    assert float((torch.sign(scores[clear]) == -torch.sign(retrained[clear])).double().mean()) > 0.98
    most = scores.argsort(descending=True)[:10]
    assert bool((retrained[most] < 0).all())
    most_harmful = scores.argsort(descending=True)[:20]
    assert float((most_harmful < WRONG).double().mean()) > 0.9, "wrong labels are the most harmful"


def test_the_monitor_agrees_with_retraining(problem: Problem, retrained: Tensor) -> None:
    """One step of the monitor at the minimum: same sign, same order, with its own surrogate of the curvature."""
    model = nn.Linear(64, 10)
    model.load_state_dict({name: value.float() for name, value in problem.model.state_dict().items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=DECAY)
    holdout = (problem.held_x.float(), problem.held_y)
    options = {"gate": "none", "groups": "one", "damping": 1.0, "solver": "conjugate", "solver_steps": 60}
    monitor = InfluenceMonitor(model, optimizer, holdout, refresh_every=10**9, **options)
    with monitor.step(torch.arange(TRAIN)):
        F.cross_entropy(model(problem.x.float()), problem.y).backward()
    assert monitor.last is not None
    scores = monitor.last.influence[:REMOVED]
    assert pearson(scores, -retrained) > 0.8
    assert pearson(scores, influence(problem, ExactHessian)[:REMOVED]) > 0.8
