"""The command `sgoif-bench`. Results go to standard output, everything else to standard error.

Exit codes: 0 done, 1 a part of a benchmark failed, 2 a mistake in what was asked, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sgoif.cli import INTERRUPTED, MISTAKE, make_printable
from sgoif.errors import SettingError, SgoifError, sentence

PROGRAM = "sgoif-bench"
RESULT_FILES = "Result files"

app = typer.Typer(
    name=PROGRAM,
    help="Measure SG-OIF; each benchmark writes a result file and explains its options with --help.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
messages = Console(stderr=True)
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    make_printable()
    try:
        app(args=None if arguments is None else list(arguments), prog_name=PROGRAM)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (SgoifError, OSError) as error:
        print(f"{PROGRAM}: {sentence(error)}", file=sys.stderr)
        return MISTAKE
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        from sgoif.core.provenance import package_version

        try:
            own = version(PROGRAM)
        except PackageNotFoundError:
            own = "(from its sources)"
        print(f"{PROGRAM} {own}, sgoif {package_version()}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the versions and leave.")
    ] = False,
) -> None:
    """Measure SG-OIF; each benchmark writes a result file and explains its options with --help."""


PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


BENCHMARKS = {
    "overhead": ("sgoif_bench.overhead", "Time and memory with the monitor, as ratios to plain training."),
    "scaling": ("sgoif_bench.scaling", "How the cost grows with examples, anchors and watched weights."),
    "intervals": ("sgoif_bench.intervals", "How often the intervals of scores cover the mean of a much longer run."),
    "detection": ("sgoif_bench.detection", "Find wrong labels in CIFAR-10 with a network trained from scratch."),
    "errors": ("sgoif_bench.errors", "How far the probabilities of wrong labels can be believed, on CIFAR-10."),
    "audit-errors": (
        "sgoif_bench.audit_errors",
        "The same for the training of `sgoif audit`, on images of any kind and number.",
    ),
    "corpus": (
        "sgoif_bench.judgement.collect",
        "Train runs on eight data sets and keep what each knew about its labels, to be judged without training.",
    ),
    "judge": ("sgoif_bench.judgement.judge", "Judge what `corpus` kept, the judged data set being left out."),
    "labels": (
        "sgoif_bench.labels.run",
        "Compare all methods that find wrong labels, over data sets, noises and seeds.",
    ),
    "labels-costs": (
        "sgoif_bench.labels.costs",
        "Time, memory and FLOPs of all these methods, as ratios to a plain training, in one run.",
    ),
    "pretrained": (
        "sgoif_bench.pretrained.run",
        "Compare what finds wrong labels from a pretrained network: same features, folds and fine-tunings.",
    ),
    "audits": (
        "sgoif_bench.audits.run",
        "Compare the ways of the whole command `sgoif audit`, from a folder of images to its report.",
    ),
    "findings": (
        "sgoif_bench.findings.run",
        "Plant findings of every kind in a folder of images: what is found there and in its clean twin.",
    ),
    "findings-speed": (
        "sgoif_bench.findings.speed",
        "Time and memory of checks that need no network, beside CleanVision and cleanlab.",
    ),
    "findings-scale": (
        "sgoif_bench.findings.scale",
        "Time and memory of all checks that need no network on a large folder, and of going on after a kill.",
    ),
    "reviews": (
        "sgoif_bench.reviews",
        "What a few dozen looks of a person tell about a list, simulated from the truth.",
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
    "loops": (
        "sgoif_bench.loops.run",
        "Training loops as others write them: what the monitor finds there, and that training is unchanged.",
    ),
    "lengths": (
        "sgoif_bench.lengths.run",
        "Runs of few and of many steps with few and many anchors: what influence and the label score find.",
    ),
    "unlearning": ("sgoif_bench.unlearning.run", "Predicted against retrained effects of deleting training examples."),
    "controller": (
        "sgoif_bench.controller.run",
        "Compare the engine as printed, forms of its stability controller, and its parts left out.",
    ),
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
        sys.exit(import_module(module).main(context.args, program=f"{PROGRAM} {name}"))

    return run


for _name, (_module, _purpose) in BENCHMARKS.items():
    app.command(_name, help=_purpose, context_settings=PASSED_ON, add_help_option=False)(_benchmark(_name, _module))


Results = Annotated[
    list[Path],
    typer.Argument(
        help="Result files of one of `sgoif-bench labels`, `ood`, `poisoning`, `curriculum`, `unlearning`, `fidelity`,"
        " `loops`, `lengths`, `pretrained`, `audits`, `findings`, `controller`."
    ),
]
Where = Annotated[
    list[str] | None, typer.Option("--where", help="Only results with FIELD=VALUE[,VALUE...]; can be repeated.")
]


@app.command(rich_help_panel=RESULT_FILES)
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


@app.command(rich_help_panel=RESULT_FILES)
def plot(
    kind: Annotated[
        str,
        typer.Argument(
            help="convergence, seeds, confidence, gain, precision-recall or pareto for results of `sgoif-bench labels`;"
            " run (or nothing) for one of `sgoif-bench detection` or `sgoif demo`; growth for one of"
            " `sgoif-bench scaling`."
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
    from sgoif.core.serialization import check_writable
    from sgoif_bench.command import say
    from sgoif_bench.drawing import check_picture
    from sgoif_bench.labels.grid import KIND
    from sgoif_bench.labels.plots import PlotSettings
    from sgoif_bench.labels.plots import plot as plot_labels

    check_writable(out)
    if kind == "run" or (not files and Path(kind).suffix == ".json"):
        from sgoif_bench.run_plot import plot_run

        _plot_file(plot_run, files or [Path(kind)], out, title, "a run", "with epochs and monitors")
    elif kind == "growth":
        from sgoif_bench.growth import plot_growth

        check_picture(out)
        _plot_file(plot_growth, files or [], out, title, "growth", "of `sgoif-bench scaling`")
    else:
        settings = PlotSettings(kind, tuple(where or ()), metric, cost, baseline, title)
        check_picture(out)
        plot_labels(KIND.read(files or [], say), settings, out)
    if as_json:
        print(json.dumps({"picture": str(out)}))
    else:
        messages.print(f"picture in [bold]{out}[/]", highlight=False)


def _plot_file(draw: Callable[..., None], files: list[Path], out: Path, title: str, shows: str, made_by: str) -> None:
    """Draw the one result file that a picture of this kind shows."""
    if len(files) != 1:
        raise SettingError(f"a picture of {shows} shows one result file, not {len(files)}")
    try:
        draw(json.loads(files[0].read_text(encoding="utf-8")), out, title=title)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise SettingError(f"{files[0]} is not a result file {made_by} ({error!r})") from error
