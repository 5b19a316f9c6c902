"""A sentinel on a GPU: what is recorded says the same in every surrounding that a caller may score in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from ood_task_cases import batches, blobs, strangers, trained
from torch import Tensor

from sgoif.errors import StateError
from sgoif.tasks import Sentinel
from sgoif.tasks.ood.score_graphs import AFTER

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")


@pytest.fixture
def sentinel() -> Sentinel:
    """With nothing recorded yet."""
    model = copy.deepcopy(trained()).to(GPU)
    return Sentinel.fit(model, batches(600, 0), calibration=batches(500, 1))


def inputs(seed: int) -> Tensor:
    """None of them is one of the reference, whose distance would be that of rounding."""
    return torch.cat([blobs(30, 50 + seed)[0], strangers(34, 50 + seed)]).to(GPU)


def one_by_one(sentinel: Sentinel, x: Tensor) -> Tensor:
    seen, formula = sentinel.network.see(x), sentinel._score
    with torch.no_grad():
        made = (*seen.stages, seen.features, seen.logits)
        return formula(torch.cat(formula.columns(seen.images, made), 1))


def on_another_stream() -> AbstractContextManager[object]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "nothing": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
    "stream": on_another_stream,
}


@pytest.mark.parametrize("later", SURROUNDINGS)
@pytest.mark.parametrize("first", SURROUNDINGS)
def test_what_is_captured_in_one_surrounding_holds_in_another(sentinel: Sentinel, first: str, later: str) -> None:
    for surrounding in (first, later):
        with SURROUNDINGS[surrounding]():
            for seed in range(AFTER + 3):
                x = inputs(seed)
                torch.testing.assert_close(sentinel.score(x), one_by_one(sentinel, x))
                torch.cuda.synchronize()
    graphs = list(sentinel._graphed.kept.values())
    assert graphs
    assert None not in graphs


def test_threads_share_a_graph(sentinel: Sentinel) -> None:
    expected = [one_by_one(sentinel, inputs(seed)) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for seed, scores in enumerate(threads.map(lambda number: sentinel.score(inputs(number % 8)), range(80))):
            torch.testing.assert_close(scores, expected[seed % 8], atol=1e-4, rtol=0)


def test_weights_that_change_in_place_are_seen(sentinel: Sentinel) -> None:
    x = inputs(0)
    for _ in range(AFTER + 2):
        before = sentinel.score(x)
    with torch.no_grad():
        sentinel.network.head.weight.mul_(0.5)
    assert not torch.allclose(sentinel.score(x), before)
    torch.testing.assert_close(sentinel.score(x), one_by_one(sentinel, x))


def test_its_memory_is_given_back(sentinel: Sentinel) -> None:
    x = inputs(0)
    for _ in range(AFTER + 2):
        sentinel.score(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    other = Sentinel.fit(sentinel.network.model, batches(600, 0))
    for _ in range(AFTER + 2):
        other.score(x)
    del other
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 2**20


def test_it_goes_to_another_device_through_a_file(sentinel: Sentinel, tmp_path: Path) -> None:
    x = inputs(0)
    expected = sentinel.score(x)
    sentinel.network.model.cpu()
    with pytest.raises(StateError, match="model is on cpu and its sentinel on cuda:0"):
        sentinel.score(x)
    sentinel.save(tmp_path / "s.npz")
    again = Sentinel.load(tmp_path / "s.npz", sentinel.network.model)
    torch.testing.assert_close(again.score(x.cpu()), expected.cpu(), atol=0.05, rtol=0)
