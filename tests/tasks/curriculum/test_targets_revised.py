"""Labels for a second training: what is believed stays, what is not goes to the answers of the first network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from curriculum_cases import CLASSES, DIMENSIONS, Blobs, Run, blobs, finished_curriculum
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from sgoif import InfluenceMonitor, indexed
from sgoif.errors import SettingError, SgoifError, StepError
from sgoif.tasks import Curriculum


@pytest.fixture(scope="module")
def noisy() -> Blobs:
    return blobs()


def whole(data: Blobs) -> TensorDataset:
    return TensorDataset(data.x, torch.from_numpy(data.given))


@pytest.fixture(scope="module")
def finished(noisy: Blobs) -> Curriculum:
    return finished_curriculum(noisy)


def test_what_is_given_up_goes_to_the_answer_at_the_end(noisy: Blobs, finished: Curriculum) -> None:
    labels = finished.revised(whole(noisy))
    assert labels.shape == (len(noisy.x), CLASSES)
    assert labels.dtype == torch.float32
    assert labels.device.type == "cpu"
    torch.testing.assert_close(labels.sum(1), torch.ones(len(noisy.x)))
    assert finished.doubt is not None
    with torch.no_grad():
        answers = finished.monitor.model(noisy.x).softmax(1)
    given = F.one_hot(torch.from_numpy(noisy.given), CLASSES)
    expected = (1 - finished.doubt[:, None]) * given + finished.doubt[:, None] * answers
    torch.testing.assert_close(labels, expected)


def test_a_fresh_network_learns_more_from_them_than_from_the_given_ones(noisy: Blobs, finished: Curriculum) -> None:
    test = blobs(rate=0.0, seed=1)

    def accuracy(labels: Tensor) -> float:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(DIMENSIONS, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(30):
            for index in torch.randperm(len(noisy.x)).split(50):
                F.cross_entropy(model(noisy.x[index]), labels[index]).backward()
                optimizer.step()
                optimizer.zero_grad()
        return float((model(test.x).argmax(1).numpy() == test.true).mean())

    labels = finished.revised(whole(noisy))
    assert (labels.argmax(1).numpy() == noisy.true).mean() > (noisy.given == noisy.true).mean() + 0.1
    assert accuracy(labels) > accuracy(F.one_hot(torch.from_numpy(noisy.given), CLASSES).float()) + 0.03


def test_the_model_and_the_random_state_are_as_they_were(noisy: Blobs) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIMENSIONS, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.Linear(32, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor = InfluenceMonitor(model, optimizer, anchors=noisy.held_out, size=len(noisy.x))
    curriculum = Curriculum(monitor, warm_up=1)
    for _ in range(4):
        for index in torch.from_numpy(noisy.rows).split(50):
            with monitor.step(index, weights=curriculum.weights(index)):
                F.cross_entropy(model(noisy.x[index]), torch.from_numpy(noisy.given)[index]).backward()
            optimizer.step()
            optimizer.zero_grad()
    before, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()

    class Shaken(Dataset[Any]):
        def __len__(self) -> int:
            return len(noisy.x)

        def __getitem__(self, position: int) -> tuple[Tensor, int]:
            return noisy.x[position] + 0 * torch.rand(1), int(noisy.given[position])

    first = curriculum.revised(Shaken())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(curriculum.revised(indexed(whole(noisy))), first)


def test_judging_on_revises_further(noisy: Blobs) -> None:
    run = Run(noisy)
    curriculum = Curriculum(run.monitor, warm_up=2)
    run.epochs(0, 7, curriculum.weights)
    curriculum.finish()
    assert curriculum.doubt is not None
    then = curriculum.doubt.clone()
    assert curriculum.goes_on
    rows = np.arange(len(noisy.x))
    for epoch in (7, 8):
        for index in run.batches(epoch, rows):
            run.step(index, curriculum.weights(index))
    held = torch.tensor(noisy.held_out.indices)
    assert torch.equal(curriculum.doubt[held], then[held])
    assert not torch.equal(curriculum.doubt, then)
    assert ((curriculum.doubt >= 0) & (curriculum.doubt <= 1)).all()


def test_a_hold_out_of_its_own_leaves_training_labels_to_revise(noisy: Blobs) -> None:
    rows = torch.from_numpy(noisy.rows)
    held = torch.tensor(noisy.held_out.indices)
    x, given = noisy.x[rows], torch.from_numpy(noisy.given)[rows]
    model = nn.Sequential(nn.Linear(DIMENSIONS, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    apart = TensorDataset(noisy.x[held], torch.from_numpy(noisy.given)[held])
    with InfluenceMonitor(model, optimizer, anchors=apart, size=len(x)) as monitor:
        curriculum = Curriculum(monitor, warm_up=2)
        for _ in range(7):
            for index in torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split(50):
                with monitor.step(index, weights=curriculum.weights(index)):
                    F.cross_entropy(model(x[index]), given[index]).backward()
                optimizer.step()
                optimizer.zero_grad()
    labels = curriculum.revised(TensorDataset(x, given))
    kept = labels[torch.arange(len(x)), given].numpy()
    wrong = noisy.wrong[noisy.rows]
    assert kept[wrong].mean() < 0.6 < 0.9 < kept[~wrong].mean()


def test_a_resumed_curriculum_revises_alike(noisy: Blobs, finished: Curriculum, tmp_path: Path) -> None:
    finished.save(tmp_path / "curriculum.npz")
    run = Run(noisy)
    run.model.load_state_dict(finished.monitor.model.state_dict())
    resumed = Curriculum(run.monitor, warm_up=2)
    resumed.load(tmp_path / "curriculum.npz")
    assert torch.equal(resumed.revised(whole(noisy)), finished.revised(whole(noisy)))


def test_mistakes_are_named(noisy: Blobs, finished: Curriculum) -> None:
    with pytest.raises(SgoifError, match="no label was judged yet"):
        Curriculum(Run(noisy).monitor).revised(whole(noisy))
    with pytest.raises(SettingError, match="whole data set"):
        finished.revised(TensorDataset(noisy.x[:10], torch.from_numpy(noisy.given)[:10]))

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(whole(noisy))

    with pytest.raises(SettingError, match="not Stream"):
        finished.revised(Stream())
    with pytest.raises(StepError, match="labels from"):
        finished.revised(TensorDataset(noisy.x, torch.from_numpy(noisy.given) + 1))
