"""The rivals against slow loops and planted data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attack_cases import problem

from sgoif.errors import SettingError
from sgoif_bench.labels.problem import Problem, last_linear
from sgoif_bench.poisoning.case import Case, Checkpoints, Victims
from sgoif_bench.poisoning.registry import METHODS, choose, in_order, rival, setting_of, title_of
from sgoif_bench.poisoning.rivals.activation_clustering import activation_clustering, reduce, two_clusters
from sgoif_bench.poisoning.rivals.chance import chance
from sgoif_bench.poisoning.rivals.feature_kernel import feature_kernel, similarity
from sgoif_bench.poisoning.rivals.spectral import signatures, spectral, spectral_along, top_of_each_class
from sgoif_bench.poisoning.rivals.tracin import tracin, tracin_self


@pytest.fixture(scope="module")
def case() -> Case:
    """A trained network with its checkpoints, and three inputs that somebody wants to be answered otherwise."""
    data = problem(count=96, epochs=4)
    model, checkpoints = data.new_model(), Checkpoints(data)
    data.fit(model, data.batches(), on_epoch=lambda epoch: checkpoints.keep(model, epoch))
    victims = Victims(data.images[:3].flip(3), np.array([1, 1, 2]))
    return Case(data, model.eval(), checkpoints, 6, victims)


def with_features(case: Case, features: torch.Tensor, labels: np.ndarray) -> Case:
    """A case whose network sees these features."""
    made = Problem(
        torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), labels, 3, case.problem.recipe, torch.device("cpu")
    )
    found = replace(case, problem=made)
    found.__dict__["features"] = features
    return found


def planted(seed: int = 0, classes: int = 3, size: int = 100, poison: int = 10) -> tuple[torch.Tensor, np.ndarray]:
    """Features of three classes; the last `poison` examples of class 1 lie elsewhere."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), size)
    features = generator.standard_normal((len(labels), 12)) + 10 * generator.standard_normal((classes, 12))[labels]
    features[2 * size - poison : 2 * size] += 12 * generator.standard_normal(12)
    return torch.from_numpy(features).float(), labels


# spectral signatures


def test_signatures_are_squared_projections_on_the_first_singular_vector() -> None:
    features, labels = planted()
    found = signatures(features, torch.from_numpy(labels), 3).numpy()
    for label in range(3):
        rows = labels == label
        centred = features[rows].double().numpy()
        centred = centred - centred.mean(axis=0)
        first = np.linalg.svd(centred)[2][0]
        assert found[rows] == pytest.approx((centred @ first) ** 2, rel=1e-6)


def test_a_class_with_one_example_has_no_direction() -> None:
    features, labels = torch.randn(5, 3), torch.tensor([0, 0, 0, 0, 1])
    found = signatures(features, labels, 3)
    assert found[4] == 0
    assert found[:4].sum() > 0


def test_spectral_signatures_remove_one_and_a_half_times_the_poison_of_every_class(case: Case) -> None:
    features, labels = planted()
    finding = spectral(replace_poison(with_features(case, features, labels), 10))
    assert finding.selected is not None
    assert np.bincount(labels[finding.selected]).tolist() == [15, 15, 15]
    assert set(range(190, 200)) <= set(finding.selected.tolist())
    assert finding.suspicion[190:200].min() > np.delete(finding.suspicion, np.arange(190, 200)).max()


def replace_poison(case: Case, count: int) -> Case:
    found = replace(case, poison=count)
    found.__dict__["features"] = case.features
    return found


def test_the_top_of_each_class() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2])
    assert top_of_each_class(np.array([1.0, 3, 2, 5, 4, 0]), labels, 2).tolist() == [1, 2, 3, 4, 5]
    assert top_of_each_class(np.ones(6), labels, 0).tolist() == []


def test_spectral_along_the_run_is_a_mean_over_checkpoints(case: Case) -> None:
    expected = np.zeros(len(case.problem))
    for _, model in case.checkpoints.models(case.problem):
        scores = signatures(case.problem.features(model), case.labels, case.problem.classes).numpy()
        expected += scores / scores.mean()
    finding = spectral_along(case)
    assert finding.suspicion == pytest.approx(expected)
    assert finding.selected is not None
    assert np.bincount(case.problem.labels[finding.selected]).tolist() == [9] * 4


# activation clustering


def test_the_smaller_cluster_is_called_poison(case: Case) -> None:
    features, labels = planted()
    finding = activation_clustering(with_features(case, features, labels))
    assert finding.selected is not None
    assert set(range(190, 200)) <= set(finding.selected.tolist())
    first = np.argsort(-finding.suspicion)[:10]
    assert set(first.tolist()) == set(range(190, 200)), "the class with the clearest split comes first"
    facts = {entry["class"]: entry for entry in finding.details["clusters"]}
    assert facts[1]["suspected"]
    assert facts[1]["size"] == pytest.approx(0.1)
    assert facts[1]["silhouette"] > max(facts[0]["silhouette"], facts[2]["silhouette"])


def test_a_class_of_two_halves_is_not_called_poisoned(case: Case) -> None:
    features, labels = planted(poison=45)
    finding = activation_clustering(with_features(case, features, labels))
    facts = {entry["class"]: entry for entry in finding.details["clusters"]}
    assert facts[1]["size"] == pytest.approx(0.45)
    assert not facts[1]["suspected"]
    assert finding.selected is not None
    assert not set(range(100, 200)) & set(finding.selected.tolist())


def test_clusters_do_not_depend_on_dead_features_and_repeat() -> None:
    features = np.random.default_rng(1).standard_normal((60, 5))
    features[:9] += 8
    dead = np.concatenate([features, np.full((60, 3), 2.5)], axis=1)
    one, other = two_clusters(features, 0), two_clusters(dead, 0)
    assert np.array_equal(one[0], other[0])
    assert one[2] == pytest.approx(other[2])
    assert np.flatnonzero(one[0]).tolist() == list(range(9))
    assert np.array_equal(two_clusters(features, 0)[1], one[1])


def test_features_that_say_nothing_make_no_clusters() -> None:
    from sklearn import decomposition

    assert reduce(np.ones((7, 4)), decomposition, 0).shape == (7, 1)
    smaller, _, silhouette = two_clusters(np.ones((7, 4)), 0)
    assert silhouette == 0
    assert not smaller.any()


def test_at_most_ten_components_are_taken() -> None:
    from sklearn import decomposition

    wide = np.random.default_rng(0).standard_normal((80, 30))
    assert reduce(wide, decomposition, 0).shape == (80, 10)
    assert reduce(wide[:, :4] @ wide[:4], decomposition, 0).shape[1] == 4, "no more than there are"


# TracIn, kernel, chance


def gradients_by_autograd(case: Case, model: torch.nn.Module, images: torch.Tensor, labels: np.ndarray) -> torch.Tensor:
    """Gradients of the last layer, one example after the other."""
    head = last_linear(model)
    weights = [head.weight, head.bias]
    mean, spread = (torch.tensor(every).view(1, -1, 1, 1) for every in (case.problem.mean, case.problem.spread))
    rows = []
    for image, label in zip(images, labels, strict=True):
        x = (image[None].float() / 255 - mean) / spread
        loss = F.cross_entropy(model(x), torch.tensor([int(label)]))
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, weights)]))
    return torch.stack(rows)


def test_tracin_is_a_sum_of_gradient_products_over_checkpoints(case: Case) -> None:
    victims = case.known()
    on_victims, on_itself = np.zeros(len(case.problem)), np.zeros(len(case.problem))
    count = 0
    for rate, model in case.checkpoints.models(case.problem):
        own = gradients_by_autograd(case, model, case.problem.images, case.problem.labels)
        theirs = gradients_by_autograd(case, model, victims.images, victims.wanted)
        on_victims += rate * (own @ theirs.T).mean(1).numpy()
        on_itself += rate * own.square().sum(1).numpy()
        count += 1
    assert count == 4
    assert tracin(case).suspicion == pytest.approx(on_victims, rel=2e-3, abs=1e-6)
    assert tracin_self(case).suspicion == pytest.approx(on_itself, rel=2e-3, abs=1e-6)
    assert tracin(case).selected is None


def test_checkpoints_are_copies_of_the_weights_at_their_time() -> None:
    data = problem(count=64, epochs=2)
    model, checkpoints, seen = data.new_model(), Checkpoints(data), []

    def after(epoch: int) -> None:
        checkpoints.keep(model, epoch)
        seen.append(data.predict(model))

    data.fit(model, data.batches(), on_epoch=after)
    again = [(rate, data.predict(kept)) for rate, kept in checkpoints.models(data)]
    assert [rate for rate, _ in again] == list(checkpoints.rates.values())
    for (_, logits), expected in zip(again, seen, strict=True):
        assert torch.equal(logits, expected)
    assert not torch.equal(seen[0], seen[1])


def test_the_kernel_by_hand() -> None:
    features = torch.tensor([[2.0, 0], [0, 2], [-2, 0], [0, -2]])  # centred already
    labels, wanted = torch.tensor([1, 1, 1, 0]), torch.tensor([1, 1])
    victims = torch.tensor([[5.0, 0], [0, 1]])
    assert similarity(features, labels, victims, wanted).tolist() == pytest.approx([0.75, 0.75, 0.25, 0])
    assert similarity(features, labels, victims, torch.tensor([1, 0]))[3] == pytest.approx(0.0)


def test_the_kernel_finds_a_copy_of_a_victim(case: Case) -> None:
    copied = replace(case, victims=Victims(case.problem.images[8:9], case.problem.labels[8:9]))
    assert int(np.argmax(feature_kernel(copied).suspicion)) == 8


def test_chance_repeats_with_the_seed(case: Case) -> None:
    other = replace(case, problem=replace(case.problem, seed=5))
    assert np.array_equal(chance(case).suspicion, chance(case).suspicion)
    assert not np.array_equal(chance(case).suspicion, chance(other).suspicion)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.run])
def test_every_rival_scores_every_example(name: str, case: Case) -> None:
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    finding = rival(name)(case)
    assert finding.suspicion.shape == (len(case.problem),)
    assert finding.suspicion.dtype == np.float64
    assert np.isfinite(finding.suspicion).all()
    assert len(np.unique(finding.suspicion)) > 1
    assert all(torch.equal(value, before[key]) for key, value in case.model.state_dict().items())
    if METHODS[name].knows_victims:
        with pytest.raises(SettingError, match="starts from victims, and none are known"):
            rival(name)(replace(case, victims=None))


def test_the_registry() -> None:
    assert set(choose("all")) == set(choose("known")) | set(choose("unknown")) == set(choose("ours,rivals"))
    assert not set(choose("known")) & set(choose("unknown"))
    assert choose("ours") == ["sgoif-known", "sgoif-unknown"]
    assert choose("random, spectral") == ["spectral", "random"]
    assert in_order(["random", "mine", "tracin"]) == ["tracin", "random", "mine"]
    assert (title_of("tracin"), title_of("mine")) == ("TracIn", "mine")
    assert {setting_of(name) for name in choose("known")} == {"known"}
    for wrong in ("", "spectrall"):
        with pytest.raises(SettingError, match="choose from"):
            choose(wrong)
