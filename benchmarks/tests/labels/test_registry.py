"""Methods by name, and the recipes they are trained by."""

from __future__ import annotations

import pytest
import torch

from sgoif.errors import SettingError
from sgoif_bench.labels.datasets import NAMES
from sgoif_bench.labels.recipes import NETWORKS, TRAININGS, Training, file_identity, identity, training_for
from sgoif_bench.labels.registry import FAMILIES, METHODS, OWN, choose, in_order, is_rival, solver, title_of
from sgoif_bench.methods import resolve

PLACES = {**{name: method.run for name, method in METHODS.items() if method.run}, **FAMILIES}


def test_every_method_that_is_asked_for_is_registered() -> None:
    expected = (
        "sgoif influence mixup sce coteaching coteaching-known mentornet mentornet-loss mentornet-predefined incv"
        " dividemix cores tracin-self tracin-anchors tracin-voices fastif fastif-sum confident-learning loss aum"
        " probability-margin forgetting data-maps self-influence knn simifeat-vote simifeat-rank"
    )
    assert choose("all") == expected.split()
    assert all(method.name == name and method.title and method.paper for name, method in METHODS.items())
    assert all(method.family in (name, *FAMILIES) for name, method in METHODS.items())
    assert [name for name, method in METHODS.items() if not method.run] == choose("ablations")


def test_every_ablation_is_registered() -> None:
    ours = pytest.importorskip("sgoif_bench.labels.ours")
    assert set(choose("ablations")) == {"every-part", *ours.ABLATIONS}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_every_method_can_be_called(place: str) -> None:
    assert callable(resolve(place))


def test_groups_and_names_can_be_mixed() -> None:
    assert set(choose("simple")) | set(choose("heavy")) == set(choose("all"))
    assert not set(choose("simple")) & set(choose("heavy"))
    assert not set(choose("ablations")) & set(choose("all"))
    assert choose("knn, sgoif,knn") == ["sgoif", "knn"]
    assert choose("simple,mixup") == [name for name in METHODS if name in {*choose("simple"), "mixup"}]
    with pytest.raises(
        SettingError, match=r"no method fast-if; choose from sgoif, .*knn.*, or the groups all, ablations"
    ):
        choose("fast-if")


def test_titles_rivals_and_their_order() -> None:
    assert title_of("coteaching") == "Co-teaching"
    assert title_of("margin-only") == "margin-only"
    assert is_rival("aum")
    assert not any(is_rival(name) for name in (*OWN, *choose("ablations"), "margin-only"))
    assert in_order(["aum", "margin-only", "mixup", "influence", "one-pool", "sgoif"]) == [
        "sgoif", "influence", "one-pool", "margin-only", "mixup", "aum",
    ]  # fmt: skip


def test_a_family_is_run_at_once_or_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgoif_bench.methods.resolve", lambda place: lambda problem, tell: place)

    def run(*names: str, solo: bool) -> object:
        return solver(names, solo=solo)(None, print)  # type: ignore[arg-type]

    assert run("loss", "aum", solo=False) == FAMILIES["plain"]
    assert run("loss", solo=True) == {"loss": METHODS["loss"].run}
    assert run("sce", solo=False) == {"sce": METHODS["sce"].run}
    assert run("one-pool", "low-rank", solo=True) == FAMILIES["ablations"], "ablations cannot be run alone"


def test_every_data_set_has_a_recipe() -> None:
    assert set(TRAININGS) == set(NAMES)
    cifar, digits = training_for("cifar10"), training_for("digits")
    assert (cifar.model, cifar.epochs, cifar.batch_size, cifar.learning_rate, cifar.anchors) == (
        "resnet9", 20, 512, 0.4, 2000,
    )  # fmt: skip
    assert training_for("cifar100").anchors == 4000
    assert (digits.model, digits.epochs, digits.batch_size, digits.anchors) == ("digits-net", 30, 64, 300)
    assert not training_for("mnist").mirror
    assert training_for("fashion-mnist").mirror
    assert training_for("webvision").image == 64


@pytest.mark.parametrize("name", TRAININGS)
def test_the_recipe_fits_the_data_set(name: str) -> None:
    sides = {"digits": (1, 8), "mnist": (1, 28), "fashion-mnist": (1, 28)}
    channels, side = sides.get(name, (3, TRAININGS[name].image or 32))
    recipe = training_for(name).recipe(side)
    assert recipe.padding < side
    with torch.no_grad():
        assert recipe.model(channels, 7).eval()(torch.zeros(2, channels, side, side)).shape == (2, 7)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_can_be_chosen(name: str) -> None:
    channels, side = (1, 8) if name == "digits-net" else (3, 32)
    model = Training(model=name).recipe(side).model(channels, 3).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, channels, side, side)).shape == (1, 3)


def test_options_change_the_recipe_and_a_short_data_set_its_anchors() -> None:
    changed = training_for("digits", epochs=3, augment=False, model=None, limit=500)
    assert (changed.epochs, changed.augment, changed.model, changed.anchors) == (3, False, "digits-net", 100)
    assert training_for("digits", limit=5000).anchors == 300
    assert training_for("digits", limit=500, anchors=200).anchors == 200
    with pytest.raises(SettingError, match="anchors = 600 leave nothing"):
        training_for("digits", limit=500, anchors=600)


def test_a_recipe_has_a_name_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    recipe = training_for("digits").described()
    assert identity(recipe) == identity(dict(reversed(recipe.items())))
    assert identity(recipe) == identity(training_for("digits").described(human=None))
    others = [training_for("digits", **change).described() for change in ({"epochs": 31}, {"limit": 9999})]
    others.append(training_for("digits").described(human="abc"))
    assert len({identity(recipe), *(identity(other) for other in others)}) == 4
    file = tmp_path_factory.mktemp("labels") / "a.npz"
    file.write_bytes(b"one")
    before = file_identity(file)
    file.write_bytes(b"two")
    assert file_identity(file) != before
