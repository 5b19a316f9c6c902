"""`sgoif trace`: the training images behind wrong answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import (
    Backbone,
    Limit,
    Model,
    Weights,
    computing,
    data_of,
    made_from,
    preparing,
    reading,
    with_options,
)
from sgoif.cli.terminal import SHOWN, add_row, message, new_table, print_json, print_sentence, results, with_progress
from sgoif.errors import SettingError

if TYPE_CHECKING:
    from sgoif.core.score_table import ScoreTable


@with_options(preparing, reading, computing)
def trace_command(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Run directory of a finished `sgoif audit`: brings model, weights and images. Without it, give --data"
            " with --model and --weights."
        ),
    ] = None,
    victims: Annotated[
        Path | None,
        typer.Option(
            help="Images that are answered wrongly: a folder, one image, or an .npz file with an array x. Without them,"
            " every class is searched for a small group that stands apart."
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The wrong label that victims get.", show_default="what the model answers")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="sgoif-trace-NAME, after RUN or DATA")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The training images, where there is no run; any layout that `sgoif audit` reads."),
    ] = None,
    model: Model = None,
    backbone: Backbone = None,
    weights: Weights = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="A file with the names of the model's outputs, one a line, where that is not the order of DATA's.",
            show_default="the classes of DATA",
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images the model sees, in pixels.", show_default="as an audit")
    ] = None,
    limit: Limit = None,
    show: Annotated[int, typer.Option(help="Victims on the page.")] = 24,
    **given: Any,
) -> None:
    """Find the training images that make a model answer wrongly, and say how many to remove.

    Writes culprits.csv, culprits.parquet, culprits.html (each victim beside the images behind it) and decisions.csv,
    with which `sgoif apply` makes a cleaned copy.
    """
    given |= locals()
    from sgoif.commands.settings import numbers, option_name
    from sgoif.commands.trace.settings import TraceSettings
    from sgoif.commands.trace.trace import trace

    where = data_of(data, given)
    if where is None:
        idle = [option_name(name) for name in ("split", "root", "label_column", "limit") if given[name] is not None]
        if idle := idle + (["--layout"] if given["layout"] != "auto" else []):
            raise SettingError(f"{', '.join(idle)} say how --data is read, and there is none; leave them away")
    normalised = {name: numbers(given[name], f"--{name}") for name in ("mean", "spread")}
    settings = made_from(TraceSettings, given, data=where, **normalised)
    table, summary = with_progress(lambda progress: trace(settings, progress))
    if given["as_json"]:
        print_json(summary)
    else:
        _tell(table, summary)


def _tell(table: ScoreTable, summary: dict[str, Any]) -> None:
    """What a terminal shows at the end: a few sentences and the worst few."""
    for line in sentences(summary):
        print_sentence(line)
    listing = new_table("the most suspicious training images", ("image", "label"), ("score", "probability"))
    for row in range(min(SHOWN, len(table))):
        figures = f"{table['score'][row]:.3g}", f"{table['probability'][row]:.2f}"
        add_row(listing, (table["path"][row], table["given_label"][row]), figures)
    results().print(listing)
    message(f"page to look at: {summary['page']}")


def sentences(summary: dict[str, Any]) -> list[str]:
    """What was found, in words."""
    if not summary["selected"]:
        return [f"Nothing to remove was found among {summary['examples']:,} training images."]
    kinds = "family" if len(summary["families"]) == 1 else "families"
    lines = [
        f"{summary['selected']:,} of {summary['examples']:,} training images stand apart, in"
        f" {len(summary['families'])} {kinds}:"
    ]
    lines += [f"  {family['description']}" for family in summary["families"]]
    restore = summary["to_restore"]
    if restore is not None:
        lines.append(
            f"Removing the first {restore['count']:,} should undo the wrong answer (probability {restore['before']:.2f}"
            f" before, {restore['after']:.2f} after; {restore['control']:.2f} for as many others)."
        )
    lines.append(f"A cleaned copy: sgoif apply {summary['decisions']} --to CLEAN/")
    return lines
