"""Saved states: numpy archives and JSON, no pickle, written whole or not at all."""

import errno
import json
import lzma
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.errors import SettingError, StateError

META = "meta"
DAMAGE = (
    OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, EOFError, MemoryError,
    OverflowError, SyntaxError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tokenize.TokenError,
)  # fmt: skip
"""What reading a damaged or foreign archive can raise; numpy reads the head of an array with Python's tokenizer."""
CANNOT_FLUSH = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM}
"""What is answered where only files, and no folders, can be flushed to disk."""
LARGE, DENSEST = 2**30, 200
"""An archive that unpacks to more bytes than the first, and to more than the second times its own, is a trap."""


def atomic_write(path: Path, write: Callable[[Any], None], *, text: bool = False) -> None:
    """Write a file beside its target, flush it to disk, and move it into place for good."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        # File names need not be valid UTF-8; their bytes come out as they were.
        kind: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"} if text else {}
        with open(handle, "w" if text else "wb", **kind) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""
    atomic_write(path, lambda file: file.write(text), text=True)


def check_writable(path: Path, option: str = "--out") -> None:
    """Find out before a long run, not after it, that its result cannot be written."""
    folder = next(place for place in (path.parent, *path.parent.parents) if place.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise SettingError(f"{path} cannot be written; choose another place with {option}")


def replace(source: str | os.PathLike[str], target: Path) -> None:
    """Move a file to where another one may be, and flush the move: without that a power failure can undo it."""
    os.replace(source, target)
    flush_folder(target.parent)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, where the system can do that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows, or a folder that may be written and not read
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in CANNOT_FLUSH:
            raise
    finally:
        os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def save_state(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a state: tensors become arrays, everything else one JSON text."""
    tensors = {key: value.detach().cpu().numpy() for key, value in state.items() if isinstance(value, Tensor)}
    meta = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
    text = np.frombuffer(json.dumps({"values": meta, "arrays": sorted(tensors)}).encode(), dtype=np.uint8)

    def write(file: Any) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for key, array in {META: text, **tensors}.items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)

    atomic_write(Path(path), write)


def check_unpacked(path: str | os.PathLike[str], archive: zipfile.ZipFile, *, packed: bool = True) -> None:
    """Raise ValueError where an archive would unpack to far more than it is, before anything is unpacked.

    What is not `packed` cannot be larger than the file. The sizes in its directory can be relied on: no more than that
    is ever read of an entry.
    """
    size = os.path.getsize(path)
    whole = sum(entry.file_size for entry in archive.infolist())
    if whole > (max(LARGE, DENSEST * size) if packed else size):
        raise ValueError(f"its {size:,} bytes would unpack to {whole:,}, which no such file needs")


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `save_state` wrote; a damaged or foreign file raises `StateError`."""
    try:
        with zipfile.ZipFile(path) as directory:
            check_unpacked(path, directory, packed=False)
        with np.load(path, allow_pickle=False) as archive:
            meta = json.loads(archive[META].tobytes().decode())
            # The list of arrays is read back too: a damaged directory of the archive can lose some without a word.
            return {**meta["values"], **{key: torch.from_numpy(archive[key].copy()) for key in meta["arrays"]}}
    except FileNotFoundError:
        raise
    except DAMAGE as error:
        raise StateError(f"{os.fspath(path)} is not a saved monitor state or is damaged ({error})") from error


def nest(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    """Keys under a prefix."""
    return {f"{prefix}.{key}": value for key, value in state.items()}


def unnest(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    """The part of a state under a prefix."""
    start = prefix + "."
    return {key[len(start) :]: value for key, value in state.items() if key.startswith(start)}
