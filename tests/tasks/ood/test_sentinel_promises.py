"""What a sentinel promises whatever the order of the data and the way a network is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ood_task_cases import batches, trained
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sgoif import InfluenceMonitor
from sgoif.core.serialization import load_state, save_state
from sgoif.errors import StateError
from sgoif.tasks import Sentinel
from sgoif.tasks.ood import reference
from sgoif.tasks.ood.network import Network
from sgoif.tasks.ood.reference import OneInMany

CLASSES, SIZE = 5, 10


def clouds(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Classes in turn, of which some are wider than others."""
    chance = np.random.default_rng(seed)
    y = np.arange(count) % CLASSES
    x = 4 * np.eye(CLASSES, SIZE)[y] + (0.3 + 0.3 * y[:, None]) * chance.standard_normal((count, SIZE))
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def taught(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(SIZE, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimizer, (x, y) = torch.optim.Adam(model.parameters(), lr=0.01), clouds(500, 100 + seed)
    for _ in range(60):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_one_in_five_is_chosen_at_random_whatever_the_batches() -> None:
    whole = OneInMany(5).chosen(103)
    pieces = OneInMany(5)
    assert torch.equal(whole, torch.cat([pieces.chosen(n) for n in (1, 4, 7, 0, 30, 61)]))
    assert whole[:100].reshape(20, 5).sum(1).tolist() == [1] * 20
    assert len(set(whole[:100].reshape(20, 5).int().argmax(1).tolist())) == 5


def test_classes_in_turn_are_all_in_the_reference() -> None:
    """One in five of five classes in turn would be a class, were it every fifth."""
    x, y = clouds(1000, 0)
    sentinel = Sentinel.fit(taught(), [(x, y)])
    assert len(sentinel.layers[-1].centres) == CLASSES
    p = sentinel.p_value(clouds(1000, 1)[0])
    assert 0.02 < float((p <= 0.05).float().mean()) < 0.09


def test_a_calibration_that_does_not_fit_is_a_fair_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "MOST_CALIBRATION", 300)
    x, y = clouds(3000, 1)
    order = y.argsort(stable=True)
    sentinel = Sentinel.fit(taught(), [clouds(500, 0)], calibration=list(x[order].split(64)))
    assert len(sentinel.calibration) == 300
    p = sentinel.p_value(clouds(2000, 2)[0])
    assert 0.02 < float((p <= 0.05).float().mean()) < 0.1
    again = Sentinel.fit(taught(), [clouds(500, 0)], calibration=list(x[order].split(1000)))
    torch.testing.assert_close(sentinel.calibration, again.calibration)


@pytest.mark.parametrize("anchors", [60, 200])
def test_p_values_of_a_monitor_are_honest(anchors: int) -> None:
    """An anchor looks less strange to what was made of it than any other input does."""
    shares = []
    for seed in range(4):
        model = taught(seed)
        monitor = InfluenceMonitor(
            model, torch.optim.SGD(model.parameters(), lr=1e-3), anchors=TensorDataset(*clouds(anchors, 7 + seed))
        )
        x, y = clouds(64, 50 + seed)
        with monitor.step(torch.arange(64)):
            F.cross_entropy(model(x), y).backward()
        p = Sentinel.from_monitor(monitor).p_value(clouds(500, 90 + seed)[0])
        shares.append(float((p <= 0.05).float().mean()))
    assert np.mean(shares) < 0.08


class Shared(nn.Module):
    """One activation for all layers, as many networks are written."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, stride=2)
        self.act, self.fc, self.head = nn.ReLU(), nn.Linear(36, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.act(self.second(self.act(self.first(x))))
        found: Tensor = self.head(self.act(self.fc(maps.flatten(1))))
        return found


def test_a_network_that_uses_one_activation_everywhere() -> None:
    torch.manual_seed(0)
    model = Shared()
    assert Network(model, torch.randn(1, 1, 9, 9)).stages == ("first", "second")
    sentinel = Sentinel.fit(model, [torch.randn(200, 1, 9, 9)])
    assert torch.isfinite(sentinel.score(torch.randn(5, 1, 9, 9))).all()


def test_a_transformer_that_has_its_tokens_first() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.body(x.transpose(0, 1)).mean(0))
            return found

    torch.manual_seed(0)
    sentinel = Sentinel.fit(Tokens(), list(torch.randn(200, 5, 8).split(5)))
    assert sentinel.network.stages == ()
    assert torch.isfinite(sentinel.score(torch.randn(7, 5, 8))).all()


def test_a_fit_leaves_the_random_state_alone() -> None:
    model, before = taught(), torch.get_rng_state()
    Sentinel.fit(model, TensorDataset(*clouds(200, 0)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "change",
    [
        {"stages": None},
        {"scales": []},
        {"shape": 3},
        {"calibration": torch.zeros(0)},
        {"calibration": torch.full((30,), torch.nan)},
        {"centres0": torch.zeros(1, 2)},
        {"neighbours": torch.zeros(3)},
    ],
)
def test_a_file_whose_parts_do_not_go_together_is_damaged(change: dict[str, Any], tmp_path: Path) -> None:
    model = trained()
    Sentinel.fit(model, batches(300, 0)).save(tmp_path / "s.npz")
    state = {**load_state(tmp_path / "s.npz"), **change}
    save_state(tmp_path / "s.npz", {name: value for name, value in state.items() if value is not None})
    with pytest.raises(StateError, match="damaged"):
        Sentinel.load(tmp_path / "s.npz", model)
