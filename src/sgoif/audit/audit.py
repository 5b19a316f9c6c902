"""An audit from beginning to end: images, training with the engine attached, tables and a page.

    from sgoif.audit.audit import audit
    from sgoif.audit.settings import AuditSettings
    result = audit(AuditSettings("photos/"))
    result.table.to_pandas()

It can be stopped at any moment; `audit(settings, resume=True)` goes on where it was, and on a finished run writes the
outputs again.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sgoif.audit import outputs, small_classes
from sgoif.audit.checked import read_checked, write_to_check
from sgoif.audit.errors import AuditError, AuditInterrupted
from sgoif.audit.finetuning import choose_sizes, described, wanted_backbone
from sgoif.audit.interruption import Interruption
from sgoif.audit.live_status import LiveStatus
from sgoif.audit.models import resolve
from sgoif.audit.plan import LEAST_TRAINED, hold_out, make_plan
from sgoif.audit.progress import Progress
from sgoif.audit.review_plan import write_review_plan
from sgoif.audit.run_directory import RunDirectory, claimed, identity
from sgoif.audit.settings import AuditSettings
from sgoif.audit.training import Training
from sgoif.backbones import Backbone
from sgoif.core.data import isolated_random_state
from sgoif.core.provenance import package_version, versions, write_json
from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Indices
from sgoif.device.selection import choose_device
from sgoif.distributed.communicator import Communicator
from sgoif.distributed.launch import choose_gpu, joined
from sgoif.errors import ModelError, StateError
from sgoif.images import Collection, Pixels, open_images, prepare
from sgoif.reports.label_report import ReportExtras, harmed_by, page_data, precision, sort_worst_first
from sgoif.reports.page import write_page
from sgoif.tasks import LabelErrors, LabelFindings


@dataclass(frozen=True)
class AuditResult:
    """What an audit found, and where it lies."""

    out: Path
    table: ScoreTable
    """The columns of issues.csv, worst first."""
    summary: dict[str, Any]
    """The contents of summary.json."""

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    @property
    def issues(self) -> Path:
        return self.out / "issues.csv"


def audit(settings: AuditSettings, progress: Progress | None = None, *, resume: bool = False) -> AuditResult:
    """Audit the labels of a set of images; `AuditInterrupted` says what was saved when a signal ends it.

    Of several processes (`sgoif.audit.processes`) all return when the first has written; only that one has a table.
    """
    interruption = Interruption()
    choose_gpu()
    device = choose_device(settings.device)
    resolve(settings.model, device)
    backbone = wanted_backbone(settings) if settings.finetune else None
    if settings.weights is not None and not settings.weights.is_file():
        raise ModelError(f"--weights {settings.weights}: there is no such file")
    if settings.checked is not None and not settings.checked.is_file():
        raise AuditError(f"--checked {settings.checked}: there is no such file")
    with joined(device) as communicator, claimed(settings, resume, communicator) as directory, interruption.watching():
        show = Progress() if progress is None or communicator.rank else progress
        try:
            with isolated_random_state(device):
                return _run(directory, interruption, show, communicator, backbone)
        except (KeyboardInterrupt, RuntimeError) as stop:
            if not isinstance(stop, KeyboardInterrupt) and (interruption.asked is None or communicator.size == 1):
                raise  # else another process was quicker to leave, which ends what this one waits for
            raise AuditInterrupted(directory.stopped(), interruption.asked or 2) from stop
        finally:
            show.close()


def _run(
    directory: RunDirectory,
    interruption: Interruption,
    show: Progress,
    communicator: Communicator,
    backbone: Backbone | None,
) -> AuditResult:
    start, settings = time.monotonic(), directory.settings
    collection, pixels, resolution = _read_images(directory, show, communicator, backbone)
    rows, held = _split(settings, pixels.labels, pixels.repeated())
    checked = None
    if settings.checked is not None:
        checked = read_checked(settings.checked, collection, pixels, held.tolist())
        show.say(f"{len(checked)} checked labels of held-out images are used")
    plan = make_plan(settings, len(rows), communicator.size, resolution)
    directory.identity = identity(settings, plan, pixels)
    live = LiveStatus(None if communicator.rank else directory.path, pixels)
    with ExitStack() as ending:
        with interruption.deferred():  # on every process before the first one says that it trains
            training = Training(pixels, settings, plan, rows, held, communicator, backbone)
            ending.callback(training.close)
            _reopen(training, directory, show)
            spent = training.seconds
            _train(training, directory, interruption, show, spent - start, live)
        training.monitor.unite()
        seconds = spent + time.monotonic() - start
        live.tell("judging", training, seconds, now=True)
        written = AuditResult(directory.path, ScoreTable({}), {})

        def write() -> None:
            nonlocal written
            if communicator.rank == 0:
                with directory.explained():
                    split = rows, held
                    written = _write(directory, collection, pixels, training, show, split, seconds, checked)

        communicator.run_and_sync_errors(write)
        live.tell("finished", training, seconds, now=True)
        return written


def _split(settings: AuditSettings, labels: Indices, copies: Sequence[int] = ()) -> tuple[Indices, Indices]:
    """Rows to train on and to hold out; raises where there are too few to judge labels by."""
    rows, held = hold_out(labels, settings.holdout, settings.seed, copies)
    if len(rows) < LEAST_TRAINED:
        raise AuditError(
            f"{len(labels)} images are too few to audit: {len(held)} are held out and {len(rows)} remain to train on,"
            f" but labels can be judged from {LEAST_TRAINED} on. Add images, or look through these by eye"
        )
    return rows, held


def _read_images(
    directory: RunDirectory, show: Progress, communicator: Communicator, backbone: Backbone | None
) -> tuple[Collection, Pixels, int | None]:
    """The data, their images as they are trained on, and the pixels a side that a backbone looks at."""
    settings = directory.settings
    collection = open_images(settings.path, **settings.options)
    _split(settings, collection.labels)  # too few images are noticed before they are read
    show.stage("reading images", len(collection.names))

    found: list[Pixels] = []
    resolution, size = None, settings.image_size
    if backbone is not None:
        resolution, size = choose_sizes(settings, backbone, collection.store)

    def read() -> None:
        found.append(prepare(collection, directory.cache, size=size, progress=show.advance))

    def first() -> None:
        if communicator.rank == 0:
            directory.record(collection.digest())
            read()

    communicator.run_and_sync_errors(first)
    communicator.run_and_sync_errors(
        lambda: read() if communicator.rank else None
    )  # what the first has prepared is only opened
    return collection, found[0], resolution


def _reopen(training: Training, directory: RunDirectory, show: Progress) -> None:
    """Go on from the newest checkpoint, if there is one."""
    if training.fresh_head:
        show.say(f"weights of {', '.join(training.fresh_head)} start afresh: the file has none that fit")
    state, problems = directory.load()
    for problem in problems:
        show.say(problem)
    if state is None:
        return
    try:
        training.load_state_dict(state)
    except StateError as error:
        raise StateError(
            f"{directory.path}: {error}. Go on with the version of sgoif that began the run, or give another folder"
            " with --out"
        ) from error


def _train(
    training: Training,
    directory: RunDirectory,
    interruption: Interruption,
    show: Progress,
    clock: float,
    live: LiveStatus,
) -> None:
    """Train to the end, with checkpoints; `clock` plus the time now is what the run has taken in all.

    Signals are deferred. Of several processes the first says when to save, and each may have heard that the run should
    stop.
    """
    if training.finished():
        return
    plan, communicator = training.plan, training.communicator
    show.stage(f"training {described(plan.model)}", plan.steps, training.step)

    def save() -> None:
        state = {**training.state_dict(), "seconds": clock + time.monotonic()}
        communicator.run_and_sync_errors(lambda: directory.save(state) if communicator.rank == 0 else None)

    def wishes() -> tuple[bool, bool]:
        due = communicator.rank == 0 and directory.due(training.step % plan.steps_per_epoch == 0)
        stop, keep = communicator.total(torch.tensor([interruption.asked is not None, due], dtype=torch.int64)).tolist()
        return stop > 0, keep > 0

    while not training.finished():
        training.advance()
        show.advance(training.step, plan.steps, f"epoch {training.epoch} of {plan.epochs}, loss {training.loss:.3f}")
        live.tell("training", training, clock + time.monotonic())
        stop, keep = wishes()
        if stop:
            live.tell("stopped", training, clock + time.monotonic(), now=True)
            save()
            interruption.leaving = True
            raise KeyboardInterrupt
        if keep and not training.finished():
            save()
    save()
    if training.stopped != "all epochs done":
        show.say(f"stopped early after {training.step} of {plan.steps} steps: {REASONS[training.stopped]}")


REASONS = {
    "memorising": "the model has begun to learn the training images by heart",
    "settled": "the list of suspicious images does not change any more",
}


def _write(
    directory: RunDirectory,
    collection: Collection,
    pixels: Pixels,
    training: Training,
    show: Progress,
    split: tuple[Indices, Indices],
    seconds: float,
    checked: Mapping[int, int] | None,
) -> AuditResult:
    folder, fdr = directory.path, training.settings.fdr
    show.stage("judging labels", 0)
    errors = LabelErrors(training.monitor, dataset=training.dataset, class_names=pixels.class_names, checked=checked)
    counts, held = (len(split[0]), len(split[1])), split[1]
    unjudged = small_classes.unjudged(pixels.labels, held, len(pixels.class_names))
    rate = errors.noise_rate().estimate
    numbers = sort_worst_first(small_classes.without_verdict(errors.table(fdr), unjudged, rate))
    table = outputs.with_names(numbers, pixels.names, pixels.class_names)
    about_data = [
        *small_classes.notes(numbers, pixels.labels, held, pixels.class_names),
        *outputs.data_notes(pixels, collection.notes),
        *outputs.write_tables(folder, table),
    ]
    notes = [*errors.notes(), *about_data]
    for note in notes:
        show.say(note)
    outputs.write_skipped(folder, pixels.skipped)
    outputs.write_copies(folder, pixels)
    write_to_check(folder, errors, pixels)
    review = write_review_plan(folder, table["path"].tolist(), table["probability_wrong"].tolist())
    show.stage("writing the page", len(table))
    source = str(collection.source)
    extras = ReportExtras(
        title=collection.source.name or source,
        names=pixels.names.__getitem__,
        picture=pixels.thumbnails,
        source=source,
        facts=_facts(training, counts, seconds),
        notes=about_data,
        copies=[group.indices for group in (*pixels.duplicates, *pixels.near_duplicates)],
        unjudged=unjudged.tolist(),
        history=training.monitor.history,
        harmed=partial(harmed_by, errors),
        review=review,
    )
    write_page(folder / "report.html", page_data(errors, numbers, fdr, extras), progress=show.advance)
    summary = {**_summary(training, pixels, errors, numbers, counts, seconds), "notes": notes}
    write_json(folder / "summary.json", summary)  # last, so that it says that everything else is there
    return AuditResult(folder, table, summary)


def _facts(training: Training, split: tuple[int, int], seconds: float) -> dict[str, str]:
    plan = training.plan
    return {
        "model": described(plan.model),
        "images trained on": f"{split[0]:,}",
        "images held out": f"{split[1]:,}",
        "epochs": f"{training.step / plan.steps_per_epoch:.0f} of {plan.epochs} ({training.stopped})",
        "batch size": str(plan.batch_size),
        "learning rate": f"{plan.learning_rate:.3g}",
        "seed": str(training.settings.seed),
        "device": plan.device.type,
        "time": f"{seconds / 60:.1f} min",
        "version": package_version(),
    }


def _summary(
    training: Training, pixels: Pixels, errors: LabelFindings, table: ScoreTable, split: tuple[int, int], seconds: float
) -> dict[str, Any]:
    settings, rate = training.settings, errors.noise_rate()
    return {
        "images": len(pixels.names),
        "classes": len(pixels.class_names),
        "trained_on": split[0],
        "held_out": split[1],
        "skipped": len(pixels.skipped),
        "duplicates": outputs.further(pixels.duplicates),
        "near_duplicates": outputs.further(pixels.near_duplicates),
        "selected": int(table["is_label_issue"].sum()),
        "worth_a_look": errors.tiers(settings.fdr)[1].size,
        "verdict": errors.verdict(),
        "fdr": settings.fdr,
        "noise_rate": {"estimate": rate.estimate, "low": rate.low, "high": rate.high, "told": errors.rate_told},
        "expected_precision": {str(k): value for k, value in precision(errors, table)},
        "seconds": seconds,
        "settings": settings.record(),
        "plan": training.plan.record(),
        "versions": versions(),
        "stopped": training.stopped,
        "steps": training.step,
    }
