"""SG-OIF: find the training data that hurts a model while it trains, and say how far the answer can be trusted."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sgoif.core.version import __version__

if TYPE_CHECKING:
    from sgoif.core.data import indexed, split_holdout
    from sgoif.core.score_table import ScoreTable
    from sgoif.errors import SgoifError
    from sgoif.monitor import InfluenceMonitor
    from sgoif.settings import Settings

__all__ = ["InfluenceMonitor", "ScoreTable", "Settings", "SgoifError", "__version__", "indexed", "split_holdout"]

_HOMES = {
    "InfluenceMonitor": "sgoif.monitor",
    "ScoreTable": "sgoif.core.score_table",
    "Settings": "sgoif.settings",
    "SgoifError": "sgoif.errors",
    "indexed": "sgoif.core.data",
    "split_holdout": "sgoif.core.data",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: help and shell completion should not wait seconds for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
