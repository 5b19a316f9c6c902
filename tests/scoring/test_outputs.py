"""The scale of every step's loss, and what else the logits of steps say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.core.objective import Classification
from sgoif.scoring.outputs import for_examples, mean_scales, per_step, read_outputs, scales_of

META = torch.device("meta")
SIZES = [[3, 3], [4, 2]]
REFERENCE = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def of_steps(values: list[float], sizes: list[int]) -> Tensor:
    return torch.cat([torch.full((size,), value) for value, size in zip(values, sizes, strict=True)])


@pytest.mark.parametrize("sizes", SIZES)
def test_values_are_summed_by_step_and_given_back_to_its_examples(sizes: list[int]) -> None:
    values = torch.arange(6.0)
    expected = [float(part.sum()) for part in values.split(sizes)]
    assert per_step(values, sizes).tolist() == expected
    assert for_examples(torch.tensor(expected), sizes).tolist() == of_steps(expected, sizes).tolist()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("scales", [[0.25, 0.01], [1.0, 1024.0]])
def test_the_scale_is_what_the_gradient_was_multiplied_with(scales: list[float], sizes: list[int]) -> None:
    delta = of_steps(scales, sizes).unsqueeze(1) * REFERENCE
    torch.testing.assert_close(scales_of(delta, REFERENCE, sizes), torch.tensor(scales))
    delta[1, 2], delta[5, 0] = torch.inf, torch.nan  # a loss scaler overflows there
    torch.testing.assert_close(scales_of(delta, REFERENCE, sizes), torch.tensor(scales))


@pytest.mark.parametrize("sizes", SIZES)
def test_a_step_that_says_nothing_of_its_scale_has_that_of_a_mean(sizes: list[int]) -> None:
    expected = [1 / size for size in sizes]
    nothing = torch.zeros(6, 5)
    for delta, reference in ((nothing, nothing), (nothing, REFERENCE), (-REFERENCE, REFERENCE)):
        assert scales_of(delta, reference, sizes).tolist() == pytest.approx(expected)
    entries = torch.tensor([2.0, 1.0, 4.0, 0.0, 0.0, 0.0])
    counted = [1 / max(float(part.sum()), 1) for part in entries.split(sizes)]
    assert scales_of(nothing, REFERENCE, sizes, entries).tolist() == pytest.approx(counted)


def test_sums_in_half_precision_do_not_overflow() -> None:
    reference = torch.ones(1, 1000, dtype=torch.float16)
    assert scales_of(100 * reference, reference, [1]).tolist() == [100.0]


@pytest.mark.parametrize("sizes", SIZES)
def test_the_scale_of_a_mean_is_one_by_what_it_is_taken_over(sizes: list[int]) -> None:
    cpu = torch.device("cpu")
    assert mean_scales(sizes, None, cpu).tolist() == pytest.approx([1 / size for size in sizes])
    entries = torch.tensor([1.0, 0.0, 0.0, 0.0, 5.0, 2.0])
    expected = [1 / max(float(part.sum()), 1) for part in entries.split(sizes)]
    assert mean_scales(sizes, entries, cpu).tolist() == pytest.approx(expected)
    assert mean_scales(sizes, torch.zeros(6), cpu).tolist() == [1.0, 1.0], "where nothing enters the mean"
    assert mean_scales(sizes, None, META).device.type == "meta"


class Partly(Classification):
    """A loss whose mean is taken over some of the examples."""

    def entries(self, target: Tensor) -> Tensor:
        return (target != 2).float()


LOGITS = 3 * torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 2, 1, 0])


@pytest.mark.parametrize("kind", [Classification, Partly])
@pytest.mark.parametrize("sizes", SIZES)
def test_what_the_logits_say_is_that_of_the_loss(kind: type[Classification], sizes: list[int]) -> None:
    objective = kind(3)
    z = LOGITS.clone().requires_grad_(True)
    losses = F.cross_entropy(z, LABELS, reduction="none")
    counted = objective.entries(LABELS)
    counted = torch.ones(6) if counted is None else counted
    expected = {
        "auto": of_steps([0.5, 8.0], sizes),
        "mean": of_steps([1 / float(part.sum()) for part in counted.split(sizes)], sizes),
        "sum": torch.ones(6),
    }
    (delta,) = torch.autograd.grad((expected["auto"] * losses).sum(), z)
    for reduction, scale in expected.items():
        for target in (LABELS, None) if kind is Classification else (LABELS,):
            found = read_outputs(objective, LOGITS, delta, target, None, reduction, sizes)
            torch.testing.assert_close(found.loss, losses.detach())
            torch.testing.assert_close(found.scale, scale)
            assert found.columns.label.tolist() == LABELS.tolist()
            assert found.share is None


def test_a_batch_that_is_fitted_perfectly_has_the_scale_of_its_mean() -> None:
    z = 200.0 * F.one_hot(LABELS, 3)
    for kind, counted in ((Classification, 3), (Partly, 2)):
        found = read_outputs(kind(3), z, torch.zeros(6, 3), LABELS, None, "auto", [3, 3])
        torch.testing.assert_close(found.scale, torch.full((6,), 1 / counted))


def test_of_a_mixture_the_label_counts_by_its_share() -> None:
    target = torch.full((6, 3), 0.15)
    target[torch.arange(6), LABELS] = 0.7
    found = read_outputs(Classification(3), LOGITS, torch.zeros(6, 3), target, LABELS, "sum", [6])
    assert found.share is not None
    torch.testing.assert_close(found.share, torch.full((6,), 0.7))
    assert found.columns.label.tolist() == LABELS.tolist()
    torch.testing.assert_close(found.loss, F.cross_entropy(LOGITS, target, reduction="none"))
