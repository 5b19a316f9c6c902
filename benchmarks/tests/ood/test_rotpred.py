"""RotPred: its loss and score by hand, what is turned, and its training, alone and on mixed images."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from self_supervised_cases import pictures, seeded, stripes
from torch import Tensor, nn

from sgoif_bench.batches import normalise
from sgoif_bench.metrics import auroc
from sgoif_bench.ood.trained import pixmix, rotpred
from sgoif_bench.ood.trained.rotpred import Turned, rotpred_loss, rotpred_score

CLASSES = 3


def log_share(logits: list[float], which: int) -> float:
    return logits[which] - math.log(sum(math.exp(value) for value in logits))


def answers_of(count: int) -> Tensor:
    return 2 * torch.randn(count, CLASSES + 16, generator=seeded(1), dtype=torch.float64)


def slow_parts(row: list[float]) -> tuple[float, float]:
    """Mean cross entropy of the turns, and KL(u ‖ p) of the classes."""
    turns = [row[CLASSES + 4 * turn : CLASSES + 4 * turn + 4] for turn in range(4)]
    losses = [-log_share(logits, turn) for turn, logits in enumerate(turns)]
    apart = sum(1 / CLASSES * (math.log(1 / CLASSES) - log_share(row[:CLASSES], c)) for c in range(CLASSES))
    return sum(losses) / 4, apart


def test_loss_by_hand() -> None:
    answers, labels = answers_of(5), [0, 2, 1, 1, 0]
    expected = 0.0
    for row, label in zip(answers.tolist(), labels, strict=True):
        expected += (slow_parts(row)[0] - log_share(row[:CLASSES], label)) / 5
    assert float(rotpred_loss(answers, torch.tensor(labels))) == pytest.approx(expected, rel=1e-9)


def test_score_by_hand() -> None:
    answers = answers_of(6)
    parts = [slow_parts(row) for row in answers.tolist()]
    assert rotpred_score(answers).tolist() == pytest.approx([turns - apart for turns, apart in parts], rel=1e-9)


def test_both_ways_not_to_belong_raise_the_score() -> None:
    certain = torch.zeros(1, CLASSES + 16)
    certain[0, 0] = 6
    for turn in range(4):
        certain[0, CLASSES + 5 * turn] = 6  # the right answer for each turn
    no_class, no_turn = certain.clone(), certain.clone()
    no_class[0, 0] = 0
    no_turn[0, CLASSES + 15] = 0
    scores = rotpred_score(torch.cat((certain, no_class, no_turn)))
    assert scores[0] < scores[1:].min()
    assert float(scores[2] - scores[0]) == pytest.approx((math.log(4) - math.log(1 + 3 * math.exp(-6))) / 4, rel=1e-4)


def test_turns_of_each_image_stand_behind_its_classes() -> None:
    images = pictures(4, channels=1, side=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        label, turn = nn.Linear(64, CLASSES), nn.Linear(64, 4)
    answers = Turned(nn.Flatten(), label, turn)(images)
    assert answers.shape == (4, CLASSES + 16)
    for number, image in enumerate(images):
        assert torch.allclose(answers[number, :CLASSES], label(image.flatten()), atol=1e-6)
        for turned in range(4):
            found = answers[number, CLASSES + 4 * turned :][:4]
            pixels = torch.from_numpy(np.rot90(image[0].numpy(), turned).copy())
            assert torch.allclose(found, turn(pixels.flatten()), atol=1e-6)


def slopes(size: int, seed: int) -> tuple[Tensor, np.ndarray]:
    """Images [n, 1, 12, 12] that grow brighter downwards, with a bright row where their class has it."""
    generator = seeded(seed)
    labels = torch.randint(0, CLASSES, (size,), generator=generator)
    images = 0.1 * torch.randn(size, 1, 12, 12, generator=generator) + torch.linspace(0.1, 0.6, 12).view(1, 1, 12, 1)
    images[torch.arange(size), :, 2 + 3 * labels] += 0.4
    return (255 * images.clamp(0, 1)).to(torch.uint8), labels.numpy()


def test_training_tells_classes_and_which_way_is_up() -> None:
    images, labels = slopes(192, seed=1)
    problem = dataclasses.replace(stripes(epochs=5, batch_size=32), images=images, labels=labels, classes=CLASSES)
    lines: list[str] = []
    state = torch.get_rng_state()
    scorer = rotpred.rotpred(problem, None, lines.append)
    assert torch.equal(state, torch.get_rng_state())
    assert lines[-1] == "rotpred: epoch 5 of 5"
    assert scorer.trainings == 4
    unseen, classes = slopes(100, seed=2)
    inside, outside = (normalise(part, problem.mean, problem.spread) for part in (unseen, unseen.flip(2)))
    scores = torch.cat((scorer.score(inside), scorer.score(outside)))
    assert scores.isfinite().all()
    assert not scores.requires_grad
    assert auroc(np.arange(200) >= 100, scores.numpy()) > 0.9
    assert torch.allclose(scorer.score(inside[:3]), scores[:3], atol=1e-4)
    assert scorer.classifier is not None
    with torch.no_grad():
        right = scorer.classifier(inside).argmax(dim=1).numpy() == classes
    assert right.mean() > 0.9


def test_mixed_images_are_what_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = stripes(size=48, epochs=1, batch_size=16)
    given = pixmix.fractals(3, 14, seeded())
    monkeypatch.setattr(pixmix, "fractals", lambda count, side, generator: given)
    mixed: list[Tensor] = []
    seen: list[Tensor] = []

    class Noted(pixmix.PixMix):
        def __call__(self, x: Tensor) -> Tensor:
            mixed.append(super().__call__(x))
            return mixed[-1]

    monkeypatch.setattr(pixmix, "PixMix", Noted)
    turned = rotpred.quarter_turns

    def turns(images: Tensor) -> Tensor:
        seen.append(images)
        return turned(images)

    monkeypatch.setattr(rotpred, "quarter_turns", turns)
    lines: list[str] = []
    scorer = rotpred.rotpred_pixmix(problem, None, lines.append)
    assert len(mixed) == len(seen) == 3
    assert all(torch.equal(one, other) for one, other in zip(mixed, seen, strict=True))
    assert lines[-1] == "rotpred-pixmix: epoch 1 of 1"
    assert scorer.details == {"pictures": 3, "rounds": 4, "beta": 3.0, "severity": 3.0}
    images = normalise(problem.images[:2], problem.mean, problem.spread)
    scorer.score(images)
    assert len(mixed) == 3, "test images are not mixed"
    assert torch.equal(seen[-1], images)
