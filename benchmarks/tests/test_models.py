"""The benchmark networks: shapes, sizes, gradients everywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sgoif.errors import SettingError
from sgoif_bench.models import MODELS, ResNet9, digits_net, lenet, resnet18_cifar, small_cnn, tiny_vit

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "small_cnn": (lambda: small_cnn(1, 7), (3, 1, 28, 28), 7),
    "digits_net": (digits_net, (3, 1, 8, 8), 10),
    "lenet_28": (lenet, (3, 1, 28, 28), 10),
    "lenet_32": (lambda: lenet(3, 7, 32), (3, 3, 32, 32), 7),
    "resnet9": (lambda: ResNet9(3, 10), (3, 3, 32, 32), 10),
    "resnet18": (lambda: resnet18_cifar(3, 100), (3, 3, 32, 32), 100),
    "tiny_vit": (lambda: tiny_vit(3, 5, depth=2), (3, 3, 32, 32), 5),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_a_gradient_for_every_weight(name: str) -> None:
    make, shape, classes = CASES[name]
    model = make()
    logits = model(torch.randn(shape))
    assert logits.shape == (shape[0], classes)
    logits.square().sum().backward()
    without = [key for key, weight in model.named_parameters() if weight.grad is None]
    assert without == []


def test_sizes_are_those_of_the_published_networks() -> None:
    def count(model: nn.Module) -> int:
        return sum(weight.numel() for weight in model.parameters())

    assert count(resnet18_cifar()) == 11_173_962
    assert count(ResNet9()) == 6_573_130
    assert count(lenet()) == 61_706


def test_lenet_has_its_own_sizes_of_images() -> None:
    with pytest.raises(SettingError, match="28×28 or 32×32 pixels, not 30×30"):
        lenet(image=30)


@pytest.mark.parametrize("name", MODELS)
def test_the_head_is_the_last_linear_layer(name: str) -> None:
    model = MODELS[name](3, 10)
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    assert last.out_features == 10


def test_attention_sees_every_patch() -> None:
    model = tiny_vit(depth=1).eval()
    image = torch.randn(1, 3, 32, 32)
    changed = image.clone()
    changed[..., :4, :4] += 1
    assert not torch.allclose(model(image), model(changed))


def test_patches_must_tile_the_image() -> None:
    with pytest.raises(SettingError, match="multiple of patch"):
        tiny_vit(image=30)
