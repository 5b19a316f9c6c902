"""Small runs of the corpus, made up for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif_bench.errors import SIGNALS


def known(count: int = 400, classes: int = 4, rate: float = 0.2, seed: int = 0) -> dict[str, Any]:
    """What a good model would know: wrong labels have large losses and little probability."""
    random = np.random.default_rng(seed)
    true = random.integers(0, classes, count)
    wrong = random.random(count) < rate
    given = np.where(wrong, (true + random.integers(1, classes, count)) % classes, true)
    logits = random.normal(0, 0.7, (count, classes))
    logits[np.arange(count), true] += 3
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    held = np.arange(count) % 4 == 0

    def evidence(rows: np.ndarray[Any, Any]) -> Evidence:
        y, some = given[rows], p[rows]
        own = some[np.arange(len(rows)), y]
        others = np.where(np.arange(classes) == y[:, None], -np.inf, some)
        return Evidence(
            index=rows,
            given=y,
            influence=-own + random.normal(0, 0.1, len(rows)),
            margin=own - others.max(1),
            logit_margin=np.log(own) - np.log(others.max(1)),
            loss=-np.log(own),
            groups=Rows(some - own[:, None]),
            classes=Rows(some),
        )

    training = evidence(np.flatnonzero(~held))
    signals = dict(zip(SIGNALS, (training.loss, -training.logit_margin, -training.margin), strict=True))
    return {
        "training": training,
        "anchors": evidence(np.flatnonzero(held)),
        "true": true,
        "given": given,
        "rows": training.index,
        "halves": np.stack([training.influence, training.influence], 1),
        "final_loss": training.loss,
        **{f"signal_{name}": values for name, values in signals.items()},
    }


def about(name: str, of: str, agreement: float = 0.9) -> dict[str, Any]:
    """Which run it was."""
    return {"name": name, "set": of, "noise": "symmetric-20", "agreement": agreement}
