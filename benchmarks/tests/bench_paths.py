"""Where the repository, the result files and the sources are, and the environment of processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
RESULTS = BENCHMARKS / "results"
SOURCES = os.pathsep.join([str(ROOT / "src"), str(BENCHMARKS)])


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """The environment with both packages, and these folders, to be imported from the sources; one thread."""
    paths = os.pathsep.join([SOURCES, *map(str, folders)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100", **variables}
