"""`sgoif audit`: find wrong labels in a set of images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import AsJson, Device, FollowLinks, Limit, made_from, reading, with_options
from sgoif.cli.terminal import SHOWN, add_row, message, new_table, print_json, print_sentence, results

FAILED = 4
"""Exit code where something was found that `--fail-on` asks about."""

if TYPE_CHECKING:
    from rich.table import Table

    from sgoif.audit.results import AuditResult
    from sgoif.audit.settings import AuditSettings


@with_options(reading)
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
    limit: Limit = None,
    follow_links: FollowLinks = False,
    model: Annotated[
        str,
        typer.Option(
            help="A network to train from scratch: resnet7-whitened (on a CPU), resnet9 (on a GPU), resnet7,"
            " resnet9-small, timm:NAME, or package.module:factory for your own."
        ),
    ] = "auto",
    weights: Annotated[Path | None, typer.Option(help="A .safetensors file to start from.")] = None,
    backbone: Annotated[
        str,
        typer.Option(help="Pretrained network: lite0, lite1, lite2, timm:NAME, torchvision:NAME, hf:NAME, or none."),
    ] = "lite0",
    finetune: Annotated[
        bool, typer.Option("--finetune", help="Train the pretrained network further, all of it; best on a GPU.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Train a small network of fresh weights; needs no pretrained one.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images; chosen by the size of the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a batch; chosen by the size of the data.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images the model sees, in pixels.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak of the learning rate.")] = None,
    holdout: Annotated[
        float, typer.Option(help="Share of each class that judges the others, or 20 of it if that is more; scored too.")
    ] = 0.1,
    augment: Annotated[bool, typer.Option(help="Shift images a little and, in colour, mirror them.")] = True,
    early_stop: Annotated[bool, typer.Option(help="Stop when the model memorises or the ranking has settled.")] = True,
    budget: Annotated[float | None, typer.Option(help="Largest share of training time for the scoring.")] = None,
    fdr: Annotated[float, typer.Option(help="Share of right labels that may be among those called wrong.")] = 0.1,
    checked: Annotated[
        Path | None, typer.Option(help="decisions.csv or to_check.csv with labels of held-out images that you checked.")
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="error or warning: exit with 4 where something at least as grave was found.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="findings.json of an earlier run; --fail-on is then about what is new.")
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(help="Write the findings here, too, in SARIF, for code scanning.")
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(help="Write them here as JUnit tests; a kind fails at an error, or as --fail-on says."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of split, weights, batches and augmentation.")] = 0,
    device: Device = "auto",
    nproc: Annotated[int, typer.Option(help="Processes on this machine that train together, a GPU each.")] = 1,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Find what is wrong with a set of images: wrong labels, unreadable files, copies, leaks between splits, and more.

    Labels are judged by features of a pretrained network or by a network trained on the images; the run itself finds
    out which of them knows the images better; --finetune and --from-scratch ask for one.
    The run directory gets issues.csv (labels), findings.json (everything), both also as Parquet, summary.json and
    report.html, a page to decide image by image. Interrupted runs go on with --resume.

    Exit codes: 0 done, 2 a mistake in what was asked, 4 something that --fail-on asks about, 130 interrupted.
    """
    given |= locals()
    from functools import partial

    from sgoif.audit.audit import audit
    from sgoif.audit.errors import AuditError
    from sgoif.audit.run_directory import RunDirectory
    from sgoif.audit.settings import AuditSettings
    from sgoif.distributed.launch import Stopped, launch, placed
    from sgoif.errors import RankError

    settings = made_from(AuditSettings, given)
    if nproc > 1 and not placed():
        settings.raise_if_pointless()
        first = partial(_explained, settings, resume, as_json)
        try:
            code = launch(nproc, first, partial(audit, settings, resume=resume))
        except RankError as error:
            raise AuditError(f"{error}. Go on with: {settings.command('--resume')}") from error
        except Stopped as stop:
            message(f"sgoif: {RunDirectory(settings.directory.absolute(), settings).stopped()}")
            code = 128 + stop.number
    else:
        code = _audited(settings, resume, as_json)
    raise typer.Exit(code)


def _audited(settings: AuditSettings, resume: bool, as_json: bool) -> int:
    """Audit, tell what was found, and return the exit code."""
    from sgoif.audit.audit import audit
    from sgoif.audit.errors import AuditInterrupted
    from sgoif.audit.progress import for_terminal

    try:
        result = audit(settings, for_terminal(), resume=resume)
    except AuditInterrupted as stop:
        message(f"sgoif: {stop}")
        return stop.exit_code
    files = {
        "directory": result.out, "report": result.report, "issues": result.issues,
        "findings_file": result.out / "findings.json",
    }  # fmt: skip
    if not result.summary:  # another process has written and tells
        return 0
    code = FAILED if result.failed else 0
    if as_json:
        print_json({**result.summary, **files})
        return code
    verdict: str = result.summary["verdict"]
    print_sentence(f"{verdict[0].upper()}{verdict[1:]}.")
    for line in result.summary["findings"]["summary"]:
        print_sentence(line)
    results().print(_worst(result))
    message(f"page to look at: {result.report}")
    return code


def _explained(settings: AuditSettings, resume: bool, as_json: bool) -> int:
    """The same in a process of its own: a mistake is one sentence and an exit code."""
    from sgoif.errors import SgoifError, sentence

    try:
        return _audited(settings, resume, as_json)
    except (SgoifError, OSError) as error:
        message(f"sgoif: {sentence(error)}")
        return 2


def _worst(result: AuditResult) -> Table:
    """The most suspicious few."""
    table = result.table
    listing = new_table("the most suspicious labels", ("image", "label", "suggested"), ("wrong with",))
    for row in range(min(SHOWN, len(table))):
        given, other = table["given_label"][row], table["predicted_label"][row]
        suggested = "–" if other == given else other
        add_row(listing, (table["path"][row], given, suggested), (f"{table['probability_wrong'][row]:.0%}",))
    return listing
