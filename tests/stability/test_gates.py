"""Gates by their formulas, tolerances by group, and what is an anomaly."""

from __future__ import annotations

import pytest
import torch

from sgoif.stability.gates import anomalies, find_gate, group_tolerance, hard_gate


def test_a_hard_gate_opens_or_shuts() -> None:
    residual = torch.tensor([0.5, 1.0, 1.5, torch.inf])
    assert hard_gate(residual, residual, 1.0).tolist() == [1, 1, 0, 0]


def test_tolerances_by_group_follow_each_group_and_agree_where_groups_do() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(400) % 2
    residual = torch.rand(400, generator=generator) * torch.where(groups == 0, 1.0, 10.0)
    tau = float(torch.quantile(residual, 0.8))
    limit = group_tolerance(residual, groups, 3, 0.8, tau)
    for group in (0, 1):
        mine = residual[groups == group]
        share = float((mine <= limit[groups == group]).float().mean())
        assert share == pytest.approx(0.8, abs=0.05)
        assert len(limit[groups == group].unique()) == 1
    alike = torch.rand(400, generator=generator)
    assert group_tolerance(alike, groups, 2, 0.8, 1.0).tolist() == pytest.approx([1.0] * 400, rel=0.1)


def test_a_group_of_few_anchors_keeps_most_of_the_common_tolerance() -> None:
    groups = torch.tensor([0] * 100 + [1])
    residual = torch.cat([torch.linspace(0, 1, 100), torch.tensor([100.0])])
    limit = group_tolerance(residual, groups, 2, 0.8, 1.0)
    own = 100 / float(torch.quantile(residual.double(), 0.8))
    assert float(limit[-1]) == pytest.approx(own ** (1 / 9), rel=1e-4)
    solved = group_tolerance(torch.zeros(20), torch.arange(20) % 2, 2, 0.8, 1e-38)
    assert bool((solved > 0).all())
    nothing = group_tolerance(torch.full((3,), torch.inf), torch.tensor([0, 1, 1]), 2, 0.8, 2.0)
    assert nothing.tolist() == [2.0, 2.0, 2.0]


def test_the_moving_average_gate_is_its_formula() -> None:
    residual, average = torch.tensor([1.0, 1.0, 3.0, 0.0]), torch.tensor([1.0, 2.0, 1.0, 1.0])
    expected = torch.tensor([0.5, 0.75, 0.0, 1.0])
    torch.testing.assert_close(find_gate("moving-average")(residual, average, 1.0), expected)


def test_a_direction_a_thousand_times_the_median_is_an_anomaly() -> None:
    size = torch.tensor([1.0, 2.0, 3.0, 1900.0, 2100.0])
    assert anomalies(size, torch.ones(5)).tolist() == [False, False, False, False, False]
    assert anomalies(size * torch.tensor([1, 1, 1, 1, 2]), torch.ones(5)).tolist() == [False] * 4 + [True]


def test_the_stability_gate_is_equation_4() -> None:
    residual = torch.tensor([0.0, 1.0, 3.0, 4.0, 9.0, torch.inf])
    expected = torch.tensor([1.0, 0.75, 0.25, 0.0, 0.0, 0.0])
    torch.testing.assert_close(find_gate("stability")(residual, residual, 4.0), expected)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.8, 1.0])
def test_the_tolerance_of_a_group_is_its_own_quantile_weighed_by_its_size(quantile: float) -> None:
    residual = torch.tensor([4.0, 1.0, 9.0, 2.0, 7.0, torch.inf, 3.0, 5.0, torch.inf])
    groups = torch.tensor([1, 2, 1, 2, 1, 2, 1, 0, 3])  # one anchor of the first; of the last nothing finite is known
    limit = group_tolerance(residual, groups, 4, quantile, 2.5)
    finite = residual[residual.isfinite()].double()
    for row, group in enumerate(groups.tolist()):
        mine = residual[(groups == group) & residual.isfinite()].double()
        expected = 2.5
        if len(mine):
            share = torch.quantile(mine, quantile) / torch.quantile(finite, quantile)
            expected *= float(share) ** (len(mine) / (len(mine) + 8))
        assert float(limit[row]) == pytest.approx(expected, rel=1e-5), (row, group)


def test_an_anchor_that_was_never_solved_passes_no_gate() -> None:
    nothing = torch.full((1,), torch.inf)
    for name in ("stability", "hard", "moving-average", "none"):
        assert find_gate(name)(nothing, nothing, 1.0).tolist() == [0.0], name


def test_what_is_not_finite_is_an_anomaly_and_no_measure_for_the_others() -> None:
    size = torch.tensor([torch.nan, 1.0, 1.0, 1000.0, 1001.0, 5000.0, 6000.0, 7000.0])
    residual = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, torch.inf, torch.inf, torch.nan])
    assert anomalies(size[:4], residual[:4]).tolist() == [True, False, False, False]
    assert anomalies(size[[0, 1, 1, 1, 4, 5, 6, 7]], residual).tolist() == [True] + [False] * 3 + [True] * 4
    assert anomalies(size, torch.full((8,), torch.nan)).tolist() == [True] * 8, "nothing can be believed"
