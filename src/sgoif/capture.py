"""Watching layers: the inputs and output gradients of one step.

Hooks are registered once and do nothing until a `Record` is open. During a training step the forward hook of a
watched layer keeps a reference to its input, runs the layer once more with the current direction ψ as its weights,
and asks the *output tensor* (not the module, which would cost a wrapper around every layer) for its gradient δ. When
δ arrives the scores ⟨δ_i, layer(a_i; ψ)⟩ are added up. Nothing is returned to autograd, so training is unchanged.

What a step leaves behind belongs to its record and dies with it: the hooks on outputs do not hold the record, because
the graph they hang on lives as long as the user keeps the loss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from time import perf_counter
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from sgoif.curvature.base import Factors
from sgoif.errors import LayerError, StepError
from sgoif.glimpse import Glimpse
from sgoif.layers import Response, WatchedLayer, is_supported, watch

Hook = TypeVar("Hook", bound=Callable[..., Any])


def uncompiled(hook: Hook, mark: Callable[[], None] | None = None) -> Hook:
    """Keep a hook out of compiled graphs, calling `mark` there; elsewhere the guard would cost more than the hook."""

    def marked(*args: Any) -> Any:
        if mark is not None:
            mark()
        return hook(*args)

    disabled = torch.compiler.disable(marked)

    def call(*args: Any) -> Any:
        return disabled(*args) if torch.compiler.is_compiling() else hook(*args)

    return call  # type: ignore[return-value]


class OwnHook:
    """A hook of one model, kept out of compiled graphs.

    Pickled or copied with the model, it becomes one that does nothing and needs nothing of ours.
    """

    def __init__(self, hook: Callable[..., Any], mark: Callable[[], None] | None = None) -> None:
        self._hook, self._uncompiled = hook, uncompiled(hook, mark)

    def __call__(self, *args: Any) -> Any:
        return self._uncompiled(*args) if torch.compiler.is_compiling() else self._hook(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


@dataclass
class Record:
    """What one forward and backward pass leaves behind."""

    directions: Mapping[str, Tensor] = field(default_factory=dict)
    """Full weight matrices ψ of the layers whose response is scored on the fly."""
    keep: frozenset[str] = frozenset()
    """Layers whose inputs and output gradients are kept."""
    differentiate: bool = True
    """Ask outputs for their gradients through hooks (training); False keeps their places in the graph (anchors)."""
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    edges: dict[str, tuple[GradientEdge, torch.Size]] = field(default_factory=dict)
    """Where outputs stand in the graph, and their shapes. The tensors may be overwritten, by an in-place ReLU, say."""
    pending: dict[str, Response] = field(default_factory=dict)
    """layer(a; ψ) of the layers whose δ is still to come."""
    arriving: dict[str, list[Tensor]] = field(default_factory=dict)
    """Gradients of the outputs of layers that are kept, one for each backward pass so far."""
    deltas: dict[str, Tensor] = field(default_factory=dict)
    """Gradients of the outputs of layers that are kept, once the record is closed."""
    seen: set[str] = field(default_factory=set)
    response: Tensor | None = None
    """Σ over scored layers of ⟨δ_i, layer(a_i; ψ)⟩, [B]."""
    last_output: Tensor | None = None
    """Output of the layer that ran last among those kept; where it is the model's own, it need not be watched twice."""
    last_version: int = 0
    """How often that had been overwritten by then."""
    logits: Tensor | None = None
    logits_delta: Tensor | None = None
    autocast: torch.dtype | None = None
    seconds: float = 0.0
    """Time spent in hooks, where they score."""

    def output_gradients(self, loss: Tensor, names: Sequence[str]) -> list[Tensor]:
        """∂loss/∂output of these layers, zero where the loss does not depend on one (anchors)."""
        edges = [self.edges[name] for name in names]
        if not loss.requires_grad:
            raise LayerError(
                f"the model's answer does not depend on the watched layers ({_some(names)}). Name layers it depends on"
                " with layers=[...]"
            )
        found = torch.autograd.grad(loss, [edge for edge, _ in edges], allow_unused=True)
        return [
            loss.new_zeros(shape) if delta is None else delta for delta, (_, shape) in zip(found, edges, strict=True)
        ]

    def score(self, name: str, delta: Tensor) -> None:
        """Add what a layer's output gradient says about its response; several backward passes add up."""
        score = self.pending[name].dot(delta)
        self.response = score if self.response is None else self.response + score

    def reached(self, name: str) -> bool:
        """Whether a backward pass has come to a layer that is kept."""
        return bool(self.arriving.get(name))

    def close(self) -> None:
        """Take the gradients that have arrived; those of several backward passes add up.

        Hooks hang on the graph, which lives as long as the user keeps the loss; nothing of the step stays in them.
        """
        for name, found in self.arriving.items():
            if found:
                delta = found[0] if len(found) == 1 else torch.stack(found).sum(0)
                self.deltas[name] = delta.detach()
                found.clear()

    def unweigh(self, weights: Tensor) -> None:
        """Undo what the loss of each example was multiplied with, so that scores are those of the plain losses."""

        def undone(values: Tensor) -> Tensor:
            return values.float() / weights.view(-1, *[1] * (values.dim() - 1))

        self.deltas = {name: undone(delta) for name, delta in self.deltas.items()}
        if self.logits_delta is not None:
            self.logits_delta = undone(self.logits_delta)
        if self.response is not None:
            self.response = undone(self.response)

    def factors(self, layer: WatchedLayer, scale: Tensor, count: int) -> Factors:
        """Factors of the first `count` examples, δ divided by `scale`; zero for a layer that got no gradient."""
        if layer.name not in self.deltas:
            return layer.zero_factors(count)
        inputs, delta = self.inputs[layer.name], self.deltas[layer.name]
        return layer.first_factors(inputs, delta.float() / scale, count)

    def is_brief(self, head: str, classes: int) -> bool:
        """Whether the head alone says all there is to say: the model answered with its output, still as it was."""
        output = self.outputs.get(head)
        if output is None or self.logits is not None or version_of(output) != self.last_version:
            return False
        return output.dim() == 2 and output.shape[1] == classes

    def classifier_output(self, head: str, classes: int) -> tuple[Tensor, Tensor]:
        """Logits and their gradients: the model's output, or the head's where that was not called or is something else.

        A model may answer with its loss alone, or first.
        """
        for logits, delta in ((self.logits, self.logits_delta), (self.outputs.get(head), self.deltas.get(head))):
            if logits is None or delta is None or logits.dim() not in (1, 2):
                continue
            if logits.shape[1:] == (classes,):
                return logits, delta
            if is_single(logits) and classes == 2:
                delta = delta.reshape(-1, 1)
                return two_classes(logits), torch.cat([-delta, delta], dim=1)
        raise StepError("the logits of this step were not seen: call the model itself, model(x), inside the step")


def extract_logits(output: Any) -> Tensor | None:
    """The logits in a model's output: a tensor, the first entry of a tuple, or the field `logits`."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def version_of(tensor: Tensor) -> int:
    """How often a tensor was overwritten; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version


_anchor_pass_of: list[Capture] = []


def is_single(logits: Tensor) -> bool:
    """Whether this is one logit per example, as a two-class model with a sigmoid gives."""
    return logits.dim() == 1 or (logits.dim() == 2 and logits.shape[1] == 1)


def two_classes(logits: Tensor) -> Tensor:
    """A single logit z as the logits [0, z] of two classes, whose softmax is the sigmoid; others as they are."""
    if not is_single(logits):
        return logits
    logits = logits.reshape(-1, 1)
    return torch.cat([torch.zeros_like(logits), logits], dim=1)


class Opened:
    """A record while it is filled. A plain object: it is made in every step, and a generator would take longer."""

    def __init__(self, capture: Capture, record: Record) -> None:
        self._capture, self._record = capture, record

    def __enter__(self) -> Record:
        self._capture.begin(self._record)
        return self._record

    def __exit__(self, *_: object) -> None:
        self._capture.end(self._record)


class Capture:
    """Hooks on a model's watched layers, from construction to `close`."""

    def __init__(self, model: nn.Module, layers: Sequence[WatchedLayer]) -> None:
        self.layers = {layer.name: layer for layer in layers}
        self._head = next(reversed(self.layers), None)
        self._model = model
        self.closed = False
        self.compiled = False
        """Whether layers ran inside a compiled graph, which may use its output buffers again."""
        self.brief = False
        """Whether a glimpse of the head says all about a step, as far as is known."""
        self._record: Record | Glimpse | None = None
        self._handles: list[RemovableHandle] = []
        self.hook()

    def open(self, record: Record) -> Opened:
        """Fill `record` from whatever runs inside `with`."""
        return Opened(self, record)

    def begin(self, record: Record | Glimpse) -> None:
        """Fill `record` from now on."""
        if self._record is not None:
            raise StepError("a step is already open on this monitor; leave its `with` block before opening another")
        self._record = record
        if not record.differentiate:
            _anchor_pass_of.append(self)

    def end(self, record: Record) -> None:
        """Stop filling `record`."""
        self._record = None
        record.close()
        if not record.differentiate:
            _anchor_pass_of.pop()

    def pass_on(self, glimpse: Glimpse) -> Record | None:
        """Stop looking; what there is to say of the step in full where a glimpse was not enough."""
        if self._record is glimpse:
            if glimpse.close():
                self._record, self.brief = None, glimpse.gradient is not None
                return None
            self._widened(glimpse)
        record, self._record = self._record, None
        assert isinstance(record, Record)
        record.close()
        return record

    @property
    def reached(self) -> bool:
        """Whether a backward pass has come to the head since a record was opened."""
        record = self._record
        if isinstance(record, Glimpse):
            return record.output is not None and record.output.grad is not None
        return record is not None and self._head is not None and record.reached(self._head)

    def _widened(self, glimpse: Glimpse) -> Record:
        """A full record in the place of a glimpse, with what that has seen."""
        self.brief = False
        assert self._head is not None
        self._record = record = Record(keep=frozenset({self._head}))
        output = glimpse.output
        if glimpse.inputs is not None and output is not None:
            record.seen.add(self._head)
            self._keep(record, self._head, glimpse.inputs.detach(), output)
            if output.grad is not None:
                record.arriving[self._head].append(output.grad)
        return record

    @property
    def _listening(self) -> bool:
        """Whether no other monitor of the same model is looking at its anchors."""
        return not _anchor_pass_of or _anchor_pass_of[-1] is self

    def close(self) -> None:
        self.unhook()
        self.closed = True

    def hook(self) -> None:
        """Put the hooks on the model, where they are not on it."""
        if not self._handles:
            for layer in self.layers.values():
                hook = OwnHook(self._layer_hook(layer), self._mark_compiled)
                self._handles.append(layer.module.register_forward_hook(hook))
            self._handles.append(self._model.register_forward_hook(OwnHook(self._root_hook)))

    def unhook(self) -> None:
        """Take the hooks off the model; nothing is seen until they are on it again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _layer_hook(self, layer: WatchedLayer) -> Callable[..., Tensor | None]:
        name = layer.name

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
            record = self._record
            if type(record) is Record:
                wanted = name in record.keep or name in record.directions or not record.differentiate
                if not wanted:  # most layers of most steps
                    return None
            # Replicas of DataParallel share the hooks of the original.
            if record is None or module is not layer.module or not self._listening:
                return None
            if type(record) is Glimpse:
                if not self.compiled and record.sees(args, output):
                    return None
                record = self._widened(record)
            assert isinstance(record, Record)
            if not record.directions:
                return self._observe(record, layer, args, output)
            start = perf_counter()
            replaced = self._observe(record, layer, args, output)
            record.seconds += perf_counter() - start
            return replaced

        return hook

    def _mark_compiled(self) -> None:
        self.compiled = True

    def _observe(self, record: Record, layer: WatchedLayer, args: tuple[Any, ...], output: Any) -> Tensor | None:
        name = layer.name
        if name in record.seen:
            raise LayerError(
                f"layer {name!r} ran twice in one step: shared layers, two forward passes or activation checkpointing"
                " inside one `with monitor.step(...)` cannot be told apart. Use one forward pass per step, or watch"
                " other layers with layers=[...]"
            )
        record.seen.add(name)
        if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            raise LayerError(f"layer {name!r} must be called with a tensor as its first argument and return a tensor")
        inputs = args[0].detach()
        if record.differentiate and not args[0].requires_grad and name == self._head:
            inputs = inputs.clone()  # it may be the user's own batch, filled anew before the head is scored
        if record.differentiate:
            if not output.requires_grad:
                return None  # evaluation inside a step; its end reports the missing backward pass
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

    def _watch_output(self, record: Record, layer: WatchedLayer, inputs: Tensor, output: Tensor) -> None:
        name = layer.name
        if name in record.keep:
            self._keep(record, name, inputs, output)
        if name in record.directions:
            with torch.no_grad():
                record.pending[name] = layer.respond(inputs, record.directions[name])
            output.register_hook(_scoring(record, name))

    def _keep(self, record: Record, name: str, inputs: Tensor, output: Tensor) -> None:
        record.inputs[name] = inputs
        record.outputs[name] = output.detach()
        record.last_output, record.last_version = output, version_of(output)
        arriving: list[Tensor] = []
        record.arriving[name] = arriving
        output.register_hook(arriving.append)  # in the middle of a backward pass a function of ours takes longer

    def _root_hook(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        record = self._record
        if record is None or module is not self._model or not self._listening:
            return
        if type(record) is Glimpse:
            if record.is_enough(output):
                return
            record = self._widened(record)
        assert isinstance(record, Record)
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


def _scoring(record: Record, name: str) -> Callable[[Tensor], None]:
    """A hook that scores the response of a layer when the gradient of its output arrives, while the record is alive."""
    weak = ref(record)

    def on_gradient(delta: Tensor) -> None:
        open_record = weak()
        if open_record is None:
            return
        start, kind = perf_counter(), delta.device.type
        # Entering these contexts costs more than the score, and they are rarely needed here.
        if torch.is_grad_enabled() or torch.is_autocast_enabled(kind):
            with torch.no_grad(), torch.autocast(kind, enabled=False):
                open_record.score(name, delta)
        else:
            open_record.score(name, delta)
        open_record.seconds += perf_counter() - start

    return on_gradient


class Call(NamedTuple):
    """A layer that ran: its name, the module, the shape of its output, and whether that is what the model answers."""

    name: str
    module: nn.Module
    shape: torch.Size
    answers: bool = False


_MAPS = (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)
_NUMBERED = re.compile(r".*?\d(?=\.|$)")


def trace(model: nn.Module, run: Callable[[], Tensor]) -> tuple[list[Call], Tensor]:
    """Supported modules in the order in which `run` calls them, and the logits that it returns."""
    ran: list[tuple[Call, Tensor]] = []

    def recorder(name: str) -> Callable[..., None]:
        @uncompiled
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                ran.append((Call(name, module, output.shape), output.detach()))

        return hook

    supported = [(name, module) for name, module in model.named_modules() if is_supported(module)]
    handles = [module.register_forward_hook(recorder(name)) for name, module in supported]
    try:
        logits = run()
    finally:
        for handle in handles:
            handle.remove()
    return [call._replace(answers=same(output, logits)) for call, output in ran], logits


def same(output: Tensor, logits: Tensor) -> bool:
    """Whether they are one tensor, or views of one."""
    return output.numel() == logits.numel() and output.data_ptr() == logits.data_ptr()


def choose_layers(calls: Sequence[Call], layers: str | Sequence[str], classes: int, batch: int) -> list[WatchedLayer]:
    """The watched layers, in the order of the forward pass, the head last.

    "head" is the last linear layer that ran, in a model with several heads that whose output is the answer (or, in an
    all-convolutional net, the last convolution with one channel per class); "last-stage" adds what ran from the final
    resolution of a convolutional net on, or in the last block of another; "all" is every supported layer; anything else
    is a name or a pattern such as "layer4.*". Layers whose output does not have the batch of `batch` examples on its
    first axis (an embedding of positions, a layer that sees the tokens of all examples in one row) have no gradient of
    single examples and are left out.
    """
    shared = {call.name for call in calls if not call.shape or call.shape[0] != batch}
    calls = [call for call in calls if call.name not in shared]
    ran = {call.name: call.module for call in calls}
    head = _head(calls, classes)
    if layers == "head":
        chosen = [head] if head is not None else []
    elif layers == "last-stage":
        chosen = _last_stage(calls, head) if head is not None else []
    elif layers == "all":
        chosen = list(ran)
    else:
        patterns = [layers] if isinstance(layers, str) else list(layers)
        chosen = [name for name in ran if any(fnmatchcase(name, pattern) for pattern in patterns)]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in ran):
                raise LayerError(
                    f"no layer that can be watched matches {pattern!r}. Layers of this model: {_some(list(ran))}"
                    f"{_left_out(shared)}"
                )
    if not chosen:
        raise LayerError(
            "no layer to watch was found: the model ran no trainable Linear, Conv2d, Embedding or normalisation layer"
            f" that fits layers={layers!r}. Layers it ran: {_some(list(ran))}{_left_out(shared)}. Unfreeze the head"
            " (requires_grad_(True)) or name layers with layers=[...]"
        )
    counts = {name: sum(call.name == name for call in calls) for name in chosen}
    twice = [name for name in chosen if counts[name] > 1]
    if twice:
        raise LayerError(
            f"layer {twice[0]!r} is used {counts[twice[0]]} times in one forward pass; shared layers cannot be watched."
            " Name other layers with layers=[...]"
        )
    # Monitors take the last layer for the head; in a model with several of them another may have run after it.
    ordered = sorted((name for name in ran if name in set(chosen)), key=lambda name: name == head)
    return [watch(name, ran[name]) for name in ordered]


def _head(calls: Sequence[Call], classes: int) -> str | None:
    linear = [call for call in calls if isinstance(call.module, nn.Linear)]
    if linear:
        return ([call for call in linear if call.answers] or linear)[-1].name
    conv = [call.name for call in calls if isinstance(call.module, nn.Conv2d) and call.module.out_channels == classes]
    return conv[-1] if conv else None


def _last_stage(calls: Sequence[Call], head: str) -> list[str]:
    names = [call.name for call in calls]
    before = calls[: names.index(head)]
    if not before:
        return [head]
    maps = [call.shape[2:] if isinstance(call.module, _MAPS) and len(call.shape) == 4 else None for call in before]
    last = max((number for number, size in enumerate(maps) if size is not None), default=-1)
    if last >= 0 and all(len(call.shape) == 2 for call in before[last + 1 :]):
        return [before[n].name for n, size in enumerate(maps) if size == maps[last] or n > last] + [head]
    # Without feature maps: the outermost numbered part of the last layer that has one, such as "blocks.11".
    prefixes = [match.group() for call in before if (match := _NUMBERED.match(call.name))]
    prefix = prefixes[-1] if prefixes else before[-1].name
    own = {prefix, before[-1].name}
    return [call.name for call in before if call.name in own or call.name.startswith(prefix + ".")] + [head]


def _some(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(names[:most]) or "none"
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


def _left_out(shared: set[str]) -> str:
    if not shared:
        return ""
    return f" (left out, because the first axis of their output is not the batch: {_some(sorted(shared))})"
