"""What checks look at, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sgoif.findings.check import Examined
from sgoif.images.measurements import Measurements

CLASSES = ("cat", "dog", "wolf")


def examined(
    names: Sequence[str],
    labels: Sequence[int] | None = None,
    *,
    splits: Sequence[str] = (),
    near_copies: Sequence[Sequence[int]] = (),
    features: Any = None,
    content: Sequence[int] | None = None,
    **measured: Any,
) -> Examined:
    """Images of 10 × 10 pixels in the first class, each unlike the others, but for what is given."""
    count = len(names)
    columns: dict[str, Any] = {
        name: np.zeros(count, np.float32)
        for name in ("brightness", "darkest", "brightest", "contrast", "entropy", "sharpness", "saturation")
    }
    columns |= {
        "width": np.full(count, 10, np.int32),
        "height": np.full(count, 10, np.int32),
        "file_bytes": np.full(count, 100, np.int64),
        "format": np.full(count, b"PNG", "S9"),
        "grey": np.zeros(count, bool),
        "colour": np.zeros((count, 3), np.float32),
        "border": np.zeros((count, 3), np.float32),
        "border_spread": np.zeros(count, np.float32),
        "hash": np.zeros(count, np.uint64),
        "thumbnail": np.zeros((count, 8, 8, 3), np.uint8),
        "taken": np.full(count, np.nan),
    }
    columns |= {name: np.asarray(values, columns[name].dtype) for name, values in measured.items()}
    digests = np.zeros((count, 2), np.uint64)
    digests[:, 0] = range(count) if content is None else content
    return Examined(
        names,
        np.asarray([0] * count if labels is None else labels, np.int64),
        CLASSES,
        Measurements(content=digests.view(np.uint8).reshape(count, 16), **columns),
        splits=splits,
        near_copies=near_copies,
        features=features,
    )
