"""What every backbone does, whatever network it has: prepare images, give features, be trained further."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sgoif.backbones.base import Backbone, make_backbone
from sgoif.errors import ModelError

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)


def small_body(seed: int = 0) -> nn.Module:
    """A convolution with a batch norm that has seen data, and a pool."""
    torch.manual_seed(seed)
    body = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, bias=False), nn.BatchNorm2d(6), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    for _ in range(3):
        body(torch.randn(8, 3, 20, 20) * 3 + 1)
    return body


def backbone(seed: int = 0, size: int = 130) -> Backbone:
    return make_backbone("small", small_body(seed), size, MEAN, STD)


def images(channels: int = 3, side: int = 40, count: int = 3) -> Tensor:
    made = torch.Generator().manual_seed(channels)
    return torch.randint(0, 256, (count, channels, side, side + 6), generator=made, dtype=torch.uint8)


class TestPrepare:
    def test_images_are_squares_of_one_size_and_normalised(self) -> None:
        flat = torch.full((2, 3, 7, 300), 51, dtype=torch.uint8)
        found = backbone().prepare(flat)
        assert found.shape == (2, 3, 130, 130)
        expected = torch.tensor([(0.2 - m) / s for m, s in zip(MEAN, STD, strict=True)])
        torch.testing.assert_close(found.mean((0, 2, 3)), expected)
        assert backbone().prepare(flat, 96).shape[-1] == 96

    def test_bytes_and_floats_are_the_same_images(self) -> None:
        one = backbone()
        torch.testing.assert_close(one.prepare(images()), one.prepare(images().double() / 255))

    def test_grey_is_three_equal_colours(self) -> None:
        one, grey = backbone(), images(1)
        assert torch.equal(one.prepare(grey), one.prepare(grey.expand(-1, 3, -1, -1)))

    def test_what_is_transparent_lies_on_white(self) -> None:
        one, colours = backbone(), images()
        opacity = torch.zeros_like(colours[:, :1])
        opacity[:, :, :20] = 255
        page = colours.clone()
        page[:, :, 20:] = 255
        torch.testing.assert_close(one.prepare(torch.cat([colours, opacity], 1)), one.prepare(page))
        grey = torch.cat([colours[:, :1], opacity], 1)
        torch.testing.assert_close(one.prepare(grey), one.prepare(page[:, :1]))

    def test_shrinking_takes_the_mean_of_what_falls_together(self) -> None:
        stripes = torch.zeros(1, 3, 8, 960, dtype=torch.uint8)
        stripes[..., ::2] = 255
        found = backbone().prepare(stripes, 96) * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
        assert float((found - 0.5).abs().max()) < 0.06

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (torch.zeros(3, 8, 8), r"images of shape \(3, 8, 8\); expected \[n, 1 to 4 channels, height, width\]"),
            (torch.zeros(1, 5, 8, 8), "expected .n, 1 to 4 channels"),
            (torch.zeros(1, 3, 0, 8), "expected .n, 1 to 4 channels"),
            (torch.zeros(1, 3, 8, 8, dtype=torch.int64), "type torch.int64; expected uint8"),
            (torch.full((1, 3, 8, 8), 7.0), "between 0 and 1: divide by"),
            (torch.full((1, 3, 8, 8), float("nan")), "between 0 and 1"),
        ],
    )
    def test_what_are_no_images_is_explained(self, given: Tensor, message: str) -> None:
        with pytest.raises(ModelError, match=message):
            backbone().prepare(given)

    def test_another_size_is_refused(self) -> None:
        with pytest.raises(ModelError, match=r"works at \(96, 128, 130\) pixels a side, not at 100"):
            backbone().prepare(images(), 100)


def test_small_images_are_looked_at_five_times_their_size_and_none_above_its_own() -> None:
    one = backbone()
    assert [one.resolution_for(side) for side in (8, 19.2, 19.5, 26, 500)] == [96, 96, 128, 130, 130]


class TestFeatures:
    def test_they_are_those_of_the_body_in_any_batches(self) -> None:
        one, given = backbone(), images(count=7)
        expected = one.body(one.prepare(given, 96))
        for batch in (1, 3, 16):
            torch.testing.assert_close(one.features(given, 96, batch), expected, rtol=1e-5, atol=1e-6)
        assert one.width == 6 == expected.shape[1]
        assert one.features(given[:0]).shape == (0, 6)

    def test_the_body_stays_as_it_is(self) -> None:
        one = backbone()
        before = {name: value.clone() for name, value in one.body.state_dict().items()}
        one.features(images())
        assert isinstance(one.body, nn.Sequential)
        assert isinstance(one.body[1], nn.BatchNorm2d)
        assert not one.body[2].inplace
        assert all(torch.equal(value, one.body.state_dict()[name]) for name, value in before.items())


def test_a_copy_can_be_trained_and_the_backbone_does_not_change() -> None:
    one = backbone()
    before = {name: value.clone() for name, value in one.body.state_dict().items()}
    model = one.network(4)
    logits = model(one.prepare(images()))
    assert logits.shape == (3, 4)
    logits.square().sum().backward()
    assert model.training
    assert all(weight.grad is not None for weight in model.parameters())
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert all(torch.equal(value, one.body.state_dict()[name]) for name, value in before.items())
    assert not any(weight.requires_grad for weight in one.body.parameters())


def test_the_digest_stands_for_weights_layers_and_normalisation() -> None:
    one = backbone()
    assert one.digest == backbone().digest == replace(one, name="other").digest
    other = small_body()
    other[2] = nn.ReLU()  # type: ignore[index, operator]
    made = [
        backbone(1),
        make_backbone("small", other, 130, MEAN, STD),
        make_backbone("small", small_body(), 130, STD, STD),
    ]
    assert len({one.digest, *(each.digest for each in made)}) == 4


def test_a_network_of_one_size_is_used_at_that_size_alone() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[-1] == 130, "made for 130"
            return x.mean((2, 3))

    assert make_backbone("fixed", Fixed(), 130, MEAN, STD).sizes == (130,)
    with pytest.raises(ModelError, match="backbone 'fixed' cannot be used: AssertionError: made for 130"):
        make_backbone("fixed", Fixed(), 131, MEAN, STD)
    with pytest.raises(ModelError, match="expected three colours, spreads above 0"):
        make_backbone("grey", Fixed(), 130, (0.5,), (0.5,))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"returns \(2, 3, 96, 96\); expected features"):
        make_backbone("maps", nn.Identity(), 96, MEAN, STD)
