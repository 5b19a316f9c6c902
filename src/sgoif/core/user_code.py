"""What a user names as `package.module:function`, found among what is installed or where the command is run.

Importing a module runs it. Names reach this module from the user alone, never from a file: see
`sgoif.audit.models.trusted_model`.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

from sgoif.errors import SettingError, SgoifError

SAFE_PATH = "PYTHONSAFEPATH"


def own_function(place: str, what: str, error: type[SgoifError] = SettingError) -> Callable[..., Any]:
    """The function of this name; `what` it is to be stands in the message of the error."""
    module, _, path = place.partition(":")
    if not module or not path:
        raise error(f"{what} {place!r}: expected package.module:function")
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
                raise error(f"{what} {place!r}: {module!r}{_found_at(module)} has no {path!r}")
            found = getattr(found, part)
    if not callable(found):
        raise error(f"{what} {place!r} is a {type(found).__name__}, not a function that returns a {what}")
    return found  # type: ignore[no-any-return]


@contextmanager
def importable_from_here() -> Iterator[None]:
    """The current directory is importable, after everything else.

    Last, so that a file which happens to lie there (a `json.py` in a folder that was downloaded) takes the place of
    nothing in the standard library and nothing that is installed.
    """
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.append(here)
    invalidate_caches()
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


@contextmanager
def children_import_nothing_from_here() -> Iterator[None]:
    """Processes started meanwhile do not look for modules in the current directory, as they otherwise do first."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def _found_at(module: str) -> str:
    """Where a module came from, for a message: an installed one goes before one of the same name that lies here."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return f" ({file})" if file else ""
