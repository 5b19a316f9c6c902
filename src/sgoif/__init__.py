"""SG-OIF: find the training data that hurts a model while it trains, and say how far the answer can be trusted."""

from sgoif.data import indexed, split_holdout
from sgoif.errors import SgoifError
from sgoif.monitor import InfluenceMonitor
from sgoif.settings import Settings
from sgoif.table import ScoreTable

__version__ = "0.1.0"
__all__ = ["InfluenceMonitor", "ScoreTable", "Settings", "SgoifError", "indexed", "split_holdout"]
