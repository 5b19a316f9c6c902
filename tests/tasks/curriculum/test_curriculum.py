"""`Curriculum` in a training loop: what its weights do, when they change, and that a resumed run is the same."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curriculum_cases import BATCH, Blobs, Run, blobs
from torch import Tensor

from sgoif.core.serialization import load_state
from sgoif.errors import IndexingError, SettingError, SgoifError, StateError, StepError
from sgoif.tasks import Curriculum, CurriculumSettings
from sgoif.tasks.curriculum import assessment
from sgoif.tasks.curriculum import curriculum as module
from sgoif.tasks.labels.judgement import Judgement, judge
from sgoif.tasks.labels.noise_rate import NoiseRate

WARM_UP = 3


@pytest.fixture(scope="module")
def noisy() -> Blobs:
    return blobs()


@pytest.fixture(scope="module")
def trained(noisy: Blobs) -> Run:
    """Ten epochs with a curriculum on data with a quarter of wrong labels; not to be changed."""
    run = Run(noisy)
    Curriculum(run.monitor, warm_up=WARM_UP)
    run.epochs(0, 10, run.monitor.weights)
    return run


def test_wrong_labels_weigh_less_and_right_ones_do_not(noisy: Blobs, trained: Run) -> None:
    weights, wrong = trained.monitor.pipeline.weighting.values()[noisy.rows], noisy.wrong[noisy.rows]
    assert weights[wrong].mean() < 0.35
    assert weights[~wrong].mean() > 1.1
    assert (weights[~wrong] < 0.5).mean() < 0.05
    share = weights[wrong].sum() / weights.sum()
    assert share < 0.4 * wrong.mean()


def test_mean_is_one_and_the_floor_holds_at_every_step(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=1, floor=0.1, speed=1.0)
    means: list[float] = []

    def look(epoch: int, index: Tensor) -> None:
        values = curriculum.values(len(noisy.x))[noisy.rows]
        means.append(values.mean())
        assert values.min() >= 0.1 * (1 - 1e-6)

    run.epochs(0, 6, curriculum.weights, look)
    np.testing.assert_allclose(means, 1, atol=1e-6)
    assert curriculum.values()[noisy.rows].std() > 0.2


def test_ones_through_the_warm_up_and_the_first_judgement(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=WARM_UP)
    seen: dict[int, list[Tensor]] = {}

    def weigh(index: Tensor) -> Tensor:
        weights = curriculum.weights(index)
        seen.setdefault(len(seen_epochs), []).append(weights)
        return weights

    seen_epochs: list[int] = []
    for epoch in range(WARM_UP + 2):
        run.epochs(epoch, epoch + 1, weigh)
        seen_epochs.append(epoch)
    for epoch in range(WARM_UP + 1):  # the first judgement, at the start of epoch WARM_UP, moves nothing
        assert all(bool((weights == 1).all()) for weights in seen[epoch])
    assert any(bool((weights != 1).any()) for weights in seen[WARM_UP + 1])
    assert [entry["epochs"] for entry in curriculum.history] == [WARM_UP, WARM_UP + 1]


def test_what_is_returned(trained: Run, noisy: Blobs) -> None:
    index = torch.from_numpy(noisy.rows[:7])
    weights = trained.monitor.weights(index)
    assert weights.dtype == torch.float32
    assert weights.device == trained.monitor.device
    assert not weights.requires_grad
    np.testing.assert_allclose(weights, trained.monitor.pipeline.weighting.values()[noisy.rows[:7]], rtol=1e-6)


def test_without_wrong_labels_weights_stay_near_one() -> None:
    moved, halved = [], []
    for seed in range(4):  # one of them alone says little: blobs overlap, by chance more or less
        clean = blobs(rate=0.0, seed=seed)
        run = Run(clean, seed=seed)
        Curriculum(run.monitor)
        run.epochs(0, 10, run.monitor.weights)
        weights = run.monitor.pipeline.weighting.values()[clean.rows]
        assert len(run.monitor.pipeline.weighting.history) > 3
        moved.append(np.abs(weights - 1).mean())
        halved.append((weights < 0.5).mean())
    assert np.mean(moved) < 0.03
    assert np.mean(halved) < 0.015


@pytest.mark.parametrize(("rate", "low", "high"), [(0.0, 1.0, 1.2), (0.25, 1.3, 2.0)])
def test_weights_are_decided_only_where_noise_is_certain(
    rate: float, low: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    sharpen = assessment.sharpen

    def watched(p: Any, sharpness: float) -> Any:
        seen.append(sharpness)
        return sharpen(p, sharpness)

    monkeypatch.setattr(assessment, "sharpen", watched)
    run = Run(blobs(rate=rate))
    curriculum = Curriculum(run.monitor, warm_up=2, sharpness=2.0)
    run.epochs(0, 6, curriculum.weights)
    assert low <= seen[-1] <= high
    assert seen == pytest.approx([1 + entry["caution"] for entry in curriculum.history])


def test_a_monitor_asks_the_curriculum_that_was_made_last(noisy: Blobs) -> None:
    run = Run(noisy)
    assert run.monitor.pipeline.weighting is None
    with pytest.raises(StepError, match=r"make sgoif\.tasks\.Curriculum\(monitor\)"):
        run.monitor.weights(noisy.rows[:3])
    Curriculum(run.monitor)
    run.monitor.weights(noisy.rows[:3])
    assert run.monitor.pipeline.weighting.settings == CurriculumSettings()
    mine = Curriculum(run.monitor, floor=0.2)
    run.monitor.weights(noisy.rows[:3])
    assert run.monitor.pipeline.weighting is mine
    assert mine.epoch_counter.asked == 3


def test_a_model_that_knows_nothing_moves_no_weight(noisy: Blobs) -> None:
    """Random answers disagree with most labels; that must not be taken for noise."""
    run = Run(noisy)
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    run.epochs(0, 6, Curriculum(run.monitor, warm_up=1, speed=1.0).weights)
    weights = run.monitor.pipeline.weighting.values()[noisy.rows]
    assert run.monitor.pipeline.weighting.history[-1]["trust"] < 1
    assert np.abs(weights - 1).mean() < 0.1


def test_rare_classes_keep_their_weight() -> None:
    """One class has a fiftieth of the examples of another; none of its labels is wrong."""
    tailed = blobs(rate=0.0, sizes=(500, 250, 60, 10))
    run = Run(tailed)
    run.epochs(0, 10, Curriculum(run.monitor, warm_up=2, speed=1.0).weights)
    report = run.monitor.pipeline.weighting.report()
    rare = report.classes[3]
    assert rare.examples == 8
    assert rare.after >= 0.9 * rare.before


def test_a_class_that_was_not_learned_yet_is_not_given_up() -> None:
    """The model starts with a bias that keeps it from ever answering one class; all its labels then look wrong."""
    clean = blobs(rate=0.0)
    run = Run(clean)
    head = run.model[-1]
    with torch.no_grad():
        head.bias[2] -= 30.0
    run.epochs(0, 5, Curriculum(run.monitor, warm_up=1, speed=1.0).weights)
    after = {row.label: row.after / row.before for row in run.monitor.pipeline.weighting.report().classes}
    assert after[2] >= 0.69


def test_scores_of_weighed_training_are_those_of_plain_losses(noisy: Blobs) -> None:
    """In a step whose losses are weighed, the monitor's scores do not know of the weights."""
    runs = Run(noisy), Run(noisy)
    index = torch.from_numpy(noisy.rows[:BATCH])
    weights = torch.linspace(1e-3, 1.9, BATCH)
    runs[0].step(index, None)
    runs[1].step(index, weights)
    mine, theirs = (run.monitor.last for run in runs)
    assert mine is not None
    assert theirs is not None
    torch.testing.assert_close(mine.influence, theirs.influence, rtol=1e-4, atol=1e-6)


def test_a_curriculum_that_finished_goes_on_from_an_earlier_state_of_its_own(noisy: Blobs) -> None:
    whole, run = Run(noisy), Run(noisy)
    expected = Curriculum(whole.monitor, warm_up=2)
    whole.epochs(0, 8, expected.weights)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 5, curriculum.weights)
    parts = (run.model, run.optimizer, run.monitor, curriculum)
    states = [deepcopy(part.state_dict()) for part in parts]
    curriculum.finish()
    curriculum.ledgers.detach()  # as where labels are not judged after that
    run.epochs(5, 6, curriculum.weights)
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
    run.epochs(5, 8, curriculum.weights)
    assert np.array_equal(curriculum.values(), expected.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "version 7"),
        ({"settings": {"floor": 0.5}}, "Resume"),
        ({"weights": torch.tensor([1.0, -1.0])}, "positive"),
        ({"weights": torch.tensor([1.0, float("nan")])}, "positive"),
        ({"known": None}, "damaged"),
        ({"history": 3}, "damaged"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(trained: Run, change: dict[str, Any], message: str) -> None:
    curriculum = trained.monitor.pipeline.weighting
    before, state = curriculum.values(), curriculum.state_dict()
    with pytest.raises(StateError, match=message):
        curriculum.load_state_dict({**state, **change})
    assert np.array_equal(curriculum.values(), before)
    curriculum.load_state_dict(state)
    assert np.array_equal(curriculum.values(), before)


def test_a_foreign_file_is_refused(trained: Run, tmp_path: Path) -> None:
    trained.monitor.save(tmp_path / "monitor.npz")
    with pytest.raises(StateError, match="not the state of a curriculum"):
        trained.monitor.pipeline.weighting.load(tmp_path / "monitor.npz")
    assert "weights" in trained.monitor.pipeline.weighting.state_dict()
    trained.monitor.pipeline.weighting.save(tmp_path / "mine.npz")
    assert load_state(tmp_path / "mine.npz")["version"] == module.VERSION


def test_finishing_weighs_the_hold_out_too(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 7, curriculum.weights)
    held = np.asarray(noisy.held_out.indices)
    assert (curriculum.values()[held] == 1).all()
    curriculum.finish()
    curriculum.finish()  # once is enough
    weights, wrong = curriculum.values(len(noisy.x)), noisy.wrong
    assert weights.mean() == pytest.approx(1, abs=1e-6)
    assert weights[held][wrong[held]].mean() < 0.5 * weights[held][~wrong[held]].mean()
    run.monitor.close()
    judged = len(curriculum.history)
    for epoch in range(7, 10):  # now everything is trained on, unwatched
        for index in run.batches(epoch, np.arange(len(noisy.x))):
            np.testing.assert_allclose(curriculum.weights(index), weights[index.numpy()], rtol=1e-6)
    assert len(curriculum.history) == judged
    with pytest.raises(SgoifError, match="joined"):
        curriculum.update()


def everything(run: Run, first: int, last: int, curriculum: Curriculum) -> None:
    """Train on all examples, watched."""
    for epoch in range(first, last):
        for index in run.batches(epoch, np.arange(len(run.data.x))):
            run.step(index, curriculum.weights(index))


def test_judging_goes_on_after_the_hold_out_joined(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 5, curriculum.weights)
    curriculum.finish()
    assert curriculum.goes_on
    judged, at_first = len(curriculum.history), curriculum.values(len(noisy.x))
    everything(run, 5, 8, curriculum)
    weights, held = curriculum.values(len(noisy.x)), np.asarray(noisy.held_out.indices)
    assert len(curriculum.history) >= judged + 2
    rates = [entry["noise_rate"] for entry in curriculum.history[judged - 1 :]]
    assert max(rates) - min(rates) < 1e-3  # the hold-out is not asked again, only weighed as the training set now is
    np.testing.assert_array_equal(weights[held], at_first[held])
    assert weights.mean() == pytest.approx(1, abs=1e-6)
    wrong = noisy.wrong[noisy.rows]
    assert weights[noisy.rows][wrong].mean() < at_first[noisy.rows][wrong].mean()


def with_answer_trust(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Trust the network's answers so far at one judgement after the other; the last value for all that follow."""
    left = list(values)

    def judged(*arguments: Any, **options: Any) -> Judgement:
        found = judge(*arguments, **options)
        return replace(found, weights=replace(found.weights, logits=left.pop(0) if len(left) > 1 else left[0]))

    monkeypatch.setattr(assessment, "judge", judged)


def test_judging_ends_where_the_network_does_not_speak_its_mind(noisy: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    with_answer_trust(monkeypatch, 0.0)
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 5, curriculum.weights)
    curriculum.finish()
    assert not curriculum.goes_on
    assert not run.monitor.observers
    judged, weights = len(curriculum.history), curriculum.values(len(noisy.x))
    everything(run, 5, 8, curriculum)
    assert len(curriculum.history) == judged
    np.testing.assert_array_equal(curriculum.values(len(noisy.x)), weights)


def test_weights_move_as_far_as_two_judgements_say(noisy: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    with_answer_trust(monkeypatch, 0.9, 0.9, 0.9, 0.2, 0.6)
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2, speed=0.5)
    run.epochs(0, 5, curriculum.weights)
    assert len(curriculum.history) == 3
    moves: list[tuple[float, float]] = []
    real = curriculum._move_weights

    def noted(assessment: Any, speed: Any, start: float) -> None:
        moves.append((float(np.min(speed)), float(np.max(speed))))
        real(assessment, speed, start)

    monkeypatch.setattr(curriculum, "_move_weights", noted)
    curriculum.finish()
    everything(run, 5, 8, curriculum)
    assert moves[0] == pytest.approx((0.6, 0.875))  # 0.5 + 0.5 · 0.2; held-out ones catch up
    assert moves[1] == pytest.approx((0.2, 0.2))
    assert moves[2] == pytest.approx((0.6, 0.6))


def test_a_run_resumed_after_the_hold_out_joined_goes_on_equally(noisy: Blobs, tmp_path: Path) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 5, curriculum.weights)
    curriculum.finish()
    everything(run, 5, 6, curriculum)
    run.monitor.save(tmp_path / "monitor.npz")
    curriculum.save(tmp_path / "curriculum.npz")
    after = Run(noisy)
    after.model.load_state_dict(run.model.state_dict())
    after.optimizer.load_state_dict(deepcopy(run.optimizer.state_dict()))
    after.monitor.load(tmp_path / "monitor.npz")
    resumed = Curriculum(after.monitor, warm_up=2)
    resumed.load(tmp_path / "curriculum.npz")
    everything(run, 6, 8, curriculum)
    everything(after, 6, 8, resumed)
    assert len(resumed.history) > 5
    np.testing.assert_array_equal(resumed.values(), curriculum.values())


def test_a_hold_out_that_joins_is_limited_like_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """All held-out examples of a class look wrong, as they do before a model has learned it; the class keeps them."""
    clean = blobs(rate=0.0)
    run = Run(clean)
    curriculum = Curriculum(run.monitor, warm_up=1, speed=1.0)
    run.epochs(0, 4, curriculum.weights)

    def mistaken(*arguments: Any, **options: Any) -> Judgement:
        found = judge(*arguments, **options)
        v = np.where(found.anchors.given == 2, found.suspicion.max() + 9, found.anchor_suspicion)
        return replace(found, anchor_suspicion=v, rate=NoiseRate(0.1, 0.05, 0.2))

    monkeypatch.setattr(assessment, "judge", mistaken)
    curriculum.finish()
    held = np.asarray(clean.held_out.indices)
    weights = curriculum.values(len(clean.x))
    assert weights[held][clean.given[held] == 2].mean() > 0.6
    assert weights.mean() == pytest.approx(1, abs=1e-6)
    report = curriculum.report()
    assert report.examples == len(clean.x)
    assert all(row.after >= 0.9 * row.before for row in report.classes)


def test_half_precision_and_accumulated_gradients(noisy: Blobs) -> None:
    """What the page promises: the loop of the README, in bfloat16 and with two batches for one step."""
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=1, speed=1.0)
    for epoch in range(5):
        for number, index in enumerate(run.batches(epoch)):
            x, y = noisy.x[index], torch.from_numpy(noisy.given)[index]
            weights = curriculum.weights(index)
            with run.monitor.step(index, weights=weights):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    logits = run.model(x)
                ((torch.nn.functional.cross_entropy(logits, y, reduction="none") * weights).mean() / 2).backward()
            if number % 2:
                run.optimizer.step()
                run.optimizer.zero_grad()
    assert weights.dtype == torch.float32
    values, wrong = curriculum.values()[noisy.rows], noisy.wrong[noisy.rows]
    assert values[wrong].mean() < 0.5 * values[~wrong].mean()


def test_a_hold_out_of_its_own_cannot_join(noisy: Blobs) -> None:
    run = Run(noisy)
    run.monitor.close()
    from sgoif import InfluenceMonitor

    held = noisy.held_out.indices
    apart = torch.utils.data.TensorDataset(noisy.x[held], torch.from_numpy(noisy.given)[held])
    run.monitor = InfluenceMonitor(run.model, run.optimizer, anchors=apart, size=len(noisy.x))
    curriculum = Curriculum(run.monitor, warm_up=2, speed=1.0)
    run.epochs(0, 5, curriculum.weights)
    assert curriculum.values()[noisy.rows].std() > 0.2  # weights need no common numbering
    with pytest.raises(SgoifError, match="split_holdout"):
        curriculum.finish()


def test_unknown_sizes_and_fresh_examples(noisy: Blobs) -> None:
    """Without a known size, examples that come late weigh one until they are judged."""
    run = Run(noisy)
    run.monitor.close()
    from sgoif import InfluenceMonitor

    run.monitor = InfluenceMonitor(run.model, run.optimizer, anchors=noisy.held_out)
    curriculum = Curriculum(run.monitor, warm_up=1, speed=1.0)
    early = noisy.rows[noisy.rows < 400]
    for epoch in range(4):
        for index in run.batches(epoch, early):
            run.step(index, curriculum.weights(index))
    assert curriculum.values()[early].std() > 0.1
    late = torch.from_numpy(noisy.rows[noisy.rows >= 400][:BATCH])
    assert bool((curriculum.weights(late) == 1).all())


def test_nothing_random_is_touched(noisy: Blobs, trained: Run) -> None:
    torch.manual_seed(5)
    state, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    trained.monitor.weights(noisy.rows[:5])
    run = Run(noisy)
    Curriculum(run.monitor)
    run.epochs(0, 1, run.monitor.weights)
    torch.set_rng_state(state)
    Curriculum(run.monitor, warm_up=1).update()
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numbers)  # noqa: NPY002


def test_too_early_is_no_mistake(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor)
    assert curriculum.update() is False
    assert curriculum.report().judgements == 0
    assert "warming up" in str(curriculum.report())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warm_up": 0.5}, "warm_up=0.5"),
        ({"warm_up": float("nan")}, "warm_up"),
        ({"every": 0}, "every=0"),
        ({"floor": 0.0}, "leaves no gradient"),
        ({"class_floor": 1.5}, "class_floor"),
        ({"boost": 0.9}, "boost"),
        ({"speed": 0.0}, "speed"),
        ({"sharpness": 0.0}, "sharpness"),
        ({"patience": 3}, "unknown setting 'patience'; known are .*warm_up"),
        ({"settings": CurriculumSettings(), "floor": 0.1}, "not both"),
    ],
)
def test_settings_are_checked(noisy: Blobs, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Curriculum(Run(noisy).monitor, **options)


@pytest.mark.parametrize("index", [[1.5], [], [-1], [10**6], None])
def test_wrong_indices_are_named(noisy: Blobs, index: Any) -> None:
    run = Run(noisy)
    Curriculum(run.monitor)
    with pytest.raises(IndexingError):
        run.monitor.weights(index)
    assert run.monitor.pipeline.weighting.epoch_counter.asked == 0
