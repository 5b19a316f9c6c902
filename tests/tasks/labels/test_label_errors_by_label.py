"""Wrong labels where examples have several: each is a question of two classes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.errors import SettingError
from sgoif.reports.label_report import harmed_by
from sgoif.tasks import Curriculum, LabelErrors, PoisonWatch, Sentinel, Unlearner

TRAINING, HELD, LABELS, WRONG = 600, 200, 3, 0.1


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels as given, and whether each is wrong; of held-out examples some are wrong, too."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(TRAINING + HELD, 12, generator=generator)
    right = (x @ torch.randn(12, LABELS, generator=generator) > 0).float()
    wrong = torch.rand(right.shape, generator=generator) < WRONG
    wrong[:, 2] = False
    return x, torch.where(wrong, 1 - right, right), wrong


@cache
def trained() -> tuple[InfluenceMonitor, Tensor]:
    x, y, wrong = problem()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, LABELS))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    anchors = (x[TRAINING:], y[TRAINING:])
    monitor = InfluenceMonitor(model, optimizer, anchors, loss=nn.BCEWithLogitsLoss(), size=TRAINING)
    order = torch.Generator().manual_seed(1)
    for _ in range(15):
        for rows in torch.randperm(TRAINING, generator=order).split(50):
            with monitor.step(rows, target=y[rows]):
                F.binary_cross_entropy_with_logits(model(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor, wrong[:TRAINING]


def auroc(score: np.ndarray, positive: np.ndarray) -> float:
    ranks = score.argsort().argsort() + 1
    hits = positive.sum()
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * (~positive).sum()))


@pytest.mark.parametrize("label", [0, 1])
def test_wrong_labels_are_found_label_by_label(label: int) -> None:
    monitor, wrong = trained()
    errors = LabelErrors(monitor, label=label, class_names=["absent", "present"])
    table, truth = errors.table(), wrong[:, label].numpy()
    assert auroc(table["probability_wrong"], truth) > 0.93
    assert auroc(monitor.scores(label=label)["influence"], truth) > 0.75
    other = wrong[:, 1 - label].numpy() & ~truth
    assert abs(auroc(table["probability_wrong"][~truth], other[~truth]) - 0.5) < 0.15  # those of another label
    listed = np.flatnonzero(table["probability_wrong"] > 0.5)
    assert len(listed) > 20
    assert truth[listed].mean() > 0.7
    y = problem()[1]
    assert np.array_equal(table["given_label"], y[:TRAINING, label].numpy())
    suggested = table["predicted_label"][listed]
    assert np.array_equal(suggested, 1 - table["given_label"][listed])


def test_a_clean_label_of_many_lists_next_to_nothing() -> None:
    errors = LabelErrors(trained()[0], label=2)
    assert len(errors.select(fdr=0.1)) < 0.03 * TRAINING


def test_examples_that_a_label_hurts() -> None:
    monitor, _ = trained()
    dataset = torch.utils.data.TensorDataset(*problem()[:2])
    errors = LabelErrors(monitor, label=0, dataset=dataset)
    assert harmed_by(errors, [1, 2]).shape[0] == 2
    assert "LabelErrors" in repr(errors)


def test_what_label_errors_cannot_judge() -> None:
    monitor, _ = trained()
    with pytest.raises(SettingError, match=r"several labels: ask about one, LabelErrors\(monitor, label=0 … 2\)"):
        LabelErrors(monitor)
    with pytest.raises(SettingError, match="expected a number from 0 to 2"):
        LabelErrors(monitor, label=3)
    x, y = torch.randn(20, 3), torch.randn(20, 1)
    model = nn.Linear(3, 1)
    values = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), loss=nn.MSELoss())
    message = r"needs one class per example, and the targets of this monitor are {}; its column influence"
    for task, name in (
        (LabelErrors, "LabelErrors"),
        (Curriculum, "a curriculum"),
        (PoisonWatch, "a poison watch"),
        (Sentinel.from_monitor, "a sentinel"),
        (lambda given: Unlearner.from_monitor(given, (x, y)), "an unlearner"),
    ):
        with pytest.raises(SettingError, match=f"{name} {message.format('numbers')}"):
            task(values)
        if task is not LabelErrors:
            with pytest.raises(SettingError, match=f"{name} {message.format('0 or 1 for every label')}"):
                task(monitor)
    classes = nn.Linear(3, 2)
    plain = InfluenceMonitor(classes, torch.optim.SGD(classes.parameters(), lr=0.1), (x, torch.arange(20) % 2))
    with pytest.raises(SettingError, match="label=0 asks about one of several labels, and examples have one class"):
        LabelErrors(plain, label=0)
