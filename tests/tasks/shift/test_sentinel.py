"""The sentinel: its formula, what it tells apart, its gate, its honesty, its state and its errors."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from shift_cases import CLASSES, batches, blobs, strangers, trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif import InfluenceMonitor, indexed
from sgoif.bench.metrics import auroc
from sgoif.errors import LayerError, SettingError, StateError
from sgoif.tasks import Sentinel
from sgoif.tasks.shift.reference import confidence
from sgoif.tasks.shift.sentinel import energy


@pytest.fixture(scope="module")
def sentinel() -> Sentinel:
    return Sentinel.fit(trained(), batches(600, 0), calibration=batches(500, 1))


def test_the_score_is_the_formula(sentinel: Sentinel) -> None:
    x = strangers(20)
    seen = sentinel.network.see(x)
    z = seen.logits - seen.logits.mean(1, keepdim=True)
    parts = [layer.distance(a) for layer, a in zip(sentinel.layers, (*seen.pooled, seen.features), strict=True)]
    joined = torch.cat((*seen.pooled, seen.features), 1)
    spread, apart = torch.stack(parts).mean(0), sentinel.neighbours.distance(joined)
    expected = 0.5 * spread.log() + 0.5 * apart.log() - z.exp().sum(1).log().log()
    torch.testing.assert_close(sentinel.score(x), expected)


def test_strangers_are_stranger(sentinel: Sentinel) -> None:
    fresh, _ = blobs(200, 5)
    scores = torch.cat([sentinel.score(fresh), sentinel.score(strangers(200))])
    assert auroc((torch.arange(400) >= 200).numpy(), scores.double().numpy()) > 0.97


def test_p_values_of_held_out_inputs_are_honest(sentinel: Sentinel) -> None:
    p = sentinel.p_value(blobs(1000, 6)[0])
    for level in (0.05, 0.2, 0.5):
        assert float((p <= level).double().mean()) <= level + 3 * math.sqrt(level * (1 - level) * (1 / 1000 + 1 / 500))
    assert float(p.min()) >= 1 / 501
    beyond = sentinel.score(blobs(1000, 6)[0]) > sentinel.threshold(0.05)
    assert torch.equal(beyond, p <= 0.05)


def test_energy_is_blind_to_a_common_shift_and_never_below_the_guess() -> None:
    logits = torch.randn(50, 7)
    torch.testing.assert_close(energy(logits), energy(logits + 5.0))
    assert float(energy(logits).min()) >= math.log(7) - 1e-6
    torch.testing.assert_close(energy(torch.tensor([[2.0]])), torch.tensor([math.log(math.exp(1) + math.exp(-1))]))


def test_confidence_falls_with_the_residual() -> None:
    answers = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    got = confidence(answers, torch.tensor([0, 0, 0]))
    assert got.tolist() == pytest.approx([1.0, 1 - math.sqrt(0.5), 0.0])


def test_the_gate_keeps_wrong_labels_out_of_the_reference() -> None:
    images, labels = blobs(600, 0)
    wrong = torch.arange(600) % 5 == 0
    noisy = torch.where(wrong, (labels + 1) % CLASSES, labels)
    held_out = batches(300, 1)

    def centres(y: torch.Tensor, gate: bool) -> torch.Tensor:
        made = Sentinel.fit(trained(), [(images, y)], calibration=held_out, gate=gate)
        return made.layers[-1].centres

    clean = centres(labels, gate=False)
    assert (centres(noisy, gate=True) - clean).norm() < 0.2 * (centres(noisy, gate=False) - clean).norm()


def test_a_class_that_the_network_gets_wrong_still_has_a_centre() -> None:
    images, labels = blobs(600, 0)
    shifted = (labels + 1) % CLASSES
    made = Sentinel.fit(trained(), [(images, shifted)], calibration=batches(300, 1))
    assert made.layers[-1].centres.shape[0] == CLASSES


def test_labels_are_not_needed() -> None:
    unlabelled = Sentinel.fit(trained(), [x for x, _ in batches(600, 0)], calibration=[x for x, _ in batches(300, 1)])
    assert float(unlabelled.score(strangers(50)).median()) > float(unlabelled.score(blobs(50, 5)[0]).median())


def test_a_fifth_is_kept_back_without_a_calibration() -> None:
    made = Sentinel.fit(trained(), batches(600, 0))
    assert len(made.calibration) == 120


def monitored() -> InfluenceMonitor:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )
    data, hold_out = TensorDataset(*blobs(400, 0)), TensorDataset(*blobs(200, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    monitor = InfluenceMonitor(model, optimizer, anchors=hold_out, max_anchors=200)
    for _ in range(3):
        for x, y, index in DataLoader(indexed(data), batch_size=50, shuffle=True):
            with monitor.step(index):
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor


def test_a_monitor_that_runs_gives_one_and_is_left_as_it_was() -> None:
    monitor = monitored()
    monitor.model.train()
    monitor.model[1].eval()  # whoever froze a layer finds it frozen
    before = {name: value.clone() for name, value in monitor.model.state_dict().items()}
    made = Sentinel.from_monitor(monitor)
    assert monitor.model.training
    assert not monitor.model[1].training
    assert all(torch.equal(value, before[name]) for name, value in monitor.model.state_dict().items())
    assert len(made.calibration) == len(monitor.anchors)
    scores = torch.cat([made.score(blobs(100, 5)[0]), made.score(strangers(100))])
    assert auroc((torch.arange(200) >= 100).numpy(), scores.double().numpy()) > 0.9
    assert monitor.model.training
    p = made.p_value(blobs(400, 7)[0])
    assert float((p <= 0.1).double().mean()) < 0.2


def test_saved_and_loaded_it_says_the_same(sentinel: Sentinel, tmp_path: Path) -> None:
    sentinel.save(tmp_path / "sentinel.npz")
    again = Sentinel.load(tmp_path / "sentinel.npz", trained())
    assert torch.equal(again.neighbours.rows, sentinel.neighbours.rows)
    x = torch.cat([blobs(10, 3)[0], strangers(10)])
    assert torch.equal(again.score(x), sentinel.score(x))
    assert torch.equal(again.p_value(x), sentinel.p_value(x))


def test_a_state_of_another_model_or_kind_is_refused(sentinel: Sentinel, tmp_path: Path) -> None:
    sentinel.save(tmp_path / "s.npz")
    with pytest.raises(StateError, match="another model"):
        Sentinel.load(tmp_path / "s.npz", nn.Linear(3, 2))
    other = nn.Sequential(*list(trained())[:-1], nn.Linear(10, CLASSES))
    with pytest.raises(StateError, match="takes 64 features, this one's 10"):
        Sentinel.load(tmp_path / "s.npz", other)
    monitored().save(tmp_path / "monitor.npz")
    with pytest.raises(StateError, match="not a sentinel"):
        Sentinel.load(tmp_path / "monitor.npz", trained())
    (tmp_path / "broken.npz").write_bytes((tmp_path / "s.npz").read_bytes()[:500])
    with pytest.raises(StateError, match="damaged"):
        Sentinel.load(tmp_path / "broken.npz", trained())
    with pytest.raises(FileNotFoundError):
        Sentinel.load(tmp_path / "none.npz", trained())


def test_inputs_that_are_not_numbers_are_infinitely_strange_and_harm_nobody(sentinel: Sentinel) -> None:
    x, _ = blobs(4, 3)
    alone = sentinel.score(x)
    x[1, 0, 0, 0], x[2, 0, 3, 3] = math.nan, math.inf
    scores = sentinel.score(x)
    assert scores[[1, 2]].tolist() == [math.inf, math.inf]
    torch.testing.assert_close(scores[[0, 3]], alone[[0, 3]])
    assert float(sentinel.p_value(x)[1]) == pytest.approx(1 / 501)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.zeros(2, 1, 9, 9), r"\(1, 9, 9\) do not go with a sentinel for \(1, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8), r"\(3, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "normalised floats, not torch.uint8"),
    ],
)
def test_other_inputs_are_refused(sentinel: Sentinel, x: torch.Tensor, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        sentinel.score(x)


def test_nothing_is_nothing(sentinel: Sentinel) -> None:
    assert len(sentinel.score(torch.zeros(0, 1, 8, 8))) == 0
    assert len(sentinel.p_value(torch.zeros(0, 1, 8, 8))) == 0


def test_too_little_or_wrong_data_is_named() -> None:
    with pytest.raises(SettingError, match="loader is empty"):
        Sentinel.fit(trained(), [])
    with pytest.raises(SettingError, match="4 examples are too few to calibrate"):
        Sentinel.fit(trained(), batches(20, 0))
    with pytest.raises(SettingError, match="labels must lie between 0 and 2; found 0 to 7"):
        Sentinel.fit(trained(), [(blobs(100, 0)[0], torch.arange(100) % 8)])
    with pytest.raises(SettingError, match="must start with a tensor"):
        Sentinel.fit(trained(), [(["a"], [0])])
    with pytest.raises(LayerError, match="no linear layer"):
        Sentinel.fit(nn.Conv2d(1, 2, 3), batches(100, 0))


def test_one_class_is_enough() -> None:
    images, _ = blobs(300, 0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))
    made = Sentinel.fit(model, [(images, torch.zeros(300, dtype=torch.long))])
    assert bool(torch.isfinite(made.score(strangers(5))).all())


def test_a_stream_of_images_is_watched(sentinel: Sentinel) -> None:
    watch = sentinel.watch(false_alarms=0.01)
    assert watch.update(blobs(200, 8)[0]) is None
    alarm = watch.update(strangers(100))
    assert alarm is not None
    assert 190 <= alarm.change <= 215
