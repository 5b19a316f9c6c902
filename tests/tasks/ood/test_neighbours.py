"""The nearest example that belongs: against a loop over cosines, and an even sample of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from sgoif.errors import SettingError
from sgoif.tasks.ood import neighbours as module
from sgoif.tasks.ood.activation_matrix import ActivationMatrix
from sgoif.tasks.ood.neighbours import RandomSample, supports_half_matmul

SIZES = (3, 5)


def layers(count: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, size, generator=generator) for size in SIZES]


def matrix(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return ActivationMatrix(SIZES, torch.device("cpu")).join(parts)


def everyone(count: int) -> torch.Tensor:
    return torch.ones(count, dtype=torch.bool)


def test_distance_is_that_of_the_nearest_by_the_mean_cosine() -> None:
    sample = RandomSample()
    reference, asked = layers(40, 0), layers(7, 1)
    sample.add(reference, everyone(40))
    found = 1 - sample.neighbours().nearest(matrix(asked))
    for number in range(7):
        cosines = [
            torch.cosine_similarity(there, here[number : number + 1])
            for there, here in zip(reference, asked, strict=True)
        ]
        assert float(found[number]) == pytest.approx(1 - float(torch.stack(cosines).mean(0).max()), abs=2e-3)


def test_one_neighbour_must_be_near_in_all_layers() -> None:
    sample = RandomSample()
    one, other = torch.eye(2), torch.eye(2)
    sample.add([one, other], everyone(2))
    neighbours = sample.neighbours()
    both, mixed = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    assert float(neighbours.nearest(both)) == pytest.approx(1, abs=1e-3)
    assert float(neighbours.nearest(mixed)) == pytest.approx(0.5, abs=1e-3)


def test_lengths_do_not_count_and_zeros_are_far_from_everything() -> None:
    sample = RandomSample()
    sample.add(layers(20, 0), everyone(20))
    neighbours, x = sample.neighbours(), matrix(layers(4, 2))
    torch.testing.assert_close(neighbours.nearest(100 * x), neighbours.nearest(x), rtol=1e-4, atol=1e-5)
    assert neighbours.nearest(torch.zeros_like(x[:1])).tolist() == [0.0]


def test_a_sample_of_a_stream_is_even_and_takes_only_what_is_chosen() -> None:
    sample = RandomSample(most=200)
    for start in range(0, 10_000, 100):
        place = torch.arange(start, start + 100).float()
        sample.add([torch.stack([place, 10_000 - place], 1)], torch.arange(100) % 2 == 0)
    rows = sample.neighbours().rows
    place = 10_000 * rows[:, 0] / rows.sum(1)
    assert len(rows) == 200
    assert 40 <= int((place < 2_500).sum()) <= 60  # a quarter of the stream: 50 expected, deviation 6
    odd = RandomSample(most=5)
    odd.add([torch.eye(4)], torch.tensor([False, True, False, False]))
    assert odd.neighbours().rows.argmax(1).tolist() == [1]


def test_the_same_stream_gives_the_same_sample() -> None:
    def made() -> torch.Tensor:
        sample = RandomSample(most=10)
        for seed in range(5):
            sample.add(layers(20, seed), everyone(20))
        return sample.neighbours().rows

    assert torch.equal(made(), made())


def test_nothing_to_compare_with_is_an_error() -> None:
    sample = RandomSample()
    sample.add(layers(3, 0), torch.zeros(3, dtype=torch.bool))
    with pytest.raises(SettingError, match="nothing to compare"):
        sample.neighbours()


def test_halves_are_multiplied_where_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = RandomSample()
    sample.add(layers(200, 0), everyone(200))
    neighbours, x = sample.neighbours(), matrix(layers(50, 1))
    single = neighbours.nearest(x)
    asked: list[torch.dtype] = []

    def mm(left: torch.Tensor, right: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
        assert left.dtype == right.dtype == torch.half
        stored = matrix(neighbours.rows.split(SIZES, 1)).flatten(1)
        assert torch.equal(right.float().T, stored)  # they are stored so: nothing is lost
        asked.append(out_dtype)
        return left.float() @ right.float()

    monkeypatch.setattr(torch, "mm", mm)  # the product itself exists on GPUs only
    monkeypatch.setattr(module, "supports_half_matmul", lambda device: True)
    half = neighbours.nearest(x)
    assert asked == [torch.float32]
    assert not torch.equal(half, single)
    torch.testing.assert_close(half, single, rtol=0, atol=1e-3)


def test_the_sample_does_not_depend_on_defaults() -> None:
    rows, chosen = layers(200, 0), everyone(200)
    plain = RandomSample(50)
    plain.add(rows, chosen)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            other = RandomSample(50)
            other.add(rows, chosen)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(other.neighbours().rows, plain.neighbours().rows)


def test_halves_are_not_multiplied_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert not supports_half_matmul(torch.device("cpu"))
    assert supports_half_matmul(cuda) == (torch.version.hip is None and "dtype" in torch.ops.aten.mm.overloads())
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert not supports_half_matmul(cuda)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_the_same_distances() -> None:
    sample, there = RandomSample(), RandomSample()
    sample.add(layers(200, 0), everyone(200))
    there.add([part.cuda() for part in layers(200, 0)], everyone(200))
    x = matrix(layers(50, 1))
    torch.testing.assert_close(
        there.neighbours().nearest(x.cuda()).cpu(), sample.neighbours().nearest(x), rtol=0, atol=1e-3
    )
