"""OpenGAN: a discriminator between training features and generated ones."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.metrics import auroc
from sgoif_bench.ood.detector import Bank
from sgoif_bench.ood.detectors import opengan
from sgoif_bench.ood.detectors.opengan import Adversaries, OpenGAN, discriminator, generator


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bank_of(vectors: Tensor) -> Bank:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(vectors.shape[1], 2))
    images, labels = vectors[:, None, None], torch.zeros(len(vectors), dtype=torch.long)
    return Bank(Network(model, images[:1]), lambda: [(images, labels)])


def look(bank: Bank, vectors: Tensor) -> Seen:
    return bank.network.see(vectors[:, None, None])


def typical(count: int, seed: int = 0) -> Tensor:
    """Features after a ReLU: two groups, each with its own half of the channels active."""
    group = torch.arange(count) % 2
    mean = torch.stack([torch.arange(12) < 6, torch.arange(12) >= 6]).float()[group] * 3
    return (mean + 0.5 * random(count, 12, seed=seed)).relu()


# The two networks


def test_layers_are_those_of_the_authors() -> None:
    shapes = {
        name: [tuple(module.weight.shape) for module in network if isinstance(module, nn.Linear)]
        for name, network in (("generator", generator(512)), ("discriminator", discriminator(512)))
    }
    assert shapes["generator"] == [(512, 100), (256, 512), (128, 256), (256, 128), (512, 256)]
    assert shapes["discriminator"] == [(512, 512), (256, 512), (128, 256), (64, 128), (1, 64)]
    for network, norms, biases in ((generator(512), 4, 1), (discriminator(512), 3, 0)):
        linear = [module for module in network if isinstance(module, nn.Linear)]
        assert sum(isinstance(module, nn.BatchNorm1d) for module in network) == norms
        assert sum(module.bias is not None for module in linear) == biases
        for module in linear:
            if module.weight.numel() > 1000:
                assert float(module.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert isinstance(discriminator(512)[2], nn.Linear)  # no batch norm on what comes first
    assert discriminator(512)(random(4, 512)).shape == (4,)


@torch.no_grad()
def entropy(judge: nn.Module, features: Tensor, label: float) -> float:
    return float(nn.BCELoss()(copy.deepcopy(judge)(features).sigmoid(), torch.full((len(features),), float(label))))


def test_losses_are_binary_cross_entropies() -> None:
    pair = Adversaries(12, torch.device("cpu"), seed=3)
    real = typical(16)
    before, noise = copy.deepcopy(pair.discriminator), torch.Generator().manual_seed(3)
    fake = copy.deepcopy(pair.generator)(torch.randn(16, 100, generator=noise)).detach()
    loss, deceived = pair.step(real)
    assert float(loss) == pytest.approx(entropy(before, real, 1) + entropy(before, fake, 0), rel=1e-5)
    # The generator is judged by the discriminator after its step.
    assert float(deceived) == pytest.approx(entropy(pair.discriminator, fake, 1), rel=1e-4)
    assert float(deceived) != pytest.approx(entropy(before, fake, 1), rel=1e-3)


def test_each_step_moves_a_network_for_itself() -> None:
    """The first step of Adam has the length of the learning rate, the sign against the gradient of the own loss."""
    pair = Adversaries(12, torch.device("cpu"), seed=0)
    before = {name: copy.deepcopy(getattr(pair, name)) for name in ("generator", "discriminator")}
    pair.step(typical(16))
    for name, rate in (("generator", 1e-4), ("discriminator", 1e-4 / 1.5)):
        old, new = before[name][0].weight, getattr(pair, name)[0].weight
        steps = (new - old).detach().abs()
        assert float(steps.median()) == pytest.approx(rate, rel=0.02)


@torch.no_grad()
def distance_of_means(pair: Adversaries, real: Tensor) -> float:
    return float((pair.generate(256).mean(0) - real.mean(0)).norm())


def test_the_generator_learns_to_deceive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opengan, "LEARNING_RATE", 2e-3)  # a few steps must do
    pair = Adversaries(12, torch.device("cpu"), seed=0)
    real = typical(128)
    first = distance_of_means(pair, real)
    for step in range(60):
        pair.step(real[32 * (step % 4) : 32 * (step % 4) + 32])
    assert distance_of_means(pair, real) < 0.6 * first


# The detector


@pytest.fixture(scope="module")
def fitted() -> tuple[Bank, OpenGAN]:
    bank = bank_of(typical(300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opengan, "LEARNING_RATE", 2e-4)  # a few steps must do
        return bank, OpenGAN(epochs=8, batch_size=32).fit(bank)


def test_features_unlike_training_score_higher(fitted: tuple[Bank, OpenGAN]) -> None:
    bank, detector = fitted
    usual = detector.score(look(bank, typical(200, seed=1)))
    silent = detector.score(look(bank, 0.1 * random(200, 12, seed=2).abs()))
    assert usual.shape == (200,)
    assert usual.isfinite().all()
    assert auroc([0] * 200 + [1] * 200, torch.cat([usual, silent]).numpy()) > 0.9


def test_score_is_the_logit_of_being_generated_one_by_one(fitted: tuple[Bank, OpenGAN]) -> None:
    bank, detector = fitted
    seen = look(bank, typical(5, seed=1))
    scores = detector.score(seen)
    assert torch.allclose(scores, -detector._discriminator(seen.features).detach())
    alone = torch.cat([detector.score(look(bank, each[None])) for each in typical(5, seed=1)])
    assert torch.allclose(alone, scores, atol=1e-5)  # batch statistics are those of training
    assert not scores.requires_grad


def test_the_epoch_is_the_best_at_telling_held_out_features(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[tuple[int, int]] = []
    qualities = iter([0.5, 0.9, 0.7, 0.9])

    def quality(judge: nn.Sequential, real: Tensor, fake: Tensor) -> float:
        judged.append((len(real), len(fake)))
        assert not judge.training
        return next(qualities)

    monkeypatch.setattr(opengan, "_separation", quality)
    detector = OpenGAN(epochs=4, batch_size=16).fit(bank_of(typical(100)))
    assert detector.epoch == 2  # the earlier of equals
    assert judged == [(10, 4 * 16)] * 4


def test_separation_by_hand() -> None:
    judge = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Flatten(0))
    nn.init.ones_(judge[0].weight)
    real, fake = torch.tensor([[3.0], [1.0]]), torch.tensor([[0.0], [2.0], [-1.0]])
    assert opengan._separation(judge, real, fake) == pytest.approx(5 / 6)


def test_without_selection_the_last_epoch_sees_all_features(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    step = Adversaries.step

    def counted(self: Adversaries, real: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(real))
        return step(self, real)

    monkeypatch.setattr(Adversaries, "step", counted)
    detector = OpenGAN(epochs=2, batch_size=16, select=False).fit(bank_of(typical(49)))
    assert detector.epoch == 2
    assert sizes == [16, 16, 16] * 2  # the one left over has no variance
    sizes.clear()
    OpenGAN(epochs=1, batch_size=16).fit(bank_of(typical(50)))
    assert sum(sizes) == 45


def test_same_seed_same_scores_and_the_global_random_state_is_left_alone() -> None:
    bank = bank_of(typical(60))
    seen, scores = look(bank, typical(9, seed=1)), []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        with torch.no_grad():  # whoever scores may have switched gradients off
            scores.append(OpenGAN(epochs=2, batch_size=16).fit(bank).score(seen))
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], OpenGAN(epochs=2, batch_size=16, seed=1).fit(bank).score(seen))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OpenGAN(epochs=0), "epochs = 0"),
        (lambda: OpenGAN(batch_size=1), "batch_size = 1"),
        (lambda: OpenGAN(select=False).fit(bank_of(typical(1))), "1 training features are too few"),
        (lambda: OpenGAN().fit(bank_of(typical(1))), "1 training examples"),
    ],
)
def test_bad_settings_are_named(make: Callable[[], OpenGAN], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()
