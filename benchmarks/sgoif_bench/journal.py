"""The result file of a grid: one JSON line per cell, appended by one writer, read by anybody.

A run that was interrupted, by whatever means, goes on where it stopped: a cell that stands in the file is not computed
again. Lines are appended in one piece and flushed to disk; what a kill in the middle of a write may leave is a last
line without its end, which readers ignore and the next writer cuts off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from sgoif.core.locks import lock
from sgoif.core.provenance import plain
from sgoif.core.serialization import flush_folder
from sgoif.errors import SettingError
from sgoif_bench.command import Say

Line = dict[str, Any]
K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=tuple[Any, ...])


@dataclass(frozen=True)
class Kind(Generic[K]):
    """The lines of one benchmark."""

    command: str
    """What writes them, such as `sgoif-bench labels`."""
    key_of: Callable[[Mapping[str, Any]], K]
    """What tells one cell from another; a KeyError where a line is none of this benchmark."""
    shown: Callable[[Line], Line] = lambda line: line
    """A line as tables and pictures get it."""

    def read(self, paths: Sequence[Path], tell: Say = lambda message: None) -> list[Line]:
        """All lines of these files, one per cell: of several the last one."""
        return read_lines(paths, self, tell)


def kind_by(command: str, key: type[N], *needed: str, shown: Callable[[Line], Line] = lambda line: line) -> Kind[N]:
    """Lines whose cells the fields of `key` tell apart; `needed` are entries, such as `metrics.aupr`, that all have.

    A field with a default is one that lines may lack, having been written before there was such a field.
    """
    names: Sequence[str] = key._fields  # type: ignore[attr-defined]
    defaults: Mapping[str, Any] = key._field_defaults  # type: ignore[attr-defined]

    def key_of(line: Mapping[str, Any]) -> N:
        for entry in needed:
            reduce(getitem, entry.split("."), line)
        return key(*(line.get(name, defaults[name]) if name in defaults else line[name] for name in names))

    return Kind(command, key_of, shown)


def read_lines(paths: Sequence[Path], kind: Kind[K], tell: Say = lambda message: None) -> list[Line]:
    """All lines of these files, one per cell: of several the last one."""
    if not paths:
        raise SettingError(f"no result file was given; name one or more that `{kind.command}` wrote")
    found: dict[K, Line] = {}
    for path in paths:
        lines, torn = _parse(path, path.read_bytes(), kind)
        if torn:
            tell(f"{path}: the last line is incomplete and is ignored")
        for line in lines:
            found.pop(kind.key_of(line), None)
            found[kind.key_of(line)] = line
    return [kind.shown(line) for line in found.values()]


def first_line(path: Path) -> Line:
    """The first line of a result file, for a look at what it is; empty where there is none that can be read."""
    with path.open("rb") as file:
        text = next((line for line in file if line.strip()), b"")
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def _parse(path: Path, content: bytes, kind: Kind[K]) -> tuple[list[Line], int]:
    """The lines of a file, and how many bytes at its end are part of a line that was never finished."""
    *whole, last = content.split(b"\n")
    lines = [_line(path, number, text, kind) for number, text in enumerate(whole, start=1) if text.strip()]
    if not last.strip():
        return lines, 0
    try:
        return [*lines, _line(path, len(whole) + 1, last, kind)], 0
    except SettingError:
        return lines, len(last)


def _line(path: Path, number: int, text: bytes, kind: Kind[K]) -> Line:
    try:
        line = json.loads(text)
        kind.key_of(line), line["metrics"].get, line["recipe"].get
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingError(
            f"line {number} of {path} is not a result of `{kind.command}` ({error!r}); take another file, or remove"
            " that line"
        ) from error
    return line  # type: ignore[no-any-return]


@dataclass
class Journal(Generic[K]):
    """The result file of a grid, open for its one writer."""

    path: Path
    kind: Kind[K]
    tell: Say = lambda message: None
    done: dict[K, Line] = field(default_factory=dict)

    def __enter__(self) -> Journal[K]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
            self._repair()
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def append(self, lines: Sequence[Line]) -> None:
        """Write these lines down for good, or none of them."""
        texts = [json.dumps(plain(line), allow_nan=False) + "\n" for line in lines]
        self._write("".join(texts).encode())
        self.done |= {self.kind.key_of(line): line for line in (json.loads(text) for text in texts)}

    def _repair(self) -> None:
        """Read what is there and cut off a line that was never finished."""
        content = self.path.read_bytes()
        lines, torn = _parse(self.path, content, self.kind)
        if torn:
            self.tell(f"{self.path}: the last line is incomplete (a run was killed while writing); it is removed")
            os.ftruncate(self._file, len(content) - torn)
        elif content and not content.endswith(b"\n"):
            self._write(b"\n")
        self.done = {self.kind.key_of(line): line for line in lines}

    def _write(self, content: bytes) -> None:
        size = os.fstat(self._file).st_size
        try:
            while content:
                content = content[os.write(self._file, content) :]
            os.fsync(self._file)
            if not size:  # its name is new as well
                flush_folder(self.path.parent)
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _lock(self) -> None:
        """Keep a second writer out, where the system can."""
        try:
            missing = lock(self._file)
        except BlockingIOError as error:
            raise SettingError(
                f"another run is writing to {self.path}; wait for it, or choose another file with --out"
            ) from error
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise SettingError(f"{self.path} cannot be locked ({reason}); choose another file with --out") from error
        if missing is not None:
            self.tell(f"{self.path}: the file system has no locks ({missing}); let no second run write to it")
