"""What a curriculum remembers: plain means of what training saw, whatever the loss on held-out data says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from curriculum_cases import Blobs, Run, blobs

from sgoif.errors import StateError
from sgoif.scoring.influence import StepScores
from sgoif.tasks import Curriculum

NEVER = 100


@pytest.fixture
def noisy() -> Blobs:
    return blobs(rate=0.4)


def watched(run: Run) -> list[dict[int, float]]:
    """The margin of every example, one entry for every epoch."""
    seen: list[dict[int, float]] = [{}]

    def observe(steps: Any, scores: StepScores) -> None:
        del steps
        for index, margin in zip(scores.index.tolist(), scores.margin.tolist(), strict=True):
            if index in seen[-1]:
                seen.append({})
            seen[-1][index] = margin

    run.monitor.observers.append(observe)
    return seen


def margins(curriculum: Curriculum, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    curriculum.monitor.flush()
    found: np.ndarray[Any, Any] = curriculum.ledgers.record().mean("margin").numpy()[rows]
    return found


def test_every_epoch_counts_alike(noisy: Blobs) -> None:
    """Unlike in the monitor's ledger, whose steps count by the loss on held-out examples."""
    run = Run(noisy)
    curriculum, seen = Curriculum(run.monitor, warm_up=NEVER), watched(run)
    run.epochs(0, 5, curriculum.weights)
    found = margins(curriculum, noisy.rows)
    wanted = np.array([[epoch[row] for row in noisy.rows.tolist()] for epoch in seen]).mean(0)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    weighed = run.monitor.ledger.mean("margin").numpy()[noisy.rows]
    assert np.abs(weighed - wanted).max() > 0.02


def test_what_was_said_before_a_judgement_fades(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum, seen = Curriculum(run.monitor, warm_up=2, fade=0.5), watched(run)
    run.epochs(0, 4, curriculum.weights)
    found = margins(curriculum, noisy.rows)
    by_epoch = np.array([[epoch[row] for row in noisy.rows.tolist()] for epoch in seen])
    # Two epochs of warm-up count as one, and were faded at both judgements.
    np.testing.assert_allclose(found, np.average(by_epoch, axis=0, weights=[0.125, 0.125, 0.5, 1]), atol=1e-5)
    counts = curriculum.ledgers.record().effective_count().numpy()[noisy.rows]
    np.testing.assert_allclose(counts, 1.75**2 / (2 * 0.125**2 + 0.5**2 + 1), rtol=1e-5)


def test_judgements_ask_the_hold_out(noisy: Blobs) -> None:
    """Each asks every anchor once; the last asks all held-out examples."""
    run = Run(noisy, options={"max_anchors": 80})
    curriculum = Curriculum(run.monitor, warm_up=2, fade=1.0)
    run.epochs(0, 5, curriculum.weights)
    asked = curriculum.ledgers.held_out.column("count")
    assert 0 < int((asked > 0).sum()) < len(noisy.held_out)
    curriculum.finish()
    assert int((curriculum.ledgers.held_out.column("count") > 0).sum()) == len(noisy.held_out)


def test_one_curriculum_watches_at_a_time(noisy: Blobs) -> None:
    run = Run(noisy)
    first, second = Curriculum(run.monitor, warm_up=2), Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 4, second.weights)
    run.monitor.flush()
    assert float(first.ledgers.record().column("count").sum()) == 0
    assert float(second.ledgers.record().column("count").sum()) > 0


def test_a_curriculum_that_begins_late_knows_what_the_monitor_knows(noisy: Blobs) -> None:
    run = Run(noisy)
    run.epochs(0, 4)
    run.monitor.flush()
    late = Curriculum(run.monitor, warm_up=1)
    torch.testing.assert_close(late.ledgers.record().mean("margin"), run.monitor.ledger.mean("margin"), equal_nan=True)
    assert late.update()


def test_a_state_with_a_damaged_memory_is_refused(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 4, curriculum.weights)
    state = curriculum.state_dict()
    with pytest.raises(StateError):
        curriculum.load_state_dict({**state, "memory.training.sums": state["memory.training.sums"][:, :3]})
    torch.testing.assert_close(curriculum.ledgers.state_dict()["training.sums"], state["memory.training.sums"])
