"""CIFAR's Python files are pickles; a pickle can run any program. This reader runs nothing.

Of everything a pickle may name, only the few functions that rebuild a numpy array of bytes are answered, and not with
numpy's own: with small ones below that can do nothing else. They are made anew for every file, so a file cannot alter
them for the next one.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.images.errors import ImagesError
from sgoif.images.text import shown

HOMES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of plain containers and byte arrays; its keys become text."""
    try:
        with open(path, "rb") as file:
            content = _reader(file).load()
    except ImagesError:
        raise
    except OSError as error:
        raise ImagesError(f"cannot read {shown(path)}: {error.strerror}") from error
    except Exception as error:  # a damaged pickle fails in any way it likes
        raise ImagesError(f"{shown(path)} is damaged or not a CIFAR file ({error})") from error
    if not isinstance(content, dict):
        raise ImagesError(f"{shown(path)} holds a {type(content).__name__}, not the dictionary of a CIFAR file")
    found = {k.decode("latin-1") if isinstance(k, bytes) else str(k): v for k, v in content.items()}
    return {key: getattr(value, "array", value) for key, value in found.items()}


def _reader(file: Any) -> pickle.Unpickler:
    class Dtype:
        """Stands in for numpy.dtype: remembers its name."""

        def __init__(self, name: Any = "", *_: Any) -> None:
            self.name = name.decode() if isinstance(name, bytes) else str(name)

        def __setstate__(self, state: Any) -> None:
            pass

    class Shell:
        """Stands in for a numpy array until its bytes arrive."""

        array: Any = None

        def __init__(self, *_: Any) -> None:
            pass

        def __setstate__(self, state: Any) -> None:
            _, shape, dtype, fortran, data = state
            self.array = rebuilt(data, dtype, shape, "F" if fortran else "C")

    def rebuilt(data: Any, dtype: Any, shape: Any, order: Any) -> Any:
        if not isinstance(dtype, Dtype) or dtype.name not in ("u1", "|u1", "uint8"):
            raise ValueError("an array of something else than bytes")
        data = data.encode("latin-1") if isinstance(data, str) else bytes(data)
        if len(data) != math.prod(shape):
            raise ValueError("an array whose size does not fit its bytes")
        return np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if order == "F" else "C")

    def from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> Shell:
        shell = Shell()
        shell.array = rebuilt(data, dtype, shape, order)
        return shell

    def encoded(text: Any, encoding: Any = "latin1") -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise ValueError("an encoding that arrays do not use")
        return text.encode("latin-1")

    answers: dict[tuple[str, str], Any] = {("numpy", "dtype"): Dtype, ("numpy", "ndarray"): Shell}
    answers[("_codecs", "encode")] = encoded
    answers.update({(home, "_reconstruct"): Shell for home in HOMES})
    answers.update({(home, "_frombuffer"): from_buffer for home in HOMES})

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            try:
                return answers[module, name]
            except KeyError:
                raise ImagesError(
                    f"{shown(file.name)} asks to run {shown(f'{module}.{name}')}, which no CIFAR file needs. It was not"
                    " run; do not trust this file"
                ) from None

    return Reader(file, encoding="bytes")
