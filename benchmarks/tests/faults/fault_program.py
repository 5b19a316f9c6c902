"""`sgoif-bench faults` in a process of its own: what forks must not have trained before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench_paths import environment

from sgoif_bench.faults.run import failed


def result_of(folder: Path, *options: str) -> dict[str, Any]:
    """What it printed and wrote, which is the same."""
    out = folder / "faults.json"
    done = subprocess.run(
        [sys.executable, "-m", "sgoif_bench.faults.run", *options, "--out", str(out), "--json"],
        env=environment(COLUMNS="120"), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert out.exists(), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found == json.loads(out.read_text())
    assert done.returncode == failed(found["summary"])
    return found
