"""What result files say about where they come from, and how many digits their figures have."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def command_line(program: str, arguments: Sequence[str]) -> str:
    """The command as one would type it, without where on this machine the data and the results are."""
    shown: list[str] = []
    for argument in arguments:
        option, joined, value = argument.partition("=")
        if option.startswith("--") and joined:
            shown.append(f"{option}={_shown_value(option, value)}")
        else:
            shown.append(_shown_value(shown[-1] if shown else "", argument))
    return shlex.join([*program.split(), *shown])


def _shown_value(option: str, value: str) -> str:
    if option == "--data":
        return "DATA"
    return Path(value).name if Path(value).is_absolute() else value


def rounded(value: Any, digits: int) -> Any:
    """The value with its fractions cut to so many significant digits, however deep they lie."""
    if isinstance(value, Mapping):
        return {name: rounded(item, digits) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
