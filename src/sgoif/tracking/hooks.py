"""Hooks that stay out of compiled graphs and out of copies of a model."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import torch

Hook = TypeVar("Hook", bound=Callable[..., Any])


def uncompiled(hook: Hook, mark: Callable[[], None] | None = None) -> Hook:
    """Keep a hook out of compiled graphs, calling `mark` there; elsewhere the guard would cost more than the hook."""

    def marked(*args: Any) -> Any:
        if mark is not None:
            mark()
        return hook(*args)

    disabled = torch.compiler.disable(marked)

    def call(*args: Any) -> Any:
        return disabled(*args) if torch.compiler.is_compiling() else hook(*args)

    return call  # type: ignore[return-value]


class OwnHook:
    """A hook of one model, kept out of compiled graphs.

    Pickled or copied with the model, it becomes one that does nothing and needs nothing of ours.
    """

    def __init__(self, hook: Callable[..., Any], mark: Callable[[], None] | None = None) -> None:
        self._hook, self._uncompiled = hook, uncompiled(hook, mark)

    def __call__(self, *args: Any) -> Any:
        return self._uncompiled(*args) if torch.compiler.is_compiling() else self._hook(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")
