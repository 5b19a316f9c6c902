"""Following a log from where a state was saved: a crash or a forgotten save loses nothing that was logged.

The log is written before the state. Requests and decisions are taken from it as they stand there; removals are carried
out again, with the same steps from the same head, so that the deleted examples leave this state too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sgoif.errors import SgoifError, StateError
from sgoif.tasks.unlearning.errors import LogError
from sgoif.tasks.unlearning.log import AuditLog, Entry
from sgoif.tasks.unlearning.records import Decision, Request

if TYPE_CHECKING:
    from sgoif.tasks.unlearning.unlearner import Unlearner

FOLLOWED = ("request", "decision", "removal")
STARTS = ("opened", "retrained")


def catch_up(unlearner: Unlearner, log: AuditLog, path: Path) -> None:
    """Bring an unlearner that was read from `path` to the end of its log."""
    if not log.exists():
        raise LogError(f"the log {log.path} of the state {path} is gone; say where it is")
    with log.held():
        _follow(unlearner, log, path)


def _follow(unlearner: Unlearner, log: AuditLog, path: Path) -> None:
    entries = log.entries()
    known = next((entry.sequence for entry in entries if entry.hash == unlearner.last_hash), None)
    if known is None:
        raise LogError(
            f"the log {log.path} does not belong to the state {path}, or its end was cut off: it has no entry with the"
            f" hash {(unlearner.last_hash or '')[:12]}… that the state ends with"
        )
    later = entries[known:]
    unlearner.last_hash = entries[-1].hash
    if not any(entry.kind in (*FOLLOWED, *STARTS) for entry in later):
        return
    for entry in later:
        _do_again(unlearner, entry, path)
    unlearner.write(
        "recovered",
        f"The state was saved before entry {known + 1} of the log; what the log says was done since then was done"
        " again.",
        {"from": known + 1, "to": len(entries), "head": unlearner.head_digest()},
    )
    for request in unlearner.requests:
        if request.decision is None:
            unlearner.decide(request)


def _do_again(unlearner: Unlearner, entry: Entry, path: Path) -> None:
    if entry.kind in STARTS:
        raise LogError(
            f"the state {path} is older than entry {entry.sequence} of its log, where a network was trained again; use"
            " the state of that network"
        )
    try:
        found = entry.evidence
        if entry.kind == "request":
            unlearner.requests.append(Request(int(found["request"]), tuple(found["ids"]), str(found["reason"])))
        elif entry.kind == "decision":
            unlearner.requests[found["request"] - 1].decision = Decision.from_record(found["decision"])
        elif entry.kind == "removal":
            unlearner.carry_out([unlearner.requests[number - 1] for number in found["removal"]["requests"]])
    except SgoifError:
        raise
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
        raise StateError(f"entry {entry.sequence} of the log does not fit the state {path} ({error!r})") from error
