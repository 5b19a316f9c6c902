"""Operations started together: recorded when a number of rows comes again, fresh figures every time."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from sgoif.tasks.shift import recorded as module
from sgoif.tasks.shift.recorded import AFTER, LARGEST, MOST, Recorded, can_record


class Recorder:
    """Stands in for a GPU: replaying works out the function of what lies in the rows by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, works: bool = True) -> None:
        self.recorded: list[int] = []
        self.replayed: list[int] = []
        self.works = works
        monkeypatch.setattr(module, "can_record", lambda device: True)
        monkeypatch.setattr(module, "record", self.record)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=self.stream))
        self.stream = 0

    def record(self, function: object, rows: torch.Tensor) -> object:
        self.recorded.append(len(rows))
        if not self.works:
            return None
        rows = rows.clone()
        result = torch.empty(len(rows))

        def replay() -> None:
            self.replayed.append(len(rows))
            result.copy_(total(rows))

        return module._Recording(SimpleNamespace(replay=replay), rows, result)  # type: ignore[arg-type]


def total(rows: torch.Tensor) -> torch.Tensor:
    return rows.sum(1)


def parts(count: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, size, generator=generator) for size in (2, 3)]


def test_without_a_gpu_nothing_is_recorded() -> None:
    assert not can_record(torch.device("cpu"))
    function, given = Recorded(total), parts(4, 0)
    for _ in range(AFTER + 2):
        assert torch.equal(function(given), torch.cat(given, 1).sum(1))


def test_a_number_of_rows_that_comes_again_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), Recorded(total)
    results = []
    for seed in range(AFTER + 3):
        results.append(function(parts(4, seed)))
        function(parts(10 + seed, seed))
    assert (gpu.recorded, gpu.replayed) == ([4], [4, 4])
    for seed, result in enumerate(results):  # no later call may change what an earlier one returned
        torch.testing.assert_close(result, torch.cat(parts(4, seed), 1).sum(1))


def test_another_stream_has_a_recording_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), Recorded(total)
    for gpu.stream in (0, 1):
        for _ in range(AFTER + 1):
            function(parts(4, 0))
    assert gpu.recorded == [4, 4]


def test_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), Recorded(total)
    for count in range(1, MOST + 4):
        for seed in range(AFTER + 1):
            torch.testing.assert_close(function(parts(count, seed)), torch.cat(parts(count, seed), 1).sum(1))
    assert gpu.recorded == list(range(1, MOST + 1))


def test_many_rows_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), Recorded(total)
    for count, recorded in ((LARGEST + 1, []), (LARGEST, [LARGEST])):
        for _ in range(AFTER + 1):
            assert len(function([torch.ones(count, 1)])) == count
        assert gpu.recorded == recorded


def test_what_cannot_be_recorded_is_done_one_by_one_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch, works=False), Recorded(total)
    for seed in range(AFTER + 3):
        torch.testing.assert_close(function(parts(4, seed)), torch.cat(parts(4, seed), 1).sum(1))
    assert (gpu.recorded, gpu.replayed) == ([4], [])


def test_a_copy_has_no_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, function = Recorder(monkeypatch), Recorded(total)
    for _ in range(AFTER + 1):
        function(parts(4, 0))
    again = copy.deepcopy(function)
    again(parts(4, 0))
    assert (gpu.recorded, gpu.replayed) == ([4], [])
    function(parts(4, 0))
    assert gpu.replayed == [4]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_says_the_same_when_it_is_started_at_once() -> None:
    function = Recorded(total)
    for seed in range(AFTER + 3):
        given = [part.cuda() for part in parts(4, seed)]
        torch.testing.assert_close(function(given), torch.cat(given, 1).sum(1))
    assert [recording is not None for recording in function._recordings.values()] == [True]
