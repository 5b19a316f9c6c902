"""Methods written from their papers: against sums over all coalitions, dense matrix functions and autograd."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, vmap
from torch.nn import functional as F

from sgoif.core.losses import negative_margin
from sgoif_bench.fidelity.answer import Relabelled, Trained
from sgoif_bench.fidelity.base import train_once
from sgoif_bench.fidelity.recipes import training_for
from sgoif_bench.fidelity.registry import METHODS, RIVAL, choose
from sgoif_bench.fidelity.rivals.in_run_shapley import InRun
from sgoif_bench.fidelity.rivals.source import (
    CHECKPOINTS,
    SEGMENTS,
    Basis,
    Segment,
    applied,
    decomposed,
    scored,
    source,
    train_in_segments,
    walk_back,
)
from sgoif_bench.fidelity.rivals.whole import WholeWatch
from sgoif_bench.fidelity.study import Study, make_study
from sgoif_bench.labels.datasets import load

pytest.importorskip("sklearn")
ASKED = Relabelled(np.arange(5), np.array([1, 2, 3, 4, 5]))


def made(model: str) -> Study:
    """Digits of 4 × 4 pixels: dense matrices stay small."""
    training = training_for("digits", limit=60, epochs=3, batch_size=20, model=model)
    train, test = (
        replace(data, images=data.images[:, :, ::2, ::2])
        for data in (load("digits", limit=60), load("digits", train=False))
    )
    return make_study(train, test, training, 0.1, 5, torch.device("cpu"), seed=0)


@pytest.fixture(scope="module")
def study() -> Study:
    return made("linear")


def slopes(model: torch.nn.Module, x: Tensor, y: Tensor, loss: object) -> Tensor:
    """Per-example gradients by autograd, every layer's weight with its bias as the last column, [B, P]."""
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def one(at: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return loss(functional_call(model, at, (image[None],)), label[None]).sum()

    found = vmap(grad(one), in_dims=(None, 0, 0))(weights, x, y)
    names = [name.removesuffix(".weight") for name in found if name.endswith("weight")]
    blocks = [torch.cat([found[f"{n}.weight"], found[f"{n}.bias"][..., None]], dim=-1) for n in names]
    return torch.cat([block.flatten(1) for block in blocks], dim=1)


# In-Run Data Shapley


def shapley(worth: object, players: int) -> Tensor:
    """Mean marginal contribution over all orders."""
    total, orders = torch.zeros(players, dtype=torch.float64), list(permutations(range(players)))
    for order in orders:
        for place, player in enumerate(order):
            total[player] += worth(order[: place + 1]) - worth(order[:place])
    return total / len(orders)


def test_a_step_is_worth_its_shapley_values(study):
    model = study.problem.new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.7)
    index = torch.tensor([3, 50, 17, 8])
    x, y = study.train_tensors(index.numpy())
    asked, labels = study.query_tensors()
    own = slopes(model, x, y, F.cross_entropy).double()
    theirs = slopes(model, asked, labels, negative_margin).double()
    start = torch.cat([model[1].weight, model[1].bias[:, None]], dim=1).detach().double()

    def curvature(query: int) -> Tensor:
        def figure(at: Tensor) -> Tensor:
            at = at.view_as(start)
            inputs = asked[query].flatten().double()
            return negative_margin((at[:, :-1] @ inputs + at[:, -1])[None], labels[query : query + 1])[0]

        return hessian(figure)(start.flatten())

    rate, found = 0.7 / 4, {}
    for order in (1, 2):
        run = InRun(study, model, optimizer, order)
        with run.step(index):
            F.cross_entropy(model(x), y).backward()
        run.close()
        found[order] = run.scores.double()
        outside = np.setdiff1d(np.arange(60), index)
        assert not run.scores[:, outside].any()
    curved, straight = own @ curvature(2) @ own.T, own @ theirs[2]
    for order in (1, 2):

        def worth(players: tuple[int, ...], order: int = order) -> Tensor:
            """What the step of these examples does to the query, to so many orders."""
            some = list(players)
            return -rate * straight[some].sum() + (order - 1) / 2 * rate**2 * curved[some][:, some].sum()

        torch.testing.assert_close(found[order][2, index], -shapley(worth, 4), rtol=1e-3, atol=1e-5)
    assert not torch.allclose(found[1], found[2], rtol=1e-2)


def test_values_add_up_over_the_run_and_use_the_rate_of_each_step(study):
    small = train_once(study)
    answer = METHODS["in-run-shapley"].run(small)
    problem, model = study.problem, study.problem.new_model()
    batches = problem.batches()
    optimizer, schedule = problem.optimizer(model, problem.recipe.epochs * len(batches))
    asked, labels = study.query_tensors()
    wanted = torch.zeros(5, 60)
    for _ in range(problem.recipe.epochs):
        for x, y, index in batches:
            rate = optimizer.param_groups[0]["lr"] / len(index)
            own, theirs = slopes(model, x, y, F.cross_entropy), slopes(model, asked, labels, negative_margin)
            wanted[:, index] += rate * theirs @ own.T
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    np.testing.assert_allclose(answer.scores, wanted.numpy(), rtol=1e-3, atol=1e-4)
    assert answer.relabelled is None


def test_ghost_products_are_those_of_gradients_where_layers_see_many_positions():
    study = made("cnn")
    model = study.problem.new_model()
    index = torch.arange(6)
    x, y = study.train_tensors(index.numpy())
    run = InRun(study, model, torch.optim.SGD(model.parameters(), lr=6.0))
    with run.step(index):
        F.cross_entropy(model(x), y).backward()
    run.close()
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def all_of(images: Tensor, labels: Tensor, loss: object) -> Tensor:
        def one(at: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            return loss(functional_call(model, at, (image[None],)), label[None]).sum()

        found = vmap(grad(one), in_dims=(None, 0, 0))(weights, images, labels)
        return torch.cat([part.flatten(1) for part in found.values()], dim=1)

    wanted = all_of(*study.query_tensors(), negative_margin) @ all_of(x, y, F.cross_entropy).T
    torch.testing.assert_close(run.scores[:, :6], wanted, rtol=1e-3, atol=1e-5)


# SOURCE


def test_both_functions_of_an_eigenvalue():
    segment = Segment((), span=50.0)
    values = torch.tensor([0.0, 1e-30, 1e-3, 0.02, 3.0], dtype=torch.float64)
    assert segment.backward(values).tolist() == pytest.approx([1, 1, np.exp(-0.05), np.exp(-1), np.exp(-150)])
    inside = [50, 50, (1 - np.exp(-0.05)) / 1e-3, (1 - np.exp(-1)) / 0.02, 1 / 3]
    assert segment.inside(values).tolist() == pytest.approx(inside, rel=1e-6)
    flat = Segment((), span=0.0)
    assert flat.inside(values).tolist() == [0] * 5


@pytest.fixture(scope="module")
def small(study: Study) -> Trained:
    return train_once(study, relabelled=ASKED)


def dense(basis: Basis) -> Tensor:
    """H of one layer as a matrix over its flattened block."""
    whole = torch.kron(basis.left.contiguous(), basis.right.contiguous()).double()
    return whole @ torch.diag(basis.values.flatten()) @ whole.T


def test_scores_are_those_of_dense_matrix_functions(study, small):
    model, segments = train_in_segments(study.problem)
    watch = WholeWatch(study, model)
    x, y = study.train_tensors()
    torch.manual_seed(0)
    directions = walk_back(watch, segments, x)
    found = scored(watch, segments, directions, x, y)
    # The same draws of labels again, from the last segment to the first.
    watch = WholeWatch(study, model)
    arrived = slopes(model, *study.query_tensors(), negative_margin).double()
    wanted = torch.zeros(5, 60, dtype=torch.float64)
    for segment in reversed(segments):
        (basis,) = decomposed(watch, segment, x)
        matrix = dense(basis)
        size = torch.eye(len(matrix), dtype=matrix.dtype)
        decay = torch.matrix_exp(-segment.span * matrix)
        inside = (size - decay) @ torch.linalg.pinv(matrix, rtol=1e-9)
        flat = torch.linalg.eigh(matrix)
        lost = flat.eigenvectors[:, flat.eigenvalues < 1e-9 * flat.eigenvalues[-1]]
        inside = inside + segment.span * lost @ lost.T
        own = torch.zeros(60, len(matrix), dtype=torch.float64)
        for state in segment.states:
            earlier = study.problem.new_model()
            earlier.load_state_dict(state)
            own += slopes(earlier, x, y, F.cross_entropy).double() / len(segment.states)
        wanted += arrived @ inside @ own.T
        arrived = arrived @ decay
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-3 * float(wanted.abs().max()))


def test_the_curvature_is_averaged_over_the_checkpoints_of_a_segment(study, monkeypatch):
    _, segments = train_in_segments(study.problem)
    segment = segments[1]
    x, y = study.train_tensors()
    watch = WholeWatch(study, study.problem.new_model())
    given = iter([y, y, y, y])
    monkeypatch.setattr(
        watch, "drawn", lambda some: watch.looked(some, lambda z: F.cross_entropy(z, next(given), reduction="none"))
    )
    (basis,) = decomposed(watch, segment, x)
    gradients = []
    for state in segment.states:
        model = study.problem.new_model()
        model.load_state_dict(state)
        gradients.append(slopes(model, x, y, F.cross_entropy))
    matrices = torch.cat(gradients).unflatten(1, (10, -1))
    turned = basis.left.T @ matrices @ basis.right
    torch.testing.assert_close(basis.values, turned.double().square().mean(0), rtol=1e-4, atol=1e-10)
    inputs = torch.cat([x.flatten(1), torch.ones(60, 1)], dim=1)
    moment = basis.right.T @ (inputs.T @ inputs / 60) @ basis.right
    torch.testing.assert_close(moment, torch.diag(moment.diagonal()), rtol=1e-3, atol=1e-4)
    assert dense(basis).trace() == pytest.approx(float(matrices.double().square().sum(dim=(1, 2)).mean()), rel=1e-4)


def test_segments_are_parts_of_the_run_with_their_rates(study, small):
    model, segments = train_in_segments(study.problem)
    for name, value in small.model.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)
        torch.testing.assert_close(segments[-1].states[-1][name], value, rtol=0, atol=0)
    assert [len(segment.states) for segment in segments] == [CHECKPOINTS] * SEGMENTS
    problem = study.problem
    steps = problem.recipe.epochs * len(problem.batches())
    optimizer, schedule = problem.optimizer(problem.new_model(), steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    spans = [10 * sum(part) for part in np.array_split(rates, SEGMENTS)]  # momentum 0.9
    assert [segment.span for segment in segments] == pytest.approx(spans)


def test_new_labels_are_asked_of_the_averaged_gradients(study, small):
    torch.manual_seed(0)
    answer = source(small)
    torch.manual_seed(0)
    model, segments = train_in_segments(study.problem)
    watch = WholeWatch(study, model)
    directions = walk_back(watch, segments, study.train_tensors()[0])
    new = scored(watch, segments, directions, *ASKED.tensors(study)).numpy()
    np.testing.assert_allclose(answer.relabelled, new - answer.scores[:, :5], rtol=1e-3, atol=1e-4)


def test_diagonal_blocks_stay_diagonal(study):
    watch = WholeWatch(study, study.problem.new_model())
    vectors = torch.randn(2, watch.layout.size)
    values = torch.rand(10, 17, dtype=torch.float64)
    found = applied(watch.layout, [Basis(values)], vectors, lambda sigma: sigma + 1)
    watch.close()
    torch.testing.assert_close(found, vectors * (values.flatten() + 1).float())


def test_rivals_are_a_group_of_their_own():
    names = [name for name, entry in METHODS.items() if entry.kind == RIVAL]
    assert choose("rivals") == names == ["source", "in-run-shapley", "in-run-shapley-2"]
    assert not set(names) & set(choose("ours,peers"))
