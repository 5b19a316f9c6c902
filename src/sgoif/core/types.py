"""Names of types that many modules share."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Indices = np.ndarray[Any, np.dtype[np.int64]]
"""Numbers of examples."""
Flags = np.ndarray[Any, np.dtype[np.bool_]]
NO_INDICES: Indices = np.zeros(0, dtype=np.int64)
