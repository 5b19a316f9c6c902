"""The audit log: what it holds, every way to tamper with it, two writers, writes that were cut short."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.tasks.unlearning.errors import LogError
from sgoif.tasks.unlearning.log import GENESIS, AuditLog, Entry, read_log, seal, verify_log

NASTY = 'line\nbreak "quotes" \u202eevil\u2066 \udc80 \x1b[31m ü 名 🙂'


def asked(number: int = 1, **more: Any) -> dict[str, Any]:
    """Evidence of a request."""
    return {"request": number or 1, "ids": [str(number)], "reason": "", **more}


def written(path: Path, count: int = 5) -> list[Entry]:
    """A log of so many entries, a second apart."""
    times = iter(datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(1000))
    log, entries = AuditLog(path, clock=lambda: next(times)), list[Entry]()
    for number in range(count):
        after = entries[-1].hash if entries else None
        kind = "opened" if number == 0 else "request"
        entries.append(log.append(kind, f"entry {number}", asked(number, size=0.1 * number), after))
    return entries


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    written(path)
    return path


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def rewrite(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def resealed(line: str, previous: str | None = None, **changes: Any) -> str:
    """A line with other content and a hash that fits it."""
    content = {**json.loads(line), **changes}
    if previous is not None:
        content["previous"] = previous
    content["hash"] = seal(content["previous"], content)
    return json.dumps(content, ensure_ascii=False)


class TestSound:
    def test_lines_can_be_read_and_checked_with_nothing_but_a_hash_function(self, log: Path) -> None:
        AuditLog(log).append("request", NASTY, asked(reason=NASTY), read_log(log)[-1].hash)
        previous = "0" * 64
        for number, line in enumerate(lines_of(log), start=1):
            entry = json.loads(line)
            assert entry["sequence"] == number
            assert entry["previous"] == previous
            content = {key: entry[key] for key in ("sequence", "time", "kind", "summary", "evidence")}
            text = json.dumps(content, sort_keys=True, separators=(",", ":"))
            assert entry["hash"] == hashlib.sha256((previous + text).encode()).hexdigest()
            previous = entry["hash"]

    def test_what_is_read_is_what_was_written(self, tmp_path: Path) -> None:
        entries = written(tmp_path / "l", 4)
        assert read_log(tmp_path / "l") == entries
        assert entries[0].time == "2025-01-01T00:00:00Z"
        assert entries[0].previous == GENESIS
        found = verify_log(tmp_path / "l")
        assert (found.intact, found.entries, found.head, found.line) == (True, 4, entries[-1].hash, None)

    def test_text_from_outside_stays_on_its_line_and_comes_back(self, tmp_path: Path) -> None:
        AuditLog(tmp_path / "l").append("request", NASTY, asked(reason=NASTY, pair=(1, 2)), None)
        raw = (tmp_path / "l").read_bytes()
        assert raw.count(b"\n") == 1
        text = raw.decode("utf-8")
        assert all(character.isprintable() for character in text.rstrip("\n"))
        assert "ü 名 🙂" in text
        (entry,) = read_log(tmp_path / "l")
        assert entry.evidence == asked(reason=NASTY, pair=[1, 2])

    def test_numbers_that_are_none_are_refused_and_leave_no_trace(self, log: Path) -> None:
        before = log.read_bytes()
        with pytest.raises(ValueError, match="JSON"):
            AuditLog(log).append("request", "x", asked(size=float("nan")), read_log(log)[-1].hash)
        assert log.read_bytes() == before

    def test_expected_hashes(self, log: Path) -> None:
        entries = read_log(log)
        assert verify_log(log, entries[2].hash).expected_at == 3
        assert verify_log(log, f" {entries[-1].hash.upper()}\n").expected_at == 5
        other = verify_log(log, "ab" * 32)
        assert (other.intact, other.line) == (False, None)
        assert "cut off" in other.problem


class TestTampered:
    def broken(self, path: Path) -> tuple[int | None, str]:
        found = verify_log(path)
        assert not found.intact
        with pytest.raises(LogError, match="cannot be trusted"):
            read_log(path)
        assert found.line is None or found.entries == found.line - 1
        return found.line, found.problem

    @pytest.mark.parametrize("number", [1, 3, 5])
    def test_a_changed_line(self, log: Path, number: int) -> None:
        lines = lines_of(log)
        lines[number - 1] = lines[number - 1].replace(f"entry {number - 1}", "entry X")
        rewrite(log, lines)
        line, problem = self.broken(log)
        assert line == number
        assert "was changed after it was written" in problem

    @pytest.mark.parametrize("field", ["time", "kind", "summary", "evidence", "sequence", "previous", "hash"])
    def test_every_field_is_sealed(self, log: Path, field: str) -> None:
        lines = lines_of(log)
        entry = json.loads(lines[2])
        entry[field] = {"evidence": {}, "sequence": 9, "previous": "1" * 64, "hash": "2" * 64}.get(field, "other")
        lines[2] = json.dumps(entry)
        rewrite(log, lines)
        assert self.broken(log)[0] == 3

    def test_a_line_sealed_anew_does_not_fit_the_next_one(self, log: Path) -> None:
        lines = lines_of(log)
        lines[2] = resealed(lines[2], summary="nothing happened")
        rewrite(log, lines)
        line, problem = self.broken(log)
        assert line == 4
        assert "does not follow from line 3" in problem

    def test_a_log_sealed_anew_from_there_on_is_only_seen_by_its_head(self, log: Path) -> None:
        noted = read_log(log)[-1].hash
        lines = lines_of(log)
        lines[2] = resealed(lines[2], summary="nothing happened")
        for number in (3, 4):
            lines[number] = resealed(lines[number], previous=json.loads(lines[number - 1])["hash"])
        rewrite(log, lines)
        assert verify_log(log).intact
        found = verify_log(log, noted)
        assert not found.intact
        assert "written anew" in found.problem

    def test_a_missing_line(self, log: Path) -> None:
        lines = lines_of(log)
        rewrite(log, [*lines[:1], *lines[2:]])
        line, problem = self.broken(log)
        assert (line, "entry 2 is missing" in problem) == (2, True)
        rewrite(log, [*lines[:1], *lines[3:]])
        assert "entries 2 to 3 are missing" in self.broken(log)[1]

    def test_the_first_lines_missing(self, log: Path) -> None:
        rewrite(log, lines_of(log)[1:])
        line, problem = self.broken(log)
        assert (line, "entry 1 is missing" in problem) == (1, True)

    def test_lines_renumbered_after_one_was_taken_out(self, log: Path) -> None:
        lines = lines_of(log)
        lines = [lines[0], *(resealed(line, sequence=n) for n, line in enumerate(lines[2:], start=2))]
        rewrite(log, lines)
        line, problem = self.broken(log)
        assert (line, "does not follow" in problem) == (2, True)

    def test_reordered_lines(self, log: Path) -> None:
        lines = lines_of(log)
        rewrite(log, [lines[0], lines[2], lines[1], *lines[3:]])
        line, problem = self.broken(log)
        assert line == 2
        assert "entry 2 comes in line 3: they were reordered" in problem

    def test_a_line_twice(self, log: Path) -> None:
        lines = lines_of(log)
        rewrite(log, [*lines[:3], lines[2], *lines[3:]])
        line, problem = self.broken(log)
        assert (line, "entry 3 again" in problem) == (4, True)

    def test_a_foreign_line_or_an_empty_one(self, log: Path) -> None:
        lines = lines_of(log)
        for extra in ("", "not JSON", "[1]", '{"sequence": 4}', '"text"'):
            rewrite(log, [*lines[:3], extra, *lines[3:]])
            line, problem = self.broken(log)
            assert (line, "is not an entry" in problem) == (4, True), extra

    def test_a_key_twice(self, log: Path) -> None:
        lines = lines_of(log)
        lines[1] = lines[1].replace('{"sequence"', '{"summary": "harmless", "sequence"')
        rewrite(log, lines)
        assert self.broken(log)[0] == 2

    def test_the_same_content_written_differently(self, log: Path) -> None:
        lines = lines_of(log)
        lines[1] = lines[1].replace('"kind": "', '"kind":  "')
        rewrite(log, lines)
        line, problem = self.broken(log)
        assert (line, "written differently" in problem) == (2, True)

    def test_an_end_that_was_cut_off_is_seen_by_the_hash_alone(self, log: Path) -> None:
        noted = read_log(log)[-1].hash
        rewrite(log, lines_of(log)[:-2])
        assert verify_log(log).intact
        assert not verify_log(log, noted).intact

    def test_a_line_that_was_cut(self, log: Path) -> None:
        log.write_bytes(log.read_bytes()[:-9])
        line, problem = self.broken(log)
        assert (line, "has no end" in problem) == (5, True)

    def test_no_log_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        assert self.broken(tmp_path / "empty") == (1, "line 1 is missing: the log is empty")
        with pytest.raises(LogError, match="there is no log"):
            verify_log(tmp_path / "none")
        with pytest.raises(LogError, match="is a folder"):
            verify_log(tmp_path)

    @settings(max_examples=150, deadline=None)
    @given(data=st.data())
    def test_no_byte_can_be_changed_inserted_or_taken_out(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        path = tmp_path_factory.mktemp("log") / "l"
        written(path, 3)
        content = path.read_bytes()
        at = data.draw(st.integers(0, len(content) - 1))
        new = data.draw(st.binary(max_size=2))
        tampered = content[:at] + new + content[at + data.draw(st.integers(0, 1)) :]
        path.write_bytes(tampered)
        assert verify_log(path).intact == (tampered == content)


class TestWriting:
    def test_a_log_that_was_tampered_with_is_not_written_to(self, log: Path) -> None:
        last = read_log(log)[-1].hash
        rewrite(log, [line.replace("entry 1", "entry X") for line in lines_of(log)])
        before = log.read_bytes()
        with pytest.raises(LogError, match="line 2"):
            AuditLog(log).append("request", "x", asked(), last)
        assert log.read_bytes() == before

    def test_somebody_else_has_written(self, log: Path) -> None:
        last = read_log(log)[-1].hash
        AuditLog(log).append("request", "theirs", asked(), last)
        with pytest.raises(LogError, match=r"its last entry is number 6.*Nothing was done"):
            AuditLog(log).append("request", "mine", asked(), last)
        with pytest.raises(LogError, match="not where it was left"):
            AuditLog(log).append("opened", "a new one", {}, None)
        assert len(read_log(log)) == 6

    def test_two_writers_at_a_time(self, log: Path) -> None:
        last = read_log(log)[-1].hash
        first, second = AuditLog(log), AuditLog(log)
        with first.held():
            with pytest.raises(LogError, match="another process is writing"):
                second.append("request", "x", asked(), last)
            first.append("request", "y", asked(), last)
        second.append("request", "z", asked(), read_log(log)[-1].hash)
        assert [entry.summary for entry in read_log(log)][-2:] == ["y", "z"]

    def test_another_process_is_kept_out_too(self, log: Path) -> None:
        last = read_log(log)[-1].hash
        script = (
            "import fcntl, sys; file = open(sys.argv[1], 'rb'); fcntl.flock(file, fcntl.LOCK_EX);"
            " print('held', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(LogError, match="another process is writing"):
                AuditLog(log).append("request", "x", asked(), last)
            other.communicate("")
        AuditLog(log).append("request", "x", asked(), last)
        assert len(read_log(log)) == 6

    def test_a_write_that_was_cut_short_is_taken_off_and_mentioned(self, log: Path) -> None:
        last = read_log(log)[-1].hash
        torn = b'{"sequence": 6, "time": "2025'
        log.write_bytes(log.read_bytes() + torn)
        assert verify_log(log).line == 6
        AuditLog(log).append("request", "next", asked(), last)
        entries = read_log(log)
        assert [entry.kind for entry in entries][-2:] == ["repaired", "request"]
        assert entries[-2].evidence == {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()}

    def test_what_comes_before_a_cut_write_must_be_sound(self, log: Path) -> None:
        last = read_log(log)[-1].hash
        log.write_bytes(log.read_bytes().replace(b"entry 2", b"entry X") + b"{")
        before = log.read_bytes()
        with pytest.raises(LogError, match="line 3"):
            AuditLog(log).append("request", "next", asked(), last)
        assert log.read_bytes() == before

    def test_a_full_disk_leaves_the_log_as_it_was(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        last, before = read_log(log)[-1].hash, log.read_bytes()
        real = os.write
        calls: list[int] = []

        def full(file: int, content: bytes) -> int:
            calls.append(1)
            if len(calls) > 1:
                raise OSError(28, "No space left on device")
            return real(file, content[:10])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            AuditLog(log).append("request", "x", asked(), last)
        monkeypatch.undo()
        assert log.read_bytes() == before

    def test_a_folder_in_its_place(self, tmp_path: Path) -> None:
        with pytest.raises(LogError, match="is a folder"):
            AuditLog(tmp_path).append("opened", "x", {}, None)
