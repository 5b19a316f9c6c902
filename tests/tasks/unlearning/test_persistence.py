"""What lives on from one week to the next: saved states, and the log that they are brought up to date with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from unlearning_cases import Small, blobs, kinds, make, others, small

from sgoif.errors import StateError
from sgoif.tasks import Unlearner
from sgoif.tasks.unlearning.errors import LogError, RequestError
from sgoif.tasks.unlearning.log import AuditLog, read_log

KEY = bytes(range(32))


class TestOverWeeks:
    def test_a_saved_state_goes_on_where_it_stopped(self, place: Path) -> None:
        unlearner = make()
        unlearner.request("img/1.png", reason="first")
        unlearner.remove()
        pending = unlearner.request(["img/2.png", "img/3.png"])
        unlearner.save("state.npz")
        again = Unlearner.load("state.npz")
        assert again.pending() == [pending]
        assert (again.ids, again.moved, again.last_hash) == (unlearner.ids, unlearner.moved, unlearner.last_hash)
        assert again.settings == unlearner.settings
        torch.testing.assert_close(again.fitted.w, unlearner.fitted.w, rtol=0, atol=0)
        both = [one.remove() for one in (again,)]
        assert both[0].requests == (2,)
        assert kinds()[-1] == "removal"
        with pytest.raises(LogError, match="not where it was left"):
            unlearner.remove()  # the other copy has gone on

    def test_a_deleted_example_leaves_the_state(self, place: Path) -> None:
        features, labels = blobs(30)
        rare = np.float64(123.456789012345)
        features[7] = float(rare)
        unlearner = Unlearner.from_features(features, labels, log=None)
        unlearner.save("before.npz")
        assert rare.tobytes() in (place / "before.npz").read_bytes()
        unlearner.request(7)
        unlearner.remove()
        unlearner.save("after.npz")
        assert rare.tobytes() not in (place / "after.npz").read_bytes()
        assert len(Unlearner.load("after.npz")) == 29

    def test_what_was_logged_but_not_saved_is_done_again(self, place: Path) -> None:
        unlearner = make(log=AuditLog("log.jsonl", key=KEY))
        unlearner.request("img/1.png")
        unlearner.save("state.npz")
        unlearner.request("img/2.png", reason="after the save")
        unlearner.remove([1])
        unlearner.request("img/3.png")
        again = Unlearner.load("state.npz", key=KEY)
        assert (again.ids, again.pending()) == (unlearner.ids, unlearner.pending())
        assert [request.removed for request in again.requests] == [True, False, False]
        torch.testing.assert_close(again.fitted.w, unlearner.fitted.w)
        entry = read_log("log.jsonl")[-1]
        assert (entry.kind, entry.evidence["from"]) == ("recovered", 4)
        again.remove()
        again.save("state.npz")
        length = len(read_log("log.jsonl"))
        Unlearner.load("state.npz", key=KEY)
        assert len(read_log("log.jsonl")) == length  # nothing to do again

    def test_a_crash_between_request_and_decision(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        unlearner = make(log=AuditLog("log.jsonl", key=KEY))
        unlearner.save("state.npz")

        def crash(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Unlearner, "decide", crash)
            with pytest.raises(KeyboardInterrupt):
                unlearner.request("img/4.png")
        again = Unlearner.load("state.npz", key=KEY)
        assert [decision.ids for decision in again.pending()] == [("img/4.png",)]
        assert kinds() == ["opened", "request", "recovered", "decision"]

    def test_a_log_of_another_state(self, place: Path) -> None:
        make().save("state.npz")
        make(log="other.jsonl")
        with pytest.raises(LogError, match="does not belong to the state"):
            Unlearner.load("state.npz", log="other.jsonl")
        (place / "log.jsonl").unlink()
        with pytest.raises(LogError, match=r"is gone; say where"):
            Unlearner.load("state.npz")

    def test_state_and_log_can_move_together(self, place: Path) -> None:
        make().save("state.npz")
        (place / "new").mkdir()
        for name in ("state.npz", "log.jsonl"):
            (place / name).rename(place / "new" / name)
        Unlearner.load(place / "new" / "state.npz").request("img/1.png")
        assert kinds(place / "new" / "log.jsonl")[-1] == "decision"

    def test_a_network_that_was_trained_again_goes_on_with_the_log(self, place: Path) -> None:
        unlearner = make()
        unlearner.request("img/5.png")
        unlearner.save("old.npz")
        features, labels = blobs(80)
        stay = others(80, torch.tensor([5]))
        names = [f"img/{row}.png" for row in stay.tolist()]
        options: dict[str, Any] = {"log": "log.jsonl", "continue_log": True}
        with pytest.raises(RequestError, match=r"1 example of this training set should have been deleted.*img/5.png"):
            Unlearner.from_features(features, labels, [f"img/{row}.png" for row in range(80)], **options)
        again = Unlearner.from_features(features[stay], labels[stay], names, **options)
        assert kinds()[-1] == "retrained"
        assert again.requests == []
        assert again.request("img/6.png").number == 1
        with pytest.raises(LogError, match="older than entry 4 of its log"):
            Unlearner.load("old.npz")

    @pytest.mark.parametrize("damage", ["empty", "cut", "foreign", "version"])
    def test_states_that_cannot_be_read(self, place: Path, damage: str) -> None:
        make(log=None).save("state.npz")
        path = place / "state.npz"
        if damage == "empty":
            path.write_bytes(b"")
        elif damage == "cut":
            path.write_bytes(path.read_bytes()[:-500])
        elif damage == "foreign":
            np.savez(path, x=np.zeros(3))
        else:
            content = path.read_bytes()
            path.write_bytes(content.replace(b'"version": 1', b'"version": 9'))
        with pytest.raises(StateError, match=r"not the state of an unlearner"):
            Unlearner.load(path)

    def test_no_state(self, place: Path) -> None:
        with pytest.raises(StateError, match="there is no state"):
            Unlearner.load("none.npz")

    def test_answers_can_be_written_as_json_and_printed(self, place: Path) -> None:
        unlearner = make()
        decision = unlearner.request("img/1.png")
        removal, check = unlearner.remove(), unlearner.check()
        for answer in (decision, removal, check):
            assert json.loads(json.dumps(answer.record(), allow_nan=False))
            assert len(str(answer)) > 40
        assert repr(unlearner) == "Unlearner: 79 examples, 1 deleted, 0 requests pending"
        head = unlearner.head()
        assert (head.weight.shape, head.bias is not None and head.bias.shape) == ((3, 4), (3,))
        assert isinstance(small(), Small)
