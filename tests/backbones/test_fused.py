"""The copy of a network that features are computed with: the same numbers as the network itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sgoif.backbones.efficientnet_lite import EARLY, efficientnet_lite
from sgoif.backbones.fused import NAME, ConvRelu, SamePad, fused, together


def converted(network: nn.Module) -> list[ConvRelu]:
    return [module for module in network.modules() if isinstance(module, ConvRelu)]


def test_layers_that_do_more_are_left_alone() -> None:
    class Doubling(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return self._conv_forward(x, self.weight * 2, self.bias)

    class ThenActive(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    body = nn.Sequential(Doubling(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), ThenActive(4)).eval()
    body[1].running_mean += 0.3  # type: ignore[operator, union-attr]
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(fused(body)(x), body(x))


@pytest.mark.parametrize("relu", [nn.ReLU, nn.ReLU6])
@pytest.mark.parametrize("options", [{}, {"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}])
def test_a_convolution_with_its_relu_gives_the_same_numbers(relu: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, **options), nn.BatchNorm2d(8), relu(), nn.Conv2d(8, 4, 1), relu()).eval()
    body[1].running_mean += 0.3  # type: ignore[operator, union-attr]
    x = 9 * torch.randn(2, 3, 9, 9)
    before = x.clone()
    with torch.inference_mode():
        found = fused(body)
        assert len(converted(found)) == 2
        torch.testing.assert_close(found(x), body(x))
        torch.testing.assert_close(found.double()(x.double()).float(), body(x))
    assert torch.equal(x, before)


def test_a_relu_that_follows_no_convolution_leaves_its_input_alone() -> None:
    body, x = nn.Sequential(nn.Identity(), nn.ReLU()), torch.tensor([-1.0, 1.0])
    fused(body)(x)
    assert x.tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("shape", [(8, 8), (9, 9), (8, 11), (7, 10), (2, 1)])
def test_padding_before_stride_2_is_left_to_the_convolution(side: int, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(SamePad(side), nn.Conv2d(3, 4, side, 2), nn.ReLU6()).eval()
    x = 3 * torch.randn(2, 3, *shape)
    with torch.inference_mode():
        found = fused(body)
        assert len(converted(found)) == 1
        torch.testing.assert_close(found(x), body(x))
        torch.testing.assert_close(found.double()(x.double()).float(), body(x))


@pytest.mark.parametrize("size", [64, 77])
def test_a_network_whose_first_layers_see_fewer_images_gives_the_same_features(size: int) -> None:
    torch.manual_seed(0)
    body = efficientnet_lite(0.5, 0.5).eval()
    for module in body.modules():
        if isinstance(module, nn.BatchNorm2d):  # else what comes out is all but 0
            module.weight.data *= 3
            module.running_mean += 0.1 * torch.randn(module.num_features)  # type: ignore[operator]
    x = torch.randn(7, 3, size, size)
    seen: list[tuple[int, int]] = []
    with torch.inference_mode():
        found = fused(body, EARLY)
        for place, layer in ((0, found.early), (1, found.late)):
            layer.register_forward_hook(lambda _, given, __, place=place: seen.append((place, len(given[0]))))
        expected = body(x)
        assert expected.std() > 0.1
        torch.testing.assert_close(found(x), expected, rtol=1e-4, atol=1e-4)
    assert seen == [(0, 4), (0, 3), (1, 7)]


def of_another_torch(*_: Any) -> Tensor:
    raise TypeError("another signature")


@pytest.mark.parametrize("operation", [None, of_another_torch, lambda x, *_: x])
def test_without_an_operation_that_gives_the_same_all_is_plain(operation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), torch.randn(2, 3, 5, 5)
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**{NAME: operation} if operation else {}))
    together.cache_clear()
    try:
        assert together() is None
        torch.testing.assert_close(fused(body)(x), body(x))
    finally:
        together.cache_clear()
