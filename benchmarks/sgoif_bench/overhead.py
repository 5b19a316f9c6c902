"""What the monitor costs: time and peak memory of monitored training, as a ratio to plain training.

    python -m sgoif_bench.overhead --device cuda --out results/overhead-cuda.json

One model trains in alternating slices of steps with the monitor and without it, its hooks taken off, so that both meet
the same machine and the same memory: of two copies of a model one may be slower by more than the monitor costs. A
repeat covers a whole number of the monitor's refresh periods: everything that happens from time to time (passes over
the anchors, solving, replacement) is inside the ratio in the proportion in which it really happens. Batches lie ready
on the device; with data loading in both loops the ratio could only be lower.
Peak memory is measured apart from time, each variant alone; `overhead_memory` says what is counted.

Other programs disturb a shared machine by more than the monitor costs. Beside `time_ratio`, the median over repeats of
whole periods, stands `quiet_time_ratio`: the median slice without a refresh, plus the median refresh in its proportion,
over the median plain slice. `processor_time_ratio` counts processor time; on a GPU that is the host's alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.distributed.launch import choose_gpu, joined, launch, placed
from sgoif.errors import SgoifError
from sgoif.monitor import InfluenceMonitor
from sgoif_bench.command import Say, choose_device, run_command, say
from sgoif_bench.overhead_memory import memory_row, peak_memory
from sgoif_bench.overhead_parts import measure_parts, parts_table
from sgoif_bench.overhead_training import OverheadSettings, Plan, Training

PROGRAM = "python -m sgoif_bench.overhead"
TARGETS = {
    ("cuda", "head"): 1.02,
    ("cuda", "last-stage"): 1.05,
    ("cuda", "all"): 1.25,
    ("cpu", "head"): 1.03,
}
"""Largest time ratio each setting is meant to have."""
SHARED_TARGET = 1.10
"""The same where several processes share the work."""


def run_overhead(settings: OverheadSettings, tell: Say = say) -> dict[str, Any]:
    """Measure what watching costs: training time and peak memory with the monitor, as ratios to plain training."""
    start = time.perf_counter()
    plan = Plan.of(settings)
    if plan.nproc > 1 and not placed():
        return _together(settings, plan)
    if settings.parts:
        return {"plan": asdict(plan), **_parts(plan, tell), "seconds": time.perf_counter() - start}
    measured: dict[str, dict[str, Any]] = {}
    plain_peak = peak_memory(plan, None) if settings.memory else None
    for layers in plan.layers:
        row: dict[str, Any] = {"time_target": TARGETS.get((plan.device, layers)) if plan.nproc == 1 else SHARED_TARGET}
        if plain_peak is not None:
            row |= memory_row(plain_peak, peak_memory(plan, layers))
        measured[layers] = row | _time(plan, layers, tell)
    return {"plan": asdict(plan), "layers": measured, "seconds": time.perf_counter() - start}


def _parts(plan: Plan, tell: Say) -> dict[str, Any]:
    training = Training(plan)
    return measure_parts(training, partial(training.watched, "head"), plan.repeats, plan.slice_steps, tell)


def _together(settings: OverheadSettings, plan: Plan) -> dict[str, Any]:
    """The same by several processes; the first one's clock counts, and the others keep step with it."""
    with tempfile.TemporaryDirectory(prefix="sgoif-") as folder:
        answer = Path(folder) / "answer.json"
        alike = replace(settings, memory=False)
        if launch(plan.nproc, partial(_first, alike, answer), partial(_joined, alike, _quiet)):
            raise SgoifError("the processes that measure have failed; what they said stands above")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _first(settings: OverheadSettings, answer: Path) -> int:
    answer.write_text(json.dumps(_joined(settings, say)), encoding="utf-8")
    return 0


def _joined(settings: OverheadSettings, tell: Say) -> dict[str, Any]:
    choose_gpu()
    with joined(choose_device(settings.device)):
        return run_overhead(settings, tell)


def _quiet(message: str) -> None:
    del message


def _time(plan: Plan, layers: str, tell: Say) -> dict[str, Any]:
    training = Training(plan)
    start = time.perf_counter()
    monitor = training.watched(layers, InfluenceMonitor)
    setup_seconds = time.perf_counter() - start
    tell(f"{layers}: warming up until refreshes come at a steady pace")
    training.run(plan.slice_steps)
    period = training.warm_up(monitor)
    length = period * -(-plan.least_steps // period)
    before = len(monitor.history)
    seconds = {"plain": np.zeros(2), "monitored": np.zeros(2)}
    ratios, processor_ratios = [], []
    slices: dict[str, list[float]] = {"plain": [], "monitored": []}
    for repeat in range(plan.repeats):
        spent = {"plain": np.zeros(2), "monitored": np.zeros(2)}
        turns = [("plain", None), ("monitored", monitor)]
        for number, steps in enumerate(_slices(length, plan.slice_steps)):
            for name, watching in turns if (number + repeat) % 2 == 0 else turns[::-1]:
                known = len(monitor.history)
                taken = training.run(steps, watching)
                spent[name] += taken
                if len(monitor.history) == known:
                    slices[name].append(taken[0] / steps)
        wall, processor = (spent["monitored"] / spent["plain"]).tolist()
        ratios.append(wall)
        processor_ratios.append(processor)
        seconds = {name: total + spent[name] for name, total in seconds.items()}
        tell(f"{layers}: repeat {repeat + 1} of {plan.repeats}, {length} steps each: {wall:.4f}×")
    refreshes = monitor.history[before:]
    start = time.perf_counter()
    monitor.scores()
    scores_seconds = time.perf_counter() - start
    monitor.close()
    steps = length * plan.repeats
    refresh = float(np.median([entry["seconds"] for entry in refreshes])) if refreshes else 0.0
    quiet = (float(np.median(slices["monitored"])) + refresh / period) / float(np.median(slices["plain"]))
    return {
        "quiet_time_ratio": quiet,
        "time_ratio": float(np.median(ratios)),
        "time_ratio_low": min(ratios),
        "time_ratio_high": max(ratios),
        "time_ratios": ratios,
        "processor_time_ratio": float(np.median(processor_ratios)),
        "plain_ms_per_step": 1000 * float(seconds["plain"][0]) / steps,
        "monitored_ms_per_step": 1000 * float(seconds["monitored"][0]) / steps,
        "steps_per_repeat": length,
        "refresh_period": period,
        "refreshes_measured": len(refreshes),
        "stride": monitor.schedule.time.stride,
        "refresh_seconds": refresh,
        "setup_seconds": setup_seconds,
        "scores_seconds": scores_seconds,
    }


def _slices(length: int, size: int) -> list[int]:
    return [min(size, length - start) for start in range(0, length, size)]


def _table(result: Mapping[str, Any]) -> str:
    if "levels" in result:
        return parts_table(result)
    lines = [
        f"{'watched':<12}{'time':>9}{'range':>18}{'quiet':>9}{'target':>9}{'memory':>9}{'resident':>10}"
        f"{'ms/step':>10}{'refresh':>10}"
    ]
    for layers, row in result["layers"].items():
        spread = f"{row['time_ratio_low']:.3f}–{row['time_ratio_high']:.3f}"
        target = f"{row['time_target']:.2f}×" if row.get("time_target") else "–"
        memory, resident = (f"{row[name]:.3f}×" if name in row else "–" for name in ("memory_ratio", "resident_ratio"))
        lines.append(
            f"{layers:<12}{row['time_ratio']:>8.3f}×{spread:>18}{row['quiet_time_ratio']:>8.3f}×{target:>9}{memory:>9}"
            f"{resident:>10}{row['plain_ms_per_step']:>10.1f}{row['refresh_period']:>10}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the benchmark from the command line; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    default_out = "runs/overhead-DEVICE.json"
    return run_command(program, OverheadSettings, run_overhead, _table, given, default_out)


if __name__ == "__main__":
    raise SystemExit(main())
