"""Every method by name: SG-OIF, its variants, the libraries beside it, and the methods of others written here.

Rivals whose damping was not chosen by their authors are run with several, each a row. Which of these steps a table
calls the best is decided by the very figures that it shows, in the rival's favour (`sweeps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from sgoif_bench import methods
from sgoif_bench.fidelity.answer import Method
from sgoif_bench.fidelity.factored import FactoredWatch
from sgoif_bench.fidelity.monitored import by_groups
from sgoif_bench.fidelity.online import OnlineSettings, QueryWatch
from sgoif_bench.fidelity.ours import along_the_run, at_the_end
from sgoif_bench.fidelity.peers.captum import tracin
from sgoif_bench.fidelity.peers.curvlinops import DAMPING, gauss_newton
from sgoif_bench.fidelity.peers.dattri import REGULARISATION, dattri
from sgoif_bench.fidelity.peers.head import on_head
from sgoif_bench.fidelity.peers.kronfluence import kronfluence
from sgoif_bench.fidelity.peers.trak import trak
from sgoif_bench.fidelity.refined import RefinedWatch
from sgoif_bench.fidelity.rivals.in_run_shapley import in_run_shapley
from sgoif_bench.fidelity.rivals.source import source

OURS, VARIANT, PEER, RIVAL = "ours", "variant", "peer", "rival"
"""A peer is a library, which may be missing; a rival is a method of others that is written here."""
DAMPINGS = (0.001, 0.01, 0.1, 1.0)
RIDGES = (*DAMPINGS, 10.0)
"""Of TRAK, as shares of the mean eigenvalue."""


@dataclass(frozen=True)
class Entry:
    """A method as it is listed."""

    title: str
    kind: str
    run: Method
    sweep: str = ""
    """Methods of one sweep differ in their damping alone; the name of the one that was there first."""
    step: float | None = None
    """That damping."""
    form: int = 1
    """Goes up when the method is changed, so that results of what it was before are not taken for its own."""


def _swept(
    name: str, title: str, library: str, run: Callable[[float], Method], usual: float, form: int = 1
) -> dict[str, Entry]:
    """A method with every damping; with the usual one it goes by its plain name."""
    return {
        name if step == usual else f"{name}-{step:g}": Entry(
            f"{title}, {step:g} ({library})", PEER, run(step), name, step, form
        )
        for step in DAMPINGS
    }


def _dattri(name: str, attributor: str, title: str) -> dict[str, Entry]:
    return _swept(
        name, title, "dattri", lambda step: partial(dattri, name=attributor, regularisation=step), REGULARISATION
    )


def _online(watcher: type[QueryWatch] = QueryWatch, **options: object) -> Method:
    return partial(along_the_run, settings=OnlineSettings(**options), watcher=watcher)  # type: ignore[arg-type]


METHODS: dict[str, Entry] = {
    "sgoif": Entry("SG-OIF", OURS, _online()),
    "sgoif-factored": Entry("SG-OIF, factored", OURS, _online(FactoredWatch)),
    "sgoif-factored-5-epochs": Entry("SG-OIF, factored, 5 epochs scored", VARIANT, _online(FactoredWatch, epochs=5)),
    "sgoif-5-epochs": Entry("SG-OIF, 5 epochs scored", VARIANT, _online(epochs=5)),
    "sgoif-every-epoch": Entry("SG-OIF, every epoch scored", VARIANT, _online(epochs=None)),
    "sgoif-narrow": Entry("SG-OIF, 32 dimensions a side", VARIANT, _online(projection=32)),
    "sgoif-random": Entry("SG-OIF, random projection", VARIANT, _online(principal=False)),
    "sgoif-corrected": Entry("SG-OIF, eigenvalues corrected", VARIANT, _online(corrected=True)),
    "sgoif-refined": Entry("SG-OIF, refined by conjugate gradients", VARIANT, _online(RefinedWatch)),
    "sgoif-refined-damped": Entry(
        "SG-OIF, refined by conjugate gradients, damping 3", VARIANT, _online(RefinedWatch, damping=3.0)
    ),
    "sgoif-damped": Entry("SG-OIF, damping 0.3", VARIANT, _online(damping=0.3)),
    "sgoif-head": Entry("SG-OIF, head alone", VARIANT, _online(layers="head")),
    "sgoif-head-factored": Entry("SG-OIF, head alone, factored", VARIANT, _online(FactoredWatch, layers="head")),
    "sgoif-monitor": Entry("SG-OIF, a monitor with a group per query", VARIANT, by_groups),
    "sgoif-last-stage": Entry("SG-OIF, last stage", VARIANT, _online(layers="last-stage")),
    "sgoif-final": Entry(
        "SG-OIF, final weights alone", VARIANT, partial(at_the_end, settings=OnlineSettings(damping=0.1))
    ),
    "ekfac": Entry("EK-FAC (kronfluence)", PEER, partial(kronfluence, strategy="ekfac")),
    "ekfac-undamped": Entry(
        "EK-FAC, damping 1e-8 (kronfluence)", PEER, partial(kronfluence, strategy="ekfac", damped=False)
    ),
    "kfac": Entry("K-FAC (kronfluence)", PEER, partial(kronfluence, strategy="kfac")),
    "diagonal": Entry("diagonal (kronfluence)", PEER, partial(kronfluence, strategy="diagonal")),
    "trak-1": Entry("TRAK, 1 network (traker)", PEER, partial(trak, networks=1), "trak-1", 0.0),
    **{
        "trak-1-ridge" if ridge == 1 else f"trak-1-ridge-{ridge:g}": Entry(
            f"TRAK, 1 network, ridge {ridge:g} (traker)", PEER, partial(trak, networks=1, ridge=ridge), "trak-1", ridge
        )
        for ridge in RIDGES
    },
    "trak-5": Entry("TRAK, 5 networks (traker)", PEER, partial(trak, networks=5)),
    "tracin": Entry("TracInCP (captum)", PEER, partial(tracin, fast=False)),
    "tracin-fast": Entry("TracInCPFast (captum)", PEER, partial(tracin, fast=True)),
    **_dattri("if-cg", "IFAttributorCG", "Hessian, CG"),
    **_dattri("lissa", "IFAttributorLiSSA", "Hessian, LiSSA"),
    **_dattri("datainf", "IFAttributorDataInf", "DataInf"),
    **_swept(
        "ggn-cg",
        "Gauss–Newton, CG",
        "curvlinops",
        lambda step: partial(gauss_newton, damping=step),
        DAMPING,
        form=2,  # all twenty iterations
    ),
    "source": Entry("SOURCE", RIVAL, source),
    "in-run-shapley": Entry("In-Run Data Shapley", RIVAL, in_run_shapley),
    "in-run-shapley-2": Entry("In-Run Data Shapley, second order", RIVAL, partial(in_run_shapley, order=2)),
    "ekfac-head": Entry(
        "EK-FAC, head alone (kronfluence)", PEER, partial(on_head, method=partial(kronfluence, strategy="ekfac"))
    ),
    "if-cg-head": Entry(
        "Hessian, CG, head alone (dattri)", PEER, partial(on_head, method=partial(dattri, name="IFAttributorCG"))
    ),
    "lissa-head": Entry(
        "Hessian, LiSSA, head alone (dattri)", PEER, partial(on_head, method=partial(dattri, name="IFAttributorLiSSA"))
    ),
    "datainf-head": Entry(
        "DataInf, head alone (dattri)", PEER, partial(on_head, method=partial(dattri, name="IFAttributorDataInf"))
    ),
    "ggn-cg-head": Entry(
        "Gauss–Newton, CG, head alone (curvlinops)", PEER, partial(on_head, method=gauss_newton), form=2
    ),
}
"""In the order of tables."""


def choose(wanted: str) -> list[str]:
    """Methods by name, in the order of the registry; `all`, `ours`, `peers` and `rivals` stand for several."""
    groups = {
        "all": list(METHODS),
        "ours": [name for name, entry in METHODS.items() if entry.kind in (OURS, VARIANT)],
        "peers": [name for name, entry in METHODS.items() if entry.kind == PEER],
        "rivals": [name for name, entry in METHODS.items() if entry.kind == RIVAL],
    }
    return methods.choose(METHODS, groups, wanted)


def title_of(name: str) -> str:
    """A method for a person."""
    return methods.title_of(METHODS, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Names in the order of the registry, unknown ones last."""
    return methods.in_order(METHODS, names)


def steps_of(sweep: str) -> list[str]:
    """The methods of a sweep."""
    return [name for name, entry in METHODS.items() if entry.sweep == sweep]
