"""The published lists of near and far sets, and that everything they name is known."""

from __future__ import annotations

import pytest

from sgoif.errors import SettingError
from sgoif_bench.ood.datasets import SETS
from sgoif_bench.ood.protocol import PROTOCOLS, TITLES, protocol_of
from sgoif_bench.ood.recipes import TRAININGS

CASES = {
    ("v1.5", "mnist"): ("notmnist fashion-mnist", "texture cifar10 tin places365"),
    ("v1.5", "cifar10"): ("cifar100 tin", "mnist svhn texture places365"),
    ("v1.5", "cifar100"): ("cifar10 tin", "mnist svhn texture places365"),
    ("v1.5", "imagenet"): ("ssb-hard ninco", "inaturalist texture openimage-o"),
    ("v1", "mnist"): ("notmnist fashion-mnist", "texture cifar10 tin places365"),
    ("v1", "cifar10"): ("cifar100 tin", "mnist svhn texture places365"),
    ("v1", "cifar100"): ("cifar10 tin", "mnist svhn texture places365"),
    ("v1", "imagenet"): ("species inaturalist imagenet-o openimage-o", "texture mnist"),
    ("house", "mnist"): ("fashion-mnist", "cifar10 texture svhn"),
    ("house", "cifar10"): ("cifar100", "svhn texture mnist"),
}


@pytest.mark.parametrize(("protocol", "name"), CASES)
def test_the_lists_are_those_that_were_published(protocol: str, name: str) -> None:
    near, far = (part.split() for part in CASES[protocol, name])
    assert protocol_of(protocol).groups(name) == {**dict.fromkeys(near, "near"), **dict.fromkeys(far, "far")}


def test_no_protocol_has_more_than_that() -> None:
    assert {(protocol.name, name) for protocol in PROTOCOLS.values() for name in protocol.sets} == set(CASES)


def test_the_positive_class_of_fpr95_was_turned_around() -> None:
    assert {name: protocol.positive for name, protocol in PROTOCOLS.items()} == {
        "v1.5": "ood",
        "v1": "id",
        "house": "ood",
    }


def test_every_name_is_known_and_no_set_is_its_own_outlier() -> None:
    for protocol in PROTOCOLS.values():
        for name in protocol.sets:
            assert name in TRAININGS
            assert name not in protocol.groups(name)
            assert set(protocol.groups(name)) <= set(SETS) & set(TITLES)
    assert set(SETS) == set(TITLES)


def test_unknown_names_are_told_the_choices() -> None:
    with pytest.raises(SettingError, match=r"no protocol 'v2'; choose from v1\.5, v1, house"):
        protocol_of("v2")
    with pytest.raises(SettingError, match="house has no in-distribution set 'imagenet'; choose from mnist, cifar10"):
        protocol_of("house").groups("imagenet")
