"""The networks of the protocols, and weights that are kept or given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ood_roots import bars
from torch import nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network
from sgoif_bench.labels.problem import Problem
from sgoif_bench.ood.networks import given_network, load_into, trained_network
from sgoif_bench.ood.recipes import TRAININGS, OodTraining
from sgoif_bench.ood.resnet50 import ResNet50


def quiet(_: str) -> None:
    """Hears everything, says nothing."""


def problem(seed: int = 0) -> Problem:
    images, labels = bars(40, 1)
    recipe = OodTraining(model="small-cnn", epochs=1, batch_size=20, padding=1).recipe(12)
    return Problem(torch.from_numpy(images)[:, None], labels.astype(np.int64), 10, recipe, torch.device("cpu"), seed)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_resnet50_is_the_published_one() -> None:
    model = ResNet50()
    assert sum(weight.numel() for weight in model.parameters()) == 25_557_032
    names = set(model.state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.downsample.0.weight", "layer3.5.bn3.bias"} <= names
    assert {"layer4.2.conv3.weight", "fc.weight", "fc.bias"} <= names
    assert len(names) == 320
    with torch.no_grad():
        assert model.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)
    network = Network(model, torch.zeros(1, 3, 64, 64), model.stages)
    assert network.head_name == "fc"
    assert [stage.shape[1:] for stage in network.see(torch.zeros(1, 3, 64, 64)).stages] == [
        (256, 16, 16), (512, 8, 8), (1024, 4, 4), (2048, 2, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shape", "features"),
    [("mnist", (1, 28, 28), 84), ("cifar10", (3, 32, 32), 512), ("cifar100", (3, 32, 32), 512)],
)
def test_the_recipe_of_every_protocol_fits_its_images(name: str, shape: tuple[int, int, int], features: int) -> None:
    model = TRAININGS[name].recipe(shape[-1]).model(shape[0], 7)
    seen = Network(model, torch.zeros(1, *shape)).see(torch.zeros(2, *shape))
    assert seen.logits.shape == (2, 7)
    assert seen.features.shape == (2, features)
    assert seen.stages


def test_the_defaults_are_those_that_are_documented() -> None:
    assert [TRAININGS[name].model for name in TRAININGS] == ["lenet", "resnet18", "resnet18", "resnet50"]
    assert [TRAININGS[name].epochs for name in ("mnist", "cifar10", "cifar100")] == [10, 30, 30]
    assert (TRAININGS["cifar10"].batch_size, TRAININGS["cifar10"].learning_rate) == (512, 0.4)
    assert not TRAININGS["mnist"].mirror, "a mirrored digit is another"


def test_a_network_that_was_kept_is_not_trained_again(tmp_path: Path) -> None:
    kept = tmp_path / "folder/network.pt"
    first, seconds = trained_network(problem(), quiet, kept)
    told: list[str] = []
    again, stated = trained_network(problem(seed=5), told.append, kept)
    assert same(first, again)
    assert stated == seconds
    assert told == ["the network of network.pt is used again"]
    assert not same(first, trained_network(problem(seed=5), quiet)[0])
    assert same(first, trained_network(problem(), quiet)[0]), "the seed alone decides"


def test_weights_that_are_given_must_fit(tmp_path: Path) -> None:
    model, file = problem().new_model(7), tmp_path / "w.pt"
    for content in (model.state_dict(), {"state_dict": model.state_dict(), "epoch": 3}):
        torch.save(content, file)
        assert same(given_network(problem(), file), model)
    state = model.state_dict()
    load_into(problem().new_model(), state, file)
    with pytest.raises(SettingError, match=r"do not fit.*1 are missing, 1 are unknown.*--model"):
        load_into(model, {**{name: state[name] for name in list(state)[1:]}, "other": state["5.bias"]}, file)
    with pytest.raises(SettingError, match=r"1 have another shape, for instance 5\.bias"):
        load_into(model, {**state, "5.bias": torch.zeros(3)}, file)
    torch.save([1, 2], file)
    with pytest.raises(SettingError, match="holds a list"):
        given_network(problem(), file)
    file.write_bytes(b"nonsense")
    with pytest.raises(SettingError, match="not a file of weights"):
        given_network(problem(), file)
    with pytest.raises(SettingError, match="no file of weights"):
        given_network(problem(), tmp_path / "none.pt")
