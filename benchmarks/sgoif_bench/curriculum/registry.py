"""The methods of the comparison by name. Modules are imported when a method is first run, not before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sgoif_bench import methods
from sgoif_bench.curriculum.study import Study, Trained
from sgoif_bench.labels import registry as labels

PLACE = "sgoif_bench.curriculum"


@dataclass(frozen=True)
class Method:
    """A way to train."""

    name: str
    run: str
    """`module:function` that is called with a study and returns what it says about its training."""
    title: str
    """As it stands in a table."""
    paper: str
    knows_truth: bool = False
    """Whether it is told which labels are right: a ceiling, no rival."""


def _rival(name: str) -> Method:
    known = labels.METHODS[name]
    return Method(name, f"{PLACE}.rivals:{name}", known.title, known.paper)


def _ceiling(name: str, title: str) -> Method:
    place = f"{PLACE}.ours:{name.replace('-', '_')}"
    return Method(name, place, title, "mistakes taken out of the weights of ours", knows_truth=True)


_SGOIF = "SG-OIF: A Stability-Guided Online Influence Framework for Reliable Vision Data"
_BORN_AGAIN = "answers of the first network as labels (Furlanello et al., Born Again Neural Networks, ICML 2018)"

_ALL = (
    Method("curriculum", f"{PLACE}.ours:curriculum", "SG-OIF curriculum", _SGOIF),
    Method("curriculum-robust", f"{PLACE}.ours:robust", "SG-OIF curriculum, robust", _SGOIF),
    Method("curriculum-twice", f"{PLACE}.twice:twice", "SG-OIF curriculum, trained twice", _SGOIF),
    Method("curriculum-twice-robust", f"{PLACE}.twice:twice_robust", "SG-OIF curriculum, robust, twice", _SGOIF),
    Method("curriculum-twice-sce", f"{PLACE}.twice:twice_sce", "SG-OIF curriculum, twice, then with SCE", _SGOIF),
    Method("curriculum-targets", f"{PLACE}.ours:targets", "SG-OIF curriculum, own answers as targets", _SGOIF),
    Method("curriculum-apart", f"{PLACE}.ours:apart", "SG-OIF curriculum, hold-out apart", _SGOIF),
    Method("plain", f"{PLACE}.baselines:plain", "plain training", "cross entropy on all labels"),
    Method("plain-twice", f"{PLACE}.twice:plain_twice", "plain training, trained twice", _BORN_AGAIN),
    _rival("sce"),
    Method("sce-twice", f"{PLACE}.twice:sce_twice", "SCE loss, trained twice", _BORN_AGAIN),
    _rival("coteaching"),
    _rival("mixup"),
    Method(
        "oracle", f"{PLACE}.baselines:oracle", "right labels only (ceiling)", "wrong labels left out", knows_truth=True
    ),
    _ceiling("told", "weights without mistakes (ceiling)"),
    _ceiling("told-wrong", "ours, wrong labels without weight (ceiling)"),
    _ceiling("told-right", "ours, right labels with all of their weight (ceiling)"),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
OURS = tuple(name for name in METHODS if name.startswith("curriculum"))


def title_of(name: str) -> str:
    """A method as a table calls it; one that is not registered goes by its name."""
    return methods.title_of(METHODS, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Methods as the registry lists them, others behind."""
    return methods.in_order(METHODS, names)


def choose(wanted: str) -> list[str]:
    """Methods from a list of names and of the groups `all`, `ours` and `rivals`, in the order of the registry."""
    others = [name for name, method in METHODS.items() if name not in OURS and not method.knows_truth]
    groups = {"all": list(METHODS), "ours": list(OURS), "rivals": others}
    return methods.choose(METHODS, groups, wanted)


def train_function(name: str) -> Callable[[Study], Trained]:
    """What trains by this method."""
    return methods.resolve(METHODS[name].run)  # type: ignore[no-any-return]
