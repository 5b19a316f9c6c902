"""A monitored training of 10,000 steps that tells its memory now and then, in a process of its own."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from sgoif import InfluenceMonitor

STEPS, EVERY, EXAMPLES, BATCH = 10_000, 1_000, 256, 8


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    y = torch.arange(EXAMPLES) % 4
    x = torch.randn(EXAMPLES, 8) + torch.eye(8)[y]
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = InfluenceMonitor(model, optimizer, anchors=TensorDataset(x[:32], y[:32]), size=EXAMPLES)
    sizes = []
    for step in range(1, STEPS + 1):
        index = torch.randint(EXAMPLES, (1,)).item()
        rows = (torch.arange(BATCH) + index) % EXAMPLES
        with monitor.step(rows):
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == 0:
            sizes.append(resident())
    json.dump(sizes, sys.stdout)


if __name__ == "__main__":
    main()
