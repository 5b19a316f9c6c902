"""What is seen of a network: head, features, stages; and where that is not possible."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sgoif.bench.models import digits_net, resnet18_cifar, small_cnn, tiny_vit
from sgoif.errors import LayerError
from sgoif.networks import ResNet9
from sgoif.tasks.shift.network import Network

MODELS = {
    "resnet9": (lambda: ResNet9(3, 10, width=8), (3, 32, 32), 4),
    "resnet18": (lambda: resnet18_cifar(3, 10), (3, 32, 32), 4),
    "vit": (lambda: tiny_vit(3, 10, image=32), (3, 32, 32), 4),
    "cnn": (lambda: small_cnn(3, 10, width=8), (3, 32, 32), 4),
    "digits": (lambda: digits_net(10), (1, 8, 8), 2),
    "perceptron": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3)), (1, 8, 8), 0),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_seen_is_what_the_network_computes(name: str) -> None:
    make, shape, stages = MODELS[name]
    model = make()
    x = torch.randn(3, *shape)
    network = Network(model, x[:1])
    seen = network.see(x)
    assert len(network.stages) == len(seen.pooled) == stages
    with torch.no_grad():
        torch.testing.assert_close(seen.logits, model(x))
        raw = nn.functional.linear(seen.features, network.head.weight, network.head.bias)
    torch.testing.assert_close(network.answer(seen.features), raw)
    for stage, pooled in zip(seen.stages, seen.pooled, strict=True):
        torch.testing.assert_close(pooled, stage.flatten(2).mean(2))
        assert not stage.requires_grad
    assert network.see(x, stages=False).stages == ()
    assert not any(module._forward_hooks for module in model.modules())


def test_stages_of_a_convolutional_network_are_its_resolutions() -> None:
    network = Network(resnet18_cifar(3, 10), torch.randn(1, 3, 32, 32))
    assert network.stages == ("layer1", "layer2", "layer3", "layer4")


def test_stages_of_a_transformer_are_blocks_at_every_quarter() -> None:
    network = Network(tiny_vit(3, 10, image=32), torch.randn(1, 3, 32, 32))
    assert all(name.count(".") == 1 for name in network.stages)
    assert [stage.shape[1] for stage in network.see(torch.randn(2, 3, 32, 32)).stages] == [96] * 4


def test_head_and_stages_can_be_named() -> None:
    model = small_cnn(3, 10, width=8)
    network = Network(model, None, ["0"], "5")
    assert len(network.see(torch.randn(2, 3, 16, 16)).stages) == 1
    with pytest.raises(LayerError, match=r"no modules 9.*it has 0"):
        Network(model, None, ["9"], "5")
    with pytest.raises(LayerError, match="is a Flatten"):
        Network(model, None, [], "4")


def test_a_network_without_a_linear_head_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(LayerError, match="no linear layer"):
        Network(model, torch.randn(1, 1, 4, 4))


def test_a_network_that_changes_its_path_is_noticed() -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.other = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x) if len(x) == 1 else self.other(x)

    network = Network(Fickle(), torch.randn(1, 4))
    with pytest.raises(LayerError, match="changed its path"):
        network.see(torch.randn(2, 4))
