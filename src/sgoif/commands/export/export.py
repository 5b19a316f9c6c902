"""Writes what an audit found in the form of another tool."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sgoif.audit.errors import AuditError
from sgoif.commands.export.audited import Audited, read_audited
from sgoif.commands.export.forms import FORMS, Form
from sgoif.core.provenance import write_json
from sgoif.core.score_table import write_csv
from sgoif.errors import SettingError
from sgoif.images.errors import written
from sgoif.images.text import few, plural, shown


@dataclass(frozen=True)
class Exported:
    """What was written."""

    to: str
    file: Path
    images: int
    findings: int
    """Of all images, each finding once."""
    root: Path
    """What paths in the file start from."""
    next_step: str
    notes: tuple[str, ...]
    """What could not be written."""


def export(run: Path, to: str, out: Path) -> Exported:
    """Write the findings of a run directory to the file `out` for the tool `to`."""
    if to not in FORMS:
        raise SettingError(f"--to {shown(to)[1:-1]} is not known; choose {', '.join(FORMS)}")
    form = FORMS[to]
    if out.is_dir():
        raise SettingError(f"--out {shown(out)} is a folder; give the name of a file in it, such as {to}{form.suffix}")
    audited = read_audited(run)
    usable = [image for image in audited.images if image.path is not None or not form.needs_files]
    if not usable:
        raise AuditError(
            f"the images of {shown(run)} share files, and {to} opens each image by a file of its own; choose datalab or"
            " coco, or unpack the images into a folder and audit that"
        )
    made = form.make(audited)
    with written(out.absolute().parent):
        if form.suffix == ".csv":
            header, *rows = made
            write_csv(out, header, rows)
        else:
            write_json(out, made)
    notes = _notes(audited, form, to, len(usable))
    findings = {found.id for image in usable for found in image.findings}
    step = form.next_step.format(out=str(out), root=str(audited.root))
    return Exported(to, out, len(usable), len(findings), audited.root, step, notes)


def _notes(audited: Audited, form: Form, to: str, used: int) -> tuple[str, ...]:
    notes = []
    if (lost := len(audited.images) - used) > 0:
        notes.append(f"{plural(lost, 'image')} left out, having no file of their own")
    if audited.rest and not form.holds_rest:
        kinds = few(dict.fromkeys(found.kind for found in audited.rest))
        about = "about no image that can be read, for which this form has no place"
        notes.append(f"{plural(len(audited.rest), 'finding')} left out ({kinds}): {about}")
    if to == "fiftyone":
        stems = Counter(str(PurePosixPath(image.path).with_suffix("")) for image in audited.images if image.path)
        if twins := [stem for stem, count in stems.items() if count > 1]:
            notes.append(f"FiftyOne tells files apart without their suffix, so of these only one counts: {few(twins)}")
    return tuple(notes)
