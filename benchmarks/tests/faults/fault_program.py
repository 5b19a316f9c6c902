"""`sgoif-bench faults` in a process of its own: what forks must not have trained before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from warm_processes import python

from sgoif_bench.faults.run import failed

PROGRAM = "import sys; from sgoif_bench.faults.run import main; sys.exit(main(sys.argv[1:]))"


def result_of(folder: Path, *options: str) -> dict[str, Any]:
    """What it printed and wrote, which is the same."""
    out = folder / "faults.json"
    process = python(PROGRAM, *options, "--out", str(out), "--json", NO_COLOR="1", COLUMNS="120")
    try:
        told, messages = process.communicate(timeout=280)
    finally:
        process.kill()
    assert out.exists(), messages
    found: dict[str, Any] = json.loads(told)
    assert found == json.loads(out.read_text())
    assert process.returncode == failed(found["summary"])
    return found
