"""Directions refined on the exact curvature: against a dense Gauss–Newton matrix."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jacrev
from torch.nn import functional as F

from sgoif_bench.fidelity import refined
from sgoif_bench.fidelity.online import OnlineSettings, QueryWatch
from sgoif_bench.fidelity.recipes import training_for
from sgoif_bench.fidelity.refined import RefinedWatch
from sgoif_bench.fidelity.study import Study, make_study
from sgoif_bench.labels.datasets import load

pytest.importorskip("sklearn")
DAMPING = 0.1
HEAD = OnlineSettings(layers="head", damping=DAMPING)


@pytest.fixture(scope="module")
def study() -> Study:
    training = training_for("digits", limit=120, epochs=3, batch_size=32)
    return make_study(
        load("digits", limit=120), load("digits", train=False), training, 0.1, 10, torch.device("cpu"), seed=0
    )


def dense_system(study: Study, model: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Jᵀ (diag p − p pᵀ) J of the head on all examples plus K-FAC's damping, and ∇(−f) of the queries."""
    watch = QueryWatch(study, model, HEAD)
    kfac = watch._kfac(watch._curvature_factors())
    gradients = watch.query_gradients().double()
    watch.close()
    x, _ = study.train_tensors()
    head = {name: value.detach() for name, value in model.named_parameters() if name.startswith("5.")}
    jacobian = jacrev(lambda weights: functional_call(model, weights, (x,)))(head)
    rows = torch.cat([jacobian["5.weight"], jacobian["5.bias"].unsqueeze(-1)], dim=-1).flatten(2).double().detach()
    p = F.softmax(model(x).detach().double(), dim=1)
    middle = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    ggn = torch.einsum("ncp,ncd,ndq->pq", rows, middle, rows) / len(x)
    (factors,) = kfac._corrected()
    mean = (factors["delta"].diagonal().mean() * factors["inputs"].diagonal().mean()).double()
    return ggn + DAMPING * mean * torch.eye(len(ggn), dtype=ggn.dtype), gradients


def directions(study: Study, model: torch.nn.Module, watcher: type[QueryWatch]) -> Tensor:
    watch = watcher(study, model, HEAD)
    found = watch.directions().double()
    watch.close()
    return found


def test_many_steps_solve_the_dense_system(study, monkeypatch):
    model = study.problem.new_model()
    system, gradients = dense_system(study, model)
    monkeypatch.setattr(refined, "STEPS", 300)
    found = directions(study, model, RefinedWatch)
    wanted = torch.linalg.solve(system, gradients.T).T
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-3 * float(wanted.abs().max()))


def test_a_few_steps_come_closer_than_kfac(study):
    model = study.problem.new_model()
    system, gradients = dense_system(study, model)
    wanted = torch.linalg.solve(system, gradients.T).T

    def error(found: Tensor) -> Tensor:
        off = found - wanted
        return torch.einsum("qp,pr,qr->q", off, system, off)

    before, after = (error(directions(study, model, watcher)) for watcher in (QueryWatch, RefinedWatch))
    assert (after < 0.5 * before).all()


def test_a_watched_run_scores_all_examples(study):
    model = study.problem.new_model()
    watch = RefinedWatch(study, model, OnlineSettings(epochs=1))
    study.problem.fit(
        model, study.problem.batches(), watching=watch.step, on_epoch=lambda epoch: watch.begin(epoch + 1)
    )
    scores = watch.scores()
    watch.close()
    assert scores.shape == (10, len(study))
    assert scores.isfinite().all()
    assert (scores != 0).any(0).all()
