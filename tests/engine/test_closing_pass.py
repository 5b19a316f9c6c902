"""One more look by the trained model: what it adds, that the run is as before, and when it is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.engine.closing_pass import LOOKS, closing_pass, looks_an_example
from sgoif.errors import SettingError
from sgoif.tasks.labels import LabelErrors

CLASSES, COUNT = 4, 400


def blobs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Points around four centres, their right labels, and labels of which a fifth is wrong."""
    random = torch.Generator().manual_seed(seed)
    right = torch.arange(COUNT) % CLASSES
    x = torch.randn(COUNT, 6, generator=random) + 2.5 * torch.eye(CLASSES, 6)[right]
    wrong = torch.rand(COUNT, generator=random) < 0.2
    given = torch.where(wrong, (right + torch.randint(1, CLASSES, (COUNT,), generator=random)) % CLASSES, right)
    return x, right, given


class Run:
    """A short training with dropout, its monitor closed at the end as by a with-block."""

    def __init__(self, epochs: int, held_out: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.x, self.right, self.given = blobs()
        self.data: Dataset[Any] = TensorDataset(self.x, self.given)
        training, anchors = split_holdout(self.data, 0.2)
        self.model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, CLASSES))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        loader = DataLoader(indexed(training), batch_size=16, shuffle=True)
        anchors = anchors if held_out is None else held_out
        with InfluenceMonitor(self.model, optimizer, anchors=anchors, **options) as self.monitor:
            for _ in range(epochs):
                for x, y, index in loader:
                    with self.monitor.step(index):
                        optimizer.zero_grad()
                        F.cross_entropy(self.model(x), y).backward()
                    optimizer.step()

    def look(self) -> Any:
        return closing_pass(self.monitor.pipeline, self.monitor.held_out, self.monitor.checkpoint, self.data)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) if isinstance(a, Tensor) else a == b

    return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())


def ranked(errors: LabelErrors, wrong: Tensor) -> float:
    """Chance that a wrong label is more suspicious than a right one."""
    index, v = errors.judgement.training.index, errors.judgement.suspicion
    bad, good = v[wrong[index].numpy()], v[~wrong[index].numpy()]
    return float((bad[:, None] > good[None]).mean())


def test_it_is_one_more_observation_by_the_trained_model_with_the_weight_of_this_moment() -> None:
    run = Run(2)
    before = run.monitor.record().copy()
    training, held_out = run.look()
    rows = (before.column("count") > 0).nonzero().squeeze(1)
    assert torch.equal(training.column("count")[rows], before.column("count")[rows] + 1)
    added = (training.column("weight") - before.column("weight"))[rows]
    torch.testing.assert_close(added, added[:1].expand(len(rows)), rtol=1e-3, atol=1e-7)
    run.model.eval()
    losses = F.cross_entropy(run.model(run.x[rows]), run.given[rows], reduction="none").detach()
    told = (training.column("loss") - before.column("loss"))[rows] / added
    torch.testing.assert_close(told, losses, rtol=2e-3, atol=2e-4)
    assert (held_out.column("count") > run.monitor.anchor_ledger.column("count")).all()


def test_the_run_is_as_it_was_and_may_go_on() -> None:
    run = Run(1)
    before = run.monitor.state_dict()
    weights = [weight.clone() for weight in run.model.parameters()]
    run.look()
    LabelErrors(run.monitor)
    assert same(run.monitor.state_dict(), before)
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), weights, strict=True))
    assert run.model.training
    assert run.monitor.closed


def test_a_short_run_ranks_better_with_it_and_takes_it_by_itself() -> None:
    run = Run(2)
    wrong = run.given != run.right
    without, of_itself, asked = (LabelErrors(run.monitor, closing_pass=c) for c in (False, None, True))
    assert ranked(of_itself, wrong) == ranked(asked, wrong) > ranked(without, wrong) + 0.02
    assert looks_an_example(run.monitor.record()) < LOOKS


def test_a_long_run_does_not_need_it() -> None:
    run = Run(30, weigh_steps=False)
    assert looks_an_example(run.monitor.record()) == pytest.approx(30)
    found, without = LabelErrors(run.monitor), LabelErrors(run.monitor, closing_pass=False)
    assert np.array_equal(found.judgement.suspicion, without.judgement.suspicion)


def test_a_hold_out_from_elsewhere_needs_the_data() -> None:
    x, _, given = blobs(seed=1)
    run = Run(1, held_out=(x[:80], given[:80]))
    with pytest.raises(SettingError, match="give dataset=, indexed like the loop"):
        LabelErrors(run.monitor, closing_pass=True)
    with pytest.raises(SettingError, match="fewer examples than the loop"):
        LabelErrors(run.monitor, dataset=TensorDataset(x[:9], given[:9]), closing_pass=True)
    without = LabelErrors(run.monitor)
    found = LabelErrors(run.monitor, dataset=run.data)
    assert not np.array_equal(found.judgement.suspicion, without.judgement.suspicion)


def test_data_that_cannot_be_read_any_more_are_named_and_the_steps_alone_judge() -> None:
    class Gone(Dataset[Any]):
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            raise FileNotFoundError(f"img/{index}.png")

    run = Run(1)
    with pytest.warns(UserWarning, match=r"rests on the steps of training alone: FileNotFoundError: img/\d+\.png"):
        found = LabelErrors(run.monitor, dataset=Gone())
    without = LabelErrors(run.monitor, closing_pass=False)
    assert np.array_equal(found.judgement.suspicion, without.judgement.suspicion)
