"""What a person can type after `sgoif`. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup

from sgoif.cli.audit import register as register_audit
from sgoif.cli.sentinel import register as register_sentinel
from sgoif.cli.terminal import results
from sgoif.cli.trace import register as register_trace
from sgoif.cli.unlearn import register as register_unlearn
from sgoif.cli.watch import register as register_watch

if TYPE_CHECKING:
    from sgoif.commands.demo.demo import DemoSettings
    from sgoif.commands.demo.training import Epoch

PANELS = {
    "Images and their labels": ("audit", "watch", "apply", "trace"),
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
register_audit(app)
register_sentinel(app)
register_trace(app)
register_watch(app)
register_unlearn(app)

messages = Console(stderr=True)
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]

METHOD_NAMES = {
    "influence": "influence",
    "influence_no_gate": "influence without the gate",
    "loss": "mean loss",
    "margin": "margin (AUM)",
}


def _print_version(wanted: bool) -> None:
    if wanted:
        from sgoif.core.provenance import package_version

        print(f"sgoif {package_version()}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Score every training example while a model trains."""


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of noise, split, weights and batches.")] = 0,
    epochs: Annotated[int, typer.Option(help="Epochs of training.")] = 30,
    noise_rate: Annotated[float, typer.Option(help="Share of all labels that are made wrong.")] = 0.2,
    out: Annotated[Path, typer.Option(help="Folder for demo.json, demo.png and report.html.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Find wrong labels in scikit-learn's digits while a small network trains; about half a minute."""
    from sgoif.commands.demo.demo import DemoSettings, brief, save
    from sgoif.core.provenance import command_line
    from sgoif.core.serialization import check_writable

    settings = DemoSettings(epochs=epochs, noise_rate=noise_rate, seed=seed)
    check_writable(out / "demo.json")
    page = out / "report.html"
    result = _run_demo(settings, page)
    command = command_line(
        "sgoif demo", ["--seed", str(seed), "--epochs", str(epochs), "--noise-rate", str(noise_rate)]
    )
    data, picture = save(result, out, command)
    messages.print(f"results in [bold]{data}[/], picture in [bold]{picture}[/]", highlight=False)
    messages.print(f"page of suspicious digits: [bold]{page}[/]", highlight=False)
    if as_json:
        print(json.dumps(brief(result), allow_nan=False))
    else:
        results().print(_demo_table(result))
        print(_demo_sentence(result))


def _demo_sentence(result: dict[str, Any]) -> str:
    found = result["label_errors"]
    return (
        f"Called wrong: {found['selected']} labels, {found['selected_wrong']} of them rightly. Estimated share of wrong"
        f" labels: {found['noise_rate']:.1%} ({found['noise_rate_low']:.1%} to {found['noise_rate_high']:.1%});"
        f" the truth is {found['noise_rate_true']:.1%}."
    )


def _run_demo(settings: DemoSettings, page: Path) -> dict[str, Any]:
    from sgoif.audit.interruption import Interruption
    from sgoif.commands.demo.demo import run_demo

    interruption = Interruption()
    columns = (
        TextColumn("training"),
        BarColumn(),
        TextColumn("epoch {task.completed}/{task.total}"),
        TextColumn("{task.fields[found]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    messages.print(f"training a small network on handwritten digits for {settings.epochs} epochs", highlight=False)
    with interruption.watching(), Progress(*columns, console=messages) as progress:
        task = progress.add_task("training", total=settings.epochs, found="")

        def show(record: Epoch) -> None:
            if interruption.asked is not None:  # compiled packages can swallow an interrupt while they are imported
                raise KeyboardInterrupt
            aupr = record["methods"]["influence"]["aupr"]
            progress.update(task, advance=1, found=f"loss {record['train_loss']:.3f}  AUPR {100 * aupr:.1f}")

        return run_demo(settings, on_epoch=show, page=page)


def _demo_table(result: dict[str, Any]) -> Table:
    table = Table(
        title=f"{result['wrong_labels']} of {result['examples']} labels are wrong. Who finds them?",
        caption=f"{result['seconds']:.1f} s in all; percent, over the training examples",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("score")
    for heading in ("P@1%", "AUPR", "AUROC"):
        table.add_column(heading, justify="right")
    for method, name in METHOD_NAMES.items():
        metrics = result["methods"][method]
        table.add_row(name, *(f"{100 * metrics[column]:.1f}" for column in ("p_at_1", "aupr", "auroc")))
    return table


@app.command()
def info(as_json: AsJson = False) -> None:
    """Show versions, devices, what decides whether runs repeat, and which extras are there; for a bug report."""
    from rich.text import Text

    from sgoif.commands.info import facts, shown

    found = facts()
    if as_json:
        print(json.dumps(found))
        return
    listing = Table(show_header=False, box=None)
    for name, value in shown(found):
        listing.add_row(Text(name), Text(value))
    results().print(listing)


@app.command(
    hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def bench() -> None:
    """Say where the benchmarks are now."""
    from sgoif.errors import SettingError

    raise SettingError("the benchmarks are a command of their own now: sgoif-bench, of the distribution sgoif-bench")
