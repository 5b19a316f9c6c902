"""Attacks by name: kind and rate in percent of all training examples, such as badnets-1 or clean-label-5.

A kind alone stands for its default rate, and `none` for no attack at all: what is called poison then is a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sgoif.errors import SettingError
from sgoif_bench.poisoning.attacks.attack import Attack
from sgoif_bench.poisoning.attacks.badnets import BadNets
from sgoif_bench.poisoning.attacks.blended import Blended
from sgoif_bench.poisoning.attacks.clean_label import CleanLabel
from sgoif_bench.poisoning.attacks.gradient_matching import GradientMatching
from sgoif_bench.poisoning.attacks.label_flip import LabelFlip

NONE = "none"
ON_BLACK = ("digits", "mnist", "fashion-mnist")
"""Sets of small bright shapes on black. Networks bear much larger changes of their pixels (0.3 is usual, as in Madry et
al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018) and are hardly ever in doubt about them:
targets are drawn among those that a clean network is least sure of. A pattern at a fifth of its strength, on the other
hand, turns black into grey, and a network that never saw it gives most such images one and the same answer; half that
strength is enough."""


@dataclass(frozen=True)
class Kind:
    """A kind of attack. Its own defaults are those of the paper, made for photographs."""

    make: Callable[..., Attack]
    title: str
    paper: str
    on_black: Mapping[str, Any] = field(default_factory=dict)
    """What differs on sets of bright shapes on black."""


KINDS: Mapping[str, Kind] = {
    "badnets": Kind(BadNets, "BadNets patch", "Gu et al. 2017"),
    "blended": Kind(Blended, "blended trigger", "Chen et al. 2017", {"alpha": 0.1}),
    "clean-label": Kind(CleanLabel, "clean-label patch", "Turner et al. 2019", {"epsilon": 0.3}),
    "label-flip": Kind(LabelFlip, "targeted label flips", "Jagielski et al. 2021", {"among": 0.1}),
    "gradient-matching": Kind(
        GradientMatching,
        "gradient matching",
        "Geiping et al. 2021",
        {"epsilon": 0.3, "among": 0.02, "iterations": 100, "restarts": 2},
    ),
}


def parse(name: str) -> tuple[str, float | None]:
    """Kind and rate (a share, None for the default) of a name."""
    kind, dash, percent = name.rpartition("-")
    if name in KINDS or name == NONE:
        return name, None
    try:
        rate = float(percent) / 100
    except ValueError:
        rate = -1.0
    if kind not in KINDS or not dash or not 0 < rate < 1:
        raise SettingError(
            f"there is no attack {name!r}; choose from {', '.join(KINDS)}, each alone or with its rate in percent as in"
            f" badnets-1, or {NONE}"
        )
    return kind, rate


def make_attack(name: str, data_set: str) -> Attack | None:
    """The attack of this name as it is made on this data set; None for no attack."""
    kind, rate = parse(name)
    if kind == NONE:
        return None
    given = dict(KINDS[kind].on_black) if data_set in ON_BLACK else {}
    return KINDS[kind].make(**given, **({} if rate is None else {"rate": rate}))


def full_name(name: str) -> str:
    """A name with its rate, whether it was given or not."""
    kind, rate = parse(name)
    if kind == NONE:
        return NONE
    return f"{kind}-{100 * (KINDS[kind].make().rate if rate is None else rate):g}"


def title_of(name: str) -> str:
    """An attack as a table calls it."""
    try:
        kind, rate = parse(name)
    except SettingError:
        return name
    if kind == NONE:
        return "no attack"
    return KINDS[kind].title + ("" if rate is None else f" {100 * rate:g}%")
