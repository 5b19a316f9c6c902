"""A sentinel on a GPU says the same in every surrounding that a caller may score in."""

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

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")


@pytest.fixture
def sentinel() -> Sentinel:
    model = copy.deepcopy(trained()).to(GPU)
    return Sentinel.fit(model, batches(600, 0), calibration=batches(500, 1))


def inputs(seed: int) -> Tensor:
    """None of them is one of the reference, whose distance would be that of rounding."""
    return torch.cat([blobs(30, 50 + seed)[0], strangers(34, 50 + seed)]).to(GPU)


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


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_a_score_is_the_same_in_every_surrounding(sentinel: Sentinel, name: str) -> None:
    x = inputs(0)
    expected = sentinel.score(x)
    with SURROUNDINGS[name]():
        found = sentinel.score(x)
        torch.cuda.synchronize()
    torch.testing.assert_close(found, expected, atol=0.05 if name == "autocast" else 1e-5, rtol=1e-5)


def test_threads_share_a_sentinel(sentinel: Sentinel) -> None:
    expected = [sentinel.score(inputs(seed)) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for seed, scores in enumerate(threads.map(lambda number: sentinel.score(inputs(number % 8)), range(80))):
            torch.testing.assert_close(scores, expected[seed % 8], atol=1e-4, rtol=0)


def test_it_goes_to_another_device_through_a_file(sentinel: Sentinel, tmp_path: Path) -> None:
    x = inputs(0)
    expected = sentinel.score(x)
    sentinel.network.model.cpu()
    with pytest.raises(StateError, match="model is on cpu and its sentinel on cuda:0"):
        sentinel.score(x)
    sentinel.save(tmp_path / "s.npz")
    again = Sentinel.load(tmp_path / "s.npz", sentinel.network.model)
    torch.testing.assert_close(again.score(x.cpu()), expected.cpu(), atol=0.05, rtol=0)
