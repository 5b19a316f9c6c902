"""Directions kept as outer products: against dense algebra, and against what a step scores."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sgoif.bench.fidelity.answer import Relabelled
from sgoif.bench.fidelity.base import train_once
from sgoif.bench.fidelity.factored import FactoredWatch
from sgoif.bench.fidelity.online import OnlineSettings
from sgoif.bench.fidelity.ours import along_the_run
from sgoif.bench.fidelity.recipes import training_for
from sgoif.bench.fidelity.study import Study, make_study
from sgoif.bench.labels.datasets import load
from sgoif.errors import SettingError

pytest.importorskip("sklearn")
DAMPING = 0.04


@pytest.fixture(scope="module")
def study() -> Study:
    training = training_for("digits", limit=200, epochs=6, batch_size=32)
    return make_study(
        load("digits", limit=200), load("digits", train=False), training, 0.1, 20, torch.device("cpu"), seed=0
    )


def dense_directions(watch: FactoredWatch) -> list[torch.Tensor]:
    """φ_q of every layer as matrices [Q, rows · cols], from the inverse of the whole Kronecker product."""
    found = []
    queries = next(watch.query_factors())
    for examples, asked in zip(watch._curvature_factors(), queries, strict=True):
        moments = [
            side[:, 0].double().T @ side[:, 0].double() / len(side) for side in (examples.delta, examples.inputs)
        ]
        damped = [m + DAMPING**0.5 * m.diagonal().mean() * torch.eye(len(m), dtype=m.dtype) for m in moments]
        gradients = asked.gradient().flatten(1).double()
        found.append(torch.linalg.solve(torch.kron(*damped), gradients.T).T)
    return found


def test_pairs_are_scored_as_with_the_dense_inverse(study):
    model = study.problem.new_model()
    watch = FactoredWatch(study, model, OnlineSettings(damping=DAMPING))
    watch.layers, watch.layout = watch.layers[1:], type(watch.layout)(watch.layout.blocks[1:])
    state = watch._generator.get_state()
    phi = watch.directions()
    leverage = watch._leverage
    watch._generator.set_state(state)
    dense = dense_directions(watch)
    x, y = study.train_tensors(np.arange(30))
    factors = watch.looked(x, lambda logits: F.cross_entropy(logits, y, reduction="none"))
    expected = sum(d @ f.gradient().flatten(1).double().T for d, f in zip(dense, factors, strict=True))
    found = watch.respond(phi, factors)
    gradients = [f.gradient().flatten(1).double() for f in next(watch.query_factors())]
    watch.close()
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    wanted = sum((d * g).sum(1) for d, g in zip(dense, gradients, strict=True))
    torch.testing.assert_close(leverage.double(), wanted, rtol=1e-3, atol=0)


def test_a_run_is_left_as_it_was_and_answers_all_questions(study):
    asked = Relabelled(np.array([4, 9]), np.array([1, 2]))
    trained = train_once(study, relabelled=asked)
    answer = along_the_run(trained, OnlineSettings(epochs=3), FactoredWatch)
    assert answer.scores.shape == (20, len(study))
    assert answer.relabelled.shape == (20, 2)
    assert (answer.confidence > 0).all()
    watched = study.problem.new_model()
    watch = FactoredWatch(study, watched, OnlineSettings(epochs=3))
    study.problem.fit(
        watched, study.problem.batches(), watching=watch.step, on_epoch=lambda epoch: watch.begin(epoch + 1)
    )
    watch.close()
    np.testing.assert_array_equal(study.answers(trained.model), study.answers(watched))


def test_layers_without_outer_products_are_refused(study):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10))
    with pytest.raises(SettingError, match="not linear"):
        FactoredWatch(study, model)
    FactoredWatch(study, model, OnlineSettings(layers="head")).close()
    with pytest.raises(SettingError, match="corrected"):
        FactoredWatch(study, model, OnlineSettings(corrected=True))


class Rows(nn.Module):
    """Sees an image as rows: its first layer has eight positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.first(x[:, 0]).relu().mean(1))


def test_several_positions_are_refused(study):
    watch = FactoredWatch(study, Rows())
    with pytest.raises(SettingError, match="8 positions"):
        watch.directions()
    watch.close()
