"""Audits that are killed at random moments, and what is left of them.

    kill at t ~ U(0, 1.3 T), look, resume, kill, ..., until the audit comes to its end

T is how long the rest of the audit takes if nobody disturbs it: the whole of it at first, less of the training with
every checkpoint. SIGKILL, to the whole process group: nothing can be tidied up. After every kill each file that has its
name must be whole, and what was finished before must still be there: the phase, the step of the newest checkpoint and
the rows of the table never go back. At the end the table must be that of the undisturbed audit, byte for byte.
Checkpoints, usually half a minute apart, are made every tenth of a second, so that many kills fall into one being
written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sgoif.errors import SgoifError
from sgoif_bench.command import Say
from sgoif_bench.faults import child
from sgoif_bench.faults.digits import MODEL, make_folder
from sgoif_bench.faults.inspection import PHASES, Seen, look

OFTEN = 0.1
FRESH_EVERY = 20
"""Every so many kills hit a fresh interpreter instead of a fork."""
BEYOND = 1.3
LONGEST = 300.0
BEFORE = (
    f"import sgoif.audit.run_directory as r, sgoif.audit.live_status as v;"
    f" r.EVERY = r.EPOCH_EVERY = {OFTEN}; v.EVERY = {OFTEN}"
)
Run = dict[str, Any]


class UndisturbedError(SgoifError, RuntimeError):
    """The audit that nobody disturbs did not come to its end, so that there is nothing to compare with."""


def often() -> None:
    """More checkpoints than usual."""
    import sgoif.audit.live_status as live
    import sgoif.audit.run_directory as rundir

    rundir.EVERY = rundir.EPOCH_EVERY = live.EVERY = OFTEN


def arguments(photos: Path, run: Path, epochs: int) -> list[str]:
    """The command line of every audit here."""
    given = ["audit", str(photos), "--out", str(run), "--epochs", str(epochs), "--model", MODEL, "--device", "cpu"]
    return [*given, "--no-early-stop", "--resume", "--json"]


class Kills:
    """Kills audits of one folder of images."""

    def __init__(self, work: Path, epochs: int, seed: int, tell: Say) -> None:
        self.work, self.epochs, self.tell = work, epochs, tell
        self._seed = seed
        self.photos = make_folder(work / "digits")
        fresh_seconds, table = self._undisturbed("whole", child.fresh)
        seconds, again = self._undisturbed("again", lambda given, log: child.command(given, log, often))
        if table != again:
            raise UndisturbedError("two undisturbed audits with the same seed gave different tables")
        end, _ = self._undisturbed("again", lambda given, log: child.command(given, log, often))
        self.table, self.whole, self.end = table, seconds, min(end, seconds)
        self.importing = max(0.0, fresh_seconds - seconds)
        self.steps = look(work / "again").step
        tell(
            f"undisturbed: {seconds:.1f} s in a fork, {end:.1f} s without training, {fresh_seconds:.1f} s from nothing"
        )

    def expected(self, seen: Seen, renewed: bool) -> float:
        """Seconds until the end from here."""
        left = 1 - seen.step / self.steps
        return self.end + left * (self.whole - self.end) + (self.importing if renewed else 0.0)

    def _undisturbed(self, name: str, start: Callable[[list[str], Path], child.Child]) -> tuple[float, bytes]:
        run, log = self.work / name, self.work / f"{name}.log"
        ended = start(arguments(self.photos, run, self.epochs), log).wait(LONGEST)
        if ended is None or ended.code:
            raise UndisturbedError(f"an audit that nobody disturbs failed: {log.read_text(errors='replace')[-500:]}")
        return ended.seconds, (run / "issues.csv").read_bytes()

    def runs(self, kills: int, first: int) -> Iterator[Run]:
        """One audit after the other, each killed until it comes to its end, until there were so many kills."""
        number, done = first, 0
        while done < kills:
            found = self._one(number, kills - done)
            done += len(found["kills"])
            number += 1
            yield found

    def _one(self, number: int, most: int) -> Run:
        """An audit killed at random moments, at most so many times, then left alone."""
        draw = random.Random(f"{self._seed} {number}")
        run, log = self.work / f"run{number}", self.work / f"run{number}.log"
        before = Seen(PHASES[0], 0, 0, 0, 0, [])
        kills: list[dict[str, Any]] = []
        problems: list[str] = []
        while True:
            renewed = draw.randrange(FRESH_EVERY) == 0
            given = arguments(self.photos, run, self.epochs)
            whole = self.expected(before, renewed)
            moment = draw.uniform(0, BEYOND * whole) if len(kills) < most else LONGEST
            running = child.fresh(given, log, BEFORE) if renewed else child.command(given, log, often)
            ended = running.wait(moment)
            if ended is not None:
                break
            running.kill()
            if moment == LONGEST:
                problems.append(f"resumed, it did not end within {LONGEST:.0f} s")
                break
            seen = look(run)
            wrong = [*seen.problems, *_shrunk(before, seen)]
            kills.append(
                {
                    "moment": round(moment, 3),
                    "of": round(whole, 3),
                    "interpreter": "fresh" if renewed else "forked",
                    "phase": seen.phase,
                    "step": seen.step,
                    "files": seen.files,
                    "unfinished": seen.unfinished,
                    "problems": wrong,
                }
            )
            before = seen
        if ended is not None and ended.code:
            problems.append(f"resumed, it ended with {ended.code}: {log.read_text(errors='replace')[-300:]}")
        last = look(run)
        problems += [*last.problems, *_shrunk(before, last)]
        table = (run / "issues.csv").read_bytes() if (run / "issues.csv").exists() else b""
        return {
            "run": number,
            "kills": kills,
            "finished": last.phase == PHASES[-1],
            "rows": last.rows,
            "same_table": table == self.table,
            "left_over": last.unfinished,
            "problems": problems,
        }


def _shrunk(before: Seen, after: Seen) -> list[str]:
    """What was there before and is not any more."""
    found = []
    if PHASES.index(after.phase) < PHASES.index(before.phase):
        found.append(f"went back from {before.phase!r} to {after.phase!r}")
    for name in ("step", "rows"):
        if getattr(after, name) < getattr(before, name):
            found.append(f"{name} went back from {getattr(before, name)} to {getattr(after, name)}")
    return found
