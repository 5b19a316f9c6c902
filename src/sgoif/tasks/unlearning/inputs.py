"""What is checked before any work: features and labels that a head is fitted to, the log, requests."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.unlearning.errors import LogError, RequestError
from sgoif.tasks.unlearning.features import ModelHead
from sgoif.tasks.unlearning.head import HeadData
from sgoif.tasks.unlearning.log import AuditLog, Entry
from sgoif.tasks.unlearning.queries import LEAST, Queries
from sgoif.tasks.unlearning.records import Request
from sgoif.tasks.unlearning.text import counted, few

MANY_CLASSES = 100_000
"""Classes that need not have an example each."""

Ids = str | int | Iterable[str | int]


@dataclass(frozen=True)
class UnlearnerInputs:
    """What an unlearner is made of, checked."""

    data: HeadData
    ids: list[str]
    queries: Queries
    class_names: list[str]

    def __post_init__(self) -> None:
        data, ids = self.data, self.ids
        if len(data) == 0:
            raise SettingError("the data set is empty: there is nothing to delete")
        if len(ids) != len(data):
            raise SettingError(f"{len(ids)} ids were given for {len(data)} examples; give one for each")
        if len(set(ids)) < len(ids):
            raise SettingError(f"ids must be unique; {few(duplicates(ids))} stands for more than one example")
        if len(self.class_names) != data.classes:
            raise SettingError(f"{len(self.class_names)} class names were given for {data.classes} classes")
        if len(self.queries) < LEAST:
            raise SettingError(f"{len(self.queries)} held-out examples are too few to judge a removal by; give {LEAST}")
        for what, part in (("training", data), ("held-out", self.queries.data)):
            if part.features.shape[1] != data.features.shape[1]:
                raise SettingError(
                    f"{what} examples have {part.features.shape[1]} features and the others {data.features.shape[1]}"
                )
            if not bool(torch.isfinite(part.features).all()):
                raise SettingError(f"features of the {what} examples are infinite or NaN, expected finite numbers")
            least, most = int(part.labels.min()), int(part.labels.max())
            if least < 0 or most >= data.classes:
                raise SettingError(
                    f"{what} labels run from {least} to {most}, but there are {data.classes} classes (0 to"
                    f" {data.classes - 1})"
                )


def gather_inputs(
    features: Tensor,
    labels: Tensor,
    ids: Sequence[str],
    held: tuple[Tensor, Tensor] | None,
    *,
    head: ModelHead | None = None,
    classes: int | None = None,
    bias: bool = True,
    class_names: Sequence[str] | None = None,
) -> UnlearnerInputs:
    """Features in the form of the head's data; a head says how its logits come about."""
    x, y = _placed(features), _labels(labels, len(features))
    count = head.classes if head is not None else classes
    if count is None:
        count = len(class_names) if class_names is not None else max(2, int(y.max()) + 1 if len(y) else 0)
        if count > max(MANY_CLASSES, len(y)):
            raise SettingError(
                f"labels run up to {count - 1:,} for {len(y):,} examples; expected are class numbers from 0 on, or"
                " class_names"
            )
    shape: dict[str, Any] = {"bias": bias} if head is None else {"bias": head.bias, "constant": head.constant}
    data = HeadData(x, y, count, **shape)
    if held is not None:
        queries = Queries(HeadData(_placed(held[0]).to(x.device), _labels(held[1], len(held[0])), count, **shape))
    elif len(ids) == len(data):
        queries = Queries.of_training(data, ids)
    else:
        queries = Queries(data)  # the ids do not fit, which is told next
    names = [str(name) for name in (class_names if class_names is not None else range(count))]
    return UnlearnerInputs(data, list(ids), queries, names)


def _placed(features: Tensor) -> Tensor:
    """Features where the head is computed: on their CUDA device, or else on the CPU."""
    if features.dim() != 2 or not features.is_floating_point():
        raise SettingError(
            "features must be floating numbers [examples, features]; got"
            f" {features.dtype} of shape {tuple(features.shape)}"
        )
    return features.detach() if features.device.type == "cuda" else features.detach().cpu()


def _labels(labels: Tensor, count: int) -> Tensor:
    if labels.dim() != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise SettingError(
            f"labels must be class numbers, one per example; got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if len(labels) != count:
        raise SettingError(f"{count} examples do not go with {len(labels)} labels")
    return labels.long()


def as_id_list(ids: Ids) -> list[str]:
    """Ids as text, one by one."""
    if isinstance(ids, (str, int, np.integer)) and not isinstance(ids, bool):
        return [str(ids)]
    given: Any = ids.tolist() if isinstance(ids, (Tensor, np.ndarray)) else ids
    if isinstance(given, (bool, int, float)) or not isinstance(given, Iterable):
        raise SettingError(f"ids must be text or whole numbers; got {ids!r}")
    found = list(given)
    for item in found:
        if isinstance(item, bool) or not isinstance(item, (str, int, np.integer)):
            raise SettingError(f"ids must be text or whole numbers; got {item!r}")
    return [str(item) for item in found]


def duplicates(names: Sequence[str]) -> list[str]:
    """What stands there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def check_log(log: AuditLog | None, continue_log: bool) -> None:
    """Raise before any work where the log is there but should not be, or the other way round, or is not sound."""
    if log is None:
        return
    if log.exists() and not continue_log:
        raise LogError(
            f"the log {log.path} exists. Load the state that belongs to it (Unlearner.load); for a network that was"
            " trained again, go on with the log (continue_log=True); or give another file"
        )
    if continue_log and not log.exists():
        raise LogError(f"there is no log {log.path} to go on with")
    if log.exists():
        log.check_key(log.entries())


def requested(entries: Sequence[Entry]) -> list[str]:
    """All ids whose deletion a log records."""
    return [str(name) for entry in entries if entry.kind == "request" for name in entry.evidence["ids"]]


def check_deleted(entries: Sequence[Entry], ids: Iterable[str], log: AuditLog) -> None:
    """Raise where a network was trained again on what should have been deleted."""
    here = set(ids)
    again = [name for name in requested(entries) if name in here]
    if again:
        raise RequestError(
            f"{counted(len(again), 'example')} of this training set should have been deleted according to the log"
            f" {log.path}: {few(again)}. Train without them; where examples go by their position, give ids that stay"
        )


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
