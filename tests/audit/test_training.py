"""The loop: it learns, leaves the hold-out alone, and goes on after a save exactly as without one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sgoif.audit.errors import AuditError
from sgoif.audit.plan import hold_out, make_plan
from sgoif.audit.settings import AuditSettings
from sgoif.audit.training import Course, Training, learning_rate
from sgoif.core.serialization import load_state, save_state
from sgoif.errors import StateError


def pictures(count: int = 120, classes: int = 3, size: int = 8, channels: int = 3, seed: int = 0) -> SimpleNamespace:
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    patterns = generator.integers(0, 256, (classes, channels, size, size))
    noisy = patterns[labels] * 0.5 + generator.normal(64, 30, (count, channels, size, size))
    array = np.clip(noisy, 0, 255).astype(np.uint8)
    return SimpleNamespace(array=array, labels=labels, class_names=[f"c{k}" for k in range(classes)])


def make(images: SimpleNamespace, **options: Any) -> Training:
    settings = AuditSettings(
        Path("x"), **{"model": "tiny_nets:tiny", "from_scratch": True, "device": "cpu", "epochs": 4, **options}
    )
    rows, held = hold_out(images.labels, settings.holdout, settings.seed)
    return Training(images, settings, make_plan(settings, len(rows)), rows, held)


def finish(training: Training) -> Training:
    while not training.finished():
        training.advance()
    return training


def same(one: Training, two: Training) -> None:
    for a, b in zip(one.model.state_dict().values(), two.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    first, second = one.monitor.scores(), two.monitor.scores()
    for name in first.columns:
        assert np.array_equal(first[name], second[name], equal_nan=first[name].dtype.kind == "f"), name


def test_it_learns_and_scores_every_image() -> None:
    images = pictures()
    training = finish(make(images, epochs=12, early_stop=False))
    assert training.stopped == "all epochs done"
    assert training.loss < 0.5 * np.log(3)
    table = training.monitor.scores()
    assert table["index"].tolist() == list(range(120))
    assert np.isfinite(table["influence"]).all()


def test_a_course_trains_the_same_network_without_a_monitor() -> None:
    images = pictures()
    training = finish(make(images, early_stop=False))
    course = Course(images, training.settings, training.plan, training.batches.rows)
    while not course.finished():
        course.advance()
    assert (course.step, course.stopped, course.loss) == (training.step, training.stopped, training.loss)
    for a, b in zip(course.model.state_dict().values(), training.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_held_out_images_are_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures()
    training = make(images, epochs=2)
    held = set(training.monitor.anchors.dataset.indices)  # type: ignore[attr-defined]
    seen: set[int] = set()
    inner = training.monitor.step
    monkeypatch.setattr(training.monitor, "step", lambda index: (seen.update(index.tolist()), inner(index))[1])
    finish(training)
    assert seen == set(range(120)) - held


@pytest.mark.parametrize("stop_at", [1, 7, 13, 22])
def test_a_resumed_run_is_bit_for_bit_the_same(stop_at: int, tmp_path: Path) -> None:
    images = pictures()
    whole = finish(make(images))
    assert stop_at < whole.step
    first = make(images)
    for _ in range(stop_at):
        first.advance()
    save_state(tmp_path / "state.npz", first.state_dict())
    finish(first)  # what happens after the save must not reach into it
    torch.manual_seed(99)
    second = make(images)
    second.load_state_dict(load_state(tmp_path / "state.npz"))
    assert second.step == stop_at
    same(whole, finish(second))
    same(whole, first)


def test_another_seed_is_another_run() -> None:
    images = pictures()
    one, two = finish(make(images, epochs=2)), finish(make(images, epochs=2, seed=1))
    assert not torch.equal(next(one.model.parameters()), next(two.model.parameters()))


def test_hundreds_of_classes_most_of_them_rare() -> None:
    images = pictures(700, 500)
    images.labels[600:] = np.arange(100) % 4
    training = finish(make(images, model="auto", epochs=1))
    assert np.isfinite(training.monitor.scores()["influence"]).all()


@pytest.mark.parametrize(
    ("count", "classes", "size", "channels"),
    [(6, 2, 8, 1), (40, 2, 8, 3), (90, 3, 40, 3), pytest.param(3000, 500, 8, 3, marks=pytest.mark.slow)],
)
def test_built_in_models_train_on_sets_of_every_shape(count: int, classes: int, size: int, channels: int) -> None:
    training = make(pictures(count, classes, size, channels), model="auto", epochs=2)
    finish(training)
    assert np.isfinite(training.loss)
    assert all(torch.isfinite(weight).all() for weight in training.model.parameters())


def test_default_learning_rates_learn_a_small_grey_set() -> None:
    training = make(pictures(200, 4, 8, 1), model="auto", epochs=8)
    finish(training)
    training.model.eval()
    x = torch.cat([training.monitor.anchors.dataset[k][0][None] for k in range(60)])  # type: ignore[attr-defined]
    y = torch.tensor([training.monitor.anchors.dataset[k][1] for k in range(60)])  # type: ignore[attr-defined]
    assert float((training.model(x).argmax(1) == y).float().mean()) > 0.9


def test_memorising_ends_a_run_early_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgoif.audit.stopping.memorises", lambda history: len(history) >= 4)
    images = pictures()
    stopped = finish(make(images, epochs=30))
    assert stopped.stopped == "memorising"
    assert stopped.step < 30 * len(stopped.batches)
    assert stopped.step % len(stopped.batches) == 0
    whole = finish(make(images, epochs=30, early_stop=False))
    assert (whole.stopped, whole.step) == ("all epochs done", 30 * len(whole.batches))


def test_random_labels_are_memorised_and_noticed() -> None:
    images = pictures(60)
    images.array = np.random.default_rng(3).integers(0, 256, images.array.shape, dtype=np.uint8)
    images.labels = np.random.default_rng(4).integers(0, 3, 60)
    training = finish(make(images, model="auto", epochs=30, augment=False))
    entries = training.monitor.history
    assert entries[-1]["train_loss"] < 0.5 * entries[-1]["anchor_loss"]
    assert max(entry["step_weight"] for entry in entries) < 0.05  # nothing to know, so no early stop either
    assert training.stopped in ("all epochs done", "settled")


def test_a_run_that_diverges_says_what_to_change() -> None:
    training = make(pictures(), epochs=8, learning_rate=0.1)
    with torch.no_grad():
        next(training.model.parameters()).fill_(float("nan"))
    with pytest.raises(AuditError, match="smaller --learning-rate"):
        finish(training)


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(step, 100, 0.4) for step in range(100)]
    assert max(rates) == rates[20] == 0.4
    assert rates[:20] == sorted(rates[:20])
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert 0 < rates[-1] < 0.01
    assert rates[0] == pytest.approx(0.04)
    assert learning_rate(0, 1, 0.4) > 0


@pytest.mark.parametrize("damage", ["version", "model", "momentum", "step"])
def test_a_foreign_checkpoint_is_refused(damage: str) -> None:
    images = pictures()
    first = make(images)
    for _ in range(3):
        first.advance()
    state = first.state_dict()
    if damage == "model":
        state = {k: v for k, v in state.items() if k != "model.0.0.0.weight"}
    elif damage == "momentum":
        state["momentum.nowhere"] = torch.zeros(1)
    else:
        state.pop(damage)
    with pytest.raises(StateError):
        make(images).load_state_dict(state)
