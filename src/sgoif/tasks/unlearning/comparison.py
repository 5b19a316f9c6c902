"""A head beside one that was trained again."""

from __future__ import annotations

import time

import torch
from torch.nn.functional import cross_entropy

from sgoif.tasks.unlearning.head import HeadData
from sgoif.tasks.unlearning.newton import FittedHead, minimise
from sgoif.tasks.unlearning.records import Check
from sgoif.tasks.unlearning.removal import certify


def compare_with_retrained(fitted: FittedHead, queries: HeadData, moved: float | None) -> Check:
    """Train a head from zeros on what is left, and compare; `moved` is how far the last removal moved this one."""
    start = time.perf_counter()
    objective, w = fitted.objective, fitted.w
    bound = certify(objective, w, fitted.gradient).bound
    again = minimise(objective)
    slack = certify(objective, again.w, again.gradient).bound
    distance = float(torch.linalg.vector_norm(w - again.w))
    ours, theirs = queries.logits(w), queries.logits(again.w)
    closed = None
    if moved is not None:
        before = moved - distance  # the head before the removal was at least so far from the retrained one
        closed = max(0.0, 1 - distance / before) if before > 0 else 0.0
    return Check(
        distance=distance,
        bound=bound,
        holds=distance <= bound + slack,
        closed=closed,
        largest_logit=float((ours - theirs).abs().max()),
        differing=int((ours.argmax(1) != theirs.argmax(1)).sum()),
        queries=len(queries),
        loss_difference=float(cross_entropy(ours, queries.labels) - cross_entropy(theirs, queries.labels)),
        retrained_gradient=again.gradient_norm,
        seconds=time.perf_counter() - start,
    )
