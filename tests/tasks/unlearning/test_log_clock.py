"""A log whose clock jumps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from sgoif.tasks.unlearning.log import AuditLog, verify_log


def test_a_log_goes_on_when_the_clock_goes_back(tmp_path: Path) -> None:
    times = [datetime(2026, 3, 1, tzinfo=UTC), datetime(1999, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    log = AuditLog(tmp_path / "log.jsonl", clock=lambda: times.pop(0) + timedelta(0))
    last = None
    for number in range(3):
        last = log.append("request", f"number {number}", {"request": 1, "ids": ["1"], "reason": ""}, last).hash
    assert verify_log(log.path, last).intact
