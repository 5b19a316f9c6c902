"""CIFAR's Python files are pickles; a pickle can run any program. This reader runs nothing.

Of everything a pickle may name, only the few functions that rebuild a numpy array of bytes are answered, and not with
numpy's own: with small ones below that can do nothing else. They are made anew for every file, so a file cannot alter
them for the next one.

Python's own reader in C trusts sizes: ten bytes can make it fill the memory, and a key of tuples in tuples keeps it
busy for ever. So the reader here is the one in Python, reduced to the instructions that these files consist of; the
keys of their dictionaries are text.
"""

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sgoif.images.errors import ImagesError
from sgoif.images.text import shown

INSTRUCTIONS = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2",
    "LONG", "LONG1", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT",
    "DICT", "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "PUT", "BINPUT", "LONG_BINPUT",
    "GET", "BINGET", "LONG_BINGET", "MEMOIZE", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
)  # fmt: skip
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


# The reader written in C cannot be told which instructions to know; the one written in Python has no public name.
Reader = pickle._Unpickler  # noqa: SLF001


class Plain(Reader):
    """Reads what `INSTRUCTIONS` lists; anything else is a damaged file."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code: Reader.dispatch[code] for code in (getattr(pickle, name)[0] for name in INSTRUCTIONS)
    }


def _with_text_keys(instruction: bytes, keys: slice) -> Callable[[Any], None]:
    """The instruction, which looks at the keys on the stack first."""
    inner: Callable[[Any], None] = Reader.dispatch[instruction[0]]

    def act(reader: Any) -> None:
        if any(type(key) not in (str, bytes) for key in reader.stack[keys]):
            raise ValueError("a dictionary whose keys are not text")
        inner(reader)

    return act


def _buffer(reader: Any) -> None:
    """Bytes for an array, in protocol 5; Python's own instruction makes room for them before it looks for them."""
    reader.append(reader.read(int.from_bytes(reader.read(8), "little")))


Plain.dispatch[pickle.BYTEARRAY8[0]] = _buffer
Plain.dispatch[pickle.SETITEM[0]] = _with_text_keys(pickle.SETITEM, slice(-2, -1))
Plain.dispatch[pickle.SETITEMS[0]] = _with_text_keys(pickle.SETITEMS, slice(0, None, 2))
Plain.dispatch[pickle.DICT[0]] = _with_text_keys(pickle.DICT, slice(0, None, 2))


def _reader(file: Any) -> Plain:
    class Dtype:
        """Stands in for numpy.dtype: remembers its name."""

        def __init__(self, name: Any = "", *_: Any) -> None:
            self.name = name.decode() if isinstance(name, bytes) else name if isinstance(name, str) else ""

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
        data = data.encode("latin-1") if isinstance(data, str) else data
        if not isinstance(data, bytes) or not isinstance(shape, tuple) or any(type(side) is not int for side in shape):
            raise ValueError("an array that is not made of bytes and whole numbers")
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

    class Reader(Plain):
        def find_class(self, module: str, name: str) -> Any:
            try:
                return answers[module, name]
            except KeyError:
                raise ImagesError(
                    f"{shown(file.name)} asks to run {shown(f'{module}.{name}')}, which no CIFAR file needs. It was not"
                    " run; do not trust this file"
                ) from None

    return Reader(file, encoding="bytes")
