"""The most memory that this process has held."""

from __future__ import annotations

import sys


def resident_peak() -> int | None:
    """Peak resident size in bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
