"""What each part of the monitor costs: training with parts left out, in alternating slices of one training.

    python -m sgoif_bench.overhead --device cuda --parts --out results/overhead-cuda-parts.json

The head is watched by copies of the monitor that do more and more of its work (`LEVELS`). All take turns with plain
training, twice, which shows how much the measurement itself varies. Added time is the mean over whole refresh periods
against both plain turns in the same periods; its error is that of the mean over periods.

Beside it stands how long the host is busy with entering and leaving a step, a block, an update of the curvature and a
refresh. On a GPU blocks and updates are also timed while the card is made to wait until the host has told it
everything: the card's own time for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

from sgoif.monitor import InfluenceMonitor
from sgoif_bench.command import Say

LEVELS = {
    "enter": "entering and leaving `monitor.step`, indices checked, no hook on the model",
    "hooks": "and input, output and gradient of the head kept",
    "collect": "and steps collected in blocks, which are thrown away",
    "blocks": "and blocks scored",
    "curvature": "and the curvature updated",
    "all": "and the anchors refreshed: the whole monitor",
}
ENTER, HOOKS, COLLECT, BLOCKS, CURVATURE, ALL = range(len(LEVELS))
PLAIN = ("plain", "plain again")
SLEEP_CYCLES = 10**8
"""Some 50 ms of a GPU, more than the host needs for any part."""


class PartialMonitor(InfluenceMonitor):
    """A monitor that does its work up to a level, and times the parts that it does."""

    def __init__(self, level: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.level = level
        self.host: dict[str, list[float]] = {}
        """Milliseconds of the host for every call of a part."""
        self.card: dict[str, list[float]] = {}
        """The same of the card, measured while `apart` holds."""
        self.apart = False
        if level == ENTER:
            self.capture.unhook()
            self.capture.hook = lambda: None  # type: ignore[method-assign]
        self._replace_parts()

    def _replace_parts(self) -> None:
        """Have the pipeline do no more than the level says, and time what it does."""
        pipeline = self.pipeline
        observe, score, learn = pipeline.observe, pipeline.score_queue, pipeline.learn
        begin, complete = pipeline.begin_refresh, pipeline.complete_refresh

        def score_queue() -> None:
            if self.level < BLOCKS:
                pipeline.queue.drop()
            elif pipeline.queue.steps:
                self._timed("block", score)

        def learn_from(*args: Any) -> None:
            if self.level >= CURVATURE:
                self._timed("curvature", lambda: learn(*args))
            else:
                self.curvature.updates = 1

        def begin_refresh() -> None:
            if self.level == ALL:
                start = perf_counter()
                begin()
                self._note("anchors", start)
                return
            if self.directions.psi is None:
                self.directions.psi = torch.zeros(len(self.group_names), self.layout.size, device=self.device)
            self.schedule.refreshing()

        def complete_refresh() -> None:
            if pipeline.pending is not None:
                start = perf_counter()
                complete()
                self._note("refresh", start)

        parts = {
            "observe": lambda *args: observe(*args) if self.level >= COLLECT else None,
            "score_queue": score_queue,
            "learn": learn_from,
            "begin_refresh": begin_refresh,
            "complete_refresh": complete_refresh,
        }
        for name, part in parts.items():
            setattr(pipeline, name, part)

    @contextmanager
    def step(self, *args: Any, **options: Any) -> Iterator[None]:
        start = perf_counter()
        with super().step(*args, **options):
            self._note("enter", start)
            yield
            start = perf_counter()
        self._note("leave", start)

    def _timed(self, part: str, work: Callable[[], None]) -> None:
        begun = self._made_to_wait() if self.apart else None
        start = perf_counter()
        work()
        self._note(part, start)
        if begun is not None:
            ended = torch.cuda.Event(enable_timing=True)
            ended.record()
            ended.synchronize()
            self.card.setdefault(part, []).append(begun.elapsed_time(ended))

    def _note(self, part: str, start: float) -> None:
        self.host.setdefault(part, []).append(1000 * (perf_counter() - start))

    def _made_to_wait(self) -> torch.cuda.Event:
        torch.cuda.synchronize(self.device)
        torch.cuda._sleep(SLEEP_CYCLES)
        begun = torch.cuda.Event(enable_timing=True)
        begun.record()
        return begun


def measure_parts(
    training: Any,
    watched: Callable[[Callable[..., PartialMonitor]], PartialMonitor],
    periods: int,
    slice_steps: int,
    tell: Say,
) -> dict[str, dict[str, Any]]:
    """Added milliseconds a step of every level, and milliseconds of single parts.

    `training.run(steps, monitor)` trains with a monitor or without one and says how long that took; `watched` has one
    made.
    """
    tell("warming up with every monitor")
    monitors = {name: watched(partial(PartialMonitor, level)) for level, name in enumerate(LEVELS)}
    watching: dict[str, PartialMonitor | None] = {**dict.fromkeys(PLAIN), **monitors}
    for monitor in watching.values():
        training.run(slice_steps, monitor)
    whole = monitors["all"]
    period = training.warm_up(whole)
    warm, known = whole.steps, {part: len(host) for part, host in whole.host.items()}
    rounds = max(1, round(period / slice_steps))
    steps = -(-period // rounds)
    seconds: dict[str, list[list[float]]] = {name: [] for name in watching}
    names = list(watching)
    for number in range(periods):
        for spent in seconds.values():
            spent.append([])
        for turn in range(rounds):
            first = (number * rounds + turn) % len(names)
            for name in names[first:] + names[:first]:
                seconds[name][-1].append(training.run(steps, watching[name])[0])
        tell(f"period {number + 1} of {periods}: {len(names)} turns, {rounds * steps} steps each")
    means = {name: 1000 * np.array(spent).mean(1) / steps for name, spent in seconds.items()}
    plain = np.mean([means[name] for name in PLAIN], axis=0)
    levels = {
        name: {
            "ms_per_step": float(found.mean()),
            "added_ms": float((found - plain).mean()),
            "added_ms_error": float((found - plain).std(ddof=1) / periods**0.5) if periods > 1 else None,
            "time_ratio": float(found.sum() / plain.sum()),
        }
        for name, found in means.items()
    }
    return {
        "levels": levels,
        "single": _single(training, whole, period, warm, known),
        "refresh_period": period,
        "steps_per_slice": steps,
    }


def _single(training: Any, monitor: PartialMonitor, period: int, warm: int, known: Mapping[str, int]) -> dict[str, Any]:
    """Medians over the calls of each part in the whole monitor, and how many steps lie between two of them.

    The first `warm` steps, with `known` calls, do not count: refreshes come at another pace there.
    """
    found = {}
    for part, host in monitor.host.items():
        late, steps = host[known.get(part, 0) :], monitor.steps - warm
        if not late:  # too rare for so short a run
            late, steps = host, monitor.steps
        found[part] = {"host_ms": float(np.median(late)), "steps_between": steps / len(late)}
    if monitor.device.type == "cuda":
        monitor.apart = True
        training.run(period, monitor)
        for part, card in monitor.card.items():
            found[part]["card_ms"] = float(np.median(card))
    monitor.close()
    return found


def parts_table(result: Mapping[str, Any]) -> str:
    """The levels and the single parts, for a terminal."""
    lines = [f"{'done':<14}{'ms/step':>9}{'added':>9}{'error':>8}{'time':>9}"]
    for name, row in result["levels"].items():
        error = row["added_ms_error"]
        shown = "–" if error is None else f"{error:.3f}"
        lines.append(f"{name:<14}{row['ms_per_step']:>9.3f}{row['added_ms']:>9.3f}{shown:>8}{row['time_ratio']:>8.3f}×")
    lines.append(f"{'part':<14}{'host ms':>9}{'card ms':>9}{'every':>8} steps")
    for name, row in result["single"].items():
        card = f"{row['card_ms']:.2f}" if "card_ms" in row else "–"
        lines.append(f"{name:<14}{row['host_ms']:>9.3f}{card:>9}{row['steps_between']:>8.0f}")
    return "\n".join(lines)
