"""Watched queries: every product against autograd and dense algebra, the whole against retraining."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from sgoif.core.losses import negative_margin
from sgoif.errors import SettingError
from sgoif_bench.fidelity.answer import Answer, Relabelled
from sgoif_bench.fidelity.base import train_once
from sgoif_bench.fidelity.lds import agreement
from sgoif_bench.fidelity.online import SMALL_SIDE, OnlineSettings, QueryWatch, principal
from sgoif_bench.fidelity.ours import along_the_run, at_the_end
from sgoif_bench.fidelity.recipes import training_for
from sgoif_bench.fidelity.study import Study, make_study
from sgoif_bench.fidelity.truth import Wanted, train_all
from sgoif_bench.labels.datasets import load

pytest.importorskip("sklearn")
WHOLE = OnlineSettings(projection=10_000, epochs=3)


@pytest.fixture(scope="module")
def study() -> Study:
    training = training_for("digits", limit=200, epochs=8, batch_size=32)
    return make_study(
        load("digits", limit=200), load("digits", train=False), training, 0.1, 20, torch.device("cpu"), seed=0
    )


def flat(model, gradients):
    """Per-example gradients in the order of the layout: every layer's weight with its bias as the last column."""
    names = [name.removesuffix(".weight") for name, _ in model.named_parameters() if name.endswith("weight")]
    blocks = [torch.cat([gradients[f"{n}.weight"], gradients[f"{n}.bias"][..., None]], dim=-1) for n in names]
    return torch.cat([block.flatten(1) for block in blocks], dim=1)


def per_example(model, loss, x, y):
    weights = {name: value.detach() for name, value in model.named_parameters()}
    one = grad(lambda w, a, b: loss(functional_call(model, w, (a[None],)), b[None]).sum())
    return flat(model, vmap(one, in_dims=(None, 0, 0))(weights, x, y))


def test_a_step_scores_every_example_of_its_batch(study):
    model = study.problem.new_model()
    watch = QueryWatch(study, model, WHOLE)
    watch.phi = torch.randn(20, watch.layout.size)
    x, y, index = next(iter(study.problem.batches()))
    with watch.step(index):
        F.cross_entropy(model(x), y).backward()
    watch.close()
    expected = torch.zeros(20, len(study))
    expected[:, index] = watch.phi @ per_example(model, F.cross_entropy, x, y).T
    torch.testing.assert_close(watch._now, expected, rtol=1e-4, atol=1e-4)


def test_watching_leaves_training_as_it_was(study):
    plain = train_once(study)
    watched = study.problem.new_model()
    watch = QueryWatch(study, watched, WHOLE)
    study.problem.fit(
        watched, study.problem.batches(), watching=watch.step, on_epoch=lambda epoch: watch.begin(epoch + 1)
    )
    watch.close()
    assert watch.epochs == 3
    np.testing.assert_array_equal(study.answers(plain.model), study.answers(watched))


def test_query_gradients_are_those_of_the_negative_margin(study):
    model = study.problem.new_model()
    watch = QueryWatch(study, model, WHOLE)
    found = watch.query_gradients()
    watch.close()
    torch.testing.assert_close(found, per_example(model, negative_margin, *study.query_tensors()), rtol=1e-4, atol=1e-5)


ASKED = Relabelled(np.arange(300) % 190, np.arange(300) % 10)


def test_a_new_label_changes_the_gradient_of_its_example(study):
    model = study.problem.new_model()
    watch = QueryWatch(study, model, WHOLE, ASKED)
    phi = torch.randn(20, watch.layout.size)
    found = watch.changes(phi)
    watch.close()
    x, given = study.train_tensors(ASKED.rows)
    new = torch.from_numpy(ASKED.labels)
    gradients = [per_example(model, F.cross_entropy, x, labels) for labels in (new, given)]
    torch.testing.assert_close(found, phi @ (gradients[0] - gradients[1]).T, rtol=1e-4, atol=1e-4)


def test_new_labels_leave_the_scores_alone_and_come_at_their_scale(study):
    plain = train_once(study)
    asked = train_once(study, relabelled=ASKED)
    scores = along_the_run(plain, WHOLE)
    more = along_the_run(asked, WHOLE)
    assert scores.relabelled is None
    np.testing.assert_array_equal(scores.scores, more.scores)
    watch = QueryWatch(study, study.problem.new_model(), WHOLE, ASKED)
    changes, views = torch.randn(2, 20, len(ASKED)), torch.randn(2, 20, len(study))
    for change, view, scale in zip(changes, views, (1.0, 1e-6), strict=True):
        watch.phi = torch.zeros(1)
        watch._now.copy_(scale * view)
        watch._changes_now = scale * change
        watch.end()
    watch.close()
    units = [change / view.norm(dim=1, keepdim=True) for change, view in zip(changes, views, strict=True)]
    lengths = (views[0].norm(dim=1) + 1e-6 * views[1].norm(dim=1)) / 2
    torch.testing.assert_close(watch.relabelled(), sum(units) * lengths[:, None], rtol=1e-4, atol=1e-6)


def test_at_the_end_a_new_label_does_what_the_score_of_that_label_says(study):
    trained = train_once(study, relabelled=Relabelled(np.array([4, 9]), np.array([1, 2])))
    settings = OnlineSettings(damping=0.1)
    given = at_the_end(trained, settings)
    labels = study.problem.labels
    study.problem.labels = labels.copy()
    try:
        study.problem.labels[[4, 9]] = [1, 2]
        new = at_the_end(trained, settings)
    finally:
        study.problem.labels = labels
    np.testing.assert_allclose(given.relabelled, (new.scores - given.scores)[:, [4, 9]], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("corrected", [False, True])
def test_directions_solve_the_dense_system(study, corrected):
    model = study.problem.new_model()
    watch = QueryWatch(study, model, OnlineSettings(layers="head", corrected=corrected, damping=0.1))
    state = watch._generator.get_state()
    found = watch.directions()
    watch._generator.set_state(state)
    rows = torch.randperm(len(study), generator=watch._generator)
    (factor,) = watch._sampled(study.train_tensors(rows.numpy())[0])
    wanted = watch.query_gradients().double()
    watch.close()
    a, d = factor.inputs[:, 0].double(), factor.delta[:, 0].double()
    s_factor, a_factor = d.T @ d / len(d), a.T @ a / len(a)
    _, left = torch.linalg.eigh(s_factor)
    _, right = torch.linalg.eigh(a_factor)
    if corrected:
        basis = torch.kron(left, right)
        gradients = torch.einsum("br,bc->brc", d, a).flatten(1)
        values = (gradients @ basis).square().mean(0)
        dense = basis @ torch.diag(values + 0.1 * values.mean()) @ basis.T
    else:
        dense = torch.kron(s_factor, a_factor)
        dense = dense + 0.1 * dense.diagonal().mean() * torch.eye(len(dense), dtype=torch.float64)
    expected = torch.linalg.solve(dense, wanted.T).T.float()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("size", [40, SMALL_SIDE + 76])
def test_principal_directions_span_what_varies_most(size):
    generator = torch.Generator().manual_seed(0)
    truth = torch.linalg.qr(torch.randn(size, 5, generator=generator))[0]
    vectors = torch.randn(300, 2, 5, generator=generator) @ (torch.diag(torch.arange(5.0, 10)) @ truth.T)
    found = principal(vectors + 0.01 * torch.randn(300, 2, size, generator=generator), 5)
    torch.testing.assert_close(found @ found.T, torch.eye(5), atol=1e-4, rtol=0)
    assert float((found @ truth).square().sum()) == pytest.approx(5.0, abs=0.01)


def test_where_nothing_is_left_out_principal_directions_are_all():
    torch.testing.assert_close(principal(torch.randn(7, 2, 4), 9), torch.eye(4))


def test_turned_projections_keep_their_size_and_score_the_projected_gradient(study):
    model = study.problem.new_model()
    watch = QueryWatch(study, model, OnlineSettings(projection=8))
    before = watch.layout
    watch.find_principal()
    assert before.blocks == tuple(layer.block for layer in watch.layers)
    x, y, index = next(iter(study.problem.batches()))
    watch.phi = torch.eye(watch.layout.size)[:20]
    with watch.step(index):
        F.cross_entropy(model(x), y).backward()
    watch.close()
    first = watch.layers[0]
    block = per_example(model, F.cross_entropy, x, y)[:, : first.rows * first.cols].view(-1, first.rows, first.cols)
    projected = first.projection.out @ block @ first.projection.inp.T
    torch.testing.assert_close(watch._now[:, index].T, projected.flatten(1)[:, :20], rtol=1e-3, atol=1e-4)


def test_epochs_count_the_same_whatever_their_scale(study):
    watch = QueryWatch(study, study.problem.new_model(), WHOLE)
    views = torch.randn(2, 20, len(study))
    for view, scale in zip(views, (1.0, 1e-6), strict=True):
        watch.phi = torch.zeros(1)
        watch._now.copy_(scale * view)
        watch.end()
    watch.close()
    units = [view / view.norm(dim=1, keepdim=True) for view in views]
    lengths = (views[0].norm(dim=1) + 1e-6 * views[1].norm(dim=1)) / 2
    torch.testing.assert_close(watch.scores(), sum(units) * lengths[:, None], rtol=1e-4, atol=1e-6)


def test_trust_by_hand(study):
    watch = QueryWatch(study, study.problem.new_model(), WHOLE)
    lone = torch.zeros(20, len(study))
    lone[:, 3] = 1.0
    other = lone.clone()
    other[1:, 3], other[1:, 4] = 0.0, -3.0
    for view in (lone, other):
        watch.phi = torch.zeros(1)
        watch._leverage = torch.full((20,), 4.0)
        watch._now.copy_(view)
        watch.end()
    watch.close()
    trust = watch.trust()
    np.testing.assert_allclose(trust["coherence"][:2], [1.0, 2**0.5 / 2], rtol=1e-6)
    np.testing.assert_allclose(trust["concentration"][:2], [1.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(trust["sparsity"][:2], [1.0, 2**0.5 / 2], rtol=1e-6)
    np.testing.assert_allclose(trust["signal"][:2], [1 / 2, 3**0.5 / 2], rtol=1e-6)
    np.testing.assert_allclose(trust["confidence"][:2], [1 / 2, 3**0.5 / 4], rtol=1e-6)
    np.testing.assert_allclose(trust["error"], np.full(20, 2.0), rtol=1e-6)


def test_signal_and_expected_error_come_from_the_leverage_of_the_query(study):
    model = study.problem.new_model()
    watch = QueryWatch(study, model, OnlineSettings(projection=10_000, damping=0.1, epochs=1))
    watch.wanted = [1]
    watch.begin(1)
    phi, gradients = watch.phi, watch.query_gradients()
    watch._now.copy_(torch.randn(20, len(study)))
    expected = watch._now.norm(dim=1) / (phi * gradients).sum(1).sqrt()
    trust = watch.trust()
    np.testing.assert_allclose(trust["signal"], expected.numpy(), rtol=1e-4)
    np.testing.assert_allclose(trust["error"], (phi * gradients).sum(1).sqrt().numpy(), rtol=1e-4)
    watch.close()


def test_scored_epochs_are_spread_and_leave_the_first_out():
    assert OnlineSettings(epochs=None).scored(5) == [2, 3, 4, 5]
    assert OnlineSettings(epochs=2).scored(9) == [5, 9]
    assert OnlineSettings(epochs=10).scored(3) == [2, 3]
    assert OnlineSettings(epochs=10).scored(1) == [1]


@pytest.mark.parametrize("wrong", [{"damping": 0.0}, {"epochs": 0}])
def test_bad_settings_are_named(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        OnlineSettings(**wrong)


def test_scores_predict_retraining_better_than_chance_and_the_run_better_than_its_end(study, tmp_path):
    wanted = Wanted("half", 48, 2)
    truth = train_all(study, tmp_path, wanted)
    measured = study.margins(truth.logits).mean(1)

    def lds(answer: Answer) -> float:
        return agreement(answer.scores, truth.kept, measured).mean

    trained = train_once(study)
    run = along_the_run(trained, OnlineSettings(projection=64))
    assert lds(run) > 0.25
    assert lds(run) > lds(at_the_end(trained, OnlineSettings(projection=64, damping=0.1)))
    assert run.confidence is not None
    assert run.details["epochs_scored"] == 7


def test_convolutions_with_batch_norm_are_watched_and_projected():
    training = training_for("digits", limit=60, epochs=3, batch_size=20, model="small-cnn")
    study = make_study(
        load("digits", limit=60), load("digits", train=False), training, 0.0, 6, torch.device("cpu"), seed=0
    )
    trained = train_once(study)
    answer = along_the_run(trained, OnlineSettings(projection=16))
    whole = sum(parameter.numel() for parameter in trained.model.parameters())
    assert 0 < answer.details["weights"] < whole / 10
    assert answer.details["epochs_scored"] == 2
    assert np.isfinite(answer.scores).all()
    same = study.queries.labels[:, None] == study.problem.labels[None]
    assert answer.scores[same].mean() > answer.scores[~same].mean()
