"""Work beside other work, and the time that a device takes."""

from __future__ import annotations

import pytest
import torch

from sgoif.streams import Beside, Clock

CPU = torch.device("cpu")


def test_clock_counts_from_where_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr("sgoif.streams.perf_counter", lambda: now[0])
    clock = Clock(CPU)
    now[0] = 7.5
    assert clock.seconds() == 2.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_work_has_streams_of_its_own_and_its_result_can_be_used() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    given = torch.randn(300, 300, device=device)
    found: list[torch.Tensor] = []
    streams: list[torch.cuda.Stream] = []

    def work() -> None:
        streams.append(torch.cuda.current_stream(device))
        found.append(torch.linalg.eigvalsh(given + given.T))

    clock = Clock(device)
    beside = Beside(device, work)
    torch.randn(1000, 1000, device=device) @ torch.randn(1000, 1000, device=device)
    beside.wait()
    torch.testing.assert_close(found[0], torch.linalg.eigvalsh(given + given.T))
    assert streams[0] != torch.cuda.current_stream(device)
    assert not beside.inside
    assert clock.seconds() > 0
    failing = Beside(device, lambda: (_ for _ in ()).throw(ArithmeticError("of the work")))
    with pytest.raises(ArithmeticError, match="of the work"):
        failing.wait()
