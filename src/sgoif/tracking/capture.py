"""Watching layers: the inputs and output gradients of one step.

Hooks are registered once and do nothing until a `PassRecord` is open. During a training step the forward hook of a
watched layer keeps a reference to its input, runs the layer once more with the current direction ψ as its weights,
and asks the *output tensor* (not the module, which would cost a wrapper around every layer) for its gradient δ. When
δ arrives the scores ⟨δ_i, layer(a_i; ψ)⟩ are added up. Nothing is returned to autograd, so training is unchanged.

A checkpointed part of a model (`torch.utils.checkpoint`) runs again in the backward pass. Where it ran with a graph at
first, our hooks hang on those outputs and the second run says nothing new; with `use_reentrant=True` it had none, and
the second run, on a GPU in another thread, is the one to look at.

What a step leaves behind belongs to its record and dies with it: the hooks on outputs do not hold the record, because
the graph they hang on lives as long as the user keeps the loss.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from sgoif.core.interrupts import autocast_set, register, unregister
from sgoif.core.logits import extract_logits, version_of
from sgoif.errors import LayerError, StepError
from sgoif.tracking.head_snapshot import HeadSnapshot
from sgoif.tracking.hooks import OwnHook
from sgoif.tracking.layers.base import WatchedLayer
from sgoif.tracking.pass_record import PassRecord
from sgoif.tracking.validation import Conversions


class _AnchorPass(threading.local):
    """Whose anchors run through a model in this thread."""

    capture: Capture | None = None


_anchor_pass = _AnchorPass()


class OpenRecord:
    """A record while passes of the model fill it; if they are over anchors, no other monitor of it looks on."""

    def __init__(self, capture: Capture, record: PassRecord) -> None:
        self._capture, self.record = capture, record

    def __enter__(self) -> PassRecord:
        self._outer = _anchor_pass.capture
        register(self.restore)
        self._capture.begin(self.record)
        if not self.record.differentiate:
            _anchor_pass.capture = self._capture
        return self.record

    def __exit__(self, *_: object) -> None:
        self.restore()
        unregister(self.restore)

    def restore(self) -> None:
        """Back to what was."""
        _anchor_pass.capture = self._outer
        self._capture.end(self.record)


class Owner(Protocol):
    """Who opened a record and is to end it."""

    @property
    def abandoned(self) -> bool:
        """Whether it never will, because an interrupt came at a bad moment."""


class Capture:
    """Hooks on a model's watched layers, from construction to `close`."""

    def __init__(self, model: nn.Module, layers: Sequence[WatchedLayer]) -> None:
        self.layers = {layer.name: layer for layer in layers}
        self.conversions = Conversions(layers)
        self._head = next(reversed(self.layers), None)
        self._model = model
        self.closed = False
        self.compiled = False
        """Whether layers ran inside a compiled graph, which may use its output buffers again."""
        self.head_only_capture = False
        """Whether a snapshot of the head says all about a step, as far as is known."""
        self.record: PassRecord | HeadSnapshot | None = None
        self._thread = 0
        """The thread that opened the record: a pass of the model in another one is none of its business."""
        self._owner: Callable[[], Owner | None] | None = None
        self._hooks = {name: OwnHook(self._layer_hook(x), self._mark_compiled) for name, x in self.layers.items()}
        self._handles: list[RemovableHandle] = []
        self.hook()

    def open(self, record: PassRecord) -> OpenRecord:
        """Fill `record` from whatever runs inside `with`."""
        return OpenRecord(self, record)

    def begin(self, record: PassRecord | HeadSnapshot, owner: Callable[[], Owner | None] | None = None) -> None:
        """Fill `record` from passes of this thread from now on; its owner, where it has one, may abandon it."""
        if self.record is not None and not self._is_abandoned():
            raise StepError("a step is already open on this monitor; leave its `with` block before opening another")
        self.record, self._thread, self._owner = record, get_ident(), owner

    def end(self, record: PassRecord | HeadSnapshot) -> None:
        """Stop filling `record`, if it is being filled."""
        if self.record is record:
            self.record = None
        record.close()

    def forget(self, owner: Callable[[], Owner | None]) -> None:
        """Stop filling the record of this owner, if one is being filled."""
        if self._owner is owner:
            self.record = self._owner = None

    def _is_abandoned(self) -> bool:
        """Whether nobody will ever end the record."""
        if self._owner is None:
            return False
        owner = self._owner()
        return owner is None or owner.abandoned

    def close_snapshot(self, snapshot: HeadSnapshot) -> PassRecord | None:
        """Stop looking; what there is to say of the step in full where a snapshot was not enough."""
        if self.record is snapshot:
            if snapshot.close():
                self.record, self.head_only_capture = None, snapshot.gradient is not None
                return None
            self._full_record(snapshot)
        record, self.record = self.record, None
        assert isinstance(record, PassRecord)
        record.close()
        return record

    @property
    def reached(self) -> bool:
        """Whether a backward pass has come to the head since a record was opened."""
        record = self.record
        if isinstance(record, HeadSnapshot):
            return record.output is not None and record.output.grad is not None
        return record is not None and self._head is not None and record.reached(self._head)

    def _full_record(self, snapshot: HeadSnapshot) -> PassRecord:
        """A full record in the place of a snapshot, with what that has seen."""
        self.head_only_capture = False
        assert self._head is not None
        self.record = record = snapshot.body or PassRecord()
        record.keep = frozenset({self._head})
        output = snapshot.output
        if snapshot.inputs is not None and output is not None:
            record.seen.add(self._head)
            self._keep(record, self._head, snapshot.inputs.detach(), output)
            if output.grad is not None:
                record.arriving[self._head].append(output.grad)
        return record

    def _listens(self) -> bool:
        """Whether this pass of the model is for the open record: of its thread, and no other monitor's anchors."""
        return self._thread == get_ident() and _anchor_pass.capture in (None, self)

    def close(self) -> None:
        self.unhook()
        self.closed = True

    def hook(self) -> None:
        """Put the hooks on the model, where they are not on it."""
        if self._handles:
            return
        self._handles = [self.layers[name].module.register_forward_hook(hook) for name, hook in self._hooks.items()]
        self._handles.append(self._model.register_forward_hook(OwnHook(self._root_hook)))

    def unhook(self) -> None:
        """Take the hooks off the model; nothing is seen until they are on it again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _layer_hook(self, layer: WatchedLayer) -> Callable[..., Tensor | None]:
        name = layer.name

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
            record = self.record
            if type(record) is HeadSnapshot and name != self._head:
                record = record.body
            if type(record) is PassRecord:
                wanted = name in record.keep or name in record.directions or not record.differentiate
                if not wanted:  # most layers of most steps
                    return None
            # Replicas of DataParallel share the hooks of the original.
            if record is None or module is not layer.module or not (self._listens() or _awaited(record, name)):
                return None
            if type(record) is HeadSnapshot:
                if record.output is not None and _in_backward():
                    return None
                if not self.compiled and record.sees(args, output):
                    return None
                record = self._full_record(record)
            assert isinstance(record, PassRecord)
            if not record.directions:
                return self._observe(record, layer, args, output)
            start = perf_counter()
            replaced = self._observe(record, layer, args, output)
            record.seconds += perf_counter() - start
            return replaced

        return hook

    def _mark_compiled(self) -> None:
        self.compiled = True

    def _observe(self, record: PassRecord, layer: WatchedLayer, args: tuple[Any, ...], output: Any) -> Tensor | None:
        name = layer.name
        if name in record.seen:
            if _in_backward():
                if name in record.without_graph and output.requires_grad:
                    self._watch_output(record, layer, args[0].detach(), output)
                return None
            if self._is_abandoned():
                self.record = None
                return None
            raise LayerError(
                f"layer {name!r} ran twice in one step: shared layers or two forward passes inside one"
                " `with monitor.step(...)` cannot be told apart. Use one forward pass per step, or watch other layers"
                " with layers=[...]"
            )
        record.seen.add(name)
        if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            raise LayerError(f"layer {name!r} must be called with a tensor as its first argument and return a tensor")
        inputs = args[0].detach()
        if record.differentiate and not args[0].requires_grad and name == self._head:
            inputs = inputs.clone()  # it may be the user's own batch, filled anew before the head is scored
        if record.differentiate:
            if not output.requires_grad:  # evaluation inside a step, whose end reports the missing backward pass, or
                record.without_graph.add(name)  # the first run of a checkpointed part
                return None
            self._watch_output(record, layer, inputs, output)
            return None
        record.inputs[name] = inputs
        if output.requires_grad:
            record.edges[name] = get_gradient_edge(output), output.shape
            return None
        # The anchor pass runs without a graph up to the first watched layer; it starts here.
        torch.set_grad_enabled(True)
        leaf = output.detach().requires_grad_(True)
        record.edges[name] = get_gradient_edge(leaf), output.shape
        return leaf.clone()  # a leaf could not be overwritten by an in-place activation

    def _watch_output(self, record: PassRecord, layer: WatchedLayer, inputs: Tensor, output: Tensor) -> None:
        name = layer.name
        if name in record.keep:
            self._keep(record, name, inputs, output)
        if name in record.directions:
            try:
                with torch.no_grad():
                    record.pending[name] = layer.respond(inputs, record.directions[name])
            except RuntimeError as error:
                self.conversions.explain(error)
                raise
            output.register_hook(_scoring(record, name))

    def _keep(self, record: PassRecord, name: str, inputs: Tensor, output: Tensor) -> None:
        record.inputs[name] = inputs
        record.outputs[name] = output.detach()
        record.last_output, record.last_version = output, version_of(output)
        arriving = record.arriving.setdefault(name, [])
        output.register_hook(arriving.append)  # in the middle of a backward pass a function of ours takes longer

    def _root_hook(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        record = self.record
        if record is None or module is not self._model or not self._listens():
            return
        if type(record) is HeadSnapshot:
            if record.is_enough(output):
                return
            record = self._full_record(record)
        assert isinstance(record, PassRecord)
        logits = extract_logits(output)
        if logits is None:
            return
        kind = logits.device.type
        record.autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        if logits is record.last_output and version_of(logits) == record.last_version:
            return
        record.logits = logits.detach()
        if not record.differentiate or not logits.requires_grad:
            return
        weak = ref(record)

        def on_gradient(delta: Tensor) -> None:
            open_record = weak()
            if open_record is not None:
                known = open_record.logits_delta
                open_record.logits_delta = delta.detach() if known is None else known + delta.detach()

        logits.register_hook(on_gradient)


def _in_backward() -> bool:
    """Whether this is part of a backward pass, in which checkpointed parts of a model run again."""
    return torch._C._current_graph_task_id() != -1


def _awaited(record: PassRecord | HeadSnapshot, name: str) -> bool:
    """Whether a layer ran without a graph so far and now runs again, in whatever thread the backward pass has."""
    return type(record) is PassRecord and name in record.without_graph and _in_backward()


def _scoring(record: PassRecord, name: str) -> Callable[[Tensor], None]:
    """A hook that scores the response of a layer when the gradient of its output arrives, while the record is alive."""
    weak = ref(record)

    def on_gradient(delta: Tensor) -> None:
        open_record = weak()
        if open_record is None:
            return
        start, kind = perf_counter(), delta.device.type
        # Entering these contexts costs more than the score, and they are rarely needed here.
        if torch.is_grad_enabled() or torch.is_autocast_enabled(kind):
            with torch.no_grad(), autocast_set(kind):
                open_record.score(name, delta)
        else:
            open_record.score(name, delta)
        open_record.seconds += perf_counter() - start

    return on_gradient
