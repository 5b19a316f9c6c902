"""Sets of images as checks see them, made without any image."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from sgoif.findings import Examined
from sgoif.images.measurements import Measurements
from sgoif.tasks.labels.findings import LabelFindings


def labelled_set(
    labels: Sequence[int] | np.ndarray[Any, Any],
    class_names: Sequence[str] = (),
    names: Sequence[str] = (),
    *,
    features: Any = None,
    labels_found: LabelFindings | None = None,
    judged: Any = (),
    **columns: Any,
) -> Examined:
    """Images that are alike in all that is measured but for the columns that are given."""
    given = np.asarray(labels, dtype=np.int64)
    count = len(given)
    measured: dict[str, Any] = {field.name: np.zeros(count) for field in fields(Measurements)}
    measured |= {"border": np.zeros((count, 3)), "taken": np.full(count, np.nan), **columns}
    return Examined(
        names or [f"{number:x}.png" for number in range(count)],
        given,
        class_names or [f"class {number}" for number in range(given.max(initial=0) + 1)],
        Measurements(**measured),
        features=features,
        labels_found=labels_found,
        judged=np.asarray(judged, dtype=np.int64),
    )
