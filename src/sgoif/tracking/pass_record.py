"""What one forward and backward pass leaves behind, filled by the hooks of `capture`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sgoif.core.logits import version_of
from sgoif.core.objective import Objective
from sgoif.curvature.base import Factors
from sgoif.errors import LayerError, StepError, some_of
from sgoif.tracking.layers.base import Response, WatchedLayer


@dataclass
class PassRecord:
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
    without_graph: set[str] = field(default_factory=set)
    """Layers that ran, but not to be differentiated."""
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
                f"the model's answer does not depend on the watched layers ({some_of(names)}). Name layers it depends"
                " on with layers=[...]"
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

    def head_suffices(self, head: str, classes: int) -> bool:
        """Whether the head alone says all there is to say: the model answered with its output, still as it was."""
        output = self.outputs.get(head)
        if output is None or self.logits is not None or version_of(output) != self.last_version:
            return False
        return output.dim() == 2 and output.shape[1] == classes

    def answer(self, head: str, objective: Objective, count: int) -> tuple[Tensor, Tensor]:
        """Outputs and their gradients: the model's, or the head's where that was not called or is something else.

        A model may answer with its loss alone, or first.
        """
        for output, delta in ((self.logits, self.logits_delta), (self.outputs.get(head), self.deltas.get(head))):
            found = None if output is None or delta is None else objective.answer(output, count)
            if found is not None and delta is not None:
                return found, objective.gradient_of_answer(delta, count)
        raise StepError("the logits of this step were not seen: call the model itself, model(x), inside the step")
