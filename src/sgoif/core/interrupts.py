"""Put torch and the model back as they were when Ctrl-C, or any other exception, cuts our work short.

Python raises KeyboardInterrupt between any two calls, the first moment of an `__exit__` included, so a `with` block
alone does not promise that what it changed is changed back. Whatever changes something that outlives it (evaluation
mode, random states, an open record) therefore *registers* how to undo it, and the outermost function of ours, decorated
with `guarded`, undoes what is still registered when an exception passes through it. To undo something twice must do no
harm.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class TorchModes:
    """Autograd's mode and autocast of this thread, for devices of one type, at the moment of construction."""

    __slots__ = ("autocast", "cache", "dtype", "grad", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.grad = torch.is_grad_enabled()
        self.autocast = torch.is_autocast_enabled(kind)
        self.dtype = torch.get_autocast_dtype(kind)
        self.cache = torch.is_autocast_cache_enabled()

    def restore(self) -> None:
        """Make them what they were."""
        torch.set_grad_enabled(self.grad)
        torch.set_autocast_enabled(self.kind, self.autocast)
        torch.set_autocast_dtype(self.kind, self.dtype)
        torch.set_autocast_cache_enabled(self.cache)


class autocast_set:
    """Autocast to a type, or none, inside a `with` block; weights that were cast are not kept.

    Unlike `torch.autocast` it counts no nesting, which an interrupt could leave too high for good: torch would then
    never again forget weights that it has cast, and train on old ones.
    """

    def __init__(self, kind: str, dtype: torch.dtype | None = None) -> None:
        self._kind, self._dtype = kind, dtype

    def __enter__(self) -> None:
        self._before = TorchModes(self._kind)
        if self._dtype is not None:
            torch.set_autocast_dtype(self._kind, self._dtype)
            torch.set_autocast_cache_enabled(False)
        torch.set_autocast_enabled(self._kind, self._dtype is not None)

    def __exit__(self, *_: object) -> None:
        before = self._before
        torch.set_autocast_enabled(self._kind, before.autocast)
        torch.set_autocast_dtype(self._kind, before.dtype)
        torch.set_autocast_cache_enabled(before.cache)


class _Registered(threading.local):
    def __init__(self) -> None:
        self.undo: list[Callable[[], None]] = []


_registered = _Registered()


def register(undo: Callable[[], None]) -> None:
    """Have `undo` called if an exception passes before `unregister`."""
    _registered.undo.append(undo)


def unregister(undo: Callable[[], None]) -> None:
    """What `undo` stands for was undone."""
    if undo in _registered.undo:
        _registered.undo.remove(undo)


def guarded(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Undo, when an exception passes, whatever a method (of an object with a `device`) has left changed."""

    @functools.wraps(method)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        owner: Any = args[0]
        modes, depth = TorchModes(owner.device.type), len(_registered.undo)
        try:
            return method(*args, **kwargs)
        except BaseException:
            modes.restore()
            while len(_registered.undo) > depth:
                _registered.undo[-1]()
                _registered.undo.pop()
            raise

    return wrapped
