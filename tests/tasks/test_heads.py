"""One rule for the head, whatever a model does around it: everything that asks gets the layer that gives the answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import TensorDataset

from sgoif import InfluenceMonitor
from sgoif.core.logits import extract_logits
from sgoif.errors import LayerError
from sgoif.tasks import Unlearner
from sgoif.tasks.ood.network import Network
from sgoif.tracking.evaluation import forward
from sgoif.tracking.head_detection import find_head

X, Y = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3


class Model(nn.Module):
    """A body, two heads that always run, and a last word made of them."""

    def __init__(self, answer: Callable[[Tensor, Tensor], Any], beside: int = 3) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, beside)
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x).relu()
        return self.answer(self.first(hidden), self.second(hidden))


def ending(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *parts)


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.div_(2)


class Quiet(nn.Module):
    """Answers without a graph, as a model made for deployment may."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    @torch.no_grad()
    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


HEADS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "the first of two": (lambda: Model(lambda a, b: a), "first"),
    "the second of two": (lambda: Model(lambda a, b: b), "second"),
    "the first of a tuple": (lambda: Model(lambda a, b: (a, b)), "first"),
    "named in a mapping": (lambda: Model(lambda a, b: {"beside": b, "logits": a}), "first"),
    "a field": (lambda: Model(lambda a, b: SimpleNamespace(logits=a, beside=b)), "first"),
    "an auxiliary head": (lambda: Model(lambda a, b: a, beside=5), "first"),
    "with a temperature": (lambda: Model(lambda a, b: a / 2), "first"),
    "with a temperature, beside another size": (lambda: Model(lambda a, b: a / 2, beside=5), "first"),
    "frozen": (lambda: Model(lambda a, b: a).requires_grad_(False), "first"),
    "frozen, with a temperature": (lambda: Model(lambda a, b: a * 3).requires_grad_(False), "first"),
    "without a graph": (lambda: Quiet(Model(lambda a, b: a)), "inner.first"),
    "in a Sequential": (lambda: ending(nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3))), "2.1"),
    "scaled in place": (lambda: ending(nn.Linear(8, 3), Scaled()), "2"),
    "normalised weights": (lambda: ending(parametrizations.weight_norm(nn.Linear(8, 3))), "2"),
    "lazy": (lambda: ending(nn.LazyLinear(3)), "2"),
    "compiled": (lambda: torch.compile(Model(lambda a, b: a), backend="eager"), "first"),
    "on several devices": (lambda: nn.DataParallel(Model(lambda a, b: a)), "first"),
}


@pytest.mark.parametrize("case", HEADS)
def test_sentinel_and_unlearner_take_the_layer_that_gives_the_answer(case: str) -> None:
    make, name = HEADS[case]
    assert Network(make(), X[:1]).head_name == name
    model = make()
    training = model.training
    assert Unlearner.fit(model, TensorDataset(X, Y), log=None).head_name == name
    assert model.training == training
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("case", [case for case in HEADS if "frozen" not in case and case != "without a graph"])
def test_the_monitor_watches_the_same_layer(case: str) -> None:
    make, name = HEADS[case]
    model = make()
    with torch.no_grad():
        model(X)
    monitor = InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=(X, Y))
    teacher = copy.deepcopy(model)
    with monitor.step(torch.arange(len(X))):
        teacher(X)
        nn.functional.cross_entropy(extract_logits(model(X)), Y).backward()
    assert [layer.name.removeprefix("module.") for layer in monitor.layers] == [name]
    assert len(monitor.scores()) == len(X)


def test_without_a_graph_and_with_a_layer_after_it_the_head_is_the_last_that_ran() -> None:
    model = Quiet(Model(lambda a, b: a / 2))
    assert find_head(model, lambda: forward(model, X))[0].name == "inner.second"


def test_a_head_on_positions_is_refused() -> None:
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 4), nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten())
    assert find_head(model, lambda: forward(model, X))[0].name == "1"
    with pytest.raises(LayerError, match=r"'1' has an output of shape \[5, 2, 4\], not one row per input"):
        Network(model, X[:5])
    with pytest.raises(LayerError, match="not one row per input"):
        Unlearner.fit(model, TensorDataset(X, Y), log=None)


def test_a_network_is_not_known_without_an_example_or_a_name() -> None:
    with pytest.raises(LayerError, match="from an example alone"):
        Network(ending(nn.Linear(8, 3)))


def _applied(model: nn.Module) -> tuple[Unlearner, Tensor]:
    unlearner = Unlearner.fit(model, TensorDataset(X, Y), l2=0.01, log=None)
    unlearner.request([1, 2])
    unlearner.remove()
    unlearner.apply_to(model)
    with torch.no_grad():
        return unlearner, forward(model.eval(), X)


def test_the_new_head_is_written_where_the_answer_comes_from() -> None:
    torch.manual_seed(0)
    wrapped = torch.compile(Model(lambda a, b: a / 2), backend="eager")
    beside = wrapped.second.weight.clone()
    unlearner, logits = _applied(wrapped)
    weight, bias = unlearner.head()
    with torch.no_grad():
        hidden = wrapped.body(X).relu().double()
    torch.testing.assert_close(logits.double(), (hidden @ weight.T + bias) / 2, rtol=1e-4, atol=1e-5)
    assert torch.equal(wrapped.second.weight, beside)


@pytest.mark.parametrize(
    "normalise", [parametrizations.weight_norm, parametrizations.spectral_norm, nn.utils.spectral_norm]
)
def test_weights_computed_from_others_are_not_written_in_vain(normalise: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(LayerError, match="would be lost"):
        _applied(ending(normalise(nn.Linear(8, 3))))


def test_weights_that_another_layer_shares_are_left_alone() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body, self.head = nn.Embedding(3, 8), nn.Linear(6, 8), nn.Linear(8, 3)
            self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.head(self.body(x).relu() + self.table.weight[0])
            return answer

    model = Tied()
    before = model.table.weight.detach().clone()
    with pytest.raises(LayerError, match=r"shares its weights with table\.weight"):
        _applied(model)
    assert torch.equal(model.table.weight, before)
    model.head.weight = nn.Parameter(before.clone())
    _applied(model)
    assert torch.equal(model.table.weight, before)


@pytest.mark.parametrize("normalise", [lambda layer: layer, parametrizations.weight_norm])
def test_the_tolerance_follows_the_learning_rate_of_the_head(normalise: Callable[[nn.Module], nn.Module]) -> None:
    def stability(rate: float) -> float:
        model = ending(normalise(nn.Linear(8, 3)))
        biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
        others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
        groups = [{"params": biases, "lr": 0.0}, {"params": others, "lr": rate}]
        with InfluenceMonitor(model, torch.optim.SGD(groups), anchors=(X, Y), refresh_every=1) as monitor:
            for _ in range(3):
                with monitor.step(torch.arange(len(X))):
                    nn.functional.cross_entropy(model(X), Y).backward()
                model.zero_grad()
            return float(monitor.history[-1]["beta"])

    torch.manual_seed(0)
    small = stability(1e-4)
    torch.manual_seed(0)
    assert stability(1e-2) == pytest.approx(100 * small, rel=1e-3)
    assert small > 1e-12
