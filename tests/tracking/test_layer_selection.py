"""Which layers are watched, and what is said when none can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import (
    CLASSES,
    Flipped,
    assert_scores,
    copied_gradients,
    func_gradients,
    make_labels,
    make_monitor,
    train_step,
)
from torch import Tensor, nn

from sgoif import InfluenceMonitor
from sgoif.curvature import ExactGGN
from sgoif.errors import LayerError, SettingError, StepError
from sgoif.tracking.evaluation import forward
from sgoif.tracking.functional_model import watched_output
from sgoif.tracking.layer_selection import choose_layers, trace
from sgoif_bench.models import ResNet9, digits_net, resnet18_cifar, small_cnn, tiny_vit


def names(model: nn.Module, layers: Any, *shape: int, classes: int = CLASSES) -> list[str]:
    model.eval()
    with torch.no_grad():
        calls, _ = trace(model, lambda: forward(model, torch.randn(2, *shape)))
    return [layer.name for layer in choose_layers(calls, layers, classes, 2)]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES), nn.Identity())


class Named(nn.Module):
    """Layers that are registered in another order than they run."""

    def __init__(self) -> None:
        super().__init__()
        self.fc3 = nn.Linear(5, CLASSES)
        self.fc2 = nn.Linear(6, 5)
        self.unused = nn.Linear(9, 9)
        self.fc1 = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Attentive(nn.Module):
    """Attention from torch, which uses the weights of `out_proj` without calling it; and learned positions."""

    def __init__(self, tokens: int = 5) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.positions = nn.Embedding(tokens, 8)
        self.blocks = nn.ModuleList([self._block(), self._block()])
        self.head = nn.Linear(8, CLASSES)

    @staticmethod
    def _block() -> nn.ModuleDict:
        return nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2, batch_first=True), "norm": nn.LayerNorm(8)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            attention, norm = block["attention"], block["norm"]
            x = norm(x + attention(x, x, x, need_weights=False)[0])
        return self.head(x.mean(1))


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (mlp(), (4,), "4"),
        (Named(), (4,), "fc3"),
        (nn.Linear(4, CLASSES), (4,), ""),
        (small_cnn(2, CLASSES, 4), (2, 8, 8), "5"),
        (digits_net(CLASSES, 4), (1, 8, 8), "6"),
        (ResNet9(2, CLASSES), (2, 8, 8), "head"),
        (resnet18_cifar(2, CLASSES), (2, 8, 8), "head"),
        (tiny_vit(2, CLASSES, image=8, width=8, depth=1), (2, 8, 8), "head"),
        (Attentive(), (5, 4), "head"),
        (Flipped(), (2, 5, 5), "classifier"),
    ],
    ids=["mlp", "order_of_running", "bare_linear", "small_cnn", "digits", "resnet9", "resnet18", "vit", "mha", "conv"],
)
def test_head(model: nn.Module, shape: tuple[int, ...], expected: str) -> None:
    assert names(model, "head", *shape) == [expected]


class TwoHeads(nn.Module):
    """A second head beside the one that answers, of the same size and later in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.main, self.beside = nn.Linear(4, 6), nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.body(x))
        return self.main(features), self.beside(features)


def test_of_two_heads_the_one_that_answers_is_watched() -> None:
    assert names(TwoHeads(), "head", 4) == ["main"]
    model, x, y = TwoHeads(), torch.randn(6, 4), make_labels(6)
    monitor = make_monitor(model, (torch.randn(12, 4), make_labels(12)))
    with monitor.step(torch.arange(6)):
        answer, beside = model(x)
        (F.cross_entropy(answer, y) + 0.3 * F.cross_entropy(beside, y)).backward()
    assert bool((monitor.scores().influence != 0).all())


def test_a_layer_that_the_answer_does_not_depend_on() -> None:
    model = TwoHeads()
    with pytest.raises(LayerError, match=r"does not depend on the watched layers \(beside\)"):
        make_monitor(model, (torch.randn(12, 4), make_labels(12)), layers=["beside"]).refresh()


def test_last_stage_of_convolutional_nets() -> None:
    assert names(small_cnn(2, CLASSES, 4), "last-stage", 2, 16, 16) == ["2.0", "2.1", "5"]
    resnet = names(resnet18_cifar(2, CLASSES), "last-stage", 2, 16, 16)
    assert resnet[-1] == "head"
    assert all(name.startswith("layer4.") for name in resnet[:-1])
    assert len(resnet) == 11
    # What runs between the last feature map and the head belongs to the last stage.
    assert names(digits_net(CLASSES, 4), "last-stage", 1, 8, 8) == ["0.0", "0.1", "1.0", "1.1", "3", "6"]
    assert names(Flipped(), "last-stage", 2, 5, 5) == ["body", "classifier"]


def test_last_stage_of_other_nets() -> None:
    assert names(nn.Linear(4, CLASSES), "last-stage", 4) == [""]
    assert names(mlp(), "last-stage", 4) == ["2", "4"]
    assert names(Named(), "last-stage", 4) == ["fc2", "fc3"]
    vit = names(tiny_vit(2, CLASSES, image=8, width=8, depth=3), "last-stage", 2, 8, 8)
    assert vit[-2:] == ["norm", "head"]
    assert all(name.startswith("blocks.2.") for name in vit[:-2])
    assert len(vit) == 8
    assert names(Attentive(), "last-stage", 5, 4) == ["blocks.1.norm", "head"]


def test_all_is_in_the_order_of_running() -> None:
    assert names(Named(), "all", 4) == ["fc1", "fc2", "fc3"]


def test_layers_that_are_not_called_as_modules_are_not_watched() -> None:
    watched = names(Attentive(), "all", 5, 4)
    assert watched == ["embed", "blocks.0.norm", "blocks.1.norm", "head"]
    with pytest.raises(LayerError, match=r"matches '\*out_proj'"):
        names(Attentive(), "*out_proj", 5, 4)


def test_layers_without_a_batch_are_left_out() -> None:
    """Positions are embedded once for all examples: there is no gradient of one example to be had."""
    assert "positions" not in names(Attentive(), "all", 5, 4)
    with pytest.raises(LayerError, match=r"first axis of their output is not the batch: positions"):
        names(Attentive(), ["positions"], 5, 4)


@pytest.mark.parametrize("tokens", [5, 6])
def test_attention_and_positions_are_scored_right(tokens: int) -> None:
    """Six tokens are as many as there are examples, which must not be mistaken for the batch."""
    model = Attentive(tokens)
    monitor = make_monitor(model, (torch.randn(9, tokens, 4), make_labels(9)), layers="all")
    x, y = torch.randn(6, tokens, 4), make_labels(6, 5)
    train_step(monitor, model, x, y)
    train_step(monitor, model, x, y)
    watched = [layer.name for layer in monitor.layers]
    assert_scores(monitor, copied_gradients(model, watched, x, y))


def test_patterns() -> None:
    model = ResNet9(2, CLASSES)
    assert names(model, "prep.*", 2, 8, 8) == ["prep.0", "prep.1"]
    assert names(model, ["head", "layer1.0.0"], 2, 8, 8) == ["layer1.0.0", "head"]
    assert names(model, "layer1.?.0", 2, 8, 8) == ["layer1.0.0"]
    assert names(model, "*", 2, 8, 8) == names(model, "all", 2, 8, 8)


def test_frozen_backbone() -> None:
    model = small_cnn(2, CLASSES, 4)
    for parameter in model[:3].parameters():
        parameter.requires_grad_(False)
    assert names(model, "all", 2, 8, 8) == ["5"]
    model.eval()
    monitor = make_monitor(model, (torch.randn(9, 2, 8, 8), make_labels(9)), layers="all")
    x, y = torch.randn(6, 2, 8, 8), make_labels(6, 5)
    train_step(monitor, model, x, y)
    assert_scores(monitor, func_gradients(model, x, y))


def test_backbone_under_no_grad() -> None:
    """Also when the backbone is not part of the graph at all."""

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
            self.head = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.backbone(x)
            return self.head(x)

    model = Features()
    monitor = make_monitor(model, (torch.randn(9, 4), make_labels(9)))
    x, y = torch.randn(6, 4), make_labels(6, 5)
    train_step(monitor, model, x, y)
    assert_scores(monitor, copied_gradients(model, ["head"], x, y))


def test_frozen_head_gives_way_to_the_last_trained_layer() -> None:
    model = mlp()
    model[4].requires_grad_(False)
    monitor = make_monitor(model, (torch.randn(9, 4), make_labels(9)))
    assert [layer.name for layer in monitor.layers] == ["2"]
    x, y = torch.randn(6, 4), make_labels(6, 5)
    train_step(monitor, model, x, y)
    assert_scores(monitor, func_gradients(model, x, y))


# --- mistakes -------------------------------------------------------------------------------------------------------


def test_no_layer_to_watch() -> None:
    model = mlp().requires_grad_(False)
    with pytest.raises(
        LayerError, match=r"no layer to watch was found.*Layers it ran: none.*Unfreeze the head"
    ) as info:
        make_monitor(model, (torch.randn(9, 4), make_labels(9)))
    assert "layers='head'" in str(info.value)

    class Convolutional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 7, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).mean((2, 3))[:, :CLASSES]

    with pytest.raises(LayerError, match=r"no layer to watch was found.*Layers it ran: conv\."):
        make_monitor(Convolutional(), (torch.randn(9, 2, 6, 6), make_labels(9)))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(LayerError, match="no parameters"):
        InfluenceMonitor(nn.Flatten(), optimizer, (torch.randn(9, CLASSES), make_labels(9)))


def test_unknown_pattern_lists_what_exists() -> None:
    with pytest.raises(LayerError, match=r"matches 'layer9\.\*'. Layers of this model: 0, 2, 4"):
        names(mlp(), ["4", "layer9.*"], 4)


def test_long_lists_of_layers_are_cut() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)))
    with pytest.raises(LayerError, match=r"… \(30 in all\)"):
        names(model, "nothing", 4)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.shared(torch.tanh(self.shared(x)))))


def test_layer_that_is_used_twice() -> None:
    with pytest.raises(LayerError, match=r"'shared' is used 2 times in one forward pass.*layers=\[\.\.\.\]"):
        names(Twice(), "all", 4)
    assert names(Twice(), "head", 4) == ["head"]


def test_two_forward_passes_in_one_step_leave_the_loop_usable() -> None:
    model = mlp()
    monitor = make_monitor(model, (torch.randn(9, 4), make_labels(9)), layers="all")
    x, y = torch.randn(6, 4), make_labels(6)
    with pytest.raises(LayerError, match=r"'0' ran twice in one step"), monitor.step(torch.arange(6)):
        (model(x) + model(x)).sum().backward()
    for _ in range(2):
        train_step(monitor, model, x, y)
    assert_scores(monitor, func_gradients(model, x, y))


def test_steps_do_not_nest() -> None:
    model = mlp()
    monitor = make_monitor(model, (torch.randn(9, 4), make_labels(9)))
    with pytest.raises(StepError, match="already open"), monitor.step([0]), monitor.step([1]):
        pass
    train_step(monitor, model, torch.randn(6, 4), make_labels(6))
    assert monitor.last is not None


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embedding_that_rescales(option: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Embedding(5, 4, **option), nn.Flatten(), nn.Linear(12, CLASSES))
    anchors = torch.randint(5, (9, 3)), make_labels(9)
    with pytest.raises(LayerError, match="rescales its gradients"):
        make_monitor(model, anchors, layers="all")
    assert [layer.name for layer in make_monitor(model, anchors).layers] == ["2"]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


def test_layer_of_a_kind_that_cannot_be_watched() -> None:
    assert names(Recurrent(), "all", 3, 4) == ["head"]
    with pytest.raises(LayerError, match=r"no layer that can be watched matches 'body'. Layers of this model: head"):
        names(Recurrent(), "body", 3, 4)


def test_a_loss_that_cannot_be_taken_apart() -> None:
    def branching(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels) if float(logits.sum()) > -1e9 else logits.sum()

    model = mlp()
    monitor = make_monitor(model, (torch.randn(9, 4), make_labels(9)), loss=branching)
    y = make_labels(6)
    with pytest.raises(SettingError, match="reduction='none'"):
        train_step(monitor, model, torch.randn(6, 4), y, target=y)


# --- the watched weights as one vector ------------------------------------------------------------------------------


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_displacements_move_the_watched_weights(
    dtype: torch.dtype, projected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The derivative of the logits along a displacement is what finite differences of the weights give."""
    if projected:
        monkeypatch.setattr("sgoif.engine.setup.BODY_BLOCK", 8)
    model = tiny_vit(2, CLASSES, image=8, patch=4, width=8, depth=1, heads=2).to(dtype)
    x = torch.randn(4, 2, 8, 8).to(dtype)
    monitor = make_monitor(model, (x, make_labels(4)), layers="all", projection=3)
    assert any(layer.projection is not None for layer in monitor.layers) is projected
    output, point = watched_output(model, monitor.layers, monitor.layout, x)
    assert point.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(output(point), model.eval()(x).to(point.dtype), atol=tolerance, rtol=tolerance)

    displacement = 0.1 * torch.randn_like(point)
    moved = output(displacement)
    with torch.no_grad():
        for layer, block in zip(monitor.layers, monitor.layout.split(displacement), strict=True):
            full = (
                block
                if layer.projection is None
                else (layer.projection.out.T.to(block) @ block @ layer.projection.inp.to(block))
            )
            module = layer.module
            if getattr(module, "bias", None) is not None:
                full, bias = full[:, :-1], full[:, -1]
                module.bias += bias.reshape(module.bias.shape).to(dtype)
            module.weight += full.reshape(module.weight.shape).to(dtype)
    torch.testing.assert_close(moved, model(x).to(point.dtype), atol=tolerance, rtol=tolerance)


def test_exact_products_of_a_compiled_transformer() -> None:
    """Neither fused attention nor a compiled forward pass stands in the way of forward-mode derivatives."""
    model = tiny_vit(2, CLASSES, image=8, patch=4, width=8, depth=1, heads=2)
    x, y = torch.randn(4, 2, 8, 8), make_labels(4)
    monitor = make_monitor(model, (x, y), layers="last-stage")
    products = []
    for compiled in (False, True):
        if compiled:
            model.compile(backend="aot_eager")
        output, point = watched_output(model, monitor.layers, monitor.layout, x)
        ggn = ExactGGN(output, lambda z: F.cross_entropy(z, y), point, damping=0.1)
        products.append(ggn.matvec(torch.ones(2, len(point))))
    torch.testing.assert_close(products[0], products[1])
    assert bool((products[0] != 0.1).any())
