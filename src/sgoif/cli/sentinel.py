"""`sgoif sentinel fit`, `score` and `watch`: images that do not belong."""

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

if TYPE_CHECKING:
    from sgoif.commands.sentinel.image_stream import WatchOutput
    from sgoif.core.score_table import ScoreTable

ALARM = 3
"""Exit code of `watch` when it has raised an alarm."""

app = typer.Typer(
    help="Tell whether images belong to what a model was trained on, and whether a stream of them has changed."
    " `fit` comes first, once for a model; `score` and `watch` go by the file that it writes.",
    no_args_is_help=True,
)

Fitted = Annotated[Path, typer.Option("--sentinel", help="The file that `sgoif sentinel fit` wrote.")]
OtherModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="package.module:factory of your own model, which is imported on your word and not on that of the"
        " sentinel's file.",
        show_default="the file's, if built in or of timm",
    ),
]
OtherBackbone = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        help="The pretrained network that the sentinel was fitted to, where its weights are fetched or lie in a file.",
        show_default="the file's, if lite0, lite1 or lite2",
    ),
]
OtherWeights = Annotated[
    Path | None,
    typer.Option(
        "--weights", help="Its weights, where they lie neither where `fit` found them nor beside the sentinel's file."
    ),
]


@app.command("fit")
@with_options(preparing, reading, computing)
def fit_command(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Images that belong, best those the model was trained on: a folder with one subfolder per class, a"
            " manifest, CIFAR or idx files, or an .npz file. With --run it may be left out."
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory of a finished `sgoif audit`: brings model, weights, images and hold-out."),
    ] = None,
    model: Model = None,
    backbone: Backbone = None,
    weights: Weights = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("sentinel.npz"),
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Images that belong and that the model was not trained on; labels do not matter.",
            show_default="what the run held out, else one image in five of DATA",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Number of the model's outputs, or a file with their names, one a line.",
            show_default="the classes of DATA",
        ),
    ] = None,
    ignore_labels: Annotated[
        bool, typer.Option("--ignore-labels", help="Go by the model's answers; DATA may then be any folder of images.")
    ] = False,
    gate: Annotated[
        bool, typer.Option(help="Let the model's answers count less where it outvotes many labels.")
    ] = True,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Side of the images the model sees, in pixels.", show_default="64; 32 or less for small images"
        ),
    ] = None,
    limit: Limit = None,
    **given: Any,
) -> None:
    """Learn what belongs to a trained model, and write it to one file. The model is not changed.

    p-values and alarms are as honest as the calibration: give images that the model was not trained on.
    """
    given |= locals()
    from sgoif.audit.models import is_harmless
    from sgoif.commands.backbone_model import HARMLESS
    from sgoif.commands.sentinel.fitting import fit
    from sgoif.commands.sentinel.settings import FitSettings
    from sgoif.commands.settings import numbers

    normalised = {name: numbers(given[name], f"--{name}") for name in ("mean", "spread")}
    settings = made_from(FitSettings, given, data=data_of(data, given), **normalised)
    summary = with_progress(lambda show: fit(settings, show))
    if given["as_json"]:
        print_json(summary)
        return
    print(
        f"{summary['sentinel']}: learned from {summary['images']:,} images, calibrated on"
        f" {summary['calibration']:,} ({summary['calibrated_on']}); the smallest p-value is"
        f" {summary['smallest_p_value']:.2g}."
    )
    if settings.backbone is not None:
        if settings.backbone not in HARMLESS:
            print(f"`score` and `watch` need --backbone {settings.backbone}: nothing is fetched on the word of a file.")
    elif not is_harmless(summary["model"]):
        print(f"`score` and `watch` need --model {summary['model']}: code is not run on the word of a file.")


@app.command("score")
@with_options(reading, computing)
def score_command(
    data: Annotated[
        Path,
        typer.Argument(
            help="Images to score; labels do not matter. Any folder with images below it, one image, an .npz file with"
            " an array x, or whatever `sgoif audit` reads."
        ),
    ],
    sentinel: Fitted = Path("sentinel.npz"),
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="sgoif-scores-NAME, after DATA")
    ] = None,
    false_alarms: Annotated[
        float, typer.Option(help="Share of images that belong which may be called strange: is_strange is p <= this.")
    ] = 0.05,
    show: Annotated[int, typer.Option(help="Images on the page.")] = 200,
    model: OtherModel = None,
    backbone: OtherBackbone = None,
    weights: OtherWeights = None,
    limit: Limit = None,
    **given: Any,
) -> None:
    """Score images, the higher the stranger, and write scores.csv, scores.parquet and strangest.html.

    Files that cannot be read are left out and named in skipped.csv.
    """
    given |= locals()
    from sgoif.commands.sentinel.scoring import score
    from sgoif.commands.sentinel.settings import OpenSettings

    images, opened = data_of(data, given), made_from(OpenSettings, given, path=sentinel)
    table, summary = with_progress(
        lambda progress: made_from(score, given, images=images, sentinel=opened, progress=progress)
    )
    if given["as_json"]:
        print_json({**summary, "strangest": _rows(table)})
    else:
        _tell_scores(table, summary)


@app.command("watch")
@with_options(reading, computing)
def watch_command(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Images in the order of their names, or as an archive stores them. With --list: the folder that the"
            " paths start from."
        ),
    ] = None,
    sentinel: Fitted = Path("sentinel.npz"),
    listing: Annotated[
        Path | None,
        typer.Option("--list", help="A file with one path per line, in order; - reads them from standard input."),
    ] = None,
    false_alarms: Annotated[
        float, typer.Option(help="Bound on the probability of ever raising an alarm while nothing changes.")
    ] = 0.01,
    model: OtherModel = None,
    backbone: OtherBackbone = None,
    weights: OtherWeights = None,
    limit: Limit = None,
    **given: Any,
) -> None:
    """Treat images as a stream and stop at the alarm that it has changed.

    Exit code 0: the stream ended without an alarm. 3: an alarm was raised. 2: a mistake in what was asked.
    A list on standard input is followed as it grows: tail -f list.txt | sgoif sentinel watch --list - ...
    """
    given |= locals()
    from sgoif.commands.sentinel.image_stream import watch
    from sgoif.commands.sentinel.settings import OpenSettings

    images, opened = data_of(data, given), made_from(OpenSettings, given, path=sentinel)
    watched = with_progress(lambda show: watch(images, listing, opened, false_alarms, show))
    if given["as_json"]:
        print_json(watched.record())
    else:
        _tell_watched(watched, false_alarms)
    if watched.alarm is not None:
        raise typer.Exit(ALARM)


def _rows(table: ScoreTable) -> list[dict[str, Any]]:
    """The strangest few, one object each."""
    return [{name: table[name][row] for name in table.columns} for row in range(min(SHOWN, len(table)))]


def _tell_scores(table: ScoreTable, summary: dict[str, Any]) -> None:
    """What a terminal shows at the end: one sentence and the strangest few."""
    listing = new_table("the strangest images", ("image", "answer"), ("score", "p-value"))
    for row in _rows(table):
        add_row(listing, (row["path"], row["predicted_label"]), (f"{row['score']:.3g}", f"{row['p_value']:.3g}"))
    expected = summary["false_alarms"] * summary["images"]
    print_sentence(
        f"{summary['strange']:,} of {summary['images']:,} images are strange (p <= {summary['false_alarms']:g}); if all"
        f" belonged, about {expected:,.0f} would be called so."
    )
    results().print(listing)
    message(f"page to look at: {summary['page']}")


def _tell_watched(watched: WatchOutput, false_alarms: float) -> None:
    from sgoif.images.text import few, shown

    if watched.alarm is None:
        print(f"no alarm: {watched.inputs:,} images (the bound on false alarms is {false_alarms:g})")
        return
    alarm = watched.alarm
    print(
        f"ALARM after {alarm.time:,} images: they have become {alarm.towards}, most likely from number"
        f" {alarm.change + 1:,} on, {shown(watched.change_name)}."
    )
    print(f"evidence: {alarm.evidence:,.0f} to 1 against no change (an alarm needs {1 / false_alarms:,.0f}).")
    print(f"images that drove it: {few(alarm.drivers, 10)}")
