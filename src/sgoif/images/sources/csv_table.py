"""CSV files as people have them: with or without a byte order mark, separated by comma, semicolon or tab."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sgoif.images.errors import ImagesError
from sgoif.images.text import few, shown

LONGEST_CELL = 1 << 20


@dataclass(frozen=True)
class CsvTable:
    """Header and rows as text, exactly as the cells stand in the file, but for spaces after separators."""

    path: Path
    header: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> int:
        """Position of a column."""
        return self.header.index(name)


def read_csv(path: Path, expected: Iterable[str] = ()) -> CsvTable:
    """Read a CSV or TSV file; `expected` are column names that help to tell the separator."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
            separator = _separator(path, first, expected)
            reader = csv.reader(file, delimiter=separator, skipinitialspace=_is_spaced(first, separator))
            header = next(reader, [])
            rows = [row for row in reader if row]
    except UnicodeDecodeError as error:
        raise ImagesError(
            f"{shown(path)} is not UTF-8 text (byte {error.start}); save it again as CSV UTF-8"
        ) from error
    except csv.Error as error:
        raise ImagesError(f"{shown(path)} is not a readable CSV file: {error}") from error
    except OSError as error:
        raise ImagesError(f"cannot read {shown(path)}: {error.strerror}") from error
    header = [name.strip() for name in header]
    if not any(header):
        raise ImagesError(f"{shown(path)} is empty; the first line must name the columns")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise ImagesError(f"{shown(path)} names a column twice: {few(twice)}; give every column its own name")
    return CsvTable(path, header, rows)


def _separator(path: Path, line: str, expected: Iterable[str]) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    wanted = {name.lower() for name in expected}

    def fit(separator: str) -> tuple[int, int]:
        cells = [cell.strip().lower() for cell in next(csv.reader([line], delimiter=separator), [])]
        return len(wanted.intersection(cells)), len(cells)

    return max((",", ";", "\t"), key=fit)


def _is_spaced(line: str, separator: str) -> bool:
    """Whether a header sets every cell off with a space, as in "path, label"; the rows then do so too."""
    cells = next(csv.reader([line], delimiter=separator), [])[1:]
    return bool(cells) and all(cell.startswith(" ") for cell in cells)
