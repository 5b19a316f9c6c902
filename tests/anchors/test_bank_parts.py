"""Where a bank keeps its parts, what a rank keeps of them, and states that fit and do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bank_cases import CPU, Reads, bank_of
from torch.utils.data import TensorDataset

from sgoif.anchors import bank as module
from sgoif.anchors.bank import AnchorBank
from sgoif.core.objective import Classification
from sgoif.core.parameter_layout import Block, Layout
from sgoif.distributed.communicator import Communicator
from sgoif.errors import StateError

META = torch.device("meta")
LAYOUT = Layout((Block("head", 2, 3),))


def images(count: int = 6) -> TensorDataset:
    return TensorDataset(torch.arange(count * 18.0).view(count, 2, 3, 3), torch.arange(count) % 2)


class Part(Communicator):
    """The second of three ranks, which meets no others."""

    rank, size = 1, 3


def whole_bank(data: Any, **options: Any) -> AnchorBank:
    bank = AnchorBank(data, None, 100, 0, CPU)
    bank.select(100)
    bank.allocate(LAYOUT, **options)
    return bank


@pytest.mark.parametrize(("spare", "reads"), [(0, 1), (-1, 2)])
def test_inputs_are_kept_up_to_the_last_byte_that_fits(spare: int, reads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(6, 5)
    monkeypatch.setattr(module, "CACHE_BYTES", 6 * 5 * 4 + spare)
    data = Reads(inputs, torch.arange(6) % 2)
    bank = whole_bank(data)
    found, labels = bank.batch([5, 0])
    assert torch.equal(found, inputs[[5, 0]])
    assert labels.tolist() == [1, 0]
    assert data.reads[5] == data.reads[0] == reads
    members, targets = bank.member_batch(slice(2, 4))
    assert torch.equal(members, inputs[2:4])
    assert targets.tolist() == [0, 1]


class Doubled(Classification):
    """Classes that a hold-out gives as half their number."""

    def read(self, raw: Any) -> Any:
        return int(2 * raw)


def test_targets_are_read_as_the_objective_has_them() -> None:
    data = TensorDataset(torch.randn(6, 5), torch.tensor([0.0, 0.5, 1.0, 0.0, 0.5, 1.0]))
    bank = AnchorBank(data, None, 100, 0, CPU, Doubled(3))
    assert bank.labels.tolist() == [0, 1, 2, 0, 1, 2]
    inputs, targets = bank.read(torch.tensor([5, 1]))
    assert targets.tolist() == [2, 1]
    assert torch.equal(inputs, data.tensors[0][[5, 1]])


def test_images_are_kept_in_the_order_of_memory_that_the_model_wants() -> None:
    for given, last in (({}, False), ({"channels_last": False}, False), ({"channels_last": True}, True)):
        kept, _ = whole_bank(images(), **given).member_batch(slice(0, 6))
        assert kept.is_contiguous(memory_format=torch.channels_last) is last
        assert torch.equal(kept, images().tensors[0])
    rows = TensorDataset(torch.randn(6, 5), torch.arange(6) % 2)
    assert whole_bank(rows, channels_last=True).member_batch(slice(0, 6))[0].shape == (6, 5)


@pytest.mark.parametrize(("spare", "kept"), [(0, "meta"), (-1, "cpu")])
def test_what_is_asked_at_every_refresh_lies_on_the_device(
    spare: int, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEVICE_CACHE_BYTES", 6 * 18 * 4 + spare)
    bank = AnchorBank(images(), None, 100, 0, META)
    bank.select(4)
    bank.allocate(LAYOUT)
    assert isinstance(bank._cache, torch.Tensor)
    assert bank._cache.device.type == kept
    there = [bank.phi, bank.confidence, bank.member_groups, bank.member_labels, bank.member_positions]
    there += [*bank.member_batch(slice(0, 2)), *bank.batch([0, 1]), *bank.read(torch.tensor([5]))]
    directions = bank.group_sums(bank.phi, bank.weights())
    there += [bank.weights(), directions, bank.own_scores(directions, bank.phi)]
    assert {part.device.type for part in there} == {"meta"}
    assert {part.device.type for part in (bank.residual, bank.average, bank.fresh)} == {"cpu"}
    assert bank.phi.shape == (4, LAYOUT.size)
    assert bank.fresh.all()


def test_a_rank_keeps_the_directions_of_its_own_anchors() -> None:
    bank = bank_of([0, 1] * 20, most=30, count=30)
    bank.allocate(LAYOUT, communicator=Part())
    assert bank.own == slice(10, 20)
    assert bank.phi.shape == (10, LAYOUT.size)
    assert len(bank.confidence) == len(bank.residual) == 30
    weights, rows = torch.rand(30), torch.randn(10, LAYOUT.size)
    expected = torch.stack([
        (weights[10:20].unsqueeze(1) * rows)[bank.member_groups[10:20] == group].sum(0) for group in (0, 1)
    ])  # fmt: skip
    torch.testing.assert_close(bank.group_sums(rows, weights), expected)


def test_a_replaced_anchor_loses_its_direction_on_the_rank_that_kept_it() -> None:
    bank = bank_of([0, 1] * 20, most=30, count=30)
    bank.allocate(LAYOUT, communicator=Part())
    bank.phi.fill_(1.0)
    bank.confidence = torch.ones(30)
    lost = [9, 10, 19, 20]
    bank.confidence[lost] = 0.0
    before = bank.members.clone()
    assert bank.replace(4 / 30) == 4
    assert (bank.members != before).nonzero().squeeze(1).tolist() == lost
    assert bank.phi.sum(1).eq(0).nonzero().squeeze(1).tolist() == [0, 9], "of the others it has none"
    assert torch.equal(bank.member_positions, bank.positions())
    assert torch.equal(bank.member_labels, bank.labels[bank.members])


def test_where_a_group_has_no_candidate_left_the_next_least_trusted_is_replaced() -> None:
    bank = bank_of([0] * 20 + [1] * 2, most=11, count=11)
    bank.confidence = torch.where(bank.member_groups == 1, 0.0, torch.linspace(0.5, 1.0, 11))
    first = int(torch.where(bank.member_groups == 0, bank.confidence, 2.0).argmin())
    before = bank.members.clone()
    assert bank.replace(3 / 11) == 1
    assert (bank.members != before).nonzero().flatten().tolist() == [first]
    assert bank.replace(3 / 11) == 1
    assert bank.replaced == 2
    assert bank_of([0] * 40, most=20, count=20).replace(0.05) == 1


def test_leaving_an_anchor_out_depends_on_shares_of_confidence_and_not_on_its_size() -> None:
    bank = bank_of([0, 0])
    bank.confidence = torch.full((2,), 0.005)
    own = bank.own_scores(bank.group_sums(bank.phi, bank.weights()), bank.gradient)
    torch.testing.assert_close(own[0, 0], -0.005 * (bank.phi[1] @ bank.gradient[0]))


def test_what_replaces_an_anchor_does_not_repeat_itself_but_for_the_seed() -> None:
    def newcomers(seed: int, replaced: int) -> list[int]:
        data = TensorDataset(torch.zeros(100, 1), torch.zeros(100, dtype=torch.int64))
        bank = AnchorBank(data, None, 50, seed, CPU)
        bank.select(20)
        bank.allocate(LAYOUT)
        bank.replaced = replaced
        before = set(bank.members.tolist())
        bank.replace(0.5)
        return sorted(set(bank.members.tolist()) - before)

    assert newcomers(0, 0) == newcomers(0, 0)
    assert newcomers(0, 0) != newcomers(0, 10)


def test_influences_through_some_columns_are_those_of_these_columns() -> None:
    bank = bank_of([0, 1, 0, 1, 1])
    part = bank_of([0, 1, 0, 1, 1], size=6)
    part.phi, part.confidence = bank.phi[:, 2:4], bank.confidence
    directions = bank.group_sums(bank.phi, bank.weights())
    found = bank.own_scores(directions, bank.gradient, slice(2, 4))
    torch.testing.assert_close(found, part.own_scores(directions[:, 2:4], bank.gradient[:, 2:4]))


def filled(seed: int = 3, **options: Any) -> AnchorBank:
    bank = bank_of([0, 1] * 20, most=30, count=20, **options)
    generator = torch.Generator().manual_seed(seed)
    bank.confidence, bank.residual, bank.average = (torch.rand(20, generator=generator) for _ in range(3))
    bank.fresh = torch.arange(20) % 3 == 0
    bank.replace(0.2)
    return bank


def test_a_bank_goes_on_from_its_state() -> None:
    one, other = filled(), filled(seed=4)
    state = one.state_dict()
    assert set(state) == {
        "members", "pool", "labels", "groups", "names", "phi", "confidence", "residual", "average", "fresh", "replaced",
    }  # fmt: skip
    other.load_state_dict(state)
    for name in ("members", "phi", "confidence", "residual", "average", "fresh", "member_groups", "member_positions"):
        assert torch.equal(getattr(other, name), getattr(one, name)), name
    assert other.replaced == one.replaced == 4
    assert one.replace(0.2) == other.replace(0.2)
    assert torch.equal(one.members, other.members)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels": torch.zeros(30, dtype=torch.int64)}, "other examples or labels"),
        ({"labels": torch.zeros(29, dtype=torch.int64)}, "other examples or labels"),
        ({"pool": torch.arange(1, 31)}, "other examples or labels"),
        ({"names": ["0", "2"]}, "other groups"),
        ({"groups": torch.zeros(30, dtype=torch.int64)}, "other groups"),
        ({"phi": torch.zeros(20, 5)}, r"shape \(20, 5\), this model needs \(20, 6\)"),
        ({"phi": torch.zeros(19, 6)}, "another model"),
        ({"confidence": torch.zeros(19)}, "differ in length"),
        ({"fresh": torch.zeros(21, dtype=torch.bool)}, "differ in length"),
        ({"members": torch.arange(19)}, "differ in length"),
    ],
)
def test_states_of_other_banks_are_refused(change: dict[str, Any], sentence: str) -> None:
    bank = filled()
    with pytest.raises(StateError, match=sentence):
        bank.load_state_dict({**bank.state_dict(), **change})
