"""Names that come from data, made safe to show: one line, printable, not too long."""

import os
from collections.abc import Iterable

FEW = 5


def shown(text: object, width: int = 120) -> str:
    """Quoted, with control characters written out; a long name loses its middle."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text))
    if len(plain) > width:
        head = width * 2 // 3
        plain = f"{plain[:head]}…{plain[head - width + 1 :]}"
    return f"'{plain}'"


def few(items: Iterable[object], most: int = FEW) -> str:
    """The first few items, quoted, and how many more there are."""
    everything = list(items)
    rest = len(everything) - most
    return ", ".join(shown(item) for item in everything[:most]) + (f" and {rest} more" if rest > 0 else "")


def as_unicode(path: str) -> str:
    """A file name as text that any file can hold; bytes that are not UTF-8 are written out."""
    return path if path.isascii() else os.fsencode(path).decode("utf-8", "backslashreplace")


def plural(count: int, noun: str, many: str | None = None) -> str:
    """A count with its noun."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
