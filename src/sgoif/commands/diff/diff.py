"""Compares two versions of a set of images and, where both were audited, of what was found in them."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sgoif.audit.progress import Progress
from sgoif.commands.diff.changes import FindingChanges, ImageChanges, class_sizes, compare_findings, compare_images
from sgoif.commands.diff.versions import is_run, open_version, read_versions
from sgoif.commands.settings import option_name
from sgoif.errors import SettingError
from sgoif.findings import Finding
from sgoif.findings.record import read_findings
from sgoif.images.text import shown

FINDINGS = "findings.json"


@dataclass(frozen=True)
class Difference:
    """All that changed."""

    images: ImageChanges
    classes: list[dict[str, Any]]
    """Name of each class with its number of images `before` and `after`."""
    findings: FindingChanges | None
    compared_by: str
    """What tells whether two images are the same."""
    notes: tuple[str, ...]
    """What a person should know about how it was compared."""

    def record(self) -> dict[str, Any]:
        """In terms of JSON."""
        found = asdict(self)
        for name in ("new", "gone", "still") if self.findings else ():
            listed: tuple[Finding, ...] = getattr(self.findings, name)
            found["findings"][name] = [{"id": finding.id, **asdict(finding)} for finding in listed]
        return found


def diff(old: Path, new: Path, options: dict[str, Any], show: Progress) -> Difference:
    """What changed from `old` to `new`, each a run directory or what `open_images` reads with these options."""
    runs = is_run(old), is_run(new)
    given = [option_name(name) for name, value in options.items() if value not in (None, False, "auto")]
    if all(runs) and given:
        raise SettingError(
            f"{', '.join(given)} say how images are read, and both are runs of an audit; leave them away"
        )
    # A run has judged one split, with which nothing but that of the other version compares.
    opened = [open_version(path, options, every_split=not any(runs)) for path in (old, new)]
    first, second, by_pixels = read_versions(opened[0], opened[1], show)
    images = compare_images(first, second)
    files = [path / FINDINGS for path in (old, new)]
    notes = []
    findings = None
    if all(runs) and all(path.exists() for path in files):
        findings = compare_findings(read_findings(files[0]), read_findings(files[1]), images)
    elif any(runs):
        missing = next(
            path for path, run in zip((old, new), runs, strict=True) if not run or not (path / FINDINGS).exists()
        )
        notes.append(f"findings are not compared: {shown(missing)} holds no {FINDINGS}; audit it with `sgoif audit`")
    if not by_pixels:
        notes.append(
            "images are compared by what is stored; one that was written anew with the same pixels counts as changed"
        )
    how = "decoded pixels" if by_pixels else "stored bytes"
    return Difference(images, class_sizes(first, second), findings, how, tuple(notes))
