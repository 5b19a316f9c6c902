"""Operations started together: captured when rows come in the same number again; fresh figures."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from sgoif.tasks.ood import score_graphs as module
from sgoif.tasks.ood.score_graphs import AFTER, LARGEST, MOST, MOST_CAPTURES, Graph, GraphedScore, can_capture


class Recorder:
    """Stands in for a GPU: replaying works out the function of what lies in its tensors by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, works: bool = True) -> None:
        self.recorded: list[tuple[int, ...]] = []
        self.replayed: list[tuple[int, ...]] = []
        self.works = works
        self.stream = 0
        monkeypatch.setattr(module, "can_capture", lambda device: True)
        monkeypatch.setattr(module, "capture", self.record)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=self.stream))

    def record(self, function: Callable[[Tensor], Tensor], given: Tensor) -> Graph | None:
        self.recorded.append(tuple(given.shape))
        if not self.works:
            return None
        given = given.clone()
        result = torch.empty(len(given))

        def replay() -> None:
            self.replayed.append(tuple(given.shape))
            result.copy_(function(given))

        return Graph(replay, given, result)


class Total:
    """Three columns are made: two by the network, and the largest value of the image."""

    def columns(self, images: Tensor, made: Sequence[Tensor]) -> list[Tensor]:
        return [*(each.sum(1, keepdim=True) for each in made), torch.amax(images, 1).unsqueeze(1)]

    def __call__(self, rows: Tensor) -> Tensor:
        return rows[:, 0] + 10 * rows[:, 1] + 100 * rows[:, 2]


def inputs(count: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    first, *made = (torch.randn(count, size, generator=generator) for size in (4, 2, 3))
    return first, made


def expected(images: Tensor, made: Sequence[Tensor]) -> Tensor:
    return made[0].sum(1) + 10 * made[1].sum(1) + 100 * images.amax(1)


def elsewhere(function: GraphedScore, count: int, seed: int, held: list[object]) -> Tensor:
    """A call with tensors that lie where none has lain; `held` keeps them there."""
    images, made = inputs(count, seed)
    held.append(made)
    result = function(images, made)
    torch.testing.assert_close(result, expected(images, made))
    return result


def test_without_a_gpu_nothing_is_captured() -> None:
    assert not can_capture(torch.device("cpu"))
    function, given = GraphedScore(Total()), inputs(4, 0)
    for _ in range(AFTER + 2):
        torch.testing.assert_close(function(*given), expected(*given))
    assert not function.kept


def test_a_number_of_rows_that_comes_again_elsewhere_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), GraphedScore(Total())
    held: list[object] = []
    results = []
    for seed in range(AFTER + 3):
        results.append(elsewhere(function, 4, seed, held))
        elsewhere(function, 10 + seed, seed, held)
    assert (gpu.recorded, gpu.replayed) == ([(4, 3)], [(4, 3), (4, 3)])
    for seed, result in enumerate(results):
        torch.testing.assert_close(result, expected(*inputs(4, seed)))


def test_another_stream_has_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), GraphedScore(Total())
    given = inputs(4, 0)
    for gpu.stream in (0, 1):
        for _ in range(AFTER + 1):
            function(*given)
    assert gpu.recorded == [(4, 3), (4, 3)]
    assert not gpu.replayed


def test_the_one_not_asked_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), GraphedScore(Total())
    given = {count: inputs(count, count) for count in range(1, MOST + 2)}
    for count in range(1, MOST + 1):
        for _ in range(AFTER + 1):
            function(*given[count])
    function(*given[1])
    for _ in range(AFTER + 1):
        function(*given[MOST + 1])
    assert len(function.kept) == MOST
    gpu.replayed.clear()
    for count in (1, MOST + 1, 2):
        torch.testing.assert_close(function(*given[count]), expected(*given[count]))
    assert gpu.replayed == [(1, 3), (MOST + 1, 3)]


def test_graphs_are_not_captured_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), GraphedScore(Total())
    for count in range(1, MOST_CAPTURES + 5):
        given = inputs(count, 0)
        for _ in range(AFTER + 1):
            torch.testing.assert_close(function(*given), expected(*given))
    assert len(gpu.recorded) == MOST_CAPTURES


def test_many_rows_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), GraphedScore(Total())
    most = LARGEST // 3
    for count, recorded in ((most + 1, []), (most, [(most, 3)])):
        given = torch.ones(count, 1), [torch.ones(count, 1), torch.ones(count, 1)]
        for _ in range(AFTER + 1):
            assert len(function(*given)) == count
        assert gpu.recorded == recorded


def test_what_cannot_be_captured_is_done_one_by_one_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch, works=False), GraphedScore(Total())
    given = inputs(4, 0)
    for _ in range(3 * AFTER + 4):
        torch.testing.assert_close(function(*given), expected(*given))
    assert (gpu.recorded, gpu.replayed) == ([(4, 3)], [])


def test_a_copy_has_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), GraphedScore(Total())
    given = inputs(4, 0)
    for _ in range(AFTER + 1):
        function(*given)
    again = copy.deepcopy(function)
    again(*given)
    assert (gpu.recorded, gpu.replayed) == ([(4, 3)], [])
    function(*given)
    assert gpu.replayed == [(4, 3)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_says_the_same() -> None:
    function = GraphedScore(Total())
    for seed in range(AFTER + 3):
        images, made = inputs(4, seed)
        found = function(images.cuda(), [each.cuda() for each in made])
        torch.testing.assert_close(found, expected(images, made).cuda())
    assert [graph is not None for graph in function.kept.values()] == [True]
