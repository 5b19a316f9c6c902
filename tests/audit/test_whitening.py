"""Filters that are taken from the images: what they answer, and what they do where there is nothing to take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sgoif.audit.networks import ResNet7, Whitening, fit_whitening


def smooth(count: int, channels: int, size: int) -> Tensor:
    """Images in which neighbours are alike, as in photographs."""
    noise = torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 3, stride=1, padding=1) * 3 + noise.mean((1, 2, 3), keepdim=True) * 50


@pytest.mark.parametrize(("channels", "pairs"), [(1, 9), (3, 12)])
def test_answers_are_uncorrelated_and_equally_strong(channels: int, pairs: int) -> None:
    images = smooth(200, channels, 16)
    filters = Whitening(channels, 12)
    filters.fit(images)
    answers = filters(images)[:, :, 1:-1, 1:-1]  # padded borders were not fitted to
    assert answers.shape[1] == filters.outputs == 2 * pairs
    assert torch.equal(answers[:, :pairs], -answers[:, pairs:])
    found = torch.cov(answers[:, :pairs].transpose(0, 1).flatten(1))
    assert torch.allclose(found, torch.eye(pairs), atol=0.02)


@pytest.mark.parametrize("image", [torch.zeros(1, 3, 8, 8), torch.full((1, 3, 8, 8), 3.0)])
def test_images_without_detail_give_finite_filters(image: Tensor) -> None:
    filters = Whitening(3, 12)
    filters.fit(image.expand(20, -1, -1, -1))
    assert bool(filters(torch.randn(2, 3, 8, 8)).isfinite().all())


def test_one_tiny_image_is_enough() -> None:
    filters = Whitening(1, 12)
    filters.fit(torch.randn(1, 1, 3, 3))
    assert bool(filters.filters.isfinite().all())


def test_filters_are_kept_with_the_weights_and_not_trained() -> None:
    model = ResNet7(3, 5, image=16, whitened=True)
    before = model.prep[0].filters.clone()
    fit_whitening(model, smooth(50, 3, 16))
    fitted = model.state_dict()["prep.0.filters"].clone()
    assert not torch.equal(before, fitted)
    assert "prep.0.filters" not in dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    model(smooth(8, 3, 16)).square().sum().backward()
    optimizer.step()
    assert torch.equal(model.prep[0].filters, fitted)


def test_a_network_without_filters_is_left_alone() -> None:
    model = ResNet7(3, 5, image=16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit_whitening(model, smooth(50, 3, 16))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
