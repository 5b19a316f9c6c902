"""`sgoif apply`: write a cleaned copy of the data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sgoif.cli.options import AsJson, FollowLinks, made_from, reading, with_options
from sgoif.cli.terminal import print_result, with_progress


@with_options(reading)
def apply_command(
    decisions: Annotated[Path, typer.Argument(help="decisions.csv, exported from report.html.")],
    to: Annotated[Path, typer.Option(help="Folder for the cleaned copy; must not exist or be empty.")],
    source: Annotated[Path | None, typer.Option(help="The data, where they are not where they were audited.")] = None,
    follow_links: FollowLinks = False,
    links: Annotated[
        bool, typer.Option("--links", help="Link files instead of copying them; an edit of one changes the original.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and write nothing.")] = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Write a cleaned copy of the data according to your decisions. The original is never touched.

    Files that cannot be read as images are left out of the copy and named.
    """
    given |= locals()
    from sgoif.audit.apply import apply_decisions

    applied = with_progress(lambda show: made_from(apply_decisions, given, progress=show))
    print_result(_facts(applied), as_json, applied.summary())


def _facts(applied: Any) -> dict[str, Any]:
    """The fields of what was applied, in terms of JSON; pairs of classes become lists."""
    facts = dict(vars(applied))
    for name, value in facts.items():
        if isinstance(value, dict) and any(isinstance(key, tuple) for key in value):
            facts[name] = [{"from": given, "to": new, "count": count} for (given, new), count in value.items()]
    return facts
