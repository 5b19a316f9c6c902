"""`sgoif audit` and `sgoif apply`. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sgoif.audit.audit import AuditResult
    from sgoif.audit.settings import AuditSettings

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]
SHOWN = 10
"""Rows of the table that a terminal shows."""
UNTOLD = "how many are wrong in all cannot be told, since the model has learned too little"


def register(app: typer.Typer) -> None:
    """Add the two commands."""
    app.command("audit")(audit_command)
    app.command("apply")(apply_command)


def audit_command(
    path: Annotated[
        Path,
        typer.Argument(
            help="Image folder with one subfolder per class, a CSV or Parquet manifest, a Hugging Face datasets folder,"
            " CIFAR or idx files, or an .npz file."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Run directory; without it sgoif-audit-NAME, after PATH.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the run directory.")] = False,
    layout: Annotated[str, typer.Option(help="How the data are laid out; found out by itself.")] = "auto",
    split: Annotated[str | None, typer.Option(help="Which part of data that come in parts, e.g. train.")] = None,
    root: Annotated[Path | None, typer.Option(help="What paths in a manifest are relative to.")] = None,
    image_column: Annotated[str | None, typer.Option(help="Column of a manifest with the paths.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of a manifest with the labels.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only so many images, spread over the data.")] = None,
    follow_links: Annotated[
        bool,
        typer.Option("--follow-links", help="Follow links that lead out of an image folder or into another class."),
    ] = False,
    model: Annotated[
        str,
        typer.Option(
            help="resnet7-whitened (on a CPU), resnet9 (on a GPU), resnet7, resnet9-small, timm:NAME, or"
            " package.module:factory for your own."
        ),
    ] = "auto",
    weights: Annotated[Path | None, typer.Option(help="A .safetensors file to start from.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images; chosen by the size of the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a batch; chosen by the size of the data.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images the model sees, in pixels.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak of the learning rate.")] = None,
    holdout: Annotated[
        float, typer.Option(help="Share of each class that judges the others, or 20 of it if that is more; scored too.")
    ] = 0.1,
    decoys: Annotated[
        float | None, typer.Option(help="Share of labels made wrong on purpose to calibrate; about 0.01, 0 for none.")
    ] = None,
    augment: Annotated[bool, typer.Option(help="Shift images a little and, in colour, mirror them.")] = True,
    early_stop: Annotated[bool, typer.Option(help="Stop when the model memorises or the ranking has settled.")] = True,
    budget: Annotated[float | None, typer.Option(help="Largest share of training time for the scoring.")] = None,
    fdr: Annotated[float, typer.Option(help="Share of right labels that may be among those called wrong.")] = 0.1,
    checked: Annotated[
        Path | None, typer.Option(help="decisions.csv or to_check.csv with labels of held-out images that you checked.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of split, weights, batches and augmentation.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    nproc: Annotated[int, typer.Option(help="Processes on this machine that train together, a GPU each.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Find wrong labels in a set of images: train a small model on them and watch which images hurt it.

    The run directory gets issues.csv, issues.parquet, summary.json and report.html, a page to decide image by image.
    Interrupted runs go on with --resume.
    """
    from functools import partial

    from sgoif.audit.audit import audit
    from sgoif.audit.errors import AuditError
    from sgoif.audit.run_directory import RunDirectory
    from sgoif.audit.settings import AuditSettings
    from sgoif.distributed.launch import Stopped, launch, placed
    from sgoif.errors import RankError

    settings = AuditSettings(
        path=path,
        out=out,
        layout=layout,
        split=split,
        root=root,
        image_column=image_column,
        label_column=label_column,
        limit=limit,
        follow_links=follow_links,
        model=model,
        weights=weights,
        epochs=epochs,
        batch_size=batch_size,
        image_size=image_size,
        learning_rate=learning_rate,
        holdout=holdout,
        decoys=decoys,
        augment=augment,
        early_stop=early_stop,
        budget=budget,
        fdr=fdr,
        checked=checked,
        seed=seed,
        device=_device(device),
        nproc=nproc,
    )
    if nproc > 1 and not placed():
        first = partial(_explained, settings, resume, as_json)
        try:
            code = launch(nproc, first, partial(audit, settings, resume=resume))
        except RankError as error:
            raise AuditError(f"{error}. Go on with: {settings.command('--resume')}") from error
        except Stopped as stop:
            print(f"sgoif: {RunDirectory(settings.directory.absolute(), settings).stopped()}", file=sys.stderr)
            code = 128 + stop.number
    else:
        code = _audited(settings, resume, as_json)
    raise typer.Exit(code)


def _audited(settings: AuditSettings, resume: bool, as_json: bool) -> int:
    """Audit, tell what was found, and return the exit code."""
    from sgoif.audit.audit import audit
    from sgoif.audit.errors import AuditInterrupted
    from sgoif.audit.progress import for_terminal
    from sgoif.cli.terminal import results
    from sgoif.core.provenance import plain

    try:
        result = audit(settings, for_terminal(), resume=resume)
    except AuditInterrupted as stop:
        print(f"sgoif: {stop}", file=sys.stderr)
        return stop.exit_code
    files = {"directory": result.out, "report": result.report, "issues": result.issues}
    if not result.summary:  # another process has written and tells
        return 0
    if as_json:
        print(json.dumps(plain({**result.summary, **files}), allow_nan=False))
        return 0
    console = results()
    for line in _told(result):
        console.print(line, highlight=False, markup=False)
    print(f"page to look at: {result.report}", file=sys.stderr)
    return 0


def _explained(settings: AuditSettings, resume: bool, as_json: bool) -> int:
    """The same in a process of its own: a mistake is one sentence and an exit code."""
    from sgoif.errors import SgoifError, sentence

    try:
        return _audited(settings, resume, as_json)
    except (SgoifError, OSError) as error:
        print(f"sgoif: {sentence(error)}", file=sys.stderr)
        return 2


def apply_command(
    decisions: Annotated[Path, typer.Argument(help="decisions.csv, exported from report.html.")],
    to: Annotated[Path, typer.Option(help="Folder for the cleaned copy; must not exist or be empty.")],
    source: Annotated[Path | None, typer.Option(help="The data, where they are not where they were audited.")] = None,
    layout: Annotated[str, typer.Option(help="How the data are laid out; found out by itself.")] = "auto",
    split: Annotated[str | None, typer.Option(help="Which part of data that come in parts, e.g. train.")] = None,
    root: Annotated[Path | None, typer.Option(help="What paths in a manifest are relative to.")] = None,
    image_column: Annotated[str | None, typer.Option(help="Column of a manifest with the paths.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of a manifest with the labels.")] = None,
    follow_links: Annotated[
        bool,
        typer.Option("--follow-links", help="Follow links that lead out of an image folder or into another class."),
    ] = False,
    copy: Annotated[bool, typer.Option("--copy", help="Copy files instead of linking them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a cleaned copy of the data according to your decisions. The original is never touched.

    Files that cannot be read as images are left out of the copy and named.
    """
    from sgoif.audit.apply import apply_decisions
    from sgoif.audit.progress import for_terminal
    from sgoif.core.provenance import plain

    show = for_terminal()
    try:
        applied = apply_decisions(
            decisions,
            to,
            source=source,
            copy=copy,
            dry_run=dry_run,
            layout=layout,
            split=split,
            root=root,
            image_column=image_column,
            label_column=label_column,
            follow_links=follow_links,
            progress=show,
        )
    finally:
        show.close()
    if as_json:
        print(json.dumps(plain(_facts(applied)), allow_nan=False))
    else:
        print(applied.summary())


def _facts(applied: Any) -> dict[str, Any]:
    """The fields of what was applied, in terms of JSON; pairs of classes become lists."""
    from dataclasses import fields

    facts = {item.name: getattr(applied, item.name) for item in fields(applied)}
    for name, value in facts.items():
        if isinstance(value, dict) and any(isinstance(key, tuple) for key in value):
            facts[name] = [{"from": given, "to": new, "count": count} for (given, new), count in value.items()]
    return facts


def _device(name: str) -> Literal["auto", "cpu", "cuda"]:
    return name  # type: ignore[return-value]  # AuditSettings refuses what is none of them


def _told(result: AuditResult) -> list[RenderableType]:
    """What a terminal shows at the end: one sentence and the worst few."""
    from rich.table import Table
    from rich.text import Text

    from sgoif.images.text import shown

    summary, table = result.summary, result.table
    rate = summary["noise_rate"]
    low, high = (round(rate[end] * summary["images"]) for end in ("low", "high"))
    estimate = f"estimated in all: {rate['estimate']:.1%}, between {low:,} and {high:,} images"
    sentence = (
        f"{summary['selected']:,} of {summary['images']:,} labels look wrong (at most {summary['fdr']:.0%} of these by"
        f" mistake); {estimate if rate['told'] else UNTOLD}."
    )
    listing = Table(title="the most suspicious labels", title_justify="left")
    for heading, side in (("image", "left"), ("label", "left"), ("suggested", "left"), ("wrong with", "right")):
        listing.add_column(heading, justify=side)  # type: ignore[arg-type]
    for row in range(min(SHOWN, len(table))):
        given, other = table["given_label"][row], table["predicted_label"][row]
        cells = [
            shown(table["path"][row], 48)[1:-1],
            shown(given, 24)[1:-1],
            "–" if other == given else shown(other, 24)[1:-1],
            f"{table['probability_wrong'][row]:.0%}",
        ]
        listing.add_row(*(Text(cell) for cell in cells))
    return [Text(sentence), listing]
