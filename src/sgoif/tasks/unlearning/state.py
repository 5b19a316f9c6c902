"""What an unlearner holds and does to it: a fitted head, the requests about its examples, and the log of both.

`Unlearner` is what people call; saving (`persistence`) and following a log (`replay`) need no more than this.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sgoif import __version__
from sgoif.tasks.unlearning.entries import Entry
from sgoif.tasks.unlearning.head import HeadData, Objective
from sgoif.tasks.unlearning.influence import QueryEffects, query_effects
from sgoif.tasks.unlearning.inputs import UnlearnerInputs, requested
from sgoif.tasks.unlearning.log import AuditLog
from sgoif.tasks.unlearning.newton import FittedHead, minimise
from sgoif.tasks.unlearning.priority import Counts, Size, judge
from sgoif.tasks.unlearning.records import Check, Decision, Removal, Request
from sgoif.tasks.unlearning.removal import Certificate, RemovedHead, certify, remove_rows
from sgoif.tasks.unlearning.settings import UnlearnerSettings

CERTIFICATE_MARGIN = 100
"""Steps are taken until the certificate is this many times better than the limit, so that intervals are narrow."""


class UnlearnerState:
    """A head, the requests to take examples out of it, and the log that says so."""

    def __init__(
        self,
        fitted: FittedHead,
        given: UnlearnerInputs,
        settings: UnlearnerSettings,
        *,
        head_name: str | None = None,
        single: bool = False,
    ) -> None:
        self.fitted, self.queries, self.settings = fitted, given.queries, settings
        self.ids = list(given.ids)
        """The examples that the head rests on, in the order of the rows."""
        self.class_names = given.class_names
        self.class_totals: list[int] = self._class_counts(slice(None)).tolist()
        """Examples of every class when the network was trained."""
        self.head_name, self.single = head_name, single
        self.requests: list[Request] = []
        self.moved: float | None = None
        """How far the last removal moved the head."""
        self.log: AuditLog | None = None
        self.last_hash: str | None = None
        """Of the last entry of the log."""
        self.proven = False
        """Whether that entry carries a proof; one that is in the log without it later was tampered with."""
        self.saved_hash: str | None = None
        """The same when this was read from a file: an entry later, and the file is out of date."""

    def decide(self, request: Request) -> Decision:
        """Judge a request beside the head as it is now, and log that."""
        removed, effects = self._try_removal(request.ids)
        effect, typical, limits = effects.summary(), self.queries.typical, self.settings.limits
        gone = self._class_counts(self._rows(request.ids))
        totals, everything = np.array(self.class_totals), gone + self._deleted_before(request)
        own, accumulated = (Size.of(counts, totals, self.class_names) for counts in (gone, everything))
        verdict = judge(limits, effect, removed.certificate, typical, own, accumulated, self.queries.kind)
        request.decision = decision = Decision(
            number=request.number,
            ids=request.ids,
            reason=request.reason,
            when=verdict.when,
            urgency=verdict.urgency,
            reasons=verdict.reasons,
            effect=effect,
            certificate=removed.certificate,
            steps=removed.steps,
            logits=removed.certificate.logits(typical),
        )
        evidence = {"request": request.number, "decision": decision.record(), "limits": asdict(limits)}
        self.write("decision", str(decision), evidence)
        return decision

    def _try_removal(self, ids: Sequence[str]) -> tuple[RemovedHead, QueryEffects]:
        """The head without these examples, and what that does to the queries that stay."""
        typical = self.queries.typical
        goal = self.settings.limits.logits / typical / CERTIFICATE_MARGIN if typical > 0 else 0.0
        with in_double(self.fitted.data.device):
            removed = remove_rows(self.fitted, self._rows(ids), steps=self.settings.steps, bound=goal)
            queries = self.queries.without(ids).data
            return removed, query_effects(queries, self.fitted.w, removed.w, removed.certificate.bound)

    def _deleted_before(self, request: Request) -> Counts:
        """Examples of every class that are deleted since the network was trained, or will be before this request."""
        gone: Counts = np.array(self.class_totals) - self._class_counts(slice(None))
        for other in self.requests:
            if not other.removed and other.number < request.number:
                gone = gone + self._class_counts(self._rows(other.ids))
        return gone

    def _class_counts(self, rows: Tensor | slice) -> Counts:
        labels = self.fitted.data.labels[rows].cpu()
        return np.bincount(labels.numpy(), minlength=self.fitted.data.classes)

    def carry_out(self, chosen: Sequence[Request]) -> Removal:
        """Remove the examples of these requests; the log is left to the caller."""
        names = tuple(name for request in chosen for name in request.ids)
        removed, effects = self._try_removal(names)
        stay = torch.ones(len(self.ids), dtype=torch.bool)
        stay[self._rows(names).cpu()] = False
        kept = stay.nonzero().squeeze(1)
        # Features of deleted examples must not live on in the state, so the others are copied.
        data = self.fitted.data.take(kept.to(self.fitted.data.device))
        self.fitted = FittedHead(Objective(data, self.settings.l2), removed.w)
        self.queries = self.queries.without(names)
        self.ids = [self.ids[row] for row in kept.tolist()]
        self._forget_rows()
        self.moved = removed.moved
        for request in chosen:
            request.removed = True
        off = removed.certificate.logits(self.queries.typical)
        return Removal(
            requests=tuple(request.number for request in chosen),
            ids=names,
            certificate=removed.certificate,
            effect=effects.summary(),
            steps=removed.steps,
            moved=removed.moved,
            logits=off,
            holds=off <= self.settings.limits.logits,
            head=self.head_digest(),
        )

    @contextmanager
    def _all_or_nothing(self, chosen: Sequence[Request]) -> Iterator[None]:
        """What cannot be logged is not done."""
        before = self.fitted, self.queries, self.ids, self.moved
        try:
            yield
        except BaseException:
            self.fitted, self.queries, self.ids, self.moved = before
            self._forget_rows()
            for request in chosen:
                request.removed = False
            raise

    def certificate(self) -> Certificate:
        """How far the head can be from the optimum without everything that was removed."""
        return certify(self.fitted.objective, self.fitted.w, self.fitted.gradient)

    def accuracy(self, w: Tensor) -> float:
        """Share of the queries that a head predicts rightly."""
        return float((self.queries.data.logits(w).argmax(1) == self.queries.data.labels).double().mean())

    def head_digest(self) -> str:
        """Changes when any weight of the head does."""
        return digest(self.fitted.w)

    def data_digest(self) -> str:
        """Changes when any example that the head rests on does."""
        named, data = hashlib.sha256(json.dumps(self.ids).encode()).hexdigest(), self.fitted.data
        return hashlib.sha256(f"{named} {digest(data.features, data.labels)}".encode()).hexdigest()

    # --- the log -------------------------------------------------------------------------------------------------

    def write_first(self, earlier: Sequence[Entry], start: Tensor | None) -> None:
        """Add the entry about a head that was just fitted; `start` is the network's own head."""
        known = f"; none of the {len(requested(earlier)):,} examples that were to be deleted so far is among them"
        summary = (
            f"{'A network trained again' if earlier else 'Opened'} on {len(self.ids):,} examples in"
            f" {len(self.class_names)} classes{known if earlier else ''}. The head was fitted to the optimum with an L2"
            f" penalty of {self.settings.l2:g}; removals are judged by {len(self.queries):,} {self.queries.kind}"
            " examples."
        )
        evidence = {
            "mark": secrets.token_hex(8),  # two logs begun alike in one second must not be taken for each other
            "examples": len(self.ids),
            "classes": self.class_names,
            "features": int(self.fitted.data.features.shape[1]),
            "queries": {"count": len(self.queries), "kind": self.queries.kind},
            "l2": self.settings.l2,
            "limits": asdict(self.settings.limits),
            "certificate": self.certificate().record(),
            "accuracy": {
                "head": self.accuracy(self.fitted.w),
                "network": None if start is None else self.accuracy(start),
            },
            "digests": {"data": self.data_digest(), "head": self.head_digest()},
            "versions": {"sgoif": __version__, "torch": torch.__version__},
        }
        self.write("retrained" if earlier else "opened", summary, evidence)

    def write(self, kind: str, summary: str, evidence: dict[str, Any]) -> None:
        """Add an entry to the log."""
        if self.log is not None:
            entry = self.log.append(kind, summary, evidence, after=self.last_hash)
            self.last_hash, self.proven = entry.hash, entry.mac is not None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep others out of the log; raises before anything is done where it is not sound or has moved on."""
        if self.log is None:
            yield
            return
        with self.log.held():
            self.log.check(self.last_hash)
            yield

    # --- inside -------------------------------------------------------------------------------------------------

    @cached_property
    def _row_of(self) -> dict[str, int]:
        """The row of every id."""
        return {name: row for row, name in enumerate(self.ids)}

    def _forget_rows(self) -> None:
        self.__dict__.pop("_row_of", None)

    def _rows(self, ids: Iterable[str]) -> Tensor:
        return torch.tensor([self._row_of[name] for name in ids], device=self.fitted.data.device)

    def __len__(self) -> int:
        return len(self.ids)


def in_double(device: torch.device) -> torch.autocast:
    """float64 stays float64, whatever the caller has switched on."""
    return torch.autocast(device.type, enabled=False)


def digest(*tensors: Tensor) -> str:
    """Changes when any number does."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        for part in tensor.detach().reshape(-1).split(2**24):
            sha.update(part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


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
