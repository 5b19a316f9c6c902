"""What a user names as `package.module:function`, found where the command is run or among what is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

from sgoif.errors import SettingError, SgoifError


def own_function(place: str, what: str, error: type[SgoifError] = SettingError) -> Callable[..., Any]:
    """The function of this name; `what` it is to be stands in the message of the error."""
    module, _, path = place.partition(":")
    with importable_from_here():
        try:
            found: Any = import_module(module)
        except ImportError as reason:
            raise error(
                f"{what} {place!r}: the module {module!r} cannot be imported from {Path.cwd()} ({reason})."
                " Run the command where the module lies, or install its package"
            ) from reason
        except Exception as reason:
            raise error(f"{what} {place!r}: importing {module!r} failed: {type(reason).__name__}: {reason}") from reason
        for part in path.split("."):
            if not hasattr(found, part):
                raise error(f"{what} {place!r}: {module!r} has no {path!r}")
            found = getattr(found, part)
    if not callable(found):
        raise error(f"{what} {place!r} is a {type(found).__name__}, not a function that returns a {what}")
    return found  # type: ignore[no-any-return]


@contextmanager
def importable_from_here() -> Iterator[None]:
    """The current directory is importable, as with `python -m`."""
    here = os.getcwd()
    sys.path.insert(0, here)
    invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)
