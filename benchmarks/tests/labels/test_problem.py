"""What every method of the comparison is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems import striped

from sgoif.errors import SettingError
from sgoif_bench.labels.problem import Problem, last_linear


def test_training_by_the_recipe_learns_and_repeats() -> None:
    problem, wrong = striped(rate=0.0, epochs=8)
    assert not wrong.any()
    first, second = (problem.fit(problem.new_model(), problem.batches()) for _ in range(2))
    right = (problem.predict(first).argmax(1).numpy() == problem.labels).mean()
    assert right > 0.9
    assert torch.equal(problem.predict(first), problem.predict(second))
    assert not torch.equal(problem.predict(problem.new_model(0)), problem.predict(problem.new_model(1)))


def test_hooks_of_a_fit_see_every_example_once_an_epoch() -> None:
    problem, _ = striped(size=100, anchors=20)
    seen: list[np.ndarray] = []
    epochs: list[int] = []
    problem.fit(
        problem.new_model(),
        problem.batches(),
        epochs=2,
        on_step=lambda logits, labels, index: seen.append(index.numpy()),
        on_epoch=epochs.append,
    )
    assert epochs == [1, 2]
    assert np.bincount(np.concatenate(seen)).tolist() == [2] * 100


def test_parts_keep_their_rows_and_labels_can_be_replaced() -> None:
    problem, _ = striped(size=100, anchors=20)
    training, anchors = problem.split()
    assert sorted(training.indices + anchors.indices) == list(range(100))
    assert len(anchors) == pytest.approx(20, abs=2)
    rows = np.array(anchors.indices)
    zeros = np.zeros(100, dtype=np.int64)
    for _, y, index in problem.batches(rows, zeros):
        assert not y.any()
        assert set(index.tolist()) <= set(anchors.indices)


def test_features_are_what_the_head_sees() -> None:
    problem, _ = striped(size=100, anchors=20)
    model = problem.new_model()
    features, head = problem.features(model), last_linear(model)
    assert torch.allclose(head(features), problem.predict(model), atol=1e-5)


def test_images_and_labels_must_match() -> None:
    problem, _ = striped(size=100, anchors=20)
    with pytest.raises(SettingError, match="do not go with"):
        Problem(problem.images, problem.labels[:50], 4, problem.recipe, problem.device)
    with pytest.raises(SettingError, match="no linear layer"):
        last_linear(torch.nn.ReLU())


def test_sets_too_large_for_the_device_are_read_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = striped(size=100, anchors=20)
    rows = np.asarray(problem.split()[0].indices)
    kept = [(x, y, index) for x, y, index in problem.batches(rows)]
    monkeypatch.setattr("sgoif_bench.labels.problem.KEEP_ON_DEVICE", 0)
    batches = problem.batches(rows)
    assert batches.images.data_ptr() == problem.images.data_ptr()
    for one, other in zip(kept, batches, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert torch.equal(mine, theirs)
