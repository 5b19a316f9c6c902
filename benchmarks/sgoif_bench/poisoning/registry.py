"""The methods of the comparison by name.

All of them look at one training: ours watch it, the others look at its checkpoints and at what it ends with. Modules
are imported when a method is first run, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sgoif_bench import methods
from sgoif_bench.poisoning.case import Case, Finding

RIVALS = "sgoif_bench.poisoning.rivals"
KNOWN, UNKNOWN = "known", "unknown"


@dataclass(frozen=True)
class Method:
    """A way to find poison."""

    name: str
    run: str
    """`module:function` that is called with a case; empty for ours, which watch the training."""
    title: str
    """As it stands in a table."""
    paper: str
    knows_victims: bool
    """Whether it starts from victims."""

    @property
    def ours(self) -> bool:
        return not self.run


_SGOIF = "SG-OIF: A Stability-Guided Online Influence Framework for Reliable Vision Data"
_TRACIN = "Pruthi et al., Estimating Training Data Influence by Tracing Gradient Descent, NeurIPS 2020"
_SPECTRAL = "Tran et al., Spectral Signatures in Backdoor Attacks, NeurIPS 2018"

_ALL = (
    Method("sgoif-known", "", "SG-OIF", _SGOIF, True),
    Method("tracin", f"{RIVALS}.tracin:tracin", "TracIn", _TRACIN, True),
    Method(
        "feature-kernel",
        f"{RIVALS}.feature_kernel:feature_kernel",
        "feature kernel",
        "baseline of this benchmark",
        True,
    ),
    Method("sgoif-unknown", "", "SG-OIF, nothing known", _SGOIF, False),
    Method("spectral", f"{RIVALS}.spectral:spectral", "spectral signatures", _SPECTRAL, False),
    Method(
        "spectral-along",
        f"{RIVALS}.spectral:spectral_along",
        "spectral signatures along the run",
        f"baseline of this benchmark, after {_SPECTRAL}",
        False,
    ),
    Method(
        "spectre",
        f"{RIVALS}.spectre:spectre",
        "SPECTRE",
        "Hayase et al., SPECTRE: Defending Against Backdoor Attacks Using Robust Covariance Estimation, ICML 2021",
        False,
    ),
    Method(
        "activation-clustering",
        f"{RIVALS}.activation_clustering:activation_clustering",
        "activation clustering",
        "Chen et al., Detecting Backdoor Attacks on Deep Neural Networks by Activation Clustering, 2018",
        False,
    ),
    Method(
        "self-influence",
        f"{RIVALS}.self_influence:self_influence",
        "self-influence",
        "Koh and Liang, Understanding Black-box Predictions via Influence Functions, ICML 2017",
        False,
    ),
    Method("tracin-self", f"{RIVALS}.tracin:tracin_self", "TracIn, self-influence", _TRACIN, False),
    Method("random", f"{RIVALS}.chance:chance", "random", "chance", False),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}


def title_of(name: str) -> str:
    """A method as a table calls it; one that is not registered goes by its name."""
    return methods.title_of(METHODS, name)


def setting_of(name: str) -> str:
    """What a method knows: "known" where it starts from victims, else "unknown"."""
    return KNOWN if METHODS[name].knows_victims else UNKNOWN


def in_order(names: Iterable[str]) -> list[str]:
    """Methods as the registry lists them, others behind."""
    return methods.in_order(METHODS, names)


def choose(wanted: str) -> list[str]:
    """Methods from a list of names and of the groups `all`, `known`, `unknown`, `ours` and `rivals`, in order."""
    groups = {
        "all": list(METHODS),
        KNOWN: [name for name, method in METHODS.items() if method.knows_victims],
        UNKNOWN: [name for name, method in METHODS.items() if not method.knows_victims],
        "ours": [name for name, method in METHODS.items() if method.ours],
        "rivals": [name for name, method in METHODS.items() if not method.ours],
    }
    return methods.choose(METHODS, groups, wanted)


def rival(name: str) -> Callable[[Case], Finding]:
    """What makes a finding of a case."""
    return methods.resolve(METHODS[name].run)  # type: ignore[no-any-return]
