"""What can be wrong with a request to delete examples."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sgoif.tasks.unlearning.inputs import duplicates
from sgoif.tasks.unlearning.queries import LEAST, Queries
from sgoif.tasks.unlearning.records import Request
from sgoif.tasks.unlearning.text import few


def find_problem(names: Sequence[str], known: Collection[str], requests: Sequence[Request], queries: Queries) -> str:
    """What is wrong with a request for these, beside the known examples and earlier requests; empty: nothing is."""
    if not names:
        return "it names no example"
    if twice := duplicates(names):
        return f"it names {few(twice)} more than once"
    earlier = {name: request for request in requests for name in request.ids}
    if asked := [name for name in names if name in earlier]:
        first = earlier[asked[0]]
        state = "which was carried out" if first.removed else "which is pending"
        return f"{few(asked)} was asked for before, in request {first.number}, {state}"
    if unknown := [name for name in names if name not in known]:
        like = few(list(known)[:3])
        return f"no example is called {few(unknown)}; the {len(known):,} known ones are called like {like}"
    pending = sum(len(request.ids) for request in requests if not request.removed)
    if len(names) + pending >= len(known):
        return "with what is pending it would delete every example, and no head would be left"
    if len(queries.without([*names, *earlier])) < LEAST:
        return "too few examples would be left to judge the removal by; give held_out=... when fitting"
    return ""
