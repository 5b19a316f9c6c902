"""What an audit leaves behind when its labels are judged: tables, page, summary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sgoif.audit import outputs, small_classes
from sgoif.audit.checked import write_to_check
from sgoif.audit.examined import FOLDER, Others, examined, other_splits, with_others
from sgoif.audit.progress import Progress
from sgoif.audit.review_plan import write_review_plan
from sgoif.audit.run_directory import RunDirectory
from sgoif.core.provenance import package_version, versions, write_json
from sgoif.core.score_table import ScoreTable
from sgoif.core.types import Array, Indices
from sgoif.findings.check import Examined
from sgoif.findings.checks import TITLES, Report, failing, find_all
from sgoif.findings.finding import Severity
from sgoif.findings.record import About, read_findings, write_findings, write_findings_table
from sgoif.findings.sarif import relative_to, write_junit, write_sarif
from sgoif.images import Collection, Pixels
from sgoif.reports.label_report import ReportExtras, page_data, precision, sort_worst_first
from sgoif.reports.page import write_page
from sgoif.tasks import LabelFindings


@dataclass(frozen=True)
class Found:
    """What was found about the labels, and how."""

    findings: LabelFindings
    held: Indices
    """Images that were held out."""
    facts: Mapping[str, str]
    """How, for the page."""
    record: Mapping[str, Any]
    """How, for summary.json."""
    history: Sequence[Mapping[str, float]]
    harmed: Callable[[Indices], Indices]
    """The held-out images that each of these hurts most."""


class Looked(NamedTuple):
    """What is wrong, and where that was looked for."""

    report: Report
    seen: Examined
    """The images of all splits."""
    others: Others | None
    """Those whose labels were not judged."""
    notes: list[str]
    """What a person should know about them."""


@dataclass(frozen=True)
class AuditResult:
    """What an audit found, and where it lies."""

    out: Path
    table: ScoreTable
    """The columns of issues.csv, worst first."""
    summary: dict[str, Any]
    """The contents of summary.json."""
    failed: bool = False
    """Whether there is what `fail_on` asks about."""

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    @property
    def issues(self) -> Path:
        return self.out / "issues.csv"


def write_results(
    directory: RunDirectory,
    collection: Collection,
    pixels: Pixels,
    found: Found,
    features: Array | None,
    why: Sequence[str],
    show: Progress,
    seconds: float,
) -> AuditResult:
    """Write everything; `why` says how the network was chosen."""
    folder, settings, findings = directory.path, directory.settings, found.findings
    unjudged = small_classes.unjudged(pixels.labels, found.held, len(pixels.class_names))
    rate = findings.noise_rate().estimate
    numbers = sort_worst_first(small_classes.without_verdict(findings.table(settings.fdr), unjudged, rate))
    table = outputs.with_names(numbers, pixels.names, pixels.class_names)
    looked = _look(directory, collection, pixels, found, numbers, features, show)
    about_data = [
        *why,
        *small_classes.notes(numbers, pixels.labels, found.held, pixels.class_names),
        *collection.notes,
        *looked.notes,
        *outputs.skipped_note(pixels.skipped),
        *outputs.write_tables(folder, table),
    ]
    notes = [*findings.notes(), *about_data]
    for note in notes:
        show.say(note)
    told, failed = _write_findings(directory, collection, looked)
    outputs.write_skipped(folder, pixels.skipped)
    outputs.write_copies(folder, pixels)
    write_to_check(folder, findings, pixels)
    review = write_review_plan(folder, table["path"].tolist(), table["probability_wrong"].tolist())
    show.stage("writing the page", len(table))
    source = str(collection.source)
    run = {"seed": str(settings.seed), "time": f"{seconds / 60:.1f} min", "version": package_version()}
    extras = ReportExtras(
        title=collection.source.name or source,
        names=pixels.names.__getitem__,
        picture=partial(_picture, pixels, looked.others),
        source=source,
        facts={**found.facts, **run},
        notes=about_data,
        copies=[group.indices for group in (*pixels.duplicates, *pixels.near_duplicates)],
        unjudged=unjudged.tolist(),
        history=found.history,
        harmed=found.harmed,
        review=review,
        findings=looked.report.findings,
        titles={kind: TITLES.get(kind, kind) for kind in (*looked.report.looked, *looked.report.not_looked)},
        not_looked=looked.report.not_looked,
        unlisted=_unlisted(collection, pixels, looked.others),
        splits=splits_with_classes(collection, looked.others),
    )
    write_page(folder / "report.html", page_data(findings, numbers, settings.fdr, extras), progress=show.advance)
    summary = {**_summary(directory, pixels, found, numbers), "findings": told, "seconds": seconds, "notes": notes}
    write_json(folder / "summary.json", summary)  # last, so that it says that everything else is there
    return AuditResult(folder, table, summary, failed)


def _look(
    directory: RunDirectory,
    collection: Collection,
    pixels: Pixels,
    found: Found,
    table: ScoreTable,
    features: Array | None,
    show: Progress,
) -> Looked:
    """Look for everything that is wrong."""
    settings = directory.settings
    judged = seen = examined(pixels, found.findings, table, features)
    others, notes = other_splits(settings, collection, pixels.size, directory.path / FOLDER, show)
    if others is not None and collection.split is not None:
        seen = with_others(judged, pixels, collection.split, others)
    show.stage("looking for what else is wrong", 0)
    report = find_all(seen, judged=None if others is None else judged)
    return Looked(report, seen, others, notes)


def _picture(pixels: Pixels, others: Others | None, place: int) -> bytes:
    """The thumbnail of an image; those of other splits are numbered on."""
    if place < len(pixels):
        return pixels.thumbnails(place)
    assert others is not None
    return others.pixels.thumbnails(place - len(pixels))


def _unlisted(collection: Collection, pixels: Pixels, others: Others | None) -> dict[str, tuple[int, str | None]]:
    """Images that issues.csv lacks: what cannot be read, and those of other splits; place of the picture, class."""
    known = set(pixels.names)
    found: dict[str, tuple[int, str | None]] = {
        name: (-1, collection.class_names[label])
        for name, label in zip(collection.names, collection.labels.tolist(), strict=True)
        if name not in known
    }
    if others is not None:
        beside = others.pixels
        for place, (name, label) in enumerate(zip(beside.names, beside.labels.tolist(), strict=True), len(pixels)):
            found[name] = place, beside.class_names[label] if label >= 0 else None
    return found


def splits_with_classes(collection: Collection, others: Others | None) -> list[str]:
    """Splits that an image can be moved to, if the names of images say which they are in."""
    if others is None or collection.split is None:
        return []
    beside = list(zip(others.splits, others.pixels.names, others.pixels.labels.tolist(), strict=True))
    names = [*((collection.split, name) for name in collection.names), *((split, name) for split, name, _ in beside)]
    known = {split for split, _ in names}
    if any(next((part for part in name.split("/")[:-1] if part in known), None) != split for split, name in names):
        return []
    return [collection.split, *dict.fromkeys(split for split, _, label in beside if label >= 0)]


def _write_findings(directory: RunDirectory, collection: Collection, looked: Looked) -> tuple[dict[str, Any], bool]:
    """Write all files of findings; what summary.json says of them, and whether `fail_on` asks about some."""
    folder, settings, report = directory.path, directory.settings, looked.report
    about = About(str(collection.source), len(looked.seen.names), looked.seen.class_names)
    known = None
    if settings.baseline is not None:
        known = frozenset(finding.id for finding in read_findings(settings.baseline))
    least = Severity(settings.fail_on or "error")
    write_findings(folder / "findings.json", report, about, known)
    write_findings_table(folder / "findings.parquet", report.findings)
    if settings.sarif is not None:
        write_sarif(settings.sarif, report, below=relative_to(collection.root, Path.cwd()), known=known)
    if settings.junit is not None:
        write_junit(settings.junit, report, least=least, known=known)
    told = {
        **report.severities(),
        "kinds": report.kinds(),
        "not_looked": dict(report.not_looked),
        "new": None if known is None else sum(finding.id not in known for finding in report.findings),
        "summary": report.summary(about.images),
    }
    return told, settings.fail_on is not None and bool(failing(report.findings, least, known))


def _summary(directory: RunDirectory, pixels: Pixels, found: Found, table: ScoreTable) -> dict[str, Any]:
    settings, findings = directory.settings, found.findings
    rate = findings.noise_rate()
    return {
        "images": len(pixels.names),
        "classes": len(pixels.class_names),
        **found.record,
        "skipped": len(pixels.skipped),
        "duplicates": outputs.further(pixels.duplicates),
        "near_duplicates": outputs.further(pixels.near_duplicates),
        "selected": int(table["is_label_issue"].sum()),
        "worth_a_look": findings.tiers(settings.fdr)[1].size,
        "verdict": findings.verdict(),
        "fdr": settings.fdr,
        "noise_rate": {"estimate": rate.estimate, "low": rate.low, "high": rate.high, "told": findings.rate_told},
        "expected_precision": {str(k): value for k, value in precision(findings, table)},
        "settings": settings.record(),
        "versions": versions(),
    }
