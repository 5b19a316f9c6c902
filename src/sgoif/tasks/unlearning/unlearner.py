"""Deletion requests for one trained classifier, from the request to the evidence.

The last layer of the network is fitted again, as a convex head on frozen features (`head`). That has one optimum, so
how far a head is from the one trained without some examples can be bounded (`removal`). Requests are judged
(`priority`), carried out together, checked against training the head again, and logged step by step (`log`).
docs/unlearning.md says what is certified and what is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from sgoif.tasks.argument_checks import as_numbers, check_classes
from sgoif.tasks.unlearning import persistence
from sgoif.tasks.unlearning.errors import RequestError
from sgoif.tasks.unlearning.features import ModelHead, read_features
from sgoif.tasks.unlearning.influence import QueryEffects, first_order_influence
from sgoif.tasks.unlearning.inputs import (
    Ids,
    UnlearnerInputs,
    as_id_list,
    check_deleted,
    check_log,
    duplicates,
    find_problem,
    gather_inputs,
)
from sgoif.tasks.unlearning.layer import Head, head_of, layer_for
from sgoif.tasks.unlearning.log import AuditLog, as_log
from sgoif.tasks.unlearning.newton import fit_head
from sgoif.tasks.unlearning.records import Check, Decision, Removal, Request
from sgoif.tasks.unlearning.replay import replay_log
from sgoif.tasks.unlearning.settings import UnlearnerSettings
from sgoif.tasks.unlearning.state import UnlearnerState, compare_with_retrained, in_double
from sgoif.tasks.unlearning.text import counted, few, quoted

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

LOG = "unlearning.jsonl"
LISTED = 1000
"""Most ids that the log repeats of a refused request."""
Place = str | os.PathLike[str]


class Unlearner(UnlearnerState):
    """Requests to delete training examples, and the head without them.

    Made by `fit` from a model and its training data, by `from_monitor`, by `from_features`, or by `load`.

    Example:
        ```python
        from sgoif.tasks import Unlearner

        unlearner = Unlearner.fit(model, train_set, held_out=holdout_set, log="unlearning.jsonl")
        decision = unlearner.request(unlearner.ids[:2], reason="asked by mail")
        print(decision)                                     # what it does, and whether to train again now
        print(unlearner.remove())                           # out of the head, with a certificate
        unlearner.apply_to(model)
        unlearner.save("unlearner.npz")
        ```
    """

    # --- making one ---------------------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        data: Any,
        *,
        ids: Iterable[str | int] | None = None,
        held_out: Any = None,
        class_names: Sequence[str] | None = None,
        log: Place | AuditLog | None = LOG,
        continue_log: bool = False,
        **options: Any,
    ) -> Self:
        """Read the features of a model's training data and fit its last layer to them again.

        The model is not changed; `apply_to` does that.

        Args:
            model: the trained network.
            data: a data set, a loader, or batches (x, y) or (x, y, index), with the transforms of evaluation.
            ids: what examples are called; their indices unless given.
            held_out: labelled examples that the network was not trained on, given like `data`; without them a removal
                is judged by training examples, which says less.
            class_names: one name for every class.
            log: a file, or an `AuditLog` with a key, whose entries then carry proofs; None switches it off.
            continue_log: go on with a log after the network was trained again; examples that should have been deleted
                are refused.
            **options: fields of `UnlearnerSettings`.
        """
        settings, trail = UnlearnerSettings.make(options), as_log(log)
        check_log(trail, continue_log)
        read, head = read_features(model, data)
        held = None if held_out is None else read_features(model, held_out, head)[0]
        names = read.ids if ids is None else as_id_list(ids)
        pair = None if held is None else (held.features, held.labels)
        given = gather_inputs(read.features, read.labels, names, pair, head=head, class_names=class_names)
        return cls._fit(given, settings, trail, head)

    @classmethod
    def from_monitor(
        cls, monitor: InfluenceMonitor, data: Any, *, ids: Iterable[str | int] | None = None, **options: Any
    ) -> Self:
        """The same for the model of a monitor, judged by the monitor's anchors; options as for `fit`."""
        check_classes(monitor, "an unlearner")
        bank = monitor.anchors
        held_out = (
            bank.batch(bank.members[rows]) for rows in torch.arange(len(bank)).split(monitor.gradients.batch_size)
        )
        return cls.fit(monitor.model, data, ids=ids, held_out=held_out, **options)

    @classmethod
    def from_features(
        cls,
        features: Any,
        labels: Any,
        ids: Iterable[str | int] | None = None,
        *,
        held_out: tuple[Any, Any] | None = None,
        classes: int | None = None,
        bias: bool = True,
        class_names: Sequence[str] | None = None,
        log: Place | AuditLog | None = LOG,
        continue_log: bool = False,
        **options: Any,
    ) -> Self:
        """The same from features [n, D] and labels [n] that are there already; `held_out` is such a pair too."""
        settings, trail = UnlearnerSettings.make(options), as_log(log)
        check_log(trail, continue_log)
        x = as_numbers(features, "features must be floating numbers [examples, features]")
        y = as_numbers(labels, "labels must be class numbers, one per example")
        held = None if held_out is None else (torch.as_tensor(held_out[0]), torch.as_tensor(held_out[1]))
        names = [str(number) for number in range(len(x))] if ids is None else as_id_list(ids)
        given = gather_inputs(x, y, names, held, classes=classes, bias=bias, class_names=class_names)
        return cls._fit(given, settings, trail)

    @classmethod
    def _fit(
        cls, given: UnlearnerInputs, settings: UnlearnerSettings, log: AuditLog | None, head: ModelHead | None = None
    ) -> Self:
        """Fit the head and begin, or continue, the log."""
        device = given.data.device
        start = None if head is None else head.start().to(device)
        with in_double(device):
            fitted = fit_head(given.data, settings.l2, start)
        place = {} if head is None else {"head_name": head.name, "single": head.single}
        made = cls(fitted, given, settings, **place)  # type: ignore[arg-type]
        if log is not None:
            with log.held():
                earlier = log.entries() if log.exists() else []
                check_deleted(earlier, made.ids, log)
                made.log, made.last_hash = log, earlier[-1].hash if earlier else None
                made.write_first(earlier, start)
        return made

    # --- what people ask for ------------------------------------------------------------------------------------

    def request(self, ids: Ids, reason: str = "") -> Decision:
        """Ask for examples to be deleted; `remove` then does it, for this and all other pending requests.

        Args:
            ids: one id, or several.
            reason: goes into the log.

        Returns:
            What the deletion does, and whether the network has to be trained again now.
        """
        names = tuple(as_id_list(ids))
        with self._writing():
            if problem := find_problem(names, self._row_of, self.requests, self.queries):
                self.write(
                    "refused",
                    f"A request for {counted(len(names), 'example')} was refused: {problem}.",
                    {"ids": list(names[:LISTED]), "count": len(names), "reason": str(reason), "problem": problem},
                )
                raise RequestError(f"the request was refused: {problem}")
            request = Request(len(self.requests) + 1, names, str(reason))
            self.write(
                "request",
                f"Request {request.number}: delete {counted(len(names), 'example')} ({few(names)})."
                + (f" Reason given: {quoted(request.reason)}." if reason else ""),
                {"request": request.number, "ids": list(names), "reason": request.reason},
            )
            self.requests.append(request)
            return self.decide(request)

    def effect(self, ids: Ids) -> QueryEffects:
        """What deleting examples would do to every query; nothing is requested and nothing is logged."""
        names = as_id_list(ids)
        unknown = [name for name in names if name not in self._row_of]
        if unknown or duplicates(names) or not 0 < len(names) < len(self.ids):
            what = f"there is no {few(unknown)}" if unknown else "name some of the examples, each once"
            raise RequestError(f"the effect cannot be computed: {what}")
        return self._try_removal(names)[1]

    def influence(self) -> Tensor:
        """Predicted change of the mean loss of the queries when each example alone is deleted, in the order of `ids`.

        First order, for all examples at once: good for ranking them. `effect` has intervals.
        """
        with in_double(self.fitted.data.device):
            return first_order_influence(self.fitted, self.queries.data)

    def pending(self) -> list[Decision]:
        """Requests that were not carried out yet, the most urgent first."""
        return _urgent_first(r.decision for r in self.requests if not r.removed)

    def outstanding(self) -> list[Decision]:
        """Requests that call for training the network again, carried out on the head or not."""
        return [d for d in _urgent_first(r.decision for r in self.requests) if d.now]

    def remove(self, requests: int | Iterable[int] | None = None) -> Removal:
        """Take examples out of the head and out of the kept features.

        Args:
            requests: numbers of requests; all pending ones unless given.

        Returns:
            What was removed, with the certificate of the new head.
        """
        with self._writing():
            chosen = self._chosen(requests)
            with self._all_or_nothing(chosen):
                removal = self.carry_out(chosen)
                numbers = ", ".join(map(str, removal.requests))
                self.write(
                    "removal",
                    f"Request {numbers} carried out. {removal}",
                    {"removal": removal.record(), "left": len(self.ids), "digests": {"data": self.data_digest()}},
                )
            for request in self.requests:
                if not request.removed:  # it was judged beside another head
                    self.decide(request)
        return removal

    def _chosen(self, requests: int | Iterable[int] | None) -> list[Request]:
        waiting = {request.number: request for request in self.requests if not request.removed}
        wanted = list(waiting) if requests is None else [requests] if isinstance(requests, int) else list(requests)
        if wrong := [str(number) for number in wanted if number not in waiting]:
            there = ", ".join(map(str, waiting)) or "none"
            raise RequestError(f"there is no pending request {', '.join(wrong)}; pending: {there}")
        if not wanted:
            raise RequestError("there is nothing to remove: no request is pending")
        return [waiting[number] for number in dict.fromkeys(wanted)]

    def check(self) -> Check:
        """Train the head again from zeros without what was deleted, and compare."""
        with self._writing(), in_double(self.fitted.data.device):
            check = compare_with_retrained(self.fitted, self.queries.data, self.moved)
            self.write("check", str(check), {"check": check.record(), "head": self.head_digest()})
        return check

    # --- the head -----------------------------------------------------------------------------------------------

    def head(self) -> Head:
        """The head as it is now, in float64."""
        return head_of(self.fitted, single=self.single)

    @torch.no_grad()
    def apply_to(self, model: nn.Module) -> None:
        """Write the head into the last linear layer of a model, rounded to the precision of that layer."""
        head = self.head()
        layer = layer_for(head, model, self.head_name)
        with self._writing():
            kind = str(layer.weight.dtype)
            evidence = {"head": self.head_digest(), "layer": self.head_name, "dtype": kind}
            self.write("applied", f"The head was written into the model, as {kind}.", evidence)
            layer.weight.copy_(head.weight)
            if head.bias is not None:
                layer.bias.copy_(head.bias)

    # --- over weeks ---------------------------------------------------------------------------------------------

    def save(self, path: Place) -> None:
        """Write everything but the log, atomically and without pickle. Deleted examples are in it by name alone."""
        persistence.save(self, Path(path))

    @classmethod
    def load(
        cls,
        path: Place,
        *,
        log: Place | AuditLog | None = None,
        key: bytes | None = None,
        replay: bool = True,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Read what `save` wrote. What the log says was done since then is done again, and that is logged.

        Args:
            path: the saved state.
            log: where the log is now, if it was moved.
            key: that of the log; without it, a log that has gone on is refused.
            replay: False reads the state as it was saved and leaves the log alone.
            device: where the head is computed.
        """
        made = persistence.load(cls, Path(path), torch.device(device))
        made.log = as_log(made.log if log is None else log, key)
        made.saved_hash = made.last_hash
        if made.log is not None and replay:
            replay_log(made, made.log, Path(path))
        return made

    def __repr__(self) -> str:
        waiting = sum(not request.removed for request in self.requests)
        return (
            f"Unlearner: {len(self.ids):,} examples, {sum(self.class_totals) - len(self.ids):,} deleted,"
            f" {counted(waiting, 'request')} pending"
        )


def _urgent_first(decisions: Iterable[Decision | None]) -> list[Decision]:
    found = [decision for decision in decisions if decision is not None]
    return sorted(found, key=lambda decision: (-decision.urgency, decision.number))
