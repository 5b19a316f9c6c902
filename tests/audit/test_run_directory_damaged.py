"""Run records and checkpoints with any content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sgoif.audit.errors import RunDirectoryError
from sgoif.audit.run_directory import claim
from sgoif.audit.settings import AuditSettings
from sgoif.core.serialization import save_state

DEEP = "[" * 20_000


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", DEEP.encode(), b'{"settings": 3, "digest": ""}', b'{"settings": {}, "digest": ""}', b"[]"]
)
def test_a_run_record_of_any_kind(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes(content)
    with (
        pytest.raises(RunDirectoryError, match=r"run\.json is damaged"),
        claim(AuditSettings(tmp_path, out=tmp_path / "run"), resume=True),
    ):
        pass


@pytest.mark.parametrize("step", ["three", None, [1], 1e999])
def test_a_checkpoint_whose_step_is_no_number_is_passed_over(step: Any, tmp_path: Path) -> None:
    with claim(AuditSettings(tmp_path, out=tmp_path / "run"), resume=True) as directory:
        directory.save({"step": 4})
        save_state(tmp_path / "run" / "checkpoint-incoming.npz", {"step": step})
        state, problems = directory.load()
    assert state == {"step": 4}
    assert len(problems) == 1
