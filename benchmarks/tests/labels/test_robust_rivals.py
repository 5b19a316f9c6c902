"""The rivals that train so as to withstand wrong labels: Mixup, SCE, Co-teaching, MentorNet, INCV."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from problems import striped
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.curriculum import robust_loss
from sgoif_bench.curriculum.rivals import symmetric_loss
from sgoif_bench.labels.problem import Known, Outcome, Problem
from sgoif_bench.labels.rivals import common, coteaching, incv, mentornet, mixup, sce
from sgoif_bench.metrics import auroc

pytestmark = pytest.mark.long

Rival = Callable[[Problem, Callable[[str], None]], Outcome]
RIVALS: dict[str, Rival] = {
    "mixup": mixup.mixup,
    "sce": sce.sce,
    "coteaching": coteaching.coteaching,
    "mentornet": mentornet.mentornet,
    "incv": incv.incv,
}
WITHOUT_THRESHOLD = {"mixup", "sce"}
SIZE, EPOCHS, ANCHORS, RATE = 400, 6, 80, 0.2


@dataclasses.dataclass
class Run:
    """One rival on the striped problem, and what it may not know."""

    outcome: Outcome
    is_wrong: NDArray[np.bool_]
    lines: list[str]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    problem, is_wrong = striped(size=SIZE, epochs=EPOCHS, anchors=ANCHORS, rate=RATE, seed=3)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mentornet, "MENTOR_STEPS", 300)  # enough for so few examples
        for name, rival in RIVALS.items():
            lines: list[str] = []
            found[name] = Run(rival(problem, lines.append), is_wrong, lines)
    return found


@pytest.mark.parametrize("name", RIVALS)
def test_wrong_labels_are_found(runs: dict[str, Run], name: str) -> None:
    outcome, is_wrong = runs[name].outcome, runs[name].is_wrong
    assert outcome.suspicion.shape == (SIZE,)
    assert outcome.suspicion.dtype == np.float64
    assert np.isfinite(outcome.suspicion).all()
    # Symmetric cross entropy makes networks so sure that the smallest losses are all the same, 0.
    assert len(np.unique(outcome.suspicion)) > (0.5 if name == "sce" else 0.95) * SIZE
    assert auroc(is_wrong, outcome.suspicion) > 0.9


@pytest.mark.parametrize("name", RIVALS)
def test_only_methods_with_a_threshold_flag(runs: dict[str, Run], name: str) -> None:
    flagged, is_wrong = runs[name].outcome.flagged, runs[name].is_wrong
    if name in WITHOUT_THRESHOLD:
        assert flagged is None
    else:
        assert flagged is not None
        assert flagged.shape == (SIZE,)
        assert flagged.dtype == np.bool_
        assert is_wrong[flagged].mean() > 0.7
        assert flagged[is_wrong].mean() > 0.5


@pytest.mark.parametrize("name", RIVALS)
def test_progress_is_told_and_details_fit_a_result_file(runs: dict[str, Run], name: str) -> None:
    assert len(runs[name].lines) >= EPOCHS
    assert json.loads(json.dumps(runs[name].outcome.details)) == runs[name].outcome.details


def test_trainings_are_what_was_trained(runs: dict[str, Run]) -> None:
    assert runs["mixup"].outcome.trainings == 1
    assert runs["sce"].outcome.trainings == 1
    assert runs["mentornet"].outcome.trainings == 2
    assert runs["coteaching"].outcome.trainings == pytest.approx(2 + (SIZE - ANCHORS) / SIZE, abs=0.02)
    # First round: two halves. Later ones: twice the selected and half of the rest, at most all. The pair: no more than
    # one and a half times the selected, twice.
    assert 1 + 3 * 2 * 0.5 < runs["incv"].outcome.trainings < 1 + 3 * 2 + 2 * 1.5


@pytest.mark.parametrize("name", RIVALS)
def test_same_seed_same_result_and_the_global_random_state_is_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mentornet, "MENTOR_STEPS", 50)
    outcomes = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        problem, _ = striped(size=120, epochs=2, anchors=24, seed=5)
        outcomes.append(RIVALS[name](problem, lambda line: None))
        assert torch.equal(before, torch.get_rng_state())
    first, second = outcomes
    assert np.array_equal(first.suspicion, second.suspicion)
    assert first.trainings == second.trainings
    if first.flagged is not None:
        assert np.array_equal(first.flagged, second.flagged)
    problem.seed = 6
    assert not np.array_equal(first.suspicion, RIVALS[name](problem, lambda line: None).suspicion)


# What they share


def test_last_quarter_of_the_epochs_is_late() -> None:
    assert [epoch for epoch in range(1, 21) if common.is_late(epoch, 20)] == [16, 17, 18, 19, 20]
    assert [epoch for epoch in (1, 2, 3) if common.is_late(epoch, 3)] == [3]
    assert common.is_late(1, 1)


def test_means_per_example_by_hand() -> None:
    mean = common.MeanPerExample(3, torch.device("cpu"))
    mean.add(torch.tensor([2, 0]), torch.tensor([1.0, 5.0]))
    mean.add(torch.tensor([2]), torch.tensor([2.0]))
    assert mean.result().tolist() == [5.0, 0.0, 1.5]


def test_streams_are_not_the_bare_seed() -> None:
    problem, _ = striped(size=60, anchors=12, seed=4)
    own, other = (common.numpy_stream(problem, number).random(8) for number in (1, 2))
    assert not np.allclose(own, other)
    assert not np.allclose(own, np.random.default_rng(4).random(8))


# Mixup


def test_mixup_mixes_images_and_losses_by_hand() -> None:
    x, partner = torch.tensor([[0.0], [10.0], [20.0]]), torch.tensor([1, 2, 0])
    assert torch.allclose(mixup.mix(x, partner, 0.7), torch.tensor([[3.0], [13.0], [14.0]]))
    logits = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    labels, swapped = torch.tensor([0, 1]), torch.tensor([1, 0])
    own = -(math.log(0.9) + math.log(0.8)) / 2
    of_partner = -(math.log(0.1) + math.log(0.2)) / 2
    expected = 0.7 * own + 0.3 * of_partner
    assert float(mixup.mixed_loss(logits, labels, swapped, 0.7)) == pytest.approx(expected, rel=1e-5)


class Watched(nn.Module):
    """A network that keeps what it is trained on."""

    def __init__(self, inner: nn.Module, inputs: list[Tensor]) -> None:
        super().__init__()
        self.inner, self.inputs = inner, inputs

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.inputs.append(x)
        logits: Tensor = self.inner(x)
        return logits


def test_mixup_trains_on_mixed_images_with_lambda_from_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = striped(size=320, epochs=8, anchors=40)
    inputs: list[Tensor] = []
    inner = problem.recipe.model
    problem.recipe = dataclasses.replace(
        problem.recipe, model=lambda channels, classes: Watched(inner(channels, classes), inputs)
    )
    mixed: list[Tensor] = []
    shares: list[float] = []
    mix, mixed_loss = mixup.mix, mixup.mixed_loss

    def watched_mix(x: Tensor, partner: Tensor, share: float) -> Tensor:
        assert sorted(partner.tolist()) == list(range(len(x)))
        mixed.append(mix(x, partner, share))
        return mixed[-1]

    def watched_loss(logits: Tensor, labels: Tensor, partner: Tensor, share: float) -> Tensor:
        shares.append(share)
        return mixed_loss(logits, labels, partner, share)

    monkeypatch.setattr(mixup, "mix", watched_mix)
    monkeypatch.setattr(mixup, "mixed_loss", watched_loss)
    mixup.mixup(problem, lambda line: None)
    steps = 8 * 5
    assert len(mixed) == len(inputs) == len(shares) == steps
    assert all(torch.equal(seen, made) for seen, made in zip(inputs, mixed, strict=True))
    # Beta(α, α) has mean 1/2 and variance 1 / (4 (2 α + 1)).
    spread = math.sqrt(1 / (4 * (2 * mixup.ALPHA + 1)))
    values = np.array(shares)
    assert abs(values.mean() - 0.5) < 4 * spread / math.sqrt(steps)
    assert 0.6 * spread < values.std() < 1.4 * spread


# Symmetric cross entropy


def test_soft_labels_have_the_same_loss_where_they_are_one_hot() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 3, 1, 2, 2, 0])
    hard, soft = F.one_hot(labels, 4).float(), torch.full((6, 4), 0.25)
    assert torch.allclose(
        symmetric_loss(logits, hard),
        symmetric_loss(logits, labels),
        atol=1e-6,
    )
    even = robust_loss.ALPHA * F.cross_entropy(logits, soft) + robust_loss.BETA * float(np.log(4))
    assert torch.allclose(symmetric_loss(logits, soft), even)
    logits.requires_grad_()
    symmetric_loss(logits, hard).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_reverse_cross_entropy_is_four_times_the_missing_probability() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.15, 0.8]])
    labels = torch.tensor([0, 1])
    assert torch.allclose(robust_loss.reverse_cross_entropy(p.log(), labels), torch.tensor([4 * 0.3, 4 * 0.85]))
    expected = 0.1 * -(math.log(0.7) + math.log(0.15)) / 2 + 1.0 * 4 * (0.3 + 0.85) / 2
    assert float(symmetric_loss(p.log(), labels)) == pytest.approx(expected, rel=1e-5)


def test_the_rival_is_the_loss_that_its_authors_ran() -> None:
    logits, labels = torch.randn(8, 5, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 5
    # As in their code: the one-hot label clipped at 1e-4, under the natural logarithm.
    clipped = F.one_hot(labels, 5).float().clamp(1e-4, 1.0)
    reverse = -(logits.softmax(dim=1).clamp(1e-7, 1.0) * clipped.log()).sum(dim=1)
    expected = 0.1 * F.cross_entropy(logits, labels) + reverse.mean()
    assert float(sce.symmetric_cross_entropy(logits, labels)) == pytest.approx(float(expected), rel=1e-5)


def test_sce_trains_with_the_symmetric_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = striped(size=120, epochs=2, anchors=24)
    usual = sce.sce(problem, lambda line: None).suspicion
    monkeypatch.setattr(sce, "BETA", 0.0)
    monkeypatch.setattr(sce, "ALPHA", 1.0)
    plain = common.LateLosses(problem, lambda line: None, "plain")
    model = problem.new_model()
    problem.fit(model, problem.batches(), on_epoch=lambda epoch: plain.end_of_epoch(model, epoch))
    assert np.array_equal(sce.sce(problem, lambda line: None).suspicion, plain.result())
    assert not np.allclose(usual, plain.result(), rtol=1e-2)


# Co-teaching


@pytest.mark.parametrize("epochs", [20, 200])
def test_remembered_share_falls_to_one_minus_the_forget_rate_over_ten_epochs(epochs: int) -> None:
    shares = [coteaching.remember_share(completed, epochs, 0.3) for completed in (0, 1, 5, 10, 11, epochs - 1)]
    assert shares == pytest.approx([1.0, 0.97, 0.85, 0.7, 0.7, 0.7])


def test_remembered_share_falls_until_the_end_of_a_training_shorter_than_ten_epochs() -> None:
    shares = [coteaching.remember_share(completed, 4, 0.4) for completed in range(5)]
    assert shares == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6])


def test_a_pair_is_taught_with_the_share_of_its_epoch() -> None:
    problem, _ = striped(size=64, anchors=16, epochs=4)
    size = len(next(iter(problem.batches()))[1])
    keeps: dict[int, set[int]] = {}

    def on_look(epoch: int, index: Tensor, look: coteaching.Look) -> None:
        if len(index) == size:
            keeps.setdefault(epoch, set()).add(look.picked.shape[1])

    coteaching.train(problem, 0.4, on_look, lambda line: None, lambda pair, epoch: None)
    assert keeps == {epoch: {math.floor(size * (1 - 0.1 * (epoch - 1)) + 1e-9)} for epoch in (1, 2, 3, 4)}


def test_small_loss_picks_exact_positions() -> None:
    assert coteaching.small_loss(torch.tensor([0.5, 0.1, 2.0, 0.3]), 2).tolist() == [1, 3]
    assert coteaching.kept(0.7, 10) == 7
    assert coteaching.kept(0.75, 10) == 7
    assert coteaching.kept(0.01, 10) == 1


def test_each_network_learns_from_what_its_peer_picked() -> None:
    problem, _ = striped(size=64, anchors=16)
    x, y, _ = next(iter(problem.batches()))
    pair = coteaching.Pair(problem, steps=10)
    pair.train()
    before = [copy.deepcopy(model) for model in pair.models]
    look = pair.step(x, y, keep=20)
    losses = [F.cross_entropy(copy.deepcopy(model)(x), y, reduction="none") for model in before]
    picks = [torch.topk(each, 20, largest=False).indices for each in losses]
    assert [set(row.tolist()) for row in look.picked] == [set(pick.tolist()) for pick in picks]
    assert set(picks[0].tolist()) != set(picks[1].tolist())
    for number, model in enumerate(pair.models):
        outcomes = {}
        for teacher in (number, 1 - number):
            twin = copy.deepcopy(before[number])
            optimizer, _ = problem.optimizer(twin, 10)
            F.cross_entropy(twin(x), y, reduction="none")[picks[teacher]].mean().backward()
            optimizer.step()
            outcomes[teacher] = _distance(twin, model)
        assert outcomes[1 - number] < 1e-6
        assert outcomes[number] > 1e-4
    share = look.kept_share()
    assert share.sum() == 20
    assert set(share.tolist()) <= {0.0, 0.5, 1.0}


def _distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def test_noise_rate_is_disagreement_where_the_prediction_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coteaching, "CERTAIN_SHARE", 0.5)
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.55, 0.45], [0.05, 0.95], [0.3, 0.7]])
    # Class 0 is predicted four times; the certain half has labels 0 and 1. Class 1: twice, and once certain, right.
    labels = np.array([0, 1, 1, 1, 1, 0])
    assert coteaching.noise_rate(p, labels) == pytest.approx(1 - (4 / 6 * 0.5 + 2 / 6 * 1.0))


def test_forget_rate_is_near_the_noise_rate_and_needs_no_truth() -> None:
    for rate in (0.0, 0.4):
        problem, _ = striped(size=1200, rate=rate, anchors=600, epochs=6)
        estimate, cost = coteaching.estimate_forget_rate(problem, lambda line: None)
        assert estimate == pytest.approx(rate, abs=0.15)
        assert cost == pytest.approx(600 / 1200, abs=0.01)


def test_a_told_noise_rate_takes_the_place_of_the_estimate() -> None:
    problem, _ = striped(size=120, epochs=2, anchors=24)
    with pytest.raises(SettingError, match="was not told one"):
        coteaching.coteaching_known(problem, lambda line: None)
    problem.known = Known(0.25, flips=False)
    found = coteaching.coteaching_known(problem, lambda line: None)
    assert (found.trainings, found.details["forget_rate"]) == (2.0, 0.25)


# MentorNet


def test_mentor_reads_history_label_and_epoch() -> None:
    torch.manual_seed(0)
    mentor = mentornet.Mentor(classes=4)
    assert mentor.lstm.bidirectional
    assert mentor.lstm.input_size == 2
    assert mentor.label.weight.shape == (4, 2)
    assert mentor.epoch.weight.shape == (100, 5)
    assert mentor.hidden.in_features == 2 * mentor.lstm.hidden_size + 2 + 5
    history, labels, percentage = torch.rand(3, 10, 2), torch.zeros(3, dtype=torch.long), torch.full((3,), 50)
    logits = mentor(history, labels, percentage)
    assert logits.shape == (3,)
    earliest, latest, difference = history.clone(), history.clone(), history.clone()
    earliest[:, 0, 0] += 1
    latest[:, -1, 0] += 1
    difference[:, -1, 1] += 1
    for changed in (earliest, latest, difference):
        assert not torch.allclose(mentor(changed, labels, percentage), logits, atol=1e-5)
    assert not torch.allclose(mentor(history, labels + 1, percentage), logits)
    assert not torch.allclose(mentor(history, labels, percentage + 20), logits)


def test_loss_record_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentornet, "HISTORY", 3)
    record = mentornet.LossRecord(epochs=3, size=5, device=torch.device("cpu"))
    index = torch.tensor([4, 0, 2])
    record.add(0, index, torch.tensor([0.0, 1.0, 2.0]))  # 70th percentile 1.4
    record.add(1, index, torch.tensor([0.0, 2.0, 4.0]))  # 2.8, moving average (1.4 + 2.8) / 2 = 2.1
    expected = torch.tensor([[[1.0, -0.4], [1.0, -0.4], [2.0, -0.1]], [[2.0, 0.6], [2.0, 0.6], [4.0, 1.9]]])
    assert torch.allclose(record.history(1, torch.tensor([0, 2])), expected, atol=1e-6)
    each = record.history(torch.tensor([0, 1]), torch.tensor([0, 2]))
    assert torch.allclose(each[0], torch.tensor([[1.0, -0.4]] * 3), atol=1e-6)
    assert torch.allclose(each[1], expected[1], atol=1e-6)


def test_percentages_and_burn_in() -> None:
    assert [mentornet.percentage_done(epoch, 20) for epoch in (0, 1, 19)] == [0, 5, 95]
    assert mentornet.percentage_done(torch.tensor([0, 3]), 8).tolist() == [0, 37]
    assert [mentornet.burn_in_epochs(epochs) for epochs in (1, 20, 100)] == [1, 4, 20]


class Strict(mentornet.Mentor):
    """A mentor that trusts even labels only, and counts how often it is asked."""

    asked = 0

    def forward(self, history: Tensor, labels: Tensor, percentage: Tensor) -> Tensor:
        self.asked += 1
        return torch.where(labels % 2 == 0, 2.0, -3.0)


def test_mentor_weighs_after_burn_in_and_chance_leaves_out_during_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentornet, "DROPOUT", 0.0)
    problem, _ = striped(size=400, epochs=5, anchors=40)
    mentor = Strict(4)
    curriculum = mentornet.Curriculum(problem, mentor, stream=1)
    logits = torch.zeros(400, 4, requires_grad=True)
    labels, index = torch.arange(400) % 4, torch.arange(400)
    burnt_in = curriculum(logits, labels, index)
    burnt_in.backward()
    burnt_in = burnt_in.detach()
    assert mentor.asked == 0
    assert logits.grad is not None
    taught = logits.grad.abs().sum(dim=1) > 0
    assert 0.4 < float(taught.float().mean()) < 0.6
    assert float(burnt_in) == pytest.approx(math.log(4) * float(taught.float().mean()), rel=1e-5)
    curriculum.end_of_epoch(4)
    weighed = curriculum(logits.detach(), labels, index)
    assert mentor.asked == 1
    trusted, distrusted = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(3))
    assert float(weighed) == pytest.approx(math.log(4) * (trusted + distrusted) / 2, rel=1e-5)
    assert curriculum.distrust.result()[:2] == pytest.approx([1 - trusted, 1 - distrusted], rel=1e-5)


def test_predefined_weights_by_hand() -> None:
    difference = torch.tensor([-2.0, 0.0, 0.3, 1.5])
    assert mentornet.predefined_weights(difference, 89).tolist() == [1, 1, 0, 0]
    assert mentornet.predefined_weights(difference, 90).tolist() == pytest.approx([1, 1, 0.7, 0])


def test_predefined_curriculum_keeps_what_lies_below_three_quarters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentornet, "DROPOUT", 0.0)
    monkeypatch.setattr(mentornet, "BURN_IN_DROPOUT", 0.0)
    problem, _ = striped(size=100, epochs=5, anchors=20)
    curriculum = mentornet.Predefined(problem, stream=1)
    logits = torch.zeros(100, 4)
    logits[:, 0] = torch.linspace(-3, 3, 100)
    labels, index = torch.zeros(100, dtype=torch.long), torch.arange(100)
    losses = F.cross_entropy(logits, labels, reduction="none")
    assert float(curriculum(logits, labels, index)) == pytest.approx(float(losses.mean()), rel=1e-5)
    curriculum.end_of_epoch(4)
    kept = losses <= losses.quantile(0.75)
    assert kept.sum() == 75
    assert float(curriculum(logits, labels, index)) == pytest.approx(float((losses * kept).mean()), rel=1e-5)
    assert np.array_equal(curriculum.distrust.result(), 1 - kept.double().numpy())


def test_the_students_loss_is_that_of_the_same_student(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentornet, "MENTOR_STEPS", 50)
    problem, is_wrong = striped(size=200, epochs=4, anchors=24)
    by_weight, by_loss = (find(problem, lambda line: None) for find in (mentornet.mentornet, mentornet.mentornet_loss))
    assert by_weight.flagged is not None
    assert by_loss.flagged is not None
    assert np.array_equal(by_weight.flagged, by_loss.flagged)
    assert not np.array_equal(by_weight.suspicion, by_loss.suspicion)
    assert auroc(is_wrong, by_loss.suspicion) > 0.9
    assert mentornet.mentornet_predefined(problem, lambda line: None).trainings == 1


def test_planted_flips_are_a_tenth_and_know_nothing_of_the_wrong_labels() -> None:
    # As many wrong labels as will be planted: drawn from the same stream, they would be the very same examples.
    problem, is_wrong = striped(size=2000, rate=mentornet.PLANTED_SHARE, anchors=100)
    planted = mentornet.plant_flips(problem)
    assert planted.is_planted.sum() == 200
    assert np.array_equal(planted.labels != problem.labels, planted.is_planted)
    assert planted.labels.max() < 4
    assert 0.02 < is_wrong[planted.is_planted].mean() < 0.2
    other = dataclasses.replace(problem, seed=9)
    assert (mentornet.plant_flips(other).is_planted & planted.is_planted).sum() < 60


def test_mentor_learns_which_labels_were_flipped_and_trusts_the_wrong_ones_less(runs: dict[str, Run]) -> None:
    weight = 1 - runs["mentornet"].outcome.suspicion
    is_wrong = runs["mentornet"].is_wrong
    assert weight[is_wrong].mean() < 0.4
    assert weight[~is_wrong].mean() > 0.7
