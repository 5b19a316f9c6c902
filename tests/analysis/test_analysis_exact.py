"""Error bound, certificate, misranking bound and error budget of a monitor, against exact solutions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.errors import IndexingError, SgoifError
from sgoif.scoring.influence import group_scores

TRAIN = 24


def data(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator)
    return x, (x[:, :3].argmax(1) + (torch.rand(count, generator=generator) < 0.2)).remainder(3)


def watched(steps: int = 1, **options: object) -> InfluenceMonitor:
    """A monitor that has seen the same batch `steps` times at fixed weights."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = InfluenceMonitor(model, optimizer, anchors=data(1, 30), refresh_every=10**6, temperature=None, **options)
    x, y = data(2, TRAIN)
    for _ in range(steps):
        with monitor.step(range(TRAIN)):
            nn.functional.cross_entropy(model(x), y).backward()
    return monitor


def weighed(groups: Tensor, help_weight: float) -> Tensor:
    return groups.clamp_min(0).sum(1) + help_weight * groups.clamp_max(0).sum(1)


def exact_groups(monitor: InfluenceMonitor) -> Tensor:
    """Influences by group of the batch with H⁻¹ applied exactly to every group's gradient."""
    bank, weights = monitor.anchors, monitor.anchors.weights()
    wanted = torch.zeros_like(bank.group_sums(bank.phi, bank.weights()))
    wanted.index_add_(0, bank.member_groups, weights.unsqueeze(1) * monitor.gradients.of_anchors()[0])
    x, y = data(2, TRAIN)
    delta = torch.softmax(monitor.model(x), 1).detach() - nn.functional.one_hot(y, 3)
    factors = monitor.head.factors(x, delta)
    return -group_scores(factors, monitor.layout.split(monitor.curvature.solve(wanted))[-1])


@pytest.mark.parametrize("help_weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("steps", [1, 5, 60])
def test_scores_are_within_the_bound_of_the_exact_ones(help_weight: float, steps: int) -> None:
    monitor = watched(help_weight=help_weight, solver_steps=steps)
    monitor.flush()
    found, bound = monitor.ledger.mean("score"), monitor.ledger.mean("bound")
    error = (found - weighed(exact_groups(monitor), help_weight)).abs()
    assert bool((error <= bound * (1 + 1e-4) + 1e-4).all())
    assert float(error.max()) > 0


def test_weighing_groups_one_by_one_needs_the_larger_bound() -> None:
    plain, bent = watched(help_weight=1.0), watched(help_weight=0.5)
    assert float(bent.directions.error_bound) > float(plain.directions.error_bound)


def test_a_converged_solver_certifies_what_few_steps_cannot() -> None:
    options = {"damping": 1.0, "gate": "none"}
    assert not watched(solver="richardson", solver_steps=1, **options).certificate(3).certified
    monitor = watched(solver="conjugate", solver_steps=60, **options)
    certificate = monitor.certificate(3)
    assert certificate.certified
    truth = weighed(exact_groups(monitor), 0.5).topk(3).indices
    assert set(truth.tolist()) == set(monitor.scores().worst(3)["index"].tolist())


def test_certificates_say_when_they_cannot_be_given() -> None:
    monitor = watched()
    for k in (0, TRAIN + 1):
        with pytest.raises(IndexingError, match="out of range"):
            monitor.certificate(k)
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    deep = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=data(1, 30), layers="all")
    with pytest.raises(SgoifError, match="layers='head' only"):
        deep.certificate(1)


def test_misranking() -> None:
    monitor = watched(steps=3)
    order = monitor.scores().worst()["index"]
    assert monitor.misranking_bound(int(order[0]), int(order[-1])) == pytest.approx(0.0, abs=1e-6)
    assert monitor.misranking_bound(int(order[-1]), int(order[0])) == 1.0
    assert monitor.misranking_bound(int(order[0]), int(order[-1]), bias=1e9) == 1.0
    with pytest.raises(IndexingError, match="two observations"):
        watched(steps=1).misranking_bound(0, 1)


def test_the_budget_adds_up_and_its_bound_holds() -> None:
    budget = watched().error_budget()
    assert 0 < budget.solver <= budget.bound
    parts = budget.solver + budget.curvature + budget.projection + budget.linearisation + budget.confidence
    assert budget.total == pytest.approx(parts)
    assert budget.projection == 0
    model = nn.Linear(5, 3)
    fresh = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=data(1, 30))
    with pytest.raises(SgoifError, match="no score yet"):
        fresh.error_budget()


def test_the_expected_error_is_the_leverage_of_the_margin() -> None:
    monitor = watched()
    x, y = data(3, 7)
    weight, bias = (part.detach().double() for part in (monitor.model.weight, monitor.model.bias))
    rest = torch.softmax((x.double() @ weight.T + bias).scatter(1, y[:, None], -torch.inf), 1)
    gradient = (nn.functional.one_hot(y, 3) - rest)[:, :, None] * torch.cat([x.double(), torch.ones(7, 1)], 1)[:, None]
    flat = monitor.layout.join([gradient.float()])
    dense = monitor.curvature.matvec(torch.eye(flat.shape[1])).double()
    wanted = (flat.double() * torch.linalg.solve(dense, flat.double().T).T).sum(1).sqrt()
    found = monitor.expected_error(x, y)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=0)
    monitor.close()
    assert torch.equal(monitor.expected_error(x, y), found)


def test_the_expected_error_of_an_example_the_model_is_sure_of() -> None:
    monitor = watched()
    with torch.no_grad():
        monitor.model.weight.mul_(1e3)
    x, _ = data(3, 7)
    sure = monitor.model(x).argmax(1)
    assert bool((monitor.gradients.of(x, sure).losses == 0).all())  # nothing is left of the loss
    assert float(monitor.expected_error(x, sure).min()) > 0


def test_an_expected_error_needs_a_step() -> None:
    model = nn.Linear(5, 3)
    fresh = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=data(1, 30))
    with pytest.raises(SgoifError, match="no curvature yet"):
        fresh.expected_error(*data(3, 2))
