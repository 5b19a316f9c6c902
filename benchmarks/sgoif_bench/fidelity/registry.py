"""Every method by name: SG-OIF, its variants, and the libraries beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from sgoif_bench import methods
from sgoif_bench.fidelity.answer import Method
from sgoif_bench.fidelity.factored import FactoredWatch
from sgoif_bench.fidelity.monitored import by_groups
from sgoif_bench.fidelity.online import OnlineSettings, QueryWatch
from sgoif_bench.fidelity.ours import along_the_run, at_the_end
from sgoif_bench.fidelity.peers.captum import tracin
from sgoif_bench.fidelity.peers.curvlinops import gauss_newton
from sgoif_bench.fidelity.peers.dattri import dattri
from sgoif_bench.fidelity.peers.head import on_head
from sgoif_bench.fidelity.peers.kronfluence import kronfluence
from sgoif_bench.fidelity.peers.trak import trak
from sgoif_bench.fidelity.refined import RefinedWatch

OURS, VARIANT, PEER = "ours", "variant", "peer"


@dataclass(frozen=True)
class Entry:
    """A method as it is listed."""

    title: str
    kind: str
    run: Method


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
    "trak-1": Entry("TRAK, 1 network (traker)", PEER, partial(trak, networks=1)),
    "trak-1-ridge": Entry("TRAK, 1 network, ridge (traker)", PEER, partial(trak, networks=1, ridge=1.0)),
    "trak-5": Entry("TRAK, 5 networks (traker)", PEER, partial(trak, networks=5)),
    "tracin": Entry("TracInCP (captum)", PEER, partial(tracin, fast=False)),
    "tracin-fast": Entry("TracInCPFast (captum)", PEER, partial(tracin, fast=True)),
    "if-cg": Entry("Hessian, CG (dattri)", PEER, partial(dattri, name="IFAttributorCG")),
    "lissa": Entry("Hessian, LiSSA (dattri)", PEER, partial(dattri, name="IFAttributorLiSSA")),
    "datainf": Entry("DataInf (dattri)", PEER, partial(dattri, name="IFAttributorDataInf")),
    "ggn-cg": Entry("Gauss–Newton, CG (curvlinops)", PEER, gauss_newton),
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
    "ggn-cg-head": Entry("Gauss–Newton, CG, head alone (curvlinops)", PEER, partial(on_head, method=gauss_newton)),
}
"""In the order of tables."""


def choose(wanted: str) -> list[str]:
    """Methods by name, in the order of the registry; `all`, `ours` and `peers` stand for several."""
    groups = {
        "all": list(METHODS),
        "ours": [name for name, entry in METHODS.items() if entry.kind != PEER],
        "peers": [name for name, entry in METHODS.items() if entry.kind == PEER],
    }
    return methods.choose(METHODS, groups, wanted)


def title_of(name: str) -> str:
    """A method for a person."""
    return methods.title_of(METHODS, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Names in the order of the registry, unknown ones last."""
    return methods.in_order(METHODS, names)
