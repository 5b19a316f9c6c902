"""CIFAR-10 and CIFAR-100 from their binary or their Python files."""

from __future__ import annotations

from sgoif.images.sources import cifar
from sgoif.images.sources.base import Request
from sgoif_bench.labels.datasets.arrays import from_arrays
from sgoif_bench.labels.datasets.labelled import Ask, LabelledData
from sgoif_bench.labels.datasets.places import Place, find
from sgoif_bench.noise import CIFAR10_CLASSES

FAMILIES = {
    "aquatic mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food containers": "bottle bowl can cup plate",
    "fruit and vegetables": "apple mushroom orange pear sweet_pepper",
    "household electrical devices": "clock keyboard lamp telephone television",
    "household furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large carnivores": "bear leopard lion tiger wolf",
    "large man-made outdoor things": "bridge castle house road skyscraper",
    "large natural outdoor scenes": "cloud forest mountain plain sea",
    "large omnivores and herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium-sized mammals": "fox porcupine possum raccoon skunk",
    "non-insect invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles 1": "bicycle bus motorcycle pickup_truck train",
    "vehicles 2": "lawn_mower rocket streetcar tank tractor",
}
"""CIFAR-100's superclasses; both kinds of classes are numbered by the alphabet."""
_FAMILY_OF = {name: number for number, members in enumerate(FAMILIES.values()) for name in members.split()}
CIFAR100_CLASSES = tuple(sorted(_FAMILY_OF))
CIFAR100_SUPERCLASSES = tuple(_FAMILY_OF[name] for name in CIFAR100_CLASSES)


def cifar10(ask: Ask) -> LabelledData:
    """Ten classes, 50,000 images for training and 10,000 for the test."""
    stems = cifar.BATCHES if ask.train else ("test_batch",)
    binary = tuple(f"{stem}.bin" for stem in stems)
    places = _places("cifar-10-batches-bin", binary, "cifar-10-batches-py", stems)
    folder, _ = find(ask, places, f"ROOT/cifar-10-batches-bin/{binary[0]} or ROOT/cifar-10-batches-py/{stems[0]}")
    return from_arrays(ask, cifar.read(Request(folder, ask.split)), CIFAR10_CLASSES)


def cifar100(ask: Ask) -> LabelledData:
    """A hundred fine classes, and which superclass each belongs to."""
    binary, python = (f"{ask.split}.bin",), ("train", "test", "meta")
    places = _places("cifar-100-binary", binary, "cifar-100-python", python)
    folder, place = find(ask, places, f"ROOT/cifar-100-binary/{binary[0]} or ROOT/cifar-100-python/{ask.split}")
    request = Request(folder / binary[0]) if place.contents == binary else Request(folder, ask.split)
    return from_arrays(ask, cifar.read(request), CIFAR100_CLASSES, CIFAR100_SUPERCLASSES)


def _places(bin_folder: str, binary: tuple[str, ...], py_folder: str, python: tuple[str, ...]) -> tuple[Place, ...]:
    """Both versions, each in its own folder below the root or in the root itself."""
    return Place(bin_folder, binary), Place(py_folder, python), Place(".", binary), Place(".", python)
