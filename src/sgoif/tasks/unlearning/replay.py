"""Following a log from where a state was saved: a crash or a forgotten save loses nothing that was logged.

Requests and decisions are taken from it as they stand there; removals are carried out again, with the same steps from
the same head. Only entries whose proof was checked with the key count: anybody can write a line that looks like one.
"""

import math
from pathlib import Path
from typing import Any, get_args

from sgoif.errors import SgoifError
from sgoif.tasks.unlearning.errors import LogError
from sgoif.tasks.unlearning.log import AuditLog, Entry
from sgoif.tasks.unlearning.priority import When
from sgoif.tasks.unlearning.records import Decision, Request
from sgoif.tasks.unlearning.state import UnlearnerState

REPLAYED = ("request", "decision", "removal")
STARTS = ("opened", "retrained")


def replay_log(unlearner: UnlearnerState, log: AuditLog, path: Path) -> None:
    """Bring an unlearner that was read from `path` to the end of its log."""
    _check_there(log, path)
    with log.held():
        _replay(unlearner, log, path)


def count_unreplayed(unlearner: UnlearnerState, log: AuditLog, path: Path) -> int:
    """How many entries the log has that an unlearner read from `path` does not have; nothing is changed."""
    _check_there(log, path)
    return len(_entries_after(unlearner, log.finished(), log, path))


def _check_there(log: AuditLog, path: Path) -> None:
    if not log.exists():
        raise LogError(f"the log {log.path} of the state {path} is gone; say where it is")


def _entries_after(unlearner: UnlearnerState, entries: list[Entry], log: AuditLog, path: Path) -> list[Entry]:
    """The entries after the one that the state ends with."""
    known = next((entry for entry in entries if entry.hash == unlearner.last_hash), None)
    if known is None:
        raise LogError(
            f"the log {log.path} does not belong to the state {path}, or its end was cut off: it has no entry with the"
            f" hash {(unlearner.last_hash or '')[:12]}… that the state ends with"
        )
    if unlearner.proven and known.mac is None:
        raise LogError(
            f"the log {log.path} cannot be trusted: entry {known.sequence} carried a proof when the state {path} was"
            " saved and carries none now, so proofs were taken off. Nothing was done; put back a copy of the log"
        )
    return entries[known.sequence :]


def _replay(unlearner: UnlearnerState, log: AuditLog, path: Path) -> None:
    entries = log.entries()
    later = _entries_after(unlearner, entries, log, path)
    _check_age(later, path)
    followed = [entry for entry in later if entry.kind in REPLAYED]
    if followed:
        _check_proven(followed, log, path)
    for entry in followed:
        _redo(unlearner, entry, path)
    unlearner.last_hash, unlearner.proven = entries[-1].hash, entries[-1].mac is not None
    if not followed:
        return
    known = later[0].sequence
    unlearner.write(
        "recovered",
        f"The state was saved before entry {known} of the log; what the log says was done since then was done again.",
        {"from": known, "to": len(entries), "head": unlearner.head_digest()},
    )
    for request in unlearner.requests:
        if request.decision is None:
            unlearner.decide(request)


def _check_age(later: list[Entry], path: Path) -> None:
    """Raise where the log has gone on to another network."""
    for entry in later:
        if entry.kind in STARTS:
            raise LogError(
                f"the state {path} is older than entry {entry.sequence} of its log, where a network was trained again;"
                " use the state of that network"
            )


def _check_proven(followed: list[Entry], log: AuditLog, path: Path) -> None:
    """Raise where what these entries say must not be done again."""
    first = followed[0]
    if any(entry.mac is None for entry in followed):
        why = (
            "it carries no proof, so anybody could have written it. If you know it to be yours, keep a copy of the log,"
            f" take line {first.sequence} and what follows off it, and ask for the same again"
        )
    elif log.key is None:
        why = "no key was given to check its proof with; give --key FILE, or in Python key=open_key(FILE)"
    else:
        return
    raise LogError(
        f"the log {log.path} has gone on since the state {path} was saved, with entry {first.sequence} ({first.kind})."
        f" Nothing was done: {why}"
    )


def _redo(unlearner: UnlearnerState, entry: Entry, path: Path) -> None:
    found = entry.evidence
    try:
        if entry.kind == "request":
            if found["request"] != len(unlearner.requests) + 1:
                raise ValueError(f"request {found['request']} follows request {len(unlearner.requests)}")
            unlearner.requests.append(Request(found["request"], tuple(found["ids"]), found["reason"]))
        elif entry.kind == "decision":
            request = _request(unlearner, found["request"])
            request.decision = _decision(found["decision"], request)
        elif entry.kind == "removal":
            chosen = [_request(unlearner, number) for number in found["removal"]["requests"]]
            if done := [request.number for request in chosen if request.removed]:
                raise ValueError(f"request {done[0]} was carried out before")
            unlearner.carry_out(chosen)
    except SgoifError:
        raise
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
        raise LogError(
            f"entry {entry.sequence} ({entry.kind}) of the log does not fit the state {path} ({error}). Nothing was"
            " done; use the state and the log that belong together"
        ) from error


def _request(unlearner: UnlearnerState, number: int) -> Request:
    if not 1 <= number <= len(unlearner.requests):
        raise ValueError(f"there is no request {number}")
    return unlearner.requests[number - 1]


def _decision(record: dict[str, Any], request: Request) -> Decision:
    """The decision of an entry, where it is one about this request."""
    try:
        decision = Decision.from_record(record)
        sound = (decision.number, decision.ids, decision.reason) == (request.number, request.ids, request.reason)
        sound = sound and decision.when in get_args(When) and math.isfinite(decision.urgency)
    except (KeyError, TypeError, ValueError, AttributeError):
        sound = False
    if not sound:
        raise ValueError(f"it is no decision about request {request.number}")
    return decision
