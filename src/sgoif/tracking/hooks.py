"""Hooks that stay out of compiled graphs and out of copies of a model."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch


class OwnHook:
    """A hook kept out of compiled graphs, where `mark` is called; elsewhere the guard would cost more than the hook.

    Pickled or copied with the model, it becomes one that does nothing and needs nothing of ours.
    """

    def __init__(self, hook: Callable[..., Any], mark: Callable[[], None] | None = None) -> None:
        def marked(*args: Any) -> Any:
            if mark is not None:
                mark()
            return hook(*args)

        self._hook, self._uncompiled = hook, torch.compiler.disable(marked)

    def __call__(self, *args: Any) -> Any:
        return self._uncompiled(*args) if torch.compiler.is_compiling() else self._hook(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")
