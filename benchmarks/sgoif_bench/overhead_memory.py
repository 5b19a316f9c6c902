"""Peak memory of a short training, with the monitor or without.

What tensors ask for (`tensors`) is the same in every run: on a GPU `torch.cuda.max_memory_allocated`, on a CPU the same
sum as the profiler keeps it. How much a process on a CPU has held (`resident`) depends on more: on where the system
happens to place large tensors, by which one process differs from the next by some percent, and on how much of the
program's own files has been read. It is the median of several fresh processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import torch

from sgoif.errors import SgoifError
from sgoif.monitor import InfluenceMonitor
from sgoif.scoring.score_queue import BLOCK_STEPS
from sgoif_bench.jobs import free_memory
from sgoif_bench.memory import Peak, resident_peak, tensor_peak
from sgoif_bench.overhead_training import Plan, Training

PROBES = 7
"""Processes whose resident size is measured."""


def peak_memory(plan: Plan, layers: str | None) -> dict[str, float]:
    """Peak memory in MiB of a training that contains refreshes of the monitor, by kind."""
    if plan.device == "cuda":
        device = torch.device(plan.device)
        free_memory(device)
        peak = Peak(device)
        _short_training(plan, layers)
        return {"tensors": peak.read()["peak_bytes"] / 2**20}
    resident = [_probe(plan, layers, "resident") for _ in range(PROBES)]
    return {"tensors": _probe(plan, layers, "tensors"), "resident": float(np.median(resident))}


def memory_row(plain: Mapping[str, float], monitored: Mapping[str, float]) -> dict[str, float]:
    """Both and their ratios, as a result file names them."""
    row: dict[str, float] = {}
    for kind, name in (("tensors", "memory"), ("resident", "resident")):
        if kind in plain:
            peaks = {f"{name}_plain_mb": plain[kind], f"{name}_monitored_mb": monitored[kind]}
            row |= {f"{name}_ratio": monitored[kind] / plain[kind], **peaks}
    return row


def _probe(plan: Plan, layers: str | None, kind: str) -> float:
    """The peak in a process of its own."""
    request = json.dumps({"plan": asdict(plan), "layers": layers, "kind": kind})
    command = [sys.executable, "-m", "sgoif_bench.overhead_memory", request]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if answer.returncode != 0:
        raise SgoifError(f"the process that measures memory failed: {answer.stderr.strip().splitlines()[-1:]}")
    return float(answer.stdout)


def _short_training(plan: Plan, layers: str | None) -> None:
    """So many steps that the monitor holds as much as it ever does: waiting steps."""
    training = Training(plan)
    steps = BLOCK_STEPS + 16
    monitor = training.watched(layers, InfluenceMonitor) if layers is not None else None
    training.run(steps, monitor)
    if monitor is not None:
        monitor.scores()
        monitor.close()


def main(request: str) -> int:
    """Train for a moment in this fresh process and print its peak in MiB."""
    asked = json.loads(request)

    def train() -> None:
        _short_training(Plan(**asked["plan"]), asked["layers"])

    if asked["kind"] == "tensors":
        print(tensor_peak(train) / 2**20)
        return 0
    train()
    peak = resident_peak()
    if peak is None:
        print("this system does not tell how much memory a process has held", file=sys.stderr)
        return 1
    print(peak / 2**20)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
