"""What is seen of a network: head, features, stages; and where that is not possible."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from sgoif.audit.networks import ResNet9
from sgoif.errors import AnchorError, LayerError
from sgoif.tasks.ood.network import Network
from sgoif_bench.models import digits_net, resnet18_cifar, small_cnn, tiny_vit

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
    scale = (seen.logits * raw).sum() / raw.square().sum()  # some networks multiply what their head answers
    torch.testing.assert_close(seen.logits, scale * raw)
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


def test_a_part_that_was_exchanged_is_noticed() -> None:
    model = small_cnn(3, 10, width=8)
    network = Network(model, torch.randn(1, 3, 16, 16))
    name = network.stages[0]
    model.set_submodule(name, copy.deepcopy(model.get_submodule(name)))
    with pytest.raises(LayerError, match=rf"^{name} had no part in the answer.*exchanged"):
        network.see(torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_what_was_put_around_a_network_is_left_aside(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = small_cnn(3, 10, width=8).train()
    wrapped = wrap(model)
    x = torch.randn(2, 3, 16, 16).to(next(model.parameters()))  # DataParallel takes the model to a GPU, if there is one
    network, plain = Network(wrapped, x), Network(model, x)
    assert not wrapped.training
    assert (network.head_name, network.stages) == (plain.head_name, plain.stages)
    assert torch.equal(network.see(x).logits, plain.see(x).logits)


def test_threads_do_not_see_the_inputs_of_each_other() -> None:
    """While one waits in its forward pass, another goes through all of its own."""
    first_waits, second_is_done = Event(), Event()

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if float(x[0, 0]) == 1:
                first_waits.set()
                assert second_is_done.wait(60)
            return x

    head = nn.Linear(4, 2, bias=False)
    nn.init.constant_(head.weight, 0.25)
    network = Network(nn.Sequential(head, Waits()), torch.zeros(1, 4))
    one, two = torch.full((1, 4), 1.0), torch.full((1, 4), 2.0)
    with ThreadPoolExecutor(1) as other:
        found = other.submit(network.see, one)
        assert first_waits.wait(60)
        assert torch.equal(network.see(two).features, two)
        second_is_done.set()
        assert torch.equal(found.result().features, one)


def test_logits_may_come_with_other_things() -> None:
    class Several(nn.Module):
        def __init__(self, form: Callable[[Tensor], object]) -> None:
            super().__init__()
            self.head, self.form = nn.Linear(4, 2), form

        def forward(self, x: Tensor) -> object:
            return self.form(self.head(x))

    for form in (lambda z: (z, None), lambda z: SimpleNamespace(logits=z)):
        model, x = Several(form), torch.randn(3, 4)
        assert torch.equal(Network(model, x).see(x).logits, model.head(x).detach())
    single = Network(Several(lambda z: z[:, 0]), torch.randn(3, 4))
    assert single.see(torch.randn(3, 4)).logits.shape == (3, 1)
    with pytest.raises(AnchorError, match="returned str; expected logits"):
        Network(Several(str), torch.randn(3, 4))
    with pytest.raises(LayerError, match=r"3 inputs gave answers of shape \[3, 2, 1\]"):
        Network(Several(lambda z: z.unsqueeze(2)), torch.randn(3, 4)).see(torch.randn(3, 4))


def test_a_second_head_is_not_taken_for_the_first() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.beside = nn.Linear(4, 3), nn.Linear(4, 7)

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.head(x)
            self.said = self.beside(x)
            return answer

    assert Network(TwoHeads(), torch.randn(1, 4)).head_name == "head"
    mixed = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)), nn.Flatten(1), nn.AvgPool1d(2))
    assert Network(mixed, torch.randn(1, 4)).head_name == "0"


def test_maps_with_their_channels_last_are_maps() -> None:
    class ChannelsLast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.mix = nn.Conv2d(1, 6, 2, stride=2), nn.LayerNorm(6), nn.Linear(6, 5)
            self.head = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            mixed = self.mix(self.norm(self.first(x).permute(0, 2, 3, 1)))
            answer: Tensor = self.head(mixed.mean((1, 2)))
            return answer

    x = torch.randn(2, 1, 8, 8)
    network = Network(ChannelsLast(), x)
    assert network.stages == ("mix",)
    seen = network.see(x)
    assert seen.stages[0].shape == (2, 5, 4, 4)
    torch.testing.assert_close(seen.pooled[0], seen.features)
