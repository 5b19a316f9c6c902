"""Every attack does what its paper says, and nothing else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attack_cases import CLASSES, scene, surrogate

from sgoif.errors import SettingError
from sgoif_bench.poisoning.attacks.attack import Scene, Targets
from sgoif_bench.poisoning.attacks.badnets import BadNets
from sgoif_bench.poisoning.attacks.blended import Blend, Blended
from sgoif_bench.poisoning.attacks.clean_label import CleanLabel, harder
from sgoif_bench.poisoning.attacks.gradient_matching import (
    Brew,
    GradientMatching,
    mismatch,
    target_gradient,
    weights_of,
)
from sgoif_bench.poisoning.attacks.label_flip import LabelFlip, draw_targets, neighbours
from sgoif_bench.poisoning.attacks.naming import KINDS, full_name, make_attack, parse, title_of
from sgoif_bench.poisoning.attacks.patch import Patch, checkerboard
from sgoif_bench.poisoning.attacks.surrogate import Surrogate

EVERY = [
    BadNets(rate=0.05),
    Blended(rate=0.05),
    CleanLabel(rate=0.1, epsilon=0.3, steps=5),
    LabelFlip(rate=0.05, targets=3, among=1.0),
    GradientMatching(rate=0.05, epsilon=0.3, iterations=3, restarts=1, among=1.0),
]


def changed_rows(before: Scene, images: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    pixels = (images != before.images).flatten(1).any(1).numpy()
    return np.flatnonzero(pixels | (labels != before.labels))


@pytest.mark.parametrize("attack", EVERY, ids=lambda attack: type(attack).__name__)
def test_what_is_marked_is_what_was_changed(attack: BadNets) -> None:
    given = scene()
    images, labels = given.images.clone(), given.labels.copy()
    poisoned = attack.poison(given)
    assert torch.equal(given.images, images)
    assert np.array_equal(given.labels, labels)
    marked = np.flatnonzero(poisoned.is_poison)
    assert np.array_equal(changed_rows(given, poisoned.images, poisoned.labels), marked)
    assert len(marked) == round(attack.rate * len(given))
    assert (poisoned.trigger is None) == (poisoned.targets is not None)
    again, other = attack.poison(scene()), attack.poison(scene(seed=1))
    assert torch.equal(again.images, poisoned.images)
    assert np.array_equal(again.labels, poisoned.labels)
    assert not np.array_equal(other.is_poison, poisoned.is_poison)


def test_a_patch_by_hand() -> None:
    white, black, grey = 255, 0, 9
    image = torch.full((1, 1, 4, 4), grey, dtype=torch.uint8)
    assert Patch(2)(image)[0, 0].tolist() == [
        [grey] * 4,
        [grey] * 4,
        [grey, grey, white, black],
        [grey, grey, black, white],
    ]
    assert Patch(1, margin=1)(image)[0, 0].tolist() == [
        [grey] * 4,
        [grey] * 4,
        [grey, grey, white, grey],
        [grey] * 4,
    ]
    assert image.unique().tolist() == [grey]
    assert checkerboard(3).tolist() == [[white, black, white], [black, white, black], [white, black, white]]


@pytest.mark.parametrize("axis", [2, 3])
def test_a_patch_in_all_corners_survives_mirroring(axis: int) -> None:
    image = torch.randint(0, 256, (3, 2, 9, 11), dtype=torch.uint8)
    everywhere, corner = Patch(2, everywhere=True), Patch(2)
    assert torch.equal(everywhere(image.flip(axis)), everywhere(image).flip(axis))
    assert not torch.equal(corner(image.flip(axis)), corner(image).flip(axis))


def test_the_patch_suits_the_image() -> None:
    sizes = [Patch.for_images(torch.zeros(1, 1, side, side), None).size for side in (8, 12, 14, 28, 32, 64)]
    assert sizes == [2, 2, 3, 3, 3, 6]
    with pytest.raises(SettingError, match="covers half"):
        Patch.for_images(torch.zeros(1, 1, 8, 8), 5)


def test_badnets_stamps_and_relabels_other_classes() -> None:
    given = scene(with_network=False)
    poisoned = BadNets(rate=0.1, target=2).poison(given)
    rows = np.flatnonzero(poisoned.is_poison)
    assert (given.labels[rows] != 2).all()
    assert (poisoned.labels[rows] == 2).all()
    assert poisoned.wanted == 2
    assert poisoned.trigger is not None
    assert torch.equal(poisoned.images[rows], poisoned.trigger(given.images[rows]))
    outside = torch.ones(12, 12, dtype=torch.bool)
    outside[-2:, -2:] = False
    assert torch.equal(poisoned.images[rows][..., outside], given.images[rows][..., outside])


def test_a_blend_pixel_by_pixel() -> None:
    given = scene(with_network=False)
    poisoned = Blended(rate=0.1, target=1, alpha=0.2).poison(given)
    assert isinstance(poisoned.trigger, Blend)
    pattern = poisoned.trigger.pattern
    assert pattern.shape == given.images.shape[1:]
    assert pattern.float().std() > 60, "every value is as likely"
    row = int(np.flatnonzero(poisoned.is_poison)[0])
    for y in range(12):
        for x in range(12):
            mixed = 0.8 * int(given.images[row, 0, y, x]) + 0.2 * int(pattern[0, y, x])
            assert abs(int(poisoned.images[row, 0, y, x]) - mixed) <= 0.5 + 1e-4
    assert (poisoned.labels[poisoned.is_poison] == 1).all()


def test_clean_label_images_keep_their_label_and_become_harder() -> None:
    given, epsilon = scene(), 0.2
    poisoned = CleanLabel(rate=0.1, target=3, epsilon=epsilon).poison(given)
    rows = np.flatnonzero(poisoned.is_poison)
    assert np.array_equal(poisoned.labels, given.labels)
    assert (given.labels[rows] == 3).all()
    inside = slice(2, -2)
    change = (poisoned.images[rows].int() - given.images[rows].int())[..., inside, inside].abs()
    assert change.max() <= round(255 * epsilon) + 1
    assert change.max() > 0.9 * 255 * epsilon, "the ball is used"
    board = checkerboard(2)
    assert torch.equal(poisoned.images[rows][:, 0, -2:, -2:], board.expand(len(rows), 2, 2))
    assert torch.equal(poisoned.images[rows][:, 0, :2, :2], board.flip(0, 1).expand(len(rows), 2, 2))
    assert poisoned.details["share_of_class"] == pytest.approx(len(rows) / (given.labels == 3).sum())


def test_hardening_climbs_the_loss() -> None:
    given, network = scene(), surrogate()
    labels = torch.from_numpy(given.labels[:60])

    def loss(images: torch.Tensor) -> float:
        return float(F.cross_entropy(network.answers(images), labels))

    gentle, hard = (harder(network, given.images[:60], labels, epsilon, 20) for epsilon in (0.05, 0.3))
    assert loss(given.images[:60]) < loss(gentle) < loss(hard)
    assert (network.answers(hard).argmax(1) == labels).float().mean() < 0.5
    assert not network.model.training


def test_flipped_labels_are_the_nearest_of_the_targets_class() -> None:
    given = scene()
    poisoned = LabelFlip(rate=0.05, targets=2, among=1.0).poison(given)
    targets = poisoned.targets
    assert targets is not None
    assert torch.equal(poisoned.images, given.images)
    logits = surrogate().answers(targets.images)
    order = logits.argsort(1, descending=True)
    assert order[:, 0].tolist() == targets.labels.tolist(), "the clean network is right"
    assert order[:, 1].tolist() == targets.wanted.tolist(), "the wrong answer is its second choice"
    features, centres = surrogate().features(given.images), surrogate().features(targets.images)
    expected = np.zeros(len(given), dtype=bool)
    for centre, label, wanted in zip(centres, targets.labels, targets.wanted, strict=True):
        distance = [float((f - centre).norm()) for f in features]
        free = [row for row in range(len(given)) if given.labels[row] == label and not expected[row]]
        nearest = sorted(free, key=lambda row: distance[row])[:6]
        expected[nearest] = True
        assert (poisoned.labels[nearest] == wanted).all()
    assert np.array_equal(expected, poisoned.is_poison)


def test_two_targets_of_one_class_share_no_neighbour() -> None:
    given = scene()
    images, labels = given.tests()
    rows = np.flatnonzero(labels == 1)[:2]
    rows[1] = rows[0]
    targets = Targets(images[rows], labels[rows], np.array([2, 3]))
    found, wanted = neighbours(given, targets, 5)
    assert len(set(found.tolist())) == 10
    assert wanted.tolist() == [2] * 5 + [3] * 5
    with pytest.raises(SettingError, match="class 1 has 60 examples"):
        neighbours(given, targets, 61)


def test_targets_are_those_that_the_network_is_least_sure_of() -> None:
    given = scene()
    images, labels = given.tests()
    sure = surrogate().answers(images).softmax(1).sort(1, descending=True).values
    margin = (sure[:, 0] - sure[:, 1]).numpy()
    right = surrogate().answers(images).argmax(1).numpy() == labels
    limit = np.sort(margin[right])[round(0.1 * right.sum()) - 1]
    for _ in range(5):
        chosen = draw_targets(given, 2, among=0.1)
        top = surrogate().answers(chosen.images).softmax(1).sort(1, descending=True).values
        assert float((top[:, 0] - top[:, 1]).max()) <= limit + 1e-6


def test_the_mismatch_is_one_minus_the_cosine() -> None:
    one, other = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])], [torch.tensor([0.0, 1.0]), torch.tensor([[1.0]])]
    assert float(mismatch(one, other)) == pytest.approx(1 - 4 / (5 * 2**0.5))
    assert float(mismatch(one, one)) == pytest.approx(0, abs=1e-6)


def test_matched_poison_is_within_the_ball_and_better_aligned() -> None:
    given, epsilon = scene(), 0.25
    poisoned = GradientMatching(rate=0.1, epsilon=epsilon, iterations=25, restarts=2, among=1.0).poison(given)
    rows = np.flatnonzero(poisoned.is_poison)
    targets = poisoned.targets
    assert targets is not None
    assert np.array_equal(poisoned.labels, given.labels)
    assert (given.labels[rows] == targets.wanted[0]).all()
    change = (poisoned.images[rows].int() - given.images[rows].int()).abs()
    assert 0 < change.max() <= round(255 * epsilon) + 1
    details = poisoned.details
    assert details["matching_loss"] < 0.6 * details["matching_loss_unchanged"]


def test_a_step_on_matched_poison_teaches_the_wrong_answer() -> None:
    """The mechanism: descending the poison's loss lowers the loss of the target's wrong answer; clean images do not."""
    given, network = scene(), surrogate()
    poisoned = GradientMatching(rate=0.1, epsilon=0.3, iterations=40, restarts=1, among=1.0).poison(given)
    rows, targets = np.flatnonzero(poisoned.is_poison), poisoned.targets
    assert targets is not None
    wanted = torch.from_numpy(targets.wanted)

    def gain(images: torch.Tensor) -> float:
        weights = weights_of(network)
        loss = F.cross_entropy(network.logits(network.pixels(images)), torch.from_numpy(given.labels[rows]))
        slope = torch.autograd.grad(loss, weights)
        size = torch.sqrt(sum((s.square().sum() for s in slope), start=torch.zeros(())))
        before = float(F.cross_entropy(network.answers(targets.images), wanted))
        with torch.no_grad():
            for weight, s in zip(weights, slope, strict=True):
                weight -= 0.02 * s / size
        after = float(F.cross_entropy(network.answers(targets.images), wanted))
        with torch.no_grad():
            for weight, s in zip(weights, slope, strict=True):
                weight += 0.02 * s / size
        return before - after

    taught, plain = gain(poisoned.images[rows]), gain(given.images[rows])
    assert taught > 0
    assert taught > 1.5 * plain


class Precise(Surrogate):
    """Computes in float64, so that differences can be taken between close neighbours."""

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(self.prepared(pixels.double()))


def test_the_slope_of_the_matching_loss_is_its_derivative() -> None:
    known = surrogate(augment=False)
    network, given = Precise(copy.deepcopy(known.model).double(), known.problem), scene()
    target = target_gradient(network, given.tests()[0][:1], 1)
    brew = Brew(network, given.images[given.labels == 1][:5], 1, target, seed=0)
    brew.pixels = brew.pixels.double()
    slope = brew._slope(torch.zeros_like(brew.pixels))
    direction, step = slope / slope.norm(), 1e-5
    numeric = (brew.loss(brew.pixels + step * direction) - brew.loss(brew.pixels - step * direction)) / (2 * step)
    assert numeric == pytest.approx(float(slope.norm()), rel=0.01)


def test_names_of_attacks() -> None:
    assert parse("badnets-1") == ("badnets", 0.01)
    assert parse("clean-label-2.5") == ("clean-label", 0.025)
    assert parse("gradient-matching") == ("gradient-matching", None)
    assert make_attack("none", "mnist") is None
    assert make_attack("blended-3", "cifar10") == Blended(rate=0.03)
    assert make_attack("clean-label", "cifar10") == CleanLabel(epsilon=16 / 255)
    assert make_attack("blended-3", "mnist") == Blended(rate=0.03, alpha=0.1)
    small = GradientMatching(rate=0.02, epsilon=0.3, among=0.02, iterations=100, restarts=2)
    assert make_attack("gradient-matching-2", "mnist") == small
    assert make_attack("label-flip", "cifar10") == LabelFlip(among=1.0)
    assert full_name("badnets") == full_name("badnets-1.0") == "badnets-1"
    assert title_of("label-flip-2") == "targeted label flips 2%"
    assert (title_of("none"), title_of("of-tomorrow")) == ("no attack", "of-tomorrow")
    assert all(kind.paper for kind in KINDS.values())


@pytest.mark.parametrize("name", ["badnet-1", "badnets-", "badnets-0", "badnets-100", "badnets-x", "", "none-1"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(SettingError, match="there is no attack"):
        parse(name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BadNets(rate=0), "rate = 0"),
        (lambda: Blended(alpha=0), "alpha = 0"),
        (lambda: CleanLabel(epsilon=2), "epsilon = 2"),
        (lambda: CleanLabel(steps=0), "steps = 0"),
        (lambda: LabelFlip(targets=0), "targets = 0"),
        (lambda: LabelFlip(among=0), "among = 0"),
        (lambda: GradientMatching(restarts=0), "restarts = 0"),
        (lambda: GradientMatching(iterations=0), "iterations = 0"),
        (lambda: Patch(0), "patch of 0 pixels"),
        (lambda: Scene(torch.zeros(3, 1, 4, 4), np.zeros(3, dtype=np.int64), 2, np.random.default_rng(0)), "bytes"),
        (lambda: Targets(torch.zeros(1, 1, 2, 2), np.array([1]), np.array([1])), "wanted to be answered wrongly"),
        (lambda: BadNets(rate=0.001).poison(scene()), "less than one"),
        (lambda: BadNets(target=CLASSES).poison(scene()), "target = 4 is no class"),
        (lambda: CleanLabel(rate=0.5).poison(scene()), "needs 120 examples of class"),
        (lambda: CleanLabel().poison(scene(with_network=False)), "made with a network"),
        (lambda: LabelFlip(rate=0.01, targets=3).poison(scene()), "leaves none for each of 3 targets"),
    ],
)
def test_settings_that_make_no_attack(make: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()  # type: ignore[operator]
