"""Errors that a user of the library can meet. Each message says what was given, what was expected and the way out."""

from collections.abc import Sequence


class SgoifError(Exception):
    """Base class of every error that this package raises on purpose."""


class SettingError(SgoifError, ValueError):
    """A setting is outside its range, or two settings contradict each other."""


class LayerError(SgoifError, ValueError):
    """No layer to watch was found, or a layer cannot be watched the way it is used."""


class IndexingError(SgoifError, ValueError):
    """The example indices of a step are missing, repeated, out of range or do not fit the batch."""


class AnchorError(SgoifError, ValueError):
    """The held-out examples are empty or do not fit the model."""


class StepError(SgoifError, RuntimeError):
    """A step did not do what a training step does: no forward pass, no backward pass, or two of them."""


class NonFiniteError(SgoifError, FloatingPointError):
    """The loss or its gradient is infinite or not a number."""


class DeviceError(SgoifError, RuntimeError):
    """Tensors of one step live on different devices or have a type that cannot carry gradients."""


class StateError(SgoifError, ValueError):
    """A saved state is damaged, of another version, or belongs to another model or set of anchors."""


class ModelError(SgoifError, ValueError):
    """The model or its weights cannot be used for these images."""


class RankError(SgoifError, RuntimeError):
    """One of the processes that train a model together has failed, or they do not fit together."""


class MissingExtraError(SgoifError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}; install it with: pip install 'sgoif[{extra}]'")


class HealthWarning(UserWarning):
    """The run of a monitor supports influence less than it should; `monitor.health()` says more."""


def some_of(names: Sequence[str], most: int = 20) -> str:
    """Names for a message, the first of them where they are many."""
    shown = ", ".join(names[:most]) or "none"
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


def sentence(error: Exception) -> str:
    """The error as something to read: no error numbers."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error)
