"""The most memory that this process has held."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def resident_peak() -> int | None:
    """Peak resident size in bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def tensor_peak(work: Callable[[], object]) -> int:
    """The most bytes that tensors on the CPU have asked for while `work` ran, those that were there before left out."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watching:
        work()
    with tempfile.TemporaryDirectory(prefix="sgoif-") as folder:
        trace = Path(folder) / "trace.json"
        watching.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return max((int(e["args"]["Total Allocated"]) for e in events if e.get("name") == "[memory]"), default=0)


@dataclass
class Peak:
    """The most memory held between making this object and asking it."""

    device: torch.device

    def __post_init__(self) -> None:
        self.since = "start of the training"
        if self.device.type == "cuda":
            torch.cuda.init()
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            self.since = "start of the process"

    def read(self) -> dict[str, Any]:
        """Peak in bytes: CUDA memory of the training, or resident memory of the whole process on a CPU."""
        if self.device.type == "cuda":
            return {"kind": "cuda", "since": self.since, "peak_bytes": torch.cuda.max_memory_allocated(self.device)}
        return {"kind": "resident", "since": self.since, "peak_bytes": resident_peak()}
