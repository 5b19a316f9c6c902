"""To which group every anchor belongs: its class, or what the user says."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sgoif.core.objective import Objective
from sgoif.errors import AnchorError

Grouping = str | Sequence[Hashable] | Callable[[int], Hashable] | None


def given_groups(grouping: Grouping, total: int) -> list[Hashable] | None:
    """The group of every held-out example where the user listed them."""
    if isinstance(grouping, str) and grouping not in ("class", "one"):
        raise AnchorError(f"groups={grouping!r} is not known; use 'class', 'one', a function of the label, or a list")
    if grouping is None or isinstance(grouping, str) or callable(grouping):
        return None
    given = [_plain(group) for group in grouping]
    if len(given) != total:
        raise AnchorError(f"groups has {len(given)} entries for {total} anchors; give one per anchor")
    return given


def group_candidates(
    grouping: Grouping,
    targets: list[Any],
    given: list[Hashable] | None,
    pool: np.ndarray[Any, Any],
    objective: Objective,
) -> tuple[list[Hashable], Tensor]:
    """Names of the groups and the group number of every candidate."""
    if given is not None:
        keys = [given[int(position)] for position in pool]
    elif callable(grouping):
        keys = [_plain(grouping(objective.key(target))) for target in targets]
    elif grouping == "class" and not objective.classes:
        raise AnchorError("groups='class' needs classes, and this loss has none; use 'one', a function, or a list")
    else:
        keys = [0] * len(targets) if grouping == "one" else objective.group_keys(targets)
    names = sorted(set(keys), key=lambda k: (str(type(k)), k))
    number = {name: i for i, name in enumerate(names)}
    return names, torch.tensor([number[key] for key in keys])


def _plain(group: Any) -> Hashable:
    """A group's name as a plain Python value."""
    try:
        name = group.item() if isinstance(group, (Tensor, np.generic)) else group
        hash(name)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AnchorError(f"groups must be names, one for each anchor; {group!r:.60} is none") from error
    if name != name:
        raise AnchorError("groups has an entry that is not a number (NaN); give those anchors a name, too")
    return cast(Hashable, name)


def balanced(order: np.ndarray[Any, Any], keys: Sequence[Hashable], count: int) -> list[int]:
    """The first `count` entries of an order, taken from every group in turn."""
    queues: dict[Hashable, list[int]] = {}
    for position in order[::-1]:
        queues.setdefault(keys[int(position)], []).append(int(position))
    waiting = [queues[key] for key in sorted(queues, key=lambda key: (str(type(key)), key))]
    chosen: list[int] = []
    while waiting and len(chosen) < count:
        chosen.extend(queue.pop() for queue in waiting[: count - len(chosen)])
        waiting = [queue for queue in waiting if queue]
    return chosen
