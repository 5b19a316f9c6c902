"""Several processes that train one model have the scores of a single one, and fail together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_cases import EXAMPLES, batches, columns, data, network, on_ranks, train, watched
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sgoif.distributed.communicator import SINGLE_PROCESS, find_communicator, unwrapped
from sgoif.errors import IndexingError, NonFiniteError, RankError
from sgoif.scoring.ledger import Ledger, merged

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
CASES = {
    "head": {},
    "all layers": {"layers": "all"},
    "set intervals": {"refresh_every": 7, "replace_every": 2, "max_anchors": 24, "replace_share": 0.2},
    "low rank": {"curvature": "lowrank", "solver": "subspace"},
}
SOME = ("head", "all layers")
Found = dict[str, Any]


def alone(options: dict[str, Any]) -> Found:
    model = network()
    monitor = watched(model, **options)
    train(model, monitor, batches(0, 1))
    return result(monitor)


def result(monitor: Any) -> Found:
    return {
        "table": columns(monitor),
        "history": monitor.history,
        "anchors": np.asarray(monitor.anchor_scores()["influence"]),
    }


def sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = network()
    assert isinstance(model, nn.Sequential)
    for number in (0, 4, 6):
        fully_shard(model[number], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def together(rank: int, size: int, wrapper: str, names: tuple[str, ...]) -> dict[str, Found]:
    found = {}
    for name in names:
        model = sharded() if wrapper == "fsdp" else DistributedDataParallel(network())
        monitor = watched(model, **CASES[name])
        train(model, monitor, batches(rank, size))
        found[name] = result(monitor)
    return found


def assert_close(table: Any, other_table: Any) -> None:
    for name, values in table.items():
        other = other_table[name]
        if name in ("index", "group", "n_observations"):
            assert np.array_equal(values, other), name
        else:
            assert np.allclose(values, other, rtol=1e-4, atol=1e-4 * np.nanmax(np.abs(values)), equal_nan=True), name


def assert_same(found: Found, expected: Found) -> None:
    assert_close(expected["table"], found["table"])
    assert np.allclose(expected["anchors"], found["anchors"], rtol=1e-4, atol=1e-4)
    top = EXAMPLES // 100 + 1
    first, second = (np.argsort(-one["table"]["influence"])[:top] for one in (expected, found))
    assert first.tolist() == second.tolist()
    assert [entry["step"] for entry in expected["history"]] == [entry["step"] for entry in found["history"]]
    for key in ("tau", "confidence_mean", "anchor_loss", "residual_relative"):
        ends = [one["history"][-1][key] for one in (expected, found)]
        assert ends[0] == pytest.approx(ends[1], rel=1e-3), key


@pytest.fixture(scope="module")
def expected() -> dict[str, Found]:
    return {name: alone(options) for name, options in CASES.items()}


def uneven(rank: int, size: int) -> tuple[Any, list[float]]:
    """Batches of which one rank gets more than the other; the last step has a single example on one of them."""
    model = DistributedDataParallel(network())
    monitor = watched(model)
    steps = [(epoch, whole[:15] if rank == 0 else whole[15:]) for epoch, whole in batches(0, 1, epochs=3)]
    train(model, monitor, [*steps, (3, torch.arange(5) if rank == 0 else torch.tensor([9]))])
    return columns(monitor), [entry["tau"] for entry in monitor.history]


def fail(rank: int, size: int) -> list[str]:
    """What each rank is told when the second one makes a mistake, and that it can go on."""
    told = []
    x, y = data()
    model = DistributedDataParallel(network())
    monitor = watched(model, size=EXAMPLES)
    steps = batches(rank, size, epochs=2)
    train(model, monitor, steps[:3])
    wrong = {"index": torch.tensor([EXAMPLES, 0]), "loss": steps[3][1]}
    for kind, index in wrong.items():
        mine = index if rank == 1 else steps[3][1][: len(index)]
        try:
            with monitor.step(mine):
                loss = F.cross_entropy(model(x[mine % EXAMPLES]), y[mine % EXAMPLES])
                (loss * float("nan") if kind == "loss" and rank == 1 else loss).backward()
        except (RankError, IndexingError, NonFiniteError) as error:
            told.append(f"{type(error).__name__}: {error}")
        monitor.optimizer.zero_grad()
    train(model, monitor, steps[4:])
    told.append(str(len(monitor.scores())))
    return told


def resumed(rank: int, size: int, folder: str) -> tuple[Any, Any, Any]:
    """The table of a whole run, that of one saved and resumed half way, and what each rank says alone after that."""
    steps = batches(rank, size)
    tables = []
    for cut in (None, 17):
        model = DistributedDataParallel(network())
        monitor = watched(model)
        train(model, monitor, steps[:cut])
        if cut is not None:
            monitor.save(Path(folder) / "monitor.npz")
            again = watched(model)
            again.optimizer.load_state_dict(monitor.optimizer.state_dict())
            again.load(Path(folder) / "monitor.npz")
            monitor.close()
            train(model, again, steps[cut:])
            monitor = again
        tables.append(columns(monitor))
    model = DistributedDataParallel(network())
    monitor = watched(model)
    train(model, monitor, steps[:13])
    together = columns(monitor)
    monitor.unite()
    if rank == 1:  # nobody else comes along
        alone = columns(monitor)
        harmed = monitor.most_harmed(*data(3, seed=2))
        assert harmed.shape == (3, 4)
        return tables[0], tables[1], (together, alone)
    return tables[0], tables[1], None


def go_on_alone(folder: str) -> Any:
    """What one process makes of the state that two of them saved, with the weights that they had."""
    model = network()
    monitor = watched(model)
    train(model, monitor, batches(0, 1)[:17])
    again = watched(model)
    again.optimizer.load_state_dict(monitor.optimizer.state_dict())
    again.load(Path(folder) / "monitor.npz")
    monitor.close()
    train(model, again, batches(0, 1)[17:])
    return columns(again)


def merge_slots(rank: int, size: int) -> list[Any]:
    """Ledgers of many classes, each rank with other examples and one in common, merged."""
    ledger = Ledger(70, 70, torch.device("cpu"), 3)
    communicator = find_communicator(DistributedDataParallel(network()))
    for example in (rank, 2):
        scores = torch.zeros(1, 70)
        scores[0, 10 + rank], scores[0, 30] = 2.0, 1.0
        values = torch.tensor([[1.0 + rank, 1, 0, 0, 0, 0]])
        ledger.add(torch.tensor([example]), values, scores, scores, torch.tensor([example]), torch.tensor([True]), 0.5)
    whole = merged(ledger, communicator)
    return [whole.label.tolist(), whole.mean("score").tolist(), whole.column("count").tolist(),
            [dict(zip(whole.groups.slot[2].tolist(), whole.groups.mean[2].tolist(), strict=True))]]  # fmt: skip


def everything(rank: int, size: int, folder: str) -> dict[str, Any]:
    """What all tests here ask of two ranks, which are started once."""
    return {
        "ddp": together(rank, size, "ddp", tuple(CASES)),
        "fsdp": together(rank, size, "fsdp", SOME),
        "uneven": uneven(rank, size),
        "fail": fail(rank, size),
        "resumed": resumed(rank, size, folder),
        "slots": merge_slots(rank, size),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
def found(folder: str) -> list[dict[str, Any]]:
    return on_ranks(2, everything, folder)


def assert_same_as_one(ranks: list[dict[str, Found]], expected: dict[str, Found]) -> None:
    for rank in ranks:
        for name, one in rank.items():
            print(name)
            assert_same(one, expected[name])


@pytest.mark.parametrize(("wrapper", "names"), [("ddp", tuple(CASES)), ("fsdp", SOME)])
def test_scores_are_those_of_one_process(
    wrapper: str, names: tuple[str, ...], found: list[dict[str, Any]], expected: dict[str, Found]
) -> None:
    assert all(tuple(rank[wrapper]) == names for rank in found)
    assert_same_as_one([rank[wrapper] for rank in found], expected)


@pytest.mark.slow
def test_scores_of_four_processes_are_those_of_one(expected: dict[str, Found]) -> None:
    assert_same_as_one(on_ranks(4, together, "ddp", SOME), expected)


def test_ranks_with_batches_of_different_sizes_agree(found: list[dict[str, Any]]) -> None:
    (first, taus), (second, others) = (rank["uneven"] for rank in found)
    assert taus == others
    assert first["n_observations"].sum() == 3 * EXAMPLES + 6
    for name, values in first.items():
        assert np.array_equal(values, second[name], equal_nan=values.dtype.kind == "f"), name


def test_a_mistake_on_one_rank_is_raised_by_all(found: list[dict[str, Any]]) -> None:
    first, second = (rank["fail"] for rank in found)
    assert second[0].startswith("IndexingError: index 240 is out of range")
    assert first[0].startswith("RankError: rank 1 of 2 failed, so all stop here. It said: IndexingError: index 240")
    assert second[1].startswith("NonFiniteError")
    assert "It said: NonFiniteError" in first[1]
    assert first[2] == second[2] == str(EXAMPLES)


def test_a_resumed_run_ends_with_the_same_table(found: list[dict[str, Any]], folder: str) -> None:
    for one in found:
        whole, again, _ = one["resumed"]
        assert_close(whole, again)
    assert_close(found[0]["resumed"][0], go_on_alone(folder))


def test_after_uniting_a_rank_reads_scores_alone(found: list[dict[str, Any]]) -> None:
    together, alone = found[1]["resumed"][2]
    assert_close(together, alone)


def test_slots_of_many_classes_are_merged(found: list[dict[str, Any]]) -> None:
    for rank in found:
        label, score, count, (slots,) = rank["slots"]
        assert (label, score, count) == ([0, 1, 2], [1.0, 2.0, 1.5], [1.0, 1.0, 2.0])
        assert slots[10] == slots[11] == slots[30] == 1.0


def test_without_a_process_group_a_process_is_alone() -> None:
    model = network()
    assert find_communicator(model) is SINGLE_PROCESS
    with pytest.raises(RankError, match="torchrun"):
        find_communicator(model, group=object())
    assert unwrapped(torch.compile(model)) is model
