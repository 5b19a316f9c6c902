"""Which benchmark a result file is of, and the table of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sgoif.errors import SettingError
from sgoif_bench.command import Say
from sgoif_bench.journal import Line, first_line
from sgoif_bench.tables import layout

OTHERWISE = "labels"
MARKS: Mapping[str, Callable[[Line], bool]] = {
    "poisoning": lambda line: "attack" in line,
    "curriculum": lambda line: "wrong_weight" in line.get("metrics", {}),
    "fidelity": lambda line: "wrong_share" in line,
    "ood": lambda line: "protocol" in line,
    "unlearning": lambda line: "single" in line.get("metrics", {}),
    "loops": lambda line: "loop" in line,
    "lengths": lambda line: {"steps", "anchors"} <= line.keys(),
    "pretrained": lambda line: "parts" in line,
    "audits": lambda line: "way" in line,
    "findings": lambda line: "planted" in line,
    "controller": lambda line: "base" in line,
}
"""What only the lines of a benchmark have."""
SETTINGS = {
    OTHERWISE: "TableSettings",
    "poisoning": "PoisoningTableSettings",
    "curriculum": "CurriculumTableSettings",
    "fidelity": "FidelityTableSettings",
    "ood": "OodTableSettings",
    "pretrained": "PretrainedTableSettings",
}
"""What the tables of a benchmark are asked for with; those of deletions, loops, lengths, audits and findings
have one form, as have those of controllers."""


def kind_of(files: Sequence[Path]) -> str:
    """The benchmark that all of these files are of."""
    kinds = {_kind(first_line(path)) for path in files}
    if len(kinds) > 1:
        named = " and of ".join(f"`sgoif-bench {kind}`" for kind in sorted(kinds))
        raise SettingError(f"results of {named} do not go into one table")
    return kinds.pop()


def _kind(line: Line) -> str:
    return next((kind for kind, has in MARKS.items() if has(line)), OTHERWISE)


def table_of(files: Sequence[Path], options: Mapping[str, Any], tell: Say) -> str:
    """The table of result files; `options` are those that were given, by their names in the settings."""
    kind = kind_of(files)
    tables = import_module(f"sgoif_bench.{kind}.table")
    if kind == "ood" and "columns" in options:
        raise SettingError("the columns of a table of outliers are its sets and metrics; leave --columns away")
    if kind not in SETTINGS and set(options) - {"format"} | ({options.get("format")} - {None, "markdown"}):
        raise SettingError(f"the table of `sgoif-bench {kind}` has one form, in Markdown; leave the options away")
    settings = getattr(tables, SETTINGS[kind])(**options) if kind in SETTINGS else None
    lines = import_module(f"sgoif_bench.{kind}.grid").KIND.read(files, tell)
    if isinstance(settings, layout.Layout):
        return layout.render(lines, settings)
    text: str = tables.render(lines) if settings is None else tables.render(lines, settings)
    return text
