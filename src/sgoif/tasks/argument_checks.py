"""What tasks are given first, looked at before anything is done with it: a monitor, or a model."""

from collections.abc import Mapping
from numbers import Integral, Real
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.core.objective import MultiLabel
from sgoif.errors import SettingError


def check_monitor(monitor: Any, what: str) -> None:
    """Raise where something else, such as the model, was given in the place of a monitor."""
    from sgoif.monitor import InfluenceMonitor

    if not isinstance(monitor, InfluenceMonitor):
        raise SettingError(f"{what} reads an InfluenceMonitor, the one that watches the training; got {_kind(monitor)}")


def check_classes(monitor: Any, what: str) -> None:
    """Raise for anything but a monitor, and for one whose targets are no classes."""
    check_monitor(monitor, what)
    if not monitor.classes:
        raise SettingError(
            f"{what} needs one class per example, and the targets of this monitor are {monitor.objective.what}; its"
            " column influence in monitor.scores() ranks examples without classes, too"
        )


def check_labels(monitor: Any, label: int | None, what: str) -> None:
    """Raise where a monitor has no labels to judge, or `label` names none of them."""
    check_monitor(monitor, what)
    several = isinstance(monitor.objective, MultiLabel)
    if several and label is None:
        most = monitor.objective.shape.numel() - 1
        raise SettingError(f"examples have several labels: ask about one, {what}(monitor, label=0 … {most})")
    if not several:
        check_classes(monitor, what)
        if label is not None:
            raise SettingError(f"label={label!r} asks about one of several labels, and examples have one class each")


def check_classes_by_index(name: str, given: Any, *, or_none: bool = False) -> None:
    """Raise unless this is the class number of some examples, by index, or None where that is allowed."""
    kinds = (Integral, NoneType) if or_none else Integral
    pairs = given.items() if isinstance(given, Mapping) else [(None, None)]
    if not all(isinstance(index, Integral) and isinstance(label, kinds) for index, label in pairs):
        raise SettingError(f"{name}={given!r:.60} is not valid: expected {{index: class number}}")


def check_model(model: Any, what: str) -> None:
    """Raise where something else, such as the monitor, was given in the place of a model."""
    if not isinstance(model, nn.Module):
        raise SettingError(f"{what} needs the network itself, a torch.nn.Module; got {_kind(model)}")


def is_share(value: Any) -> bool:
    """Whether this is a number strictly between 0 and 1."""
    return isinstance(value, Real) and 0 < float(value) < 1


def check_share(value: Any, name: str) -> None:
    """Raise unless this is a number strictly between 0 and 1."""
    if not is_share(value):
        raise SettingError(f"{name} = {value!r} must lie between 0 and 1")


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def as_numbers(values: Any, expected: str) -> Tensor:
    """A tensor of what was given; raises where that holds something else, such as names."""
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"{expected}; got {values!r:.60}") from error
