"""Proofs in the audit log: what the key shows, what is done again and what is not, clocks, locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unlearning_cases import blobs

from sgoif.errors import SettingError
from sgoif.tasks import Unlearner
from sgoif.tasks.unlearning import AuditLog, LogError, open_key, verify_log
from sgoif.tasks.unlearning.log import read_log, seal

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
START = datetime(2025, 1, 1, tzinfo=UTC)


def asked(number: int = 1) -> dict[str, Any]:
    return {"request": number, "ids": [str(number)], "reason": ""}


def written(path: Path, count: int = 3, key: bytes | None = KEY) -> AuditLog:
    """A log of so many requests."""
    log, last = AuditLog(path, key=key), None
    for number in range(1, count + 1):
        last = log.append("request", f"number {number}", asked(number), last).hash
    return log


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(log: AuditLog | None = None) -> Unlearner:
    features, labels = blobs(60)
    return Unlearner.from_features(features[:40], labels[:40], held_out=(features[40:], labels[40:]), log=log)


class TestProofs:
    def test_they_can_be_checked_with_nothing_but_hmac(self, tmp_path: Path) -> None:
        written(tmp_path / "l")
        for line in (tmp_path / "l").read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            content = {name: entry[name] for name in ("sequence", "time", "kind", "summary", "evidence")}
            sealed = entry["previous"] + json.dumps(content, sort_keys=True, separators=(",", ":"))
            assert entry["hash"] == hashlib.sha256(sealed.encode()).hexdigest()
            assert entry["mac"] == hmac.new(KEY, sealed.encode(), hashlib.sha256).hexdigest()

    def test_with_the_key_with_another_and_without(self, tmp_path: Path) -> None:
        written(tmp_path / "l")
        with_key, without = verify_log(tmp_path / "l", key=KEY), verify_log(tmp_path / "l")
        assert (with_key.intact, with_key.proof, with_key.proven_from) == (True, "checked", 1)
        assert (without.intact, without.proof) == (True, "unchecked")
        other = verify_log(tmp_path / "l", key=OTHER)
        assert (other.intact, other.line, other.entries) == (False, 1, 0)
        with pytest.raises(LogError, match=r"line 1 .* does not fit the key: it was forged, or written with another"):
            AuditLog(tmp_path / "l", key=OTHER).entries()

    def test_a_log_sealed_anew_from_a_line_on(self, tmp_path: Path) -> None:
        written(tmp_path / "l", 5)
        entries = [json.loads(line) for line in (tmp_path / "l").read_text(encoding="utf-8").splitlines()]
        entries[2]["summary"] = "nothing happened"
        for before, entry in pairwise(entries[1:]):
            entry["previous"] = before["hash"]
            entry["hash"] = seal(entry["previous"], entry)
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        (tmp_path / "l").write_text(text, encoding="utf-8")
        assert verify_log(tmp_path / "l").intact  # which is all that the chain can show
        assert verify_log(tmp_path / "l", key=KEY).line == 3

    @settings(max_examples=100, deadline=None)
    @given(data=st.data())
    def test_no_byte_can_be_changed(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        path = tmp_path_factory.mktemp("log") / "l"
        written(path)
        content = path.read_bytes()
        at = data.draw(st.integers(0, len(content) - 1))
        tampered = content[:at] + data.draw(st.binary(max_size=2)) + content[at + data.draw(st.integers(0, 1)) :]
        path.write_bytes(tampered)
        assert verify_log(path, key=KEY).intact == (tampered == content)

    def test_a_log_with_proofs_is_not_added_to_without_the_key(self, tmp_path: Path) -> None:
        last = written(tmp_path / "l").entries()[-1].hash
        before = (tmp_path / "l").read_bytes()
        with pytest.raises(LogError, match="carry proofs, and no key was given"):
            AuditLog(tmp_path / "l").append("request", "x", asked(4), last)
        (tmp_path / "l").write_bytes(before + b"{")
        with pytest.raises(LogError, match="carry proofs, and no key was given"):
            AuditLog(tmp_path / "l").entries()  # would have to write that it took off the end
        assert (tmp_path / "l").read_bytes() == before + b"{"
        AuditLog(tmp_path / "l", key=KEY).append("request", "x", asked(4), last)
        assert [entry.kind for entry in read_log(tmp_path / "l", KEY)][3:] == ["repaired", "request"]

    @pytest.mark.parametrize("key", [b"", b"short", "text" * 16, 5])
    def test_keys_that_are_none(self, tmp_path: Path, key: Any) -> None:
        with pytest.raises(SettingError, match=r"expected at least 32 random bytes"):
            AuditLog(tmp_path / "l", key=key)

    def test_key_files(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="there is no key file"):
            open_key(tmp_path / "key")
        key = open_key(tmp_path / "deep" / "key", make=True)
        assert len(key) == 32
        assert open_key(tmp_path / "deep" / "key", make=True) == key
        assert open_key(tmp_path / "other", make=True) != key


class TestDoneAgain:
    """An unlearner is loaded from a state that was saved before the end of its log."""

    @pytest.fixture
    def behind(self, place: Path) -> Path:
        unlearner = make(AuditLog("log.jsonl", key=KEY))
        unlearner.save("state.npz")
        unlearner.request("1")
        unlearner.remove()
        return place / "log.jsonl"

    def test_with_the_key(self, behind: Path) -> None:
        assert len(Unlearner.load("state.npz", key=KEY)) == 39
        assert read_log(behind, KEY)[-1].kind == "recovered"

    def test_not_without_the_key_nor_with_another(self, behind: Path) -> None:
        before = behind.read_bytes()
        with pytest.raises(LogError, match=r"with entry 2 \(request\). Nothing was done: no key was given"):
            Unlearner.load("state.npz")
        with pytest.raises(LogError, match="does not fit the key"):
            Unlearner.load("state.npz", key=OTHER)
        assert len(Unlearner.load("state.npz", replay=False)) == 40
        assert behind.read_bytes() == before

    def test_not_where_the_log_carries_no_proof(self, place: Path) -> None:
        unlearner = make(AuditLog("log.jsonl"))
        unlearner.save("state.npz")
        unlearner.request("1")
        for key in (None, KEY):
            with pytest.raises(LogError, match="it carries no proof, so anybody could have written it"):
                Unlearner.load("state.npz", key=key)

    def test_what_is_no_deed_needs_no_proof(self, place: Path) -> None:
        unlearner = make(AuditLog("log.jsonl"))
        unlearner.save("state.npz")
        unlearner.check()
        Unlearner.load("state.npz").request("1")
        assert [entry.kind for entry in read_log("log.jsonl")] == ["opened", "check", "request", "decision"]

    @pytest.mark.parametrize(
        ("kind", "evidence"),
        [
            ("decision", {"request": 1, "decision": {}}),
            ("decision", {"request": 1, "decision": {"number": 1, "ids": 5}}),
            ("decision", {"request": 9, "decision": {}}),
            ("request", {"request": 3, "ids": ["5"], "reason": ""}),
            ("removal", {"removal": {"requests": [2]}}),
        ],
    )
    def test_proven_entries_that_do_not_fit(self, place: Path, kind: str, evidence: dict[str, Any]) -> None:
        unlearner = make(AuditLog("log.jsonl", key=KEY))
        unlearner.save("state.npz")
        unlearner.request("1")
        assert unlearner.log is not None
        unlearner.log.append(kind, "made by hand", evidence, unlearner.last_hash)
        with pytest.raises(LogError, match=rf"entry 4 \({kind}\) of the log does not fit the state state.npz"):
            Unlearner.load("state.npz", key=KEY)

    @pytest.mark.parametrize("change", [{"urgency": "high"}, {"when": "soon"}, {"number": 2}, {"ids": ["7"]}])
    def test_a_decision_about_something_else(self, place: Path, change: dict[str, Any]) -> None:
        unlearner = make(AuditLog("log.jsonl", key=KEY))
        unlearner.save("state.npz")
        decision = unlearner.request("1").record()
        assert unlearner.log is not None
        unlearner.log.append(
            "decision", "made by hand", {"request": 1, "decision": {**decision, **change}}, unlearner.last_hash
        )
        with pytest.raises(LogError, match="it is no decision about request 1"):
            Unlearner.load("state.npz", key=KEY)


class TestClock:
    def test_a_clock_that_was_set_back_is_mentioned(self, tmp_path: Path) -> None:
        times = [START, START - timedelta(hours=3), START - timedelta(hours=2)]
        log, last = AuditLog(tmp_path / "l", clock=lambda: times.pop(0), key=KEY), None
        for number in (1, 2, 3):
            last = log.append("request", "x", asked(number), last).hash
        entries = read_log(tmp_path / "l", KEY)
        assert [entry.kind for entry in entries] == ["request", "clock", "request", "request"]
        assert entries[1].evidence == {"before": "2025-01-01T00:00:00Z"}
        assert verify_log(tmp_path / "l", key=KEY).intact

    def test_small_differences_are_not(self, tmp_path: Path) -> None:
        times = [START, START - timedelta(minutes=4)]
        log = AuditLog(tmp_path / "l", clock=lambda: times.pop(0))
        log.append("request", "x", asked(2), log.append("request", "x", asked(), None).hash)
        assert len(read_log(tmp_path / "l")) == 2
        assert verify_log(tmp_path / "l").intact

    def test_times_that_go_back_without_a_word(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sgoif.tasks.unlearning.log.CLOCK_MAY_DIFFER", timedelta(days=9))  # a writer without care
        times = [START, START - timedelta(hours=3)]
        log = AuditLog(tmp_path / "l", clock=lambda: times.pop(0), key=KEY)
        log.append("request", "x", asked(2), log.append("request", "x", asked(), None).hash)
        monkeypatch.undo()
        found = verify_log(tmp_path / "l", key=KEY)
        assert (found.intact, found.line, found.entries) == (False, 2, 1)
        assert "no entry says that the clock was set back" in found.problem
        assert len(log.entries()) == 2  # a log with proofs can still be gone on with

    def test_a_crash_after_that_was_mentioned(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        times = [START, START - timedelta(hours=3), START - timedelta(hours=3)]
        log = AuditLog(tmp_path / "l", clock=lambda: times.pop(0))
        last = log.append("request", "x", asked(), None).hash
        real, calls = AuditLog._append, list[bytes]()

        def once(self: AuditLog, content: bytes) -> None:
            calls.append(content)
            if len(calls) > 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(self, content)

        with monkeypatch.context() as patched:
            patched.setattr(AuditLog, "_append", once)
            with pytest.raises(OSError, match="No space"):
                log.append("request", "x", asked(2), last)
        log.append("request", "x", asked(2), last)
        assert [entry.kind for entry in read_log(tmp_path / "l")] == ["request", "clock", "request"]


class TestLocks:
    def locked(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(number, "a reason")

        monkeypatch.setattr(fcntl, "flock", flock)

    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
    def test_a_file_system_without_locks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.locked(monkeypatch, number)
        with pytest.warns(UserWarning, match=r"has no locks \(a reason\): make sure that no second process"):
            AuditLog(tmp_path / "l").append("request", "x", asked(), None)
        assert len(read_log(tmp_path / "l")) == 1

    def test_only_a_lock_that_is_held_is_another_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.locked(monkeypatch, errno.EAGAIN)
        with pytest.raises(LogError, match="another process is writing"):
            AuditLog(tmp_path / "l").append("request", "x", asked(), None)
        self.locked(monkeypatch, errno.EIO)
        with pytest.raises(LogError, match=r"cannot be locked \(a reason\)"):
            AuditLog(tmp_path / "l").append("request", "x", asked(), None)
