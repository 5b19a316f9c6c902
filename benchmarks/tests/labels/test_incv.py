"""INCV: selection by cross-validation, by hand and in training."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from problems import striped
from torch import Tensor, nn

from sgoif_bench.batches import Batches
from sgoif_bench.labels.problem import Known, Problem, Rows
from sgoif_bench.labels.rivals import coteaching, incv

# INCV


def test_noise_rate_and_its_consequences_by_hand() -> None:
    for rate in (0.0, 0.2, 0.5, 0.8):
        agreement = (1 - rate) ** 2 + rate**2 / 9
        assert incv.noise_rate(agreement, 10) == pytest.approx(rate, abs=1e-9)
    assert incv.noise_rate(0.05, 10) == pytest.approx(0.9)
    assert incv.removal_ratio(0.2) == pytest.approx(0.25)
    assert incv.removal_ratio(0.9) == 2
    assert incv.selected_noise_rate(0.2, 10) == pytest.approx(0.04 / (0.04 + 9 * 0.64))


def test_selection_by_hand() -> None:
    # Of rows 5, 3, 1, 0, 4 two agree; with r = 1 the two largest losses go, but row 5 agrees and stays.
    verdict = incv.Verdict(
        rows=np.array([5, 3, 1, 0, 4]),
        agrees=np.array([True, False, False, True, False]),
        losses=np.array([4.0, 3.0, 2.0, 0.5, 1.0]),
    )
    assert verdict.removed(1.0).tolist() == [False, True, False, False, False]
    assert verdict.removed(1.5).tolist() == [False, True, True, False, False]
    assert not verdict.removed(0.2).any()
    selection = incv.Selection(6)
    selection.take(verdict, ratio=1.0, rounds_left=2)
    assert np.flatnonzero(selection.selected).tolist() == [0, 5]
    assert np.flatnonzero(selection.candidate).tolist() == [1, 2, 4]
    assert selection.rejections.tolist() == [0, 1, 0, 3, 1, 0]
    final = np.array([0.5, 0.0, 0.0, 1.0, 0.0, 0.0])
    # Losses over looks: row 0 (0.5 + 0.5) / 2, row 1 (2 + 0) / 2, row 3 (3 + 1) / 2.
    assert selection.suspicion(final)[[0, 1, 3]] == pytest.approx([0.5 / 1.5, 1 + 1 / 2, 3 + 2 / 3])


def test_the_authors_rules_by_noise() -> None:
    assert [incv.best_epoch_rounds(rate, flips=False) for rate in (0.3, 0.31, 0.6, 0.61)] == [4, 2, 2, 1]
    assert incv.best_epoch_rounds(0.1, flips=True) == 1
    assert incv.selected_noise_rate(0.4, 10, flips=True) == pytest.approx(0.16 / (0.16 + 0.36))
    shares = [incv.warm_up_share(rate, flips) for rate, flips in ((0.6, False), (0.61, False), (0.1, True))]
    assert shares == [0.2, 0.4, 0.4]


def test_nothing_is_removed_where_wrong_labels_are_known_to_depend_on_the_class() -> None:
    problem, _ = striped(size=120, epochs=2, anchors=24, rate=0.4)
    for flips in (False, True):
        problem.known = Known(0.4, flips)
        selection, rate, _ = incv.cross_validate(problem, lambda line: None, rounds=2)
        assert rate > 0.1
        assert (selection.selected | selection.candidate).all() == flips


def test_the_best_held_out_epoch_gives_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = striped(size=60, epochs=3, anchors=12)
    half, agreed = np.arange(30, 60), iter([5, 20, 11, 5, 20, 11])

    def look(problem: Problem, model: nn.Module, rows: Rows) -> incv.Verdict:
        return incv.Verdict(rows, np.arange(30) < next(agreed), np.zeros(30))

    monkeypatch.setattr(incv, "look", look)
    first = incv.judge(problem, np.arange(30), half, 10, lambda line: None)
    assert first.agrees.sum() == 20
    last = incv.judge(problem, np.arange(30), half, 10, lambda line: None, best_epoch=False)
    assert last.agrees.sum() == 5, "only the last epoch is looked at"


@dataclasses.dataclass
class Recorded(Problem):
    """A problem that keeps which rows each network trained on and which it then looked at."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.networks: list[nn.Module] = []
        self.trained: list[Rows] = []
        self.looked: list[Rows] = []

    def fit(self, model: nn.Module, batches: Batches, **how: Any) -> nn.Module:  # type: ignore[override]
        self.networks.append(model)
        self.trained.append(batches.index.numpy())
        self.looked.append(np.array([], dtype=np.int64))
        return super().fit(model, batches, **how)

    def predict(self, model: nn.Module, rows: Rows | None = None) -> Tensor:
        for number, network in enumerate(self.networks):
            if network is model:
                self.looked[number] = np.union1d(self.looked[number], self.rows() if rows is None else rows)
        return super().predict(model, rows)


def test_fold_networks_never_look_at_what_they_trained_on() -> None:
    given, _ = striped(size=200, epochs=3, anchors=40)
    problem = Recorded(given.images, given.labels, given.classes, given.recipe, given.device, given.seed)
    outcome = incv.incv(problem, lambda line: None, rounds=3)
    assert len(problem.networks) == 6
    for trained, looked in zip(problem.trained, problem.looked, strict=True):
        assert len(looked) > 0
        assert not np.intersect1d(trained, looked).size
    # The two folds of a round look at all candidates once, and what is a candidate later was one before.
    candidates = [np.concatenate(problem.looked[turn : turn + 2]) for turn in (0, 2, 4)]
    assert sorted(candidates[0]) == list(range(200))
    assert len(np.unique(candidates[1])) == len(candidates[1]) < 200
    assert set(candidates[2]) < set(candidates[1])
    assert outcome.flagged is not None
    selected = np.flatnonzero(~outcome.flagged)
    assert outcome.details["selected"] == len(selected)
    assert set(problem.trained[4]) & set(problem.trained[5]) <= set(selected)
    folds = sum(len(trained) for trained in problem.trained) / 200
    assert folds + 2 * len(selected) / 200 <= outcome.trainings + 1e-9 <= folds + 2 * 1.5 * len(selected) / 200 + 1e-6


def test_final_pair_trains_on_the_selected_and_later_on_candidates_too(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = striped(size=200, epochs=5, anchors=40)
    selection = incv.Selection(200)
    selection.selected[:120] = True
    selection.candidate[:140] = False
    seen: dict[int, set[int]] = {}
    counts: list[tuple[int, int, int]] = []
    teach = coteaching.teach

    def watched(pair: Any, epochs: int, lessons: Any, on_look: Any, tell: Any) -> int:
        def on_batch(epoch: int) -> Any:
            for x, y, index, keep in lessons(epoch):
                seen.setdefault(epoch, set()).update(index.tolist())
                counts.append((epoch, len(y), keep))
                yield x, y, index, keep

        return teach(pair, epochs, on_batch, on_look, tell)

    monkeypatch.setattr(incv, "teach", watched)
    _, cost = incv.train_pair(problem, selection, 0.3, lambda line: None)
    assert seen[1] == set(range(120))
    for epoch in (2, 3, 4, 5):
        assert seen[epoch] >= set(range(120))
        assert seen[epoch] - set(range(120)) <= set(range(140, 200))
    assert seen[2] > set(range(120))
    # Two batches of 60 selected examples; 60 candidates · 64 // 120 = 32, at most half of 64, join each: 30 of them.
    forgotten = incv.selected_noise_rate(0.3, 4) / 5  # more with each of the five epochs
    assert counts[:2] == [(1, 60, 60)] * 2
    keeps = {epoch: math.floor(60 * (1 - forgotten * (epoch - 1))) for epoch in (2, 3, 4, 5)}
    assert counts[2:] == [(epoch, 90, keep) for epoch, keep in keeps.items() for _ in range(2)]
    assert cost == pytest.approx(2 * (120 + 4 * 180) / (5 * 200))
