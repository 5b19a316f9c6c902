"""What a person can type after `sgoif`. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
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
    from sgoif_bench.demo import DemoSettings
    from sgoif_bench.protocol import Epoch

PANELS = {
    "Images and their labels": ("audit", "watch", "apply", "trace"),
    "A trained network": ("sentinel", "unlearn"),
    "This library": ("demo", "bench", "info"),
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
bench = typer.Typer(help="Measure the library; each benchmark writes a result file.", no_args_is_help=True)
register_audit(app)
register_sentinel(app)
register_trace(app)
register_watch(app)
register_unlearn(app)
app.add_typer(bench, name="bench")

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
    from sgoif.core.provenance import command_line
    from sgoif_bench.command import check_writable
    from sgoif_bench.demo import DemoSettings, brief, save

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
    from sgoif_bench.demo import run_demo

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


PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


BENCHMARKS = {
    "overhead": ("sgoif_bench.overhead", "Time and memory with the monitor, as ratios to plain training."),
    "scaling": ("sgoif_bench.scaling", "How the cost grows with examples, anchors and watched weights."),
    "intervals": ("sgoif_bench.intervals", "How often the intervals of scores cover the mean of a much longer run."),
    "detection": ("sgoif_bench.detection", "Find wrong labels in CIFAR-10 with a network trained from scratch."),
    "errors": ("sgoif_bench.errors", "How far the probabilities of wrong labels can be believed, on CIFAR-10."),
    "audits": ("sgoif_bench.audits", "The same for the training of `sgoif audit`, on images of any kind and number."),
    "labels": (
        "sgoif_bench.labels.run",
        "Compare all methods that find wrong labels, over data sets, noises and seeds.",
    ),
    "ood": ("sgoif_bench.ood.run", "Compare out-of-distribution detectors, over data sets and seeds."),
    "streams": (
        "sgoif_bench.ood.streams",
        "False alarms and delays of the sentinel's alarm on streams of test images.",
    ),
    "poisoning": (
        "sgoif_bench.poisoning.run",
        "Compare methods that find poisoned training examples, over attacks and seeds.",
    ),
    "curriculum": ("sgoif_bench.curriculum.run", "Compare ways to train despite wrong labels, by test accuracy."),
    "unlearning": ("sgoif_bench.unlearning.run", "Predicted against retrained effects of deleting training examples."),
    "fidelity": (
        "sgoif_bench.fidelity.run",
        "Influence scores against retraining, beside other attribution libraries.",
    ),
    "faults": (
        "sgoif_bench.faults.run",
        "Kill audits at random moments, try bad inputs, feed damaged files to every reader.",
    ),
}
"""Module and purpose of every benchmark; each reads its own options."""


def _benchmark(name: str, module: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        sys.exit(import_module(module).main(context.args, program=f"sgoif bench {name}"))

    return run


for _name, (_module, _purpose) in BENCHMARKS.items():
    bench.command(
        _name, help=f"{_purpose} --help lists the options.", context_settings=PASSED_ON, add_help_option=False
    )(_benchmark(_name, _module))


Results = Annotated[
    list[Path],
    typer.Argument(
        help="Result files of one of `sgoif bench labels`, `ood`, `poisoning`, `curriculum`, `unlearning`, `fidelity`."
    ),
]
Where = Annotated[
    list[str] | None, typer.Option("--where", help="Only results with FIELD=VALUE[,VALUE...]; can be repeated.")
]


@bench.command(rich_help_panel="Result files")
def table(
    files: Results,
    metric: Annotated[
        str | None,
        typer.Option(
            help="What is compared: aupr, auroc, p_at_1, f1, fpr95, seconds, ...",
            show_default="aupr; for outliers auroc and more",
        ),
    ] = None,
    layout: Annotated[str, typer.Option("--format", help="markdown, latex or json.")] = "markdown",
    rows: Annotated[str | None, typer.Option(help="What the rows are.", show_default="method")] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="What the columns are.", show_default="noise or attack; for outliers always sets and metrics"
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="A table for every value of this.",
            show_default="set; for outliers set,protocol,noise; for poison set,setting",
        ),
    ] = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Mean and spread over seeds as a table; the best is bold, what cannot be told from it is marked."""
    from sgoif_bench.command import say
    from sgoif_bench.kinds import table_of

    asked: dict[str, Any] = {"metric": metric, "rows": rows, "columns": columns, "by": by}
    asked |= {"where": tuple(where) if where else None, "format": "json" if as_json else layout}
    given = {name: value for name, value in asked.items() if value is not None}
    print(table_of(files, given, say))


@bench.command(rich_help_panel="Result files")
def plot(
    kind: Annotated[
        str,
        typer.Argument(
            help="convergence, seeds, confidence, gain, precision-recall or pareto for results of `sgoif bench labels`;"
            " run (or nothing) for one of `sgoif bench detection` or `sgoif demo`; growth for one of"
            " `sgoif bench scaling`."
        ),
    ],
    files: Annotated[list[Path] | None, typer.Argument(help="Result files.")] = None,
    *,
    out: Annotated[Path, typer.Option(help="Picture to write: PNG, SVG or PDF.")],
    title: Annotated[str, typer.Option(help="Line above the picture.")] = "",
    metric: Annotated[str, typer.Option(help="Quality in seeds and pareto.")] = "aupr",
    cost: Annotated[str, typer.Option(help="Cost in pareto: seconds, trainings or memory.")] = "seconds",
    baseline: Annotated[str | None, typer.Option(help="Method that gain compares with; unset: the best rival.")] = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Draw result files: what was found over training and settings, at what cost."""
    from sgoif_bench.command import check_writable, say
    from sgoif_bench.drawing import check_picture
    from sgoif_bench.labels.grid import read_results
    from sgoif_bench.labels.plots import PlotSettings
    from sgoif_bench.labels.plots import plot as plot_labels

    check_writable(out)
    if kind == "run" or (not files and Path(kind).suffix == ".json"):
        from sgoif.reports.plots import plot_run

        _plot_file(plot_run, files or [Path(kind)], out, title, "a run", "with epochs and monitors")
    elif kind == "growth":
        from sgoif_bench.growth import plot_growth

        check_picture(out)
        _plot_file(plot_growth, files or [], out, title, "growth", "of `sgoif bench scaling`")
    else:
        settings = PlotSettings(kind, tuple(where or ()), metric, cost, baseline, title)
        check_picture(out)
        plot_labels(read_results(files or [], say), settings, out)
    if as_json:
        print(json.dumps({"picture": str(out)}))
    else:
        messages.print(f"picture in [bold]{out}[/]", highlight=False)


def _plot_file(draw: Callable[..., None], files: list[Path], out: Path, title: str, shows: str, made_by: str) -> None:
    """Draw the one result file that a picture of this kind shows."""
    from sgoif.errors import SettingError

    if len(files) != 1:
        raise SettingError(f"a picture of {shows} shows one result file, not {len(files)}")
    try:
        draw(json.loads(files[0].read_text(encoding="utf-8")), out, title=title)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise SettingError(f"{files[0]} is not a result file {made_by} ({error!r})") from error
