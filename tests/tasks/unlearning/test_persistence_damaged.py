"""States and logs of unlearning with any content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sgoif.core.serialization import load_state, save_state
from sgoif.errors import StateError
from sgoif.tasks.unlearning import Unlearner
from sgoif.tasks.unlearning.errors import LogError
from sgoif.tasks.unlearning.log import AuditLog, read_log, seal, verify_log
from sgoif_bench.faults.readers import _unlearner


def test_an_unlearner_of_features_without_columns(tmp_path: Path) -> None:
    _unlearner(tmp_path)
    state = load_state(tmp_path / "unlearner.npz")
    for change in (
        {"features": state["features"][:, 0]},
        {"w": torch.zeros(())},
        {"requests": [{}]},
        {"log": 3},
        {"last_hash": 5},
        {"class_totals": [1]},
    ):
        save_state(tmp_path / "unlearner.npz", {**state, **change})
        with pytest.raises(StateError, match="not the state of an unlearner"):
            Unlearner.load(tmp_path / "unlearner.npz")


DEEP = "[" * 20_000


@pytest.mark.parametrize("previous", [5, None, ["0" * 64], "\ud800"])
def test_a_log_whose_hashes_are_no_texts(previous: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    AuditLog(path).append("request", "asked", {"request": 1, "ids": ["1"], "reason": ""}, None)
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "previous": previous}) + "\n")
    assert verify_log(path).line == 1
    with pytest.raises(LogError, match="line 1"):
        read_log(path)
    path.write_text(json.dumps({**entry, "evidence": {"ids": [1]}}).replace("[1]", "[1e999]") + "\n")
    assert verify_log(path).line == 1
    path.write_text(DEEP + "\n")
    with pytest.raises(LogError, match="line 1"):
        AuditLog(path).entries()
    assert len(seal("0" * 64, entry)) == 64
