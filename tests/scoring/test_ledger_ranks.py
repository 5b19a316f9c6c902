"""What several ranks remember, put together, against one ledger that saw everything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sgoif.distributed.communicator import Communicator
from sgoif.scoring import ledger as module
from sgoif.scoring.ledger import Ledger, merged
from sgoif.scoring.running_means import MeanRows
from sgoif.scoring.score_scaling import ScoreScaling

CPU = torch.device("cpu")
RANKS, EXAMPLES = 2, 9


class Meeting(Communicator):
    """Ranks that are threads of one process; each waits for the others at every exchange."""

    size = RANKS

    def __init__(self, rank: int, barrier: threading.Barrier, table: list[Any]) -> None:
        self.rank, self.barrier, self.table = rank, barrier, table

    def _all(self, values: Tensor) -> list[Tensor]:
        self.table[self.rank] = values
        self.barrier.wait()
        found = list(self.table)
        self.barrier.wait()
        return found

    def total(self, values: Tensor) -> Tensor:
        return torch.stack(self._all(values)).sum(0)

    def gathered(self, rows: Tensor) -> Tensor:
        return torch.cat(self._all(rows))


def on_ranks(work: Callable[[Meeting], Any]) -> list[Any]:
    """What the work of every rank returned; the first error of any of them is raised."""
    barrier, table = threading.Barrier(RANKS, timeout=20), [None] * RANKS
    found: list[Any] = [None] * RANKS
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = work(Meeting(rank, barrier, table))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def observations(groups: int, classes: int) -> list[tuple[int, int, Tensor, Tensor, Tensor, int, float]]:
    """(rank, example, columns, groups, classes, label, weight) of steps that the ranks take in turn.

    The last example is seen by nobody, the one before it once by each rank. On each of two ranks two groups and two
    classes stand out, one of them on both.
    """
    generator = torch.Generator().manual_seed(groups + classes)
    found = []
    for step in range(8 * (EXAMPLES - 1)):
        turn, example = divmod(step, EXAMPLES - 1)
        if example == EXAMPLES - 2 and turn >= RANKS:
            continue
        by_group = 0.01 * torch.rand(groups, generator=generator)
        by_group[(example + 7 * (torch.arange(6) + turn % RANKS)) % groups] += torch.linspace(3, 1, 6)
        by_class = torch.rand(classes, generator=generator).mul(0.01)
        by_class[(example + 5 * (torch.arange(6) + turn % RANKS)) % classes] += torch.linspace(0.3, 0.1, 6)
        values = torch.randn(6, generator=generator)
        found.append((turn % RANKS, example, values, by_group, by_class, step % 5, float(1 + step % 3)))
    return found


def filled(steps: list[Any], groups: int, classes: int, size: int | None) -> Ledger:
    ledger = Ledger(groups, classes, CPU, size)
    ledger.reserve(EXAMPLES - 1)
    for _, example, values, by_group, by_class, label, weight in steps:
        row, sound = torch.tensor([example]), torch.ones(1, dtype=torch.bool)
        given = values.unsqueeze(0), by_group.unsqueeze(0), by_class.unsqueeze(0), torch.tensor([label])
        ledger.add(row, *given, sound, weight)
    ledger.autocorrelation.observe(ledger, 1)
    return ledger


@pytest.mark.parametrize("at_once", [4, 2**16])
@pytest.mark.parametrize("size", [None, EXAMPLES])
@pytest.mark.parametrize(("groups", "classes"), [(3, 4), (40, 3), (100, 90)])
def test_the_ledgers_of_all_ranks_are_that_of_one(
    groups: int, classes: int, size: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MERGED_AT_ONCE", at_once)
    steps = observations(groups, classes)
    parts = [filled([step for step in steps if step[0] == rank], groups, classes, size) for rank in range(RANKS)]
    expected = filled(steps, groups, classes, size)
    for whole in on_ranks(lambda ranks: merged(parts[ranks.rank], ranks)):
        assert (whole.used, whole.fixed_size) == (EXAMPLES, size)
        torch.testing.assert_close(whole.sums[:EXAMPLES], expected.sums[:EXAMPLES])
        labels = torch.stack([part.label[:EXAMPLES] for part in parts]).amax(0)
        assert whole.label[:EXAMPLES].tolist() == labels.tolist()
        assert whole.label[EXAMPLES - 1] == -1
        torch.testing.assert_close(whole.autocorrelation.sums, sum(part.autocorrelation.sums for part in parts))
        for name in ("groups", "classes"):
            found, wanted = getattr(whole, name), getattr(expected, name)
            tolerance = 2e-3 if found.mean.dtype == torch.float16 else 1e-5
            if found.dense:
                mean, known = found.mean[:EXAMPLES].float(), wanted.mean[:EXAMPLES].float()
                torch.testing.assert_close(mean, known, atol=tolerance, rtol=tolerance)
                continue
            for example in range(EXAMPLES):
                columns = slots_of(found, example)
                assert columns == pytest.approx(slow_slots(parts, name, example), rel=1e-5)
                empty = found.slot[example] < 0
                assert int(empty.sum()) == found.slot.shape[1] - len(columns)
                assert found.slot[example, empty].eq(-1).all()
                assert found.mean[example, empty].eq(0).all()
        if whole.groups.dense:
            assert whole.worst_group()[0].tolist() == expected.worst_group()[0].tolist()


def slots_of(rows: MeanRows, example: int) -> dict[int, float]:
    """The mean of every column that has a slot."""
    pairs = zip(rows.slot[example].tolist(), rows.mean[example].tolist(), strict=True)
    return {slot: mean for slot, mean in pairs if slot >= 0}


def slow_slots(parts: list[Ledger], name: str, example: int) -> dict[int, float]:
    """The columns of all ranks, each rank by its share of the weight, one after the other."""
    weights = [float(part.column("weight")[example]) for part in parts]
    found: dict[int, float] = {}
    for part, weight in zip(parts, weights, strict=True):
        for column, mean in slots_of(getattr(part, name), example).items():
            found[column] = found.get(column, 0.0) + mean * weight / sum(weights)
    return found


def test_ledgers_without_examples_are_none_together() -> None:
    for whole in on_ranks(lambda ranks: merged(Ledger(3, 3, CPU), ranks)):
        assert whole.used == 0


def test_an_example_without_groups_or_classes_is_merged_all_the_same() -> None:
    def work(ranks: Meeting) -> Ledger:
        ledger = Ledger(0, 0, CPU, 1)
        given = torch.ones(1, 6), torch.zeros(1, 0), torch.zeros(1, 0), torch.tensor([ranks.rank])
        ledger.add(torch.tensor([0]), *given, torch.ones(1, dtype=torch.bool), 1.0)
        return merged(ledger, ranks)

    for whole in on_ranks(work):
        assert whole.column("count").tolist() == [RANKS]
        assert whole.label.tolist() == [RANKS - 1]


@pytest.mark.parametrize("sizes", [[2, 2], [3, 1]])
def test_the_scale_of_a_step_is_that_of_the_whole_batch(sizes: list[int]) -> None:
    raw = torch.arange(1.0, 4 * RANKS + 1).view(RANKS, 4) ** 2

    def work(ranks: Meeting) -> tuple[Tensor, Tensor]:
        scaling = ScoreScaling(2.0, CPU, ranks)
        return scaling.observe(raw[ranks.rank], sizes), scaling.mean

    whole, first = ScoreScaling(2.0, CPU), sizes[0]
    parts = [raw[:, :first].flatten(), raw[:, first:].flatten()]
    expected = [whole.observe(part, [len(part)])[0] for part in parts]
    for found, mean in on_ranks(work):
        torch.testing.assert_close(found, torch.stack(expected).repeat_interleave(torch.tensor(sizes)))
        torch.testing.assert_close(mean, whole.mean)
