"""Directions kept as outer products: against dense algebra, and against what a step scores."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sgoif.audit.networks import ResNet9
from sgoif.errors import SettingError
from sgoif_bench.fidelity.answer import Relabelled, Trained
from sgoif_bench.fidelity.base import train_once
from sgoif_bench.fidelity.factored import FactoredWatch, outer_products
from sgoif_bench.fidelity.online import OnlineSettings
from sgoif_bench.fidelity.ours import along_the_run
from sgoif_bench.fidelity.recipes import cnn, mlp, training_for
from sgoif_bench.fidelity.study import Study, make_study
from sgoif_bench.labels.datasets import load
from sgoif_bench.models import digits_net, tiny_vit

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
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    watch = FactoredWatch(study, model, OnlineSettings(damping=DAMPING))
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


class Rows(nn.Module):
    """Sees an image as rows: its first layer has eight positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.first(x[:, 0]).relu().mean(1))


class Folded(Rows):
    """Folds the rows into the batch, and uses a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(16, 16)

    def forward(self, x):
        rows = self.first(x[:, 0].flatten(0, 1)).unflatten(0, (len(x), -1))
        return self.head(self.twice(self.twice(rows.mean(1)).relu()))


@pytest.mark.parametrize(
    ("model", "side", "expected"),
    [
        (mlp(1, 10, image=8), 8, ("1", "3", "5")),
        (cnn(1, 10, image=8), 8, ("6.1", "6.3", "6.5")),
        (digits_net(), 8, ("3", "6")),
        (ResNet9(1, 10, 4, image=32), 32, ("head",)),
        (tiny_vit(1, 10, image=8, width=16, depth=2), 8, ("head",)),
        (Rows(), 8, ("head",)),
        (Folded(), 8, ("head",)),
        (nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), 8, ()),
    ],
)
def test_gradients_of_these_layers_are_outer_products(model, side, expected):
    x = torch.randn(2, 1, side, side)
    model.train()
    assert outer_products(model, x) == expected
    assert model.training
    weights = dict(model.named_parameters())
    loss = F.cross_entropy(model.eval()(x[:1]), torch.tensor([3]))
    for name in expected:
        (gradient,) = torch.autograd.grad(loss, weights[f"{name}.weight"], retain_graph=True)
        assert torch.linalg.matrix_rank(gradient) == 1


def test_all_layers_are_those_with_outer_products(study):
    def watched(model: nn.Module, layers: str = "all") -> list[str]:
        watch = FactoredWatch(study, model, OnlineSettings(layers=layers))
        watch.directions()
        watch.close()
        return [layer.name for layer in watch.layers]

    assert watched(study.problem.new_model()) == ["1", "3", "5"]
    assert watched(digits_net()) == ["3", "6"]
    assert watched(digits_net(), "head") == ["6"]
    assert watched(Rows()) == ["head"]
    with pytest.raises(SettingError, match="no linear layer"):
        watched(nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()))


def test_the_rule_gives_the_scores_of_every_layer_of_an_mlp_and_of_the_head_of_a_convolutional_network(study):
    class Named(FactoredWatch):
        def watched(self) -> tuple[str, ...]:
            return names

    def scores(trained: Trained, watcher: type[FactoredWatch], layers: str = "all") -> np.ndarray:
        return along_the_run(trained, OnlineSettings(epochs=2, layers=layers), watcher).scores

    trained, names = train_once(study), ("1", "3", "5")
    np.testing.assert_array_equal(scores(trained, FactoredWatch), scores(trained, Named))
    assert not np.allclose(scores(trained, FactoredWatch), scores(trained, FactoredWatch, "head"))
    training = training_for("digits", limit=100, epochs=3, batch_size=32, model="small-cnn")
    convolutional = train_once(
        make_study(load("digits", limit=100), load("digits", train=False), training, 0, 10, torch.device("cpu"), seed=0)
    )
    np.testing.assert_array_equal(scores(convolutional, FactoredWatch), scores(convolutional, FactoredWatch, "head"))


def test_layers_without_outer_products_are_refused(study):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10))
    with pytest.raises(SettingError, match="layers 0 are not linear"):
        FactoredWatch(study, model, OnlineSettings(layers="0"))
    with pytest.raises(SettingError, match="corrected"):
        FactoredWatch(study, model, OnlineSettings(corrected=True))


def test_several_positions_are_refused(study):
    watch = FactoredWatch(study, Rows(), OnlineSettings(layers="first"))
    with pytest.raises(SettingError, match="8 positions"):
        watch.directions()
    watch.close()
