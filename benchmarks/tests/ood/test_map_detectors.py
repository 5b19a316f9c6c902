"""Detectors that look at maps: Gram matrices and PatchCore."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from detector_cases import Trained
from torch import Tensor, nn

from sgoif.errors import LayerError, SettingError
from sgoif.tasks.ood.network import Network
from sgoif_bench.metrics import auroc
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.detectors import gram, patchcore
from sgoif_bench.ood.detectors.gram import Gram, row_sums
from sgoif_bench.ood.detectors.neighbours import held_out
from sgoif_bench.ood.detectors.patchcore import PatchCore, as_map, greedy_centres, middle, patches

DETECTORS: dict[str, Callable[[], Detector]] = {"gram": Gram, "patchcore": lambda: PatchCore(coreset=0.05)}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bank_of(images: Tensor, classes: int = 3, batch: int = 7) -> Bank:
    """A bank whose stages are the images themselves [n, D, 4, 4] and the same halved; labels are all 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = nn.Linear(4 * images.shape[1], classes)
    model = nn.Sequential(nn.Identity(), nn.AvgPool2d(2), nn.Flatten(), head)
    labels = torch.zeros(len(images), dtype=torch.long)
    return Bank(Network(model, images[:1]), lambda: zip(images.split(batch), labels.split(batch), strict=True))


# Gram


def test_row_sums_are_those_of_gram_matrices() -> None:
    stage = random(3, 4, 2, 3)
    sums = row_sums(stage, 5)
    assert sums.shape == (3, 5, 4)
    for example in range(3):
        maps = stage[example].reshape(4, 6).double().numpy()
        for power in range(1, 6):
            matrix = maps**power @ (maps**power).T
            rows = matrix.sum(axis=1)
            expected = np.sign(rows) * np.abs(rows) ** (1 / power)
            assert np.allclose(sums[example, power - 1], expected)
    assert torch.equal(row_sums(stage.flatten(2), 5), sums)  # tokens are maps of one axis


def test_twentieth_powers_of_large_activations_stay_finite() -> None:
    sums = row_sums(1e4 * random(2, 4, 3, 3).abs(), 10)
    assert sums.isfinite().all()
    assert torch.allclose(sums, 1e8 * row_sums(random(2, 4, 3, 3).abs(), 10), rtol=1e-4)


def slow_deviations(bank: Bank, training: Sequence[int], images: Tensor, powers: int) -> np.ndarray:
    """Deviations [n, stages] by loops over examples, powers and channels."""
    seen = bank.network.see(torch.cat([images_of(bank)[list(training)], images]))
    predicted, confidence = seen.logits.argmax(1), seen.logits.double().softmax(1).amax(1)
    sums = [row_sums(stage, powers).numpy() for stage in seen.stages]
    known, result = len(training), np.zeros((len(images), len(sums)))
    for example in range(known, known + len(images)):
        alike = [other for other in range(known) if predicted[other] == predicted[example]] or range(known)
        for number, of_stage in enumerate(sums):
            for power in range(powers):
                for channel, value in enumerate(of_stage[example, power]):
                    least = min(of_stage[other, power, channel] for other in alike)
                    most = max(of_stage[other, power, channel] for other in alike)
                    if value < least:
                        result[example - known, number] += (least - value) / abs(least + 1e-6)
                    elif value > most:
                        result[example - known, number] += (value - most) / abs(most + 1e-6)
        result[example - known] /= float(confidence[example])
    return result


def images_of(bank: Bank) -> Tensor:
    return torch.cat([seen.images for seen, _ in bank.batches()])


@pytest.mark.parametrize("chunk", [1, 2**26])
@pytest.mark.parametrize("batch", [7, 40])
def test_gram_by_slow_loops(batch: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "CHUNK_BYTES", chunk)
    images, queries = random(40, 3, 4, 4, seed=1), 1.2 * random(6, 3, 4, 4, seed=2)
    bank = bank_of(images, batch=batch)
    assert len(bank.pooled) == 2
    detector = Gram(powers=4, held_out_share=0.25, seed=5).fit(bank)
    held = held_out(40, 0.25, 5)
    training = torch.nonzero(~held).flatten().tolist()
    expected = slow_deviations(bank, training, images[held], 4).mean(axis=0)
    assert (expected > 0).all()
    deviations = slow_deviations(bank, training, queries, 4)
    seen = bank.network.see(queries)
    assert np.allclose(detector.deviations(seen), deviations, rtol=1e-6)
    assert np.allclose(detector.score(seen), (deviations / expected).sum(axis=1), rtol=1e-4)


def test_maps_are_those_of_every_convolution_and_activation() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.norm = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
            self.act, self.head = nn.GELU(), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.norm(self.first(x)), inplace=True)
            x = self.act(self.second(x)) + x
            return self.head(self.act(x).mean((2, 3)))  # type: ignore[no-any-return]

    model, images = Block().eval(), random(5, 2, 6, 6)
    found: list[Tensor] = []
    network = Network(model, images[:1])
    gram.each_map(network, network.see(images), lambda number, each: found.append(each.clone()))
    with torch.no_grad():
        first = model.first(images)
        second = model.norm(first).relu()
        third = model.second(second)
        expected = [first, second, third, F.gelu(third), F.gelu(F.gelu(third) + second)]
    assert len(found) == 5
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, expected, strict=True))


def test_gram_of_the_examples_that_made_the_range_is_zero() -> None:
    images = random(30, 3, 4, 4, seed=1)
    bank = bank_of(images)
    scores = Gram(held_out_share=0.2).fit(bank).score(bank.network.see(images))
    held = held_out(30, 0.2, 0)
    assert (scores[~held] < 1e-9).all()
    assert (scores[held] > 0.01).any()


def test_gram_compares_with_the_predicted_class_or_else_with_all() -> None:
    images = random(40, 3, 4, 4, seed=1)
    bank = bank_of(images)
    with torch.no_grad():
        bank.network.head.bias[2] = -1000  # nobody is taken for the last class
    bank = Bank(bank.network, bank._loader)
    detector = Gram(powers=2).fit(bank)
    held = held_out(40, 0.1, 0)
    predicted = bank.logits.argmax(1)
    assert set(predicted.tolist()) == {0, 1}
    sums = row_sums(images, 2)
    for label in (0, 1):
        assert torch.allclose(detector._least[0][label], sums[~held & (predicted == label)].amin(0))
    assert torch.allclose(detector._least[0][2], sums[~held].amin(0))
    assert torch.allclose(detector._most[0][2], sums[~held].amax(0))
    with torch.no_grad():
        bank.network.head.bias[2] = 1000
    assert detector.score(bank.network.see(images)).isfinite().all()


def test_gram_sees_correlations_that_means_do_not_show() -> None:
    """Two channels, each alone as always; in training they are bright at different places, now at the same."""
    half = (torch.arange(4) < 2).float().expand(4, 4)
    noise = 0.05 * random(60, 2, 4, 4, seed=1)
    usual = torch.stack([half, 1 - half]) + noise
    together = torch.stack([half, half]) + noise
    assert torch.allclose(usual.mean((2, 3)), together.mean((2, 3)), atol=1e-6)
    bank = bank_of(usual[:50], classes=2)
    detector = Gram().fit(bank)
    fresh, strange = (detector.score(bank.network.see(images[50:])) for images in (usual, together))
    assert strange.min() > fresh.max()


# PatchCore


def test_patches_join_neighbourhoods_of_both_sizes() -> None:
    large, small = random(2, 3, 4, 4, seed=1), random(2, 5, 2, 2, seed=2)
    joined = patches([large, small])
    assert joined.shape == (2, 16, 8)
    padded = F.pad(large, (1, 1, 1, 1))
    for row in range(4):
        for column in range(4):
            window = padded[:, :, row : row + 3, column : column + 3]
            assert torch.allclose(joined[:, 4 * row + column, :3], window.sum((2, 3)) / 9, atol=1e-6)
    # A 2×2 map fits into every padded 3×3 window as a whole, so its average is the same everywhere.
    assert torch.allclose(joined[:, :, 3:], (small.sum((2, 3)) / 9)[:, None].expand(2, 16, 5), atol=1e-6)
    assert torch.equal(patches([small, large])[:, :, 5:], joined[:, :, :3])


def test_smaller_maps_are_enlarged_between_their_pixels() -> None:
    small = torch.zeros(1, 1, 4, 4)
    small[0, 0, :, 2:] = 9
    enlarged = patches([torch.zeros(1, 1, 8, 8), small])[0, :, 1].view(8, 8)
    inner = enlarged[4]
    assert (inner[1:6].diff() > 0).all()  # a ramp, no stairs
    assert torch.allclose(enlarged, enlarged.flip(0), atol=1e-6)


def test_stages_in_the_middle() -> None:
    assert [middle(count) for count in (1, 2, 3, 4, 5, 6)] == [(0,), (0, 1), (0, 1), (1, 2), (1, 2), (2, 3)]


def test_tokens_become_maps() -> None:
    tokens = random(2, 3, 10)
    assert torch.equal(as_map(tokens)[:, :, 1, 0], tokens[:, :, 4])  # a class token, then three by three
    assert torch.equal(as_map(tokens[:, :, :9])[:, :, 1, 0], tokens[:, :, 3])
    with pytest.raises(LayerError, match="12 tokens are no square map"):
        as_map(random(2, 3, 12))


def test_centres_are_the_farthest_from_those_before() -> None:
    points = random(80, 5, seed=3) + 10
    chosen = greedy_centres(points, 12, first=7).tolist()
    expected = [7]
    while len(expected) < 12:
        gaps = [min(float((p - points[c]).norm()) for c in expected) for p in points]
        expected.append(int(np.argmax(gaps)))
    assert chosen == expected


def test_no_centre_is_chosen_twice_even_among_twins() -> None:
    points = torch.ones(6, 3).cumsum(0)[torch.tensor([0, 0, 0, 1, 1, 5])]
    chosen = greedy_centres(points, 6, first=0).tolist()
    assert sorted(chosen) == list(range(6))
    assert set(chosen[:3]) & {3, 4}
    assert 5 in chosen[:3]


def slow_patchcore(memory: Tensor, of_image: Tensor, b: int) -> float:
    memory, of_image = memory.double(), of_image.double()
    gaps = [min((float((patch - m).norm()), row) for row, m in enumerate(memory)) for patch in of_image]
    at = max(range(len(gaps)), key=lambda position: gaps[position][0])
    distance, nearest = gaps[at]
    around = sorted(range(len(memory)), key=lambda row: float((memory[row] - memory[nearest]).norm()))[:b]
    total = sum(np.exp(float((of_image[at] - memory[row]).norm())) for row in around)
    return float(1 - np.exp(distance) / total) * distance


def test_patchcore_by_slow_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patchcore, "SCORE_BYTES", 2 * 16 * 6 * 4)  # two images at a time
    images, queries = random(6, 3, 4, 4, seed=1), random(5, 3, 4, 4, seed=2)
    bank = bank_of(images)
    detector = PatchCore(coreset=1.0, neighbours=4).fit(bank)
    memory = patches([images, F.avg_pool2d(images, 2)]).flatten(0, 1)
    seen = bank.network.see(queries)
    expected = [slow_patchcore(memory, each, 4) for each in patches(seen.stages)]
    assert detector.score(seen).tolist() == pytest.approx(expected, rel=1e-4)
    plain = PatchCore(coreset=1.0, neighbours=1).fit(bank).score(seen)
    farthest = torch.cdist(patches(seen.stages), memory).amin(2).amax(1)
    assert torch.allclose(plain, farthest, atol=1e-4)


def test_patchcore_keeps_a_share_of_the_patches_of_some_images() -> None:
    bank = bank_of(random(20, 3, 4, 4, seed=1))
    assert PatchCore(images=10, coreset=0.1).fit(bank)._patches.shape == (16, 6)
    assert len(PatchCore(coreset=0.1).fit(bank)._patches) == 32
    assert len(PatchCore(coreset=0.1, most=5).fit(bank)._patches) == 5
    assert len(PatchCore(images=1, coreset=1e-9).fit(bank)._patches) == 1
    everything = patches([images_of(bank), F.avg_pool2d(images_of(bank), 2)]).flatten(0, 1)
    kept = PatchCore(images=10, coreset=0.1).fit(bank)._patches
    assert torch.cdist(kept, everything).amin(1).max() < 1e-3
    other = PatchCore(images=10, coreset=0.1, seed=1).fit(bank)._patches
    assert torch.cdist(kept, other).amin(1).max() > 0.1


def test_patchcore_takes_fewer_images_where_patches_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patchcore, "PATCH_BYTES", 3 * 16 * 6 * 4)
    bank = bank_of(random(20, 3, 4, 4, seed=1))
    assert len(PatchCore(coreset=1.0).fit(bank)._patches) == 3 * 16


def test_projection_leaves_the_choice_of_centres_almost_as_good() -> None:
    images = random(8, 150, 4, 4, seed=1)  # 300 channels with both stages, so they are projected to 128
    bank = bank_of(images)
    detector = PatchCore(coreset=0.25).fit(bank)
    everything = patches([images, F.avg_pool2d(images, 2)]).flatten(0, 1)
    assert detector._patches.shape == (32, 300)
    radius = torch.cdist(everything, detector._patches).amin(1).max()
    exact = torch.cdist(everything, everything[greedy_centres(everything, 32, 0)]).amin(1).max()
    assert radius < 1.25 * exact


def test_one_strange_place_is_enough_for_patchcore() -> None:
    images = 0.1 * random(30, 2, 4, 4, seed=1)
    bank = bank_of(images[:25])
    detector = PatchCore(coreset=0.2).fit(bank)
    spoilt = images[25:].clone()
    spoilt[:, 0, 1, 1] += 2
    spoilt[:, 0, 3, 3] -= 2  # the mean of the map is what it was
    fresh, strange = (detector.score(bank.network.see(each)) for each in (images[25:], spoilt))
    assert strange.min() > 2 * fresh.max()


# Both


@pytest.fixture(scope="module")
def trained() -> Trained:
    return Trained()


@pytest.mark.parametrize("name", DETECTORS)
def test_strange_images_score_higher(name: str, trained: Trained) -> None:
    before = torch.get_rng_state()
    detector, network = DETECTORS[name]().fit(trained.bank), trained.bank.network
    usual, strange = (detector.score(network.see(each)) for each in (trained.fresh, trained.strange))
    assert usual.shape == (100,)
    assert usual.dtype == torch.float32
    assert usual.isfinite().all()
    assert strange.isfinite().all()
    assert auroc([0] * 100 + [1] * 100, torch.cat([usual, strange]).numpy()) > 0.9
    again = DETECTORS[name]().fit(trained.bank)
    assert torch.equal(again.score(network.see(trained.strange)), strange)
    assert torch.equal(before, torch.get_rng_state())
    alone = torch.cat([detector.score(network.see(image[None])) for image in trained.strange[:6]])
    assert torch.allclose(alone, strange[:6], rtol=1e-3)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_network_without_stages_cannot_be_looked_at(name: str) -> None:
    vectors, labels = random(9, 1, 1, 4), torch.zeros(9, dtype=torch.long)
    bank = Bank(Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), vectors[:1]), lambda: [(vectors, labels)])
    with pytest.raises(LayerError, match="this one has none"):
        DETECTORS[name]().fit(bank)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gram(powers=0), "powers = 0"),
        (lambda: Gram(held_out_share=0), "held_out_share = 0"),
        (lambda: Gram(held_out_share=1.0), r"held_out_share = 1\.0"),
        (lambda: PatchCore(images=0), "images = 0"),
        (lambda: PatchCore(most=0), "most = 0"),
        (lambda: PatchCore(neighbours=0), "neighbours = 0"),
        (lambda: PatchCore(coreset=0), "coreset = 0"),
        (lambda: PatchCore(coreset=1.1), r"coreset = 1\.1"),
        (lambda: PatchCore(stages=[]), "stages is empty"),
        (lambda: PatchCore(stages=[2]).fit(bank_of(random(4, 3, 4, 4))), "the network has 2, numbered from 0"),
    ],
)
def test_bad_settings_are_named(make: Callable[[], Detector], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()
