"""Detectors by distance: ViM, KNN, NNGuide, Mahalanobis, relative Mahalanobis, energy with KNN; and their search."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from detector_cases import Trained
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.metrics import auroc
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors import neighbours, vim
from sgoif_bench.ood.detectors.energy import head_answer
from sgoif_bench.ood.detectors.energy_knn import EnergyKNN
from sgoif_bench.ood.detectors.knn import KNN
from sgoif_bench.ood.detectors.mahalanobis import Mahalanobis, TiedGaussians
from sgoif_bench.ood.detectors.neighbours import Neighbours, held_out, largest_products, layers, random_part
from sgoif_bench.ood.detectors.nnguide import NNGuide
from sgoif_bench.ood.detectors.relative_mahalanobis import RelativeMahalanobis
from sgoif_bench.ood.detectors.vim import ViM, origin, principal_dimension

DETECTORS: dict[str, Callable[[], Detector]] = {
    "vim": ViM,
    "knn": lambda: KNN(k=5),
    "nnguide": NNGuide,
    "mahalanobis": Mahalanobis,
    "mahalanobis of stages": lambda: Mahalanobis(stages=True),
    "relative mahalanobis": RelativeMahalanobis,
    "energy and knn": lambda: EnergyKNN(k=5),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bank_of(vectors: Tensor, labels: Tensor, classes: int = 3, bias: bool = True) -> Bank:
    """A bank whose features are the given vectors, seen in batches of seven."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(vectors.shape[1], classes, bias=bias))
    images = vectors[:, None, None]
    return Bank(Network(model, images[:1]), lambda: zip(images.split(7), labels.split(7), strict=True))


def look(bank: Bank, vectors: Tensor) -> Seen:
    return bank.network.see(vectors[:, None, None])


# The search


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("chunk", [1, 4000, 2**26])
def test_neighbours_are_those_of_a_slow_loop(
    metric: neighbours.Metric, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "CHUNK_BYTES", chunk)
    points, queries = random(60, 5, seed=1), random(23, 5, seed=2)
    values, rows = Neighbours(points, metric).nearest(queries, 4)
    for query, distances, found in zip(queries.double(), values, rows, strict=True):
        slow = []
        for point in points.double():
            a, b = (query / query.norm(), point / point.norm()) if metric == "cosine" else (query, point)
            slow.append(float((a - b).norm()))
        order = np.argsort(slow)[:4]
        assert found.tolist() == order.tolist()
        assert distances.tolist() == pytest.approx([slow[row] for row in order], rel=1e-5)


def test_small_distances_far_from_the_origin_keep_their_digits() -> None:
    points = 4096 + torch.tensor([[0.0, 0.0], [0.03125, 0.0], [8.0, 8.0], [-9.0, -7.0]])
    values, rows = Neighbours(points).nearest(points[:1], 3)
    assert rows.tolist() == [[0, 1, 2]]
    assert values[0].tolist() == pytest.approx([0.0, 0.03125, 8 * 2**0.5], rel=1e-6)


def test_chunks_hold_no_more_than_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = torch.addmm

    def watched(*arguments: Tensor, alpha: float) -> Tensor:
        sizes.append((product := plain(*arguments, alpha=alpha)).numel() * 4)
        return product

    monkeypatch.setattr(neighbours, "CHUNK_BYTES", 40_000)
    monkeypatch.setattr(torch, "addmm", watched)
    Neighbours(random(1000, 3)).nearest(random(95, 3), 2)
    assert sizes == [40_000] * 9 + [20_000]


@pytest.mark.parametrize("chunk", [1, 2**26])
def test_largest_products_by_a_slow_loop(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "CHUNK_BYTES", chunk)
    points, queries = random(40, 6, seed=1), random(9, 6, seed=2)
    found = largest_products(queries, points, 3)
    products = queries.double().numpy() @ points.double().numpy().T
    order = np.argsort(-products, axis=1)[:, :3]
    assert np.array_equal(found.rows.numpy(), order)
    assert np.allclose(found.values.numpy(), np.take_along_axis(products, order, 1), atol=1e-5)


@pytest.mark.parametrize("k", [0, 6])
def test_only_as_many_neighbours_as_there_are_points(k: int) -> None:
    points = random(5, 2)
    for search in (Neighbours(points).nearest, lambda queries, k: largest_products(queries, points, k)):
        with pytest.raises(SettingError, match=f"{k} neighbours were asked for among 5"):
            search(points, k)


def test_random_parts_depend_on_the_seed_alone() -> None:
    before = torch.get_rng_state()
    part = random_part(100, 30, seed=4)
    assert int(part.sum()) == 30
    assert torch.equal(part, random_part(100, 30, seed=4))
    assert not torch.equal(part, random_part(100, 30, seed=5))
    assert torch.equal(before, torch.get_rng_state())
    assert int(held_out(100, 0.25, 0).sum()) == 25
    assert int(held_out(10, 0.001, 0).sum()) == 1
    assert int(held_out(10, 0.999, 0).sum()) == 9
    with pytest.raises(SettingError, match="out of 1 training examples"):
        held_out(1, 0.5, 0)


def test_a_last_stage_that_is_the_features_counts_once() -> None:
    first, features = random(8, 3, seed=1), random(8, 4, seed=2)
    assert [each.shape[1] for each in layers((first, features + 1e-6), features)] == [3, 4]
    assert [each.shape[1] for each in layers((first, features.flip(0)), features)] == [3, 4, 4]
    assert [each.shape[1] for each in layers((first,), features)] == [3, 4]
    assert len(layers((), features)) == 1


# KNN


def test_knn_is_the_distance_to_the_kth_neighbour_on_the_sphere() -> None:
    vectors, queries = random(30, 4, seed=1), random(6, 4, seed=2)
    bank = bank_of(vectors, torch.zeros(30, dtype=torch.long))
    scores = KNN(k=3).fit(bank).score(look(bank, queries))
    for query, score in zip(queries, scores, strict=True):
        slow = sorted(float((query / query.norm() - each / each.norm()).norm()) for each in vectors)
        assert float(score) == pytest.approx(slow[2], rel=1e-5)
    scaled = KNN(k=3).fit(bank).score(look(bank, 100 * queries))
    assert torch.allclose(scaled, scores, atol=1e-5)


def test_knn_takes_a_share_of_the_bank_and_never_more_neighbours_than_there_are() -> None:
    vectors = random(40, 3, seed=1)
    bank = bank_of(vectors, torch.zeros(40, dtype=torch.long))
    seen = look(bank, vectors)
    part = KNN(k=1, share=0.25, seed=3).fit(bank).score(seen)
    assert int((part < 1e-6).sum()) == 10  # those who are their own neighbours
    assert not torch.equal(part, KNN(k=1, share=0.25, seed=4).fit(bank).score(seen))
    farthest = KNN(k=1000).fit(bank).score(seen)
    assert torch.equal(farthest, KNN(k=40).fit(bank).score(seen))


# NNGuide


def test_nnguide_by_hand() -> None:
    vectors, queries = random(12, 4, seed=1), random(5, 4, seed=2)
    bank = bank_of(vectors, torch.zeros(12, dtype=torch.long))
    seen = look(bank, queries)
    scores = NNGuide(k=3).fit(bank).score(seen)
    for row in range(5):
        energy = float(seen.logits[row].exp().sum().log())
        weighed = [
            float(bank.logits[i].exp().sum().log() * F.cosine_similarity(queries[row], vectors[i], dim=0))
            for i in range(12)
        ]
        assert float(scores[row]) == pytest.approx(-energy * sum(sorted(weighed)[-3:]) / 3, rel=1e-4)


def test_nnguide_prefers_a_confident_example_to_a_nearer_one() -> None:
    bank = bank_of(torch.tensor([[1.0, 0.0], [30.0, 30.0]]), torch.tensor([0, 1]), classes=2)
    with torch.no_grad():
        bank.network.head.weight.copy_(torch.eye(2))
        bank.network.head.bias.zero_()
    bank = Bank(bank.network, bank._loader)
    seen = look(bank, torch.tensor([[2.0, 0.5]]))
    energy = float(seen.logits.logsumexp(1))
    far = float(bank.logits[1].logsumexp(0)) * (2.5 / (2 * 4.25) ** 0.5)
    assert float(NNGuide(k=1).fit(bank).score(seen)) == pytest.approx(-energy * far, rel=1e-5)


def test_nnguide_guides_an_energy_that_loud_noise_deceives(trained: Trained) -> None:
    detector = NNGuide().fit(trained.bank)
    usual, loud = (trained.bank.network.see(images) for images in (trained.fresh, trained.loud))
    energy = separation(-usual.logits.logsumexp(1), -loud.logits.logsumexp(1))
    assert energy < 0.5
    assert separation(detector.score(usual), detector.score(loud)) > energy + 0.1


# Mahalanobis


def slow_mahalanobis(vectors: Tensor, labels: Tensor, queries: Tensor) -> np.ndarray:
    x, y, q = vectors.double().numpy(), labels.numpy(), queries.double().numpy()
    means = {c: x[y == c].mean(axis=0) for c in np.unique(y)}
    covariance = sum(np.outer(v - means[c], v - means[c]) for v, c in zip(x, y, strict=True)) / len(x)
    inverse = np.linalg.pinv(covariance, rcond=x.shape[1] * 2.0**-52, hermitian=True)
    return np.array([[(v - mean) @ inverse @ (v - mean) for mean in means.values()] for v in q])


def test_mahalanobis_is_the_distance_to_the_nearest_class() -> None:
    vectors, queries = random(50, 4, seed=1) @ random(4, 4, seed=9), random(8, 4, seed=2)
    labels = torch.arange(50) % 3
    vectors += 3 * labels[:, None]
    bank = bank_of(vectors, labels)
    scores = Mahalanobis().fit(bank).score(look(bank, queries))
    assert scores.dtype == torch.float32
    assert np.allclose(scores, slow_mahalanobis(vectors, labels, queries).min(axis=1), rtol=1e-4)


def test_mahalanobis_does_not_depend_on_the_units_of_the_features() -> None:
    vectors, queries, labels = random(60, 4, seed=1), random(8, 4, seed=2), torch.arange(60) % 3
    change = torch.tensor([1.0, 0.5, 3.0, 0.2])
    bank, changed = bank_of(vectors, labels), bank_of(7 + vectors * change, labels)
    for make in (Mahalanobis, RelativeMahalanobis):
        first = make().fit(bank).score(look(bank, queries))
        second = make().fit(changed).score(look(changed, 7 + queries * change))
        assert torch.allclose(first, second, rtol=1e-3, atol=1e-3)


def test_mahalanobis_with_missing_classes_single_examples_and_constant_features() -> None:
    vectors = random(9, 3, seed=1)
    vectors[:, 2] = 5
    labels = torch.tensor([0, 0, 0, 0, 3, 3, 3, 3, 4])
    bank = bank_of(vectors, labels, classes=6)
    gaussians = TiedGaussians(bank.features, bank.labels)
    assert gaussians.means.shape == (3, 3)
    assert torch.allclose(gaussians.means[2], vectors[8].double())
    moved = vectors.clone()
    moved[:, 2] += 0.1
    for make in (Mahalanobis, RelativeMahalanobis):
        detector = make().fit(bank)
        assert detector.score(look(bank, vectors)).isfinite().all()
    distances = Mahalanobis().fit(bank)
    assert float(distances.score(look(bank, vectors))[8]) == pytest.approx(0, abs=1e-4)
    assert torch.equal(distances.score(look(bank, moved)), distances.score(look(bank, vectors)))
    constant = bank_of(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    assert Mahalanobis().fit(constant).score(look(constant, random(3, 3))).isfinite().all()


def test_the_metric_is_that_of_scikit_learn() -> None:
    covariance = pytest.importorskip("sklearn.covariance")
    vectors, queries = random(200, 5, seed=1), random(6, 5, seed=2)
    vectors[:, 3] = vectors[:, 0] + 1e-3 * vectors[:, 3]  # a ridge of a millionth would hide this direction
    vectors[:, 4] = 2.5  # nothing is known of this one
    expected = covariance.EmpiricalCovariance().fit(vectors.numpy()).mahalanobis(queries.numpy())
    found = TiedGaussians(vectors, torch.zeros(200, dtype=torch.long)).distances(queries)[:, 0]
    assert np.allclose(found, expected, rtol=1e-3)
    assert found.min() > 1000


def test_mahalanobis_in_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels = random(50, 4, seed=1), torch.arange(50) % 3
    whole = TiedGaussians(vectors, labels).distances(vectors)
    monkeypatch.setattr("sgoif_bench.ood.detectors.mahalanobis.CHUNK", 7)
    assert torch.allclose(whole, TiedGaussians(vectors, labels).distances(vectors), rtol=1e-9)


def test_mahalanobis_of_stages_adds_up_the_depths(trained: Trained) -> None:
    bank, seen = trained.bank, trained.bank.network.see(trained.strange)
    scores = Mahalanobis(stages=True).fit(bank).score(seen)
    expected = np.zeros(len(scores))
    # This network averages its last map, so the last stage is the features again.
    assert torch.allclose(bank.pooled[-1], bank.features, atol=1e-5)
    for of_bank, of_batch in zip((*bank.pooled[:-1], bank.features), (*seen.pooled[:-1], seen.features), strict=True):
        expected += slow_mahalanobis(of_bank, bank.labels, of_batch).min(axis=1)
    assert np.allclose(scores, expected, rtol=1e-3)


def test_relative_mahalanobis_takes_off_the_distance_to_all() -> None:
    vectors, queries, labels = random(50, 4, seed=1), random(8, 4, seed=2), torch.arange(50) % 3
    vectors += 2 * F.one_hot(labels, 4)
    bank = bank_of(vectors, labels)
    scores = RelativeMahalanobis().fit(bank).score(look(bank, queries))
    classes = slow_mahalanobis(vectors, labels, queries).min(axis=1)
    everything = slow_mahalanobis(vectors, torch.zeros_like(labels), queries)[:, 0]
    assert np.allclose(scores, classes - everything, rtol=1e-4, atol=1e-4)


def test_relative_mahalanobis_knows_nothing_of_a_single_class() -> None:
    bank = bank_of(random(30, 4, seed=1), torch.full((30,), 2))
    assert RelativeMahalanobis().fit(bank).score(look(bank, random(5, 4, seed=2))).abs().max() < 1e-4


# ViM


@pytest.mark.parametrize("bias", [True, False])
def test_vim_by_hand(bias: bool) -> None:
    vectors, queries = random(40, 6, seed=1) + 1, random(7, 6, seed=2)
    bank = bank_of(vectors, torch.zeros(40, dtype=torch.long), bias=bias)
    detector = ViM(dimension=4).fit(bank)
    weight = bank.network.head.weight.detach().double().numpy()
    shift = np.zeros(6)
    if bias:
        shift = -np.linalg.lstsq(weight, bank.network.head.bias.detach().double().numpy(), rcond=None)[0]
    x, q = vectors.double().numpy() - shift, queries.double().numpy() - shift
    main = np.linalg.svd(x, full_matrices=False)[2][:4].T
    residual = {name: np.linalg.norm(v - v @ main @ main.T, axis=1) for name, v in (("train", x), ("query", q))}
    alpha = float(bank.logits.amax(1).sum()) / residual["train"].sum()
    seen = look(bank, queries)
    energy = np.log(np.exp(seen.logits.double().numpy()).sum(axis=1))
    assert detector.alpha == pytest.approx(alpha, rel=1e-4)
    assert np.allclose(detector.score(seen), alpha * residual["query"] - energy, rtol=1e-4, atol=1e-5)


def test_logits_vanish_at_the_origin_of_vim() -> None:
    bank = bank_of(random(5, 6), torch.zeros(5, dtype=torch.long))
    assert head_answer(bank.network, origin(bank.network).float()[None]).abs().max() < 1e-5


def test_vim_finds_what_the_logits_cannot_see() -> None:
    vectors = random(50, 6, seed=1) * torch.tensor([5.0, 5.0, 5.0, 0.1, 0.1, 0.1])
    bank = bank_of(vectors, torch.zeros(50, dtype=torch.long))
    with torch.no_grad():
        bank.network.head.weight[:, 5] = 0
    bank = Bank(bank.network, bank._loader)
    detector = ViM(dimension=3).fit(bank)
    moved = vectors.clone()
    moved[:, 5] += 10
    seen, strange = look(bank, vectors), look(bank, moved)
    assert torch.allclose(seen.logits, strange.logits)
    assert detector.score(strange).min() > detector.score(seen).max()


def test_vim_dimension_follows_the_authors() -> None:
    expected = {4096: 1000, 2048: 1000, 2047: 512, 768: 512, 767: 383, 512: 256, 64: 32}
    assert {features: principal_dimension(features) for features in expected} == expected


def test_vim_of_features_that_never_leave_the_principal_space() -> None:
    vectors = random(50, 2, seed=1) @ random(2, 8, seed=2)
    bank = bank_of(vectors, torch.zeros(50, dtype=torch.long), bias=False)
    detector = ViM().fit(bank)
    assert abs(detector.alpha) * vectors.norm(dim=1).mean() * vim.SMALLEST_RESIDUAL < 1.1 * bank.logits.amax(1).mean()
    assert detector.score(look(bank, vectors)).abs().max() < 100


# Energy and KNN


def test_energy_and_knn_by_a_slow_loop(trained: Trained) -> None:
    bank, seen = trained.bank, trained.bank.network.see(trained.strange[:20])
    detector = EnergyKNN(k=5, held_out_share=0.2, seed=7).fit(bank)
    held = held_out(len(bank), 0.2, 7)

    def distance(of_bank: Tensor, queries: Tensor) -> Tensor:
        return torch.cdist(F.normalize(queries), F.normalize(of_bank[~held])).sort(dim=1).values[:, 4]

    def standardised(on_held: Tensor, values: Tensor) -> Tensor:
        return (values - on_held.mean()) / on_held.std(correction=0)

    expected = standardised(-bank.logits[held].logsumexp(1), -seen.logits.logsumexp(1))
    depths = list(zip((*bank.pooled[:-1], bank.features), (*seen.pooled[:-1], seen.features), strict=True))
    for of_bank, of_batch in depths:
        expected = expected + standardised(distance(of_bank, of_bank[held]), distance(of_bank, of_batch)) / len(depths)
    assert torch.allclose(detector.score(seen), expected, rtol=1e-2, atol=1e-2)


def test_energy_and_knn_without_stages_is_both_terms() -> None:
    vectors = random(60, 4, seed=1)
    bank = bank_of(vectors, torch.zeros(60, dtype=torch.long))
    detector = EnergyKNN(k=3, held_out_share=0.5).fit(bank)
    held = held_out(60, 0.5, 0)
    scores = detector.score(look(bank, vectors[held]))
    assert abs(float(scores.mean())) < 1e-4  # both terms are standardised on these very examples
    assert 0.3 < float(scores.std()) < 2.1


# All of them


@pytest.fixture(scope="module")
def trained() -> Trained:
    return Trained()


def separation(usual: Tensor, strange: Tensor) -> float:
    return auroc([0] * len(usual) + [1] * len(strange), torch.cat([usual, strange]).numpy())


@pytest.mark.parametrize("name", DETECTORS)
def test_strange_images_score_higher(name: str, trained: Trained) -> None:
    before = torch.get_rng_state()
    detector = DETECTORS[name]().fit(trained.bank)
    usual, strange = (detector.score(trained.bank.network.see(each)) for each in (trained.fresh, trained.strange))
    assert usual.shape == (100,)
    assert usual.dtype == torch.float32
    assert usual.isfinite().all()
    assert strange.isfinite().all()
    assert separation(usual, strange) > 0.9
    again = DETECTORS[name]().fit(trained.bank)
    assert torch.equal(again.score(trained.bank.network.see(trained.strange)), strange)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", DETECTORS)
def test_a_score_does_not_depend_on_the_rest_of_its_batch(name: str, trained: Trained) -> None:
    detector, network = DETECTORS[name]().fit(trained.bank), trained.bank.network
    together = detector.score(network.see(trained.strange[:6]))
    alone = torch.cat([detector.score(network.see(image[None])) for image in trained.strange[:6]])
    assert torch.allclose(together, alone, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_say_what_they_are(name: str) -> None:
    detector = DETECTORS[name]()
    assert detector.name == detector.name.lower()
    assert detector.title
    assert "20" in detector.paper


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KNN(k=0), "k = 0"),
        (lambda: KNN(share=0), "share = 0"),
        (lambda: KNN(share=1.5), "share = 1.5"),
        (lambda: NNGuide(k=-1), "k = -1"),
        (lambda: NNGuide(share=2), "share = 2"),
        (lambda: ViM(dimension=-1), "dimension = -1"),
        (lambda: EnergyKNN(k=0), "k = 0"),
        (lambda: EnergyKNN(held_out_share=1), "held_out_share = 1"),
        (lambda: EnergyKNN(held_out_share=0), "held_out_share = 0"),
    ],
)
def test_bad_settings_are_named(make: Callable[[], Detector], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


def test_vim_leaves_something_outside_the_principal_space() -> None:
    bank = bank_of(random(5, 6), torch.zeros(5, dtype=torch.long))
    with pytest.raises(SettingError, match=r"dimension = 6: .* has 6 features; take 3"):
        ViM(dimension=6).fit(bank)
