"""Memory over many steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_is_flat_over_ten_thousand_steps() -> None:
    program = [sys.executable, str(HERE.with_name("monitor_memory.py"))]
    done = subprocess.run(program, env=ENVIRONMENT, capture_output=True, text=True, timeout=280, check=True)
    sizes = json.loads(done.stdout)
    print([round(size / 2**20, 1) for size in sizes])
    assert len(sizes) == 10
    assert sizes[-1] <= 1.02 * sizes[0]
