"""What somebody can do to a log who can write the file and has no key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sgoif.tasks.unlearning.log import seal

Content = tuple[str, dict[str, Any]]


def add_lines(log: Path, contents: Sequence[Content], time: str | None = None, **more: Any) -> None:
    """Append entries of these kinds and evidences, chained and sealed as they should be; no key is needed for that."""
    last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    with log.open("a", encoding="utf-8") as file:
        for kind, evidence in contents:
            content = {
                "sequence": last["sequence"] + 1,
                "time": time or last["time"],
                "kind": kind,
                "summary": f"forged {kind}",
                "evidence": evidence,
            }
            last = {**content, "previous": last["hash"], "hash": seal(last["hash"], content), **more}
            file.write(json.dumps(last, ensure_ascii=False) + "\n")


def deletion(number: int, ids: Sequence[str], decision: dict[str, Any]) -> list[Content]:
    """Three entries that say: these were asked for, judged and removed; `decision` is one of another request."""
    judged = {**decision, "number": number, "ids": list(ids), "reason": ""}
    return [
        ("request", {"request": number, "ids": list(ids), "reason": ""}),
        ("decision", {"request": number, "decision": judged}),
        ("removal", {"removal": {"requests": [number]}}),
    ]
