"""What a person can type after `sgoif`: every command in its panel of the help."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sgoif.cli import sentinel, unlearn
from sgoif.cli.apply import apply_command
from sgoif.cli.audit import audit_command
from sgoif.cli.demo import demo_command
from sgoif.cli.diff import diff_command
from sgoif.cli.export import export_command
from sgoif.cli.info import info_command
from sgoif.cli.review import review_command
from sgoif.cli.shards import features_command, judge_command
from sgoif.cli.trace import trace_command
from sgoif.cli.watch import watch_command
from sgoif.core.version import __version__

PANELS = {
    "Images and their labels": ("audit", "watch", "review", "apply", "export", "diff", "trace"),
    "Images in shards, on many machines": ("features", "judge"),
    "A trained network": ("sentinel", "unlearn"),
    "This library": ("demo", "info"),
}
"""How `sgoif --help` groups the commands; what is not named here comes last, by itself."""


class Grouped(TyperGroup):
    """Commands in the order of the panels, each in its panel."""

    def list_commands(self, ctx: Any) -> list[str]:
        panels = {name: panel for panel, names in PANELS.items() for name in names}
        for name, command in self.commands.items():
            if name in panels:
                command.rich_help_panel = panels[name]  # type: ignore[attr-defined]
        return sorted(self.commands, key=[*panels, *self.commands].index)


app = typer.Typer(
    name="sgoif",
    cls=Grouped,
    help="Score every training example while a model trains.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("audit")(audit_command)
app.command("review")(review_command)
app.command("apply")(apply_command)
app.command("export")(export_command)
app.command("diff")(diff_command)
app.command("trace")(trace_command)
app.command("watch")(watch_command)
app.command("features")(features_command)
app.command("judge")(judge_command)
app.add_typer(sentinel.app, name="sentinel")
app.add_typer(unlearn.app, name="unlearn")
app.command("demo")(demo_command)
app.command("info")(info_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sgoif {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Score every training example while a model trains."""
