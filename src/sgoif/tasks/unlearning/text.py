"""Names and reasons that come from outside, made safe to show: one line, printable, not too long."""

from collections.abc import Sequence

FEW = 5
WIDTH = 80


def escaped(text: str) -> str:
    """Characters that a terminal would act on, or cannot show, written out as in JSON."""
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def quoted(text: str) -> str:
    """In quotes, without its middle where it is long."""
    plain = escaped(text)
    if len(plain) > WIDTH:
        plain = f"{plain[: WIDTH // 2]}…{plain[-WIDTH // 2 :]}"
    return f"'{plain}'"


def few(items: Sequence[str]) -> str:
    """The first few, quoted, and how many more there are."""
    rest = len(items) - FEW
    return ", ".join(quoted(item) for item in items[:FEW]) + (f" and {rest} more" if rest > 0 else "")


def counted(count: int, noun: str, many: str | None = None) -> str:
    """A count with its noun."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
