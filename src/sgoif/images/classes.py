"""Class names from labels of any kind, in a sensible order."""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sgoif.core.types import Array
from sgoif.images.text import FEW, few, plural, shown


def class_text(value: Any) -> str | None:
    """The name of the class that a label stands for; None where there is no label."""
    if type(value) is str:  # nearly all are, and there may be millions
        return value if value and not value.isspace() else None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value)
    return text if text.strip() else None


def in_order(names: Iterable[str]) -> list[str]:
    """Numbers by value, anything else by the alphabet."""
    distinct = sorted(set(names))
    try:
        values = {name: float(name) for name in distinct}
    except ValueError:
        return distinct
    if not all(math.isfinite(value) for value in values.values()):
        return distinct
    return sorted(distinct, key=lambda name: (values[name], name))


def numbered(texts: Sequence[str], known: Sequence[str] | None = None) -> tuple[Array, list[str]]:
    """Labels as numbers, and the names of the classes that occur; `known` gives their order."""
    present = set(texts)
    order = in_order(present) if known is None else [name for name in dict.fromkeys(known) if name in present]
    position = {name: number for number, name in enumerate(order)}
    return np.array([position[text] for text in texts], dtype=np.int64), order


def twin_notes(names: Iterable[str]) -> list[str]:
    """What to say about classes whose names look alike: they stay apart, since only a person knows what was meant."""
    groups: dict[str, list[str]] = {}
    for name in names:
        folded = unicodedata.normalize("NFC", name).casefold()
        groups.setdefault(unicodedata.normalize("NFC", " ".join(folded.split())), []).append(name)
    twins = [group for group in groups.values() if len(group) > 1]
    notes = [
        f"classes {' and '.join(map(shown, group[:FEW]))} differ only in {_difference(group)} and are kept apart;"
        " if they are one class, give them one name"
        for group in twins[:FEW]
    ]
    if len(twins) > FEW:
        rest = plural(len(twins) - FEW, "more class has", "more classes have")
        notes.append(f"{rest} such twins: {few(group[0] for group in twins[FEW:])}")
    return notes


def _difference(group: Sequence[str]) -> str:
    """What sets the names of a group apart, with the characters where the eye cannot tell them."""
    composed = {unicodedata.normalize("NFC", name) for name in group}
    if len(composed) < len(group):
        return f"how letters are encoded in Unicode ({' and '.join(ascii(name) for name in group[:FEW])})"
    return "spaces" if len({" ".join(name.split()) for name in composed}) == 1 else "upper and lower case"
