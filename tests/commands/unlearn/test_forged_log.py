"""Nothing that a log says is done, or called sound, unless the key wrote it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import add_lines, deletion
from unlearn_cases import COUNT, Captured, told, write_features

from sgoif.cli import main
from sgoif.tasks import Unlearner
from sgoif.tasks.unlearning.log import read_log

LOG, STATE = Path("unlearning.jsonl"), Path("unlearning.npz")
VICTIMS = [f"img/{number}.png" for number in range(10, 50)]


@pytest.fixture
def decision(begun: Path, capfd: Captured) -> dict[str, Any]:
    """What a request was answered with; it is pending."""
    found = told(capfd, "request", "img/1.png")
    return {name: value for name, value in found.items() if name != "log_head"}


def begin_without_a_key() -> None:
    """A log without proofs, as Python writes it where no key is given; a request is pending."""
    with np.load("f.npz") as arrays:
        unlearner = Unlearner.from_features(
            arrays["features"],
            arrays["labels"],
            arrays["ids"].tolist(),
            held_out=(arrays["held_features"], arrays["held_labels"]),
            log=LOG,
        )
    unlearner.request(["img/1.png"])
    unlearner.save(STATE)


class TestAddedLines:
    """Three lines at the end of the log that say that forty examples were removed."""

    @pytest.fixture
    def forged(self, decision: dict[str, Any]) -> bytes:
        """The state before anybody looks at them."""
        add_lines(LOG, deletion(2, VICTIMS, decision))
        return STATE.read_bytes()

    @pytest.mark.parametrize("words", [["plan"], ["remove"], ["request", "img/2.png"], ["check"], ["head"]])
    def test_nothing_is_deleted(self, forged: bytes, words: list[str], capfd: Captured) -> None:
        log = LOG.read_bytes()
        assert main(["unlearn", *words, *(["--out", "head.npz"] if words == ["head"] else [])]) == 2
        message = capfd.readouterr().err
        assert "cannot be trusted: line 4 (entry 4, request) carries no proof" in message
        assert (STATE.read_bytes(), LOG.read_bytes()) == (forged, log)
        assert len(Unlearner.load(STATE, replay=False)) == COUNT
        assert not Path("head.npz").exists()

    @pytest.mark.parametrize("words", [[], ["--no-key"]])
    def test_verify_names_the_first_of_them(self, forged: bytes, words: list[str], capfd: Captured) -> None:
        assert main(["unlearn", "verify", *words]) == 3
        assert "BROKEN: line 4 (entry 4, request) carries no proof" in capfd.readouterr().out

    def test_with_made_up_proofs(self, decision: dict[str, Any], capfd: Captured) -> None:
        add_lines(LOG, deletion(2, VICTIMS, decision), mac="ab" * 32)
        state = STATE.read_bytes()
        for words in (["plan"], ["remove"]):
            assert main(["unlearn", *words]) == 2
            assert "line 4 (entry 4, request) carries a proof that does not fit the key" in capfd.readouterr().err
        assert STATE.read_bytes() == state
        assert main(["unlearn", "verify"]) == 3
        assert "does not fit the key" in capfd.readouterr().out

    def test_made_up_proofs_and_nobody_has_the_key(
        self, decision: dict[str, Any], config: Path, capfd: Captured
    ) -> None:
        add_lines(LOG, deletion(2, VICTIMS, decision), mac="ab" * 32)
        state, log = STATE.read_bytes(), LOG.read_bytes()
        shutil.rmtree(config)
        assert main(["unlearn", "verify"]) == 0
        assert "without the key this shows only that the chain is unbroken: anybody" in capfd.readouterr().out
        assert told(capfd, "plan")["not_in_state"] == 3
        assert main(["unlearn", "remove"]) == 2
        assert "there is no key file" in capfd.readouterr().err
        assert (STATE.read_bytes(), LOG.read_bytes()) == (state, log)
        assert not config.exists()

    def test_a_log_without_proofs_is_not_acted_upon(self, here: Path, capfd: Captured) -> None:
        begin_without_a_key()
        decision = read_log(LOG)[-1].evidence["decision"]
        add_lines(LOG, deletion(2, VICTIMS, decision))
        state, log = STATE.read_bytes(), LOG.read_bytes()
        assert told(capfd, "plan")["not_in_state"] == 3
        assert main(["unlearn", "plan"]) == 0
        assert "the log has 3 entries that the state does not have yet" in capfd.readouterr().out
        assert main(["unlearn", "remove"]) == 2
        message = capfd.readouterr().err
        assert "entry 4 (request). Nothing was done: it carries no proof" in message
        assert "take line 4 and what follows off it" in message
        assert (STATE.read_bytes(), LOG.read_bytes()) == (state, log)
        LOG.write_text("".join(LOG.read_text(encoding="utf-8").splitlines(keepends=True)[:3]), encoding="utf-8")
        assert main(["unlearn", "remove"]) == 0  # as the message said
        assert told(capfd, "plan")["deleted"] == 1

    @pytest.mark.parametrize(
        ("kind", "evidence"),
        [("repaired", {"bytes": 7, "sha256": "00"}), ("clock", {"before": "2025-01-01T00:00:00Z"}), ("purged", {})],
    )
    def test_remarks_of_the_log_itself(
        self, decision: dict[str, Any], kind: str, evidence: dict[str, Any], capfd: Captured
    ) -> None:
        add_lines(LOG, [(kind, evidence)])
        refused(capfd, f"line 4 (entry 4, {kind}) carries no proof")

    @pytest.mark.parametrize(
        ("kind", "evidence", "problem"),
        [
            ("purged", {}, "line 4 is of the unknown kind 'purged'"),
            ("\x1b[31mred", {}, "line 4 is of the unknown kind '\\u001b[31mred'"),
            ("repaired", {}, "line 4 (entry 4, repaired) has no bytes in its evidence"),
            ("decision", {"request": 1}, "line 4 (entry 4, decision) has no decision in its evidence"),
            ("decision", {"request": 1, "decision": None}, "evidence of another form for decision"),
            ("request", {"request": 2, "reason": ""}, "line 4 (entry 4, request) has no ids in its evidence"),
            ("removal", {"removal": {"requests": [1, 1]}}, "evidence of another form for removal"),
            ("removal", {"removal": {"requests": [0]}}, "evidence of another form for removal"),
            ("removal", {"removal": {}}, "evidence of another form for removal"),
        ],
    )
    def test_what_no_log_holds(
        self, here: Path, kind: str, evidence: dict[str, Any], problem: str, capfd: Captured
    ) -> None:
        begin_without_a_key()
        add_lines(LOG, [(kind, evidence)])
        refused(capfd, problem)


def refused(capfd: Captured, problem: str) -> None:
    """Check that nobody goes on with the log, and why."""
    state = STATE.read_bytes()
    assert main(["unlearn", "verify", "--no-key"]) == 3
    assert problem in capfd.readouterr().out
    for words in (["plan"], ["remove"], ["init", "--features", "f.npz", "--continue"]):
        assert main(["unlearn", *words]) == 2
        streams = capfd.readouterr()
        assert problem in streams.err
        assert "Traceback" not in streams.err
    assert STATE.read_bytes() == state


class TestPlan:
    def test_it_writes_nothing_and_carries_nothing_out(self, begun: Path, capfd: Captured) -> None:
        shutil.copy(STATE, "older.npz")
        assert main(["unlearn", "request", "img/1.png"]) == 0
        assert main(["unlearn", "remove"]) == 0
        shutil.copy("older.npz", STATE)
        before = {path.name: path.read_bytes() for path in begun.iterdir()}
        plan = told(capfd, "plan")
        assert (plan["deleted"], plan["not_in_state"]) == (0, 3)
        assert {path.name: path.read_bytes() for path in begun.iterdir()} == before
        told(capfd, "check")  # acts, and so catches up
        plan = told(capfd, "plan")
        assert (plan["deleted"], plan["not_in_state"]) == (1, 0)

    def test_a_write_that_was_cut_short_is_left_alone(self, begun: Path, capfd: Captured) -> None:
        with LOG.open("ab") as file:
            file.write(b'{"sequence": 2, "ti')
        before = LOG.read_bytes()
        assert told(capfd, "plan")["not_in_state"] == 0
        assert LOG.read_bytes() == before
        assert main(["unlearn", "request", "img/1.png"]) == 0
        assert [entry.kind for entry in read_log(LOG)] == ["opened", "repaired", "request", "decision"]


class TestVerify:
    def test_what_it_says(self, decision: dict[str, Any], config: Path, capfd: Captured) -> None:
        key = config / "sgoif" / "unlearning.key"
        found = told(capfd, "verify")
        assert (found["proof"], found["proven_from"], found["state_at"]) == ("checked", 1, 3)
        assert (found["key"], found["state"]) == (str(key), "unlearning.npz")
        assert main(["unlearn", "verify"]) == 0
        shown = capfd.readouterr().out
        assert f"every entry was written with the key {key}" in shown
        assert "the state unlearning.npz ends with line 3, the last" in shown
        assert main(["unlearn", "verify", "--no-key"]) == 0
        assert "the proofs were not checked; without the key this shows only" in capfd.readouterr().out
        assert told(capfd, "verify", "--no-key")["proof"] == "unchecked"
        assert main(["unlearn", "verify", "--no-key", "--key", str(key)]) == 2

    def test_the_whole_log_written_anew_with_another_key(
        self, decision: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, capfd: Captured
    ) -> None:
        other = tmp_path_factory.mktemp("theirs") / "key"
        STATE.rename("mine.npz")
        LOG.unlink()
        assert main(["unlearn", "init", "--features", "f.npz", "--key", str(other)]) == 0
        assert main(["unlearn", "verify", "--key", str(other)]) == 0
        shutil.copy("mine.npz", STATE)
        for words in (["plan"], ["remove"]):
            assert main(["unlearn", *words]) == 2
            assert "line 1 (entry 1, opened) carries a proof that does not fit the key" in capfd.readouterr().err
        assert main(["unlearn", "verify"]) == 3
        assert "written with another key" in capfd.readouterr().out
        assert main(["unlearn", "verify", "--key", str(other)]) == 3
        assert "that the state ends with" in capfd.readouterr().out

    def test_the_whole_log_written_anew_without_a_key(self, decision: dict[str, Any], capfd: Captured) -> None:
        lines = [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            del line["mac"]
        LOG.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
        assert main(["unlearn", "verify"]) == 3
        assert "BROKEN: no entry carries a proof" in capfd.readouterr().out
        assert main(["unlearn", "verify", "--no-key"]) == 0
        assert "no entry carries a proof; without the key" in capfd.readouterr().out

    def test_a_state_whose_head_is_not_in_the_log(self, decision: dict[str, Any], capfd: Captured) -> None:
        LOG.write_text("".join(LOG.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
        for words in ([], ["--no-key"], ["--state", "unlearning.npz"]):
            assert main(["unlearn", "verify", *words]) == 3
            assert "that the state ends with: the end of the log was cut off" in capfd.readouterr().out
        STATE.unlink()
        assert main(["unlearn", "verify"]) == 0  # nobody can know
        assert "no state was compared" in capfd.readouterr().out

    def test_a_state_that_is_behind_or_of_another_log(self, begun: Path, capfd: Captured) -> None:
        shutil.copy(STATE, "older.npz")
        assert main(["unlearn", "request", "img/1.png"]) == 0
        assert main(["unlearn", "verify", "--state", "older.npz"]) == 0
        assert "the state older.npz ends with line 1, 2 entries before the end" in capfd.readouterr().out
        shutil.copy(LOG, "copy.jsonl")
        assert told(capfd, "verify", "copy.jsonl")["state"] is None  # unlearning.npz says that it has another log
        assert main(["unlearn", "verify", "--state", "none.npz"]) == 2

    def test_times_that_go_back(self, here: Path, capfd: Captured) -> None:
        begin_without_a_key()
        add_lines(LOG, [("check", {"check": {}})], time="2001-01-01T00:00:00Z")
        assert main(["unlearn", "verify", "--no-key"]) == 3
        assert "line 4 (entry 4, check) is dated 2001-01-01T00:00:00Z, before line 3" in capfd.readouterr().out
        add_lines(LOG, [("check", {"check": {}})], time="yesterday")
        assert main(["unlearn", "verify", "--no-key"]) == 3
        assert "line 5 (entry 5, check) is dated 'yesterday', which is no time" in capfd.readouterr().out

    def test_a_log_that_got_a_key_later(self, here: Path, capfd: Captured) -> None:
        begin_without_a_key()
        assert main(["unlearn", "verify"]) == 0  # there is no key yet
        assert main(["unlearn", "request", "img/2.png"]) == 0
        assert "made the key" in capfd.readouterr().err
        assert [entry.mac is not None for entry in read_log(LOG)] == [False] * 3 + [True] * 2
        assert main(["unlearn", "verify"]) == 0
        assert "those before it carry no proof, and line 4 vouches for them" in capfd.readouterr().out
        lines = LOG.read_text(encoding="utf-8").splitlines(keepends=True)
        LOG.write_text("".join([lines[0].replace("Opened", "Closed"), *lines[1:]]), encoding="utf-8")
        assert main(["unlearn", "verify"]) == 3


class TestKey:
    def test_it_is_made_once_and_closed_to_others(self, begun: Path, config: Path) -> None:
        key = config / "sgoif" / "unlearning.key"
        content = key.read_bytes()
        assert (key.stat().st_mode & 0o777, len(bytes.fromhex(content.decode()))) == (0o600, 32)
        write_features(begun / "g.npz", seed=1)
        assert main(["unlearn", "init", "--features", "g.npz", "--state", "s.npz", "--log", "other.jsonl"]) == 0
        assert key.read_bytes() == content

    @pytest.mark.parametrize("place", ["key", "keys/deep/key"])
    def test_not_in_the_folder_of_the_log(self, here: Path, place: str, capfd: Captured) -> None:
        assert main(["unlearn", "init", "--features", "f.npz", "--key", place]) == 2
        assert "lies in the folder of" in capfd.readouterr().err
        assert sorted(path.name for path in here.iterdir()) == ["f.npz"]

    def test_not_by_a_link_either(self, here: Path, tmp_path_factory: pytest.TempPathFactory, capfd: Captured) -> None:
        (here / "keys").mkdir()
        link = tmp_path_factory.mktemp("elsewhere") / "keys"
        link.symlink_to(here / "keys")
        assert main(["unlearn", "init", "--features", "f.npz", "--key", str(link / "key")]) == 2
        assert "lies in the folder of" in capfd.readouterr().err

    def test_a_key_of_ones_own(self, here: Path, tmp_path_factory: pytest.TempPathFactory, capfd: Captured) -> None:
        key = tmp_path_factory.mktemp("safe") / "key"
        words = ["--key", str(key)]
        assert main(["unlearn", "init", "--features", "f.npz", *words]) == 0
        assert main(["unlearn", "request", "img/1.png", *words]) == 0
        assert told(capfd, "verify", *words)["proof"] == "checked"
        assert main(["unlearn", "request", "img/2.png"]) == 2  # the user's own is not even there
        assert "there is no key file" in capfd.readouterr().err
        assert main(["unlearn", "request", "img/2.png", "--key", f"{key}.none"]) == 2
        assert not Path(f"{key}.none").exists()

    @pytest.mark.parametrize("mode", [0o644, 0o602, 0o620])
    def test_a_key_that_is_open_to_others(self, begun: Path, config: Path, mode: int, capfd: Captured) -> None:
        key = config / "sgoif" / "unlearning.key"
        key.chmod(mode)
        for words in (["request", "img/1.png"], ["verify"], ["plan"]):
            assert main(["unlearn", *words]) == 2
            assert f"is open to others (mode {mode:o})" in capfd.readouterr().err
        key.chmod(0o640)  # shared with a group
        assert main(["unlearn", "request", "img/1.png"]) == 0

    @pytest.mark.parametrize("content", [b"", b"secret", b"ab" * 31, b"\xff" * 64])
    def test_no_key_at_all(self, begun: Path, config: Path, content: bytes, capfd: Captured) -> None:
        (config / "sgoif" / "unlearning.key").write_bytes(content)
        assert main(["unlearn", "verify"]) == 2
        assert "is not a key file" in capfd.readouterr().err

    def test_a_configuration_directory_that_cannot_be_written(self, here: Path, config: Path, capfd: Captured) -> None:
        (config / "sgoif").write_text("a file")
        assert main(["unlearn", "init", "--features", "f.npz"]) == 2
        assert "give one elsewhere: --key FILE" in capfd.readouterr().err
        assert not LOG.exists()
