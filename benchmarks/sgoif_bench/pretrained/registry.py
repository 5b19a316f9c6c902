"""The methods of the comparison by name. Modules are imported when a method is first run, not before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sgoif_bench import methods
from sgoif_bench.pretrained.task import Outcome, Task

PLACE = "sgoif_bench.pretrained.methods"


@dataclass(frozen=True)
class Method:
    """A way to rank labels by suspicion."""

    name: str
    family: str
    """`module:function` that is called with a task and returns the outcomes of all methods of the family."""
    title: str
    """As it stands in a table."""
    finetunes: bool = False
    """Whether the whole network is trained, and not only a head."""
    ours: bool = False


_ALL = (
    Method("knn-vote", "neighbours:knn", "nearest neighbours' vote"),
    Method("simifeat-vote", "neighbours:simifeat", "SimiFeat, vote"),
    Method("simifeat-rank", "neighbours:simifeat", "SimiFeat, rank"),
    Method("cleanlab-logistic-confidence", "logistic:logistic", "cleanlab, self-confidence"),
    Method("cleanlab-logistic-margin", "logistic:logistic", "cleanlab, normalised margin"),
    Method("head-aum", "head:head", "AUM of a head"),
    Method("head-aum-early", "head:head", "AUM of a head, until the rate drops"),
    Method("head-loss", "head:head", "mean loss of a head"),
    Method("head-loss-early", "head:head", "mean loss of a head, until the rate drops"),
    Method("sgoif-frozen", "crossfit:sgoif", "SG-OIF", ours=True),
    Method("sgoif-finetuned", "finetuned:sgoif", "SG-OIF, fine-tuned", finetunes=True, ours=True),
    Method("cleanlab-finetuned-confidence", "finetuned:cleanlab", "cleanlab fine-tuned, self-confidence", True),
    Method("cleanlab-finetuned-margin", "finetuned:cleanlab", "cleanlab fine-tuned, normalised margin", True),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}


def title_of(name: str) -> str:
    """A method as a table calls it; one that is not registered goes by its name."""
    return methods.title_of(METHODS, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Methods as the registry lists them, others behind."""
    return methods.in_order(METHODS, names)


def choose(wanted: str) -> list[str]:
    """Methods from names and the groups `all`, `frozen`, `finetuned`, `ours` and `rivals`, in order of the registry."""
    groups = {
        "all": list(METHODS),
        "frozen": [name for name, method in METHODS.items() if not method.finetunes],
        "finetuned": [name for name, method in METHODS.items() if method.finetunes],
        "ours": [name for name, method in METHODS.items() if method.ours],
        "rivals": [name for name, method in METHODS.items() if not method.ours],
    }
    return methods.choose(METHODS, groups, wanted)


def by_family(names: Iterable[str]) -> dict[str, list[str]]:
    """Methods that come from the same computation."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(METHODS[name].family, []).append(name)
    return found


def solver(family: str) -> Callable[[Task], dict[str, Outcome]]:
    """What computes the outcomes of a family."""
    return methods.resolve(f"{PLACE}.{family}")  # type: ignore[no-any-return]
