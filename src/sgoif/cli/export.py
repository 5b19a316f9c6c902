"""`sgoif export`: what an audit found, for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from sgoif.cli.options import AsJson
from sgoif.cli.terminal import message, print_json, print_sentence


def export_command(
    run: Annotated[Path, typer.Argument(help="Run directory of a finished `sgoif audit`.")],
    to: Annotated[str, typer.Option(help="The tool: fiftyone, label-studio, datalab or coco.")],
    out: Annotated[Path, typer.Option(help="The file to write; an earlier one of that name is replaced.")],
    as_json: AsJson = False,
) -> None:
    """Write the labels and findings of an audit as a file that another tool imports.

    FiftyOne and COCO get one label for each image with the findings as attributes, Label Studio tasks with the
    suggested label as prediction, the gravest first, and cleanlab the columns of its Datalab. None of them need be
    installed.
    """
    from sgoif.commands.export.export import export
    from sgoif.images.text import plural, shown

    done = export(run, to, out)
    if as_json:
        print_json(vars(done))
        return
    print_sentence(f"{shown(done.file)}: {plural(done.images, 'image')} with {plural(done.findings, 'finding')}")
    for note in done.notes:
        message(note)
    message(f"next: {shown(done.next_step, 1000)[1:-1]}")
