"""What is looked for: every kind, its check, and what else a thing that was planted is rightly found as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sgoif.errors import SettingError
from sgoif.findings import SEVERITIES, Check, Examined, Finding, Severity, checks
from sgoif.findings.kinds.classes import Imbalance, SmallClass, TwinClasses, TwinNames
from sgoif.findings.kinds.copies import ExactCopies, NearCopies
from sgoif.findings.kinds.files import LeftOut
from sgoif.findings.kinds.giveaways import GivesLabelAway
from sgoif.findings.kinds.labels import WrongLabels
from sgoif.findings.kinds.leaks import Bursts, Leaks
from sgoif_bench.command import listed
from sgoif_bench.findings import labels
from sgoif_bench.findings.planting import File, Plant, Tree

CHECKS: Mapping[str, Check] = {
    check.kind: check
    for check in checks.CHECKS
    if "labels_found" not in check.needs and check.kind not in (WrongLabels.kind, LeftOut.kind)
}
"""All kinds of things that are wrong, but for those that need a judgement of labels."""
KINDS = (*labels.KINDS, *CHECKS)
"""What can be asked for, in order."""
GROUPS = (ExactCopies.kind, NearCopies.kind, Leaks.kind, Bursts.kind)
CLASSES = (SmallClass.kind, Imbalance.kind, TwinNames.kind, TwinClasses.kind, GivesLabelAway.kind)
ALSO: Mapping[str, Collection[str]] = {
    "dark": ("empty",),
    "bright": ("empty",),
    "empty": ("blurry", "off-topic", "class-outlier", "dark", "bright"),
    "aspect": ("size",),
    "size": ("blurry",),
    "off-topic": ("blurry", "class-outlier", "grey", "dark", "bright", "empty"),
    "class-outlier": ("off-topic",),
    "near-copies": ("grey", "copies"),
    "bursts": ("near-copies", "leaks"),
    "twin-names": ("twin-classes",),
}
"""Kinds that what was planted as another is as well: an enlarged image is blurry, frames of a burst are copies."""


def choose(wanted: str, *, features: bool) -> list[str]:
    """Kinds from names and the word `all`, in order; those that need features only where there are some."""
    names = listed(wanted, "kinds")
    for name in names:
        if name not in KINDS and name != "all":
            raise SettingError(f"there is no kind {name!r}; choose from all, {', '.join(KINDS)}")
    able = [kind for kind in KINDS if features or (kind in CHECKS and "features" not in CHECKS[kind].needs)]
    if unable := [name for name in names if name in KINDS and name not in able]:
        raise SettingError(f"{', '.join(unable)} cannot be found without features; give a --backbone")
    return [kind for kind in able if kind in names or "all" in names]


Identity = tuple[tuple[int, ...], tuple[str, ...], str]
"""What a finding is about, whatever its files are called."""


@dataclass
class Tally:
    """The findings of one kind in a folder, held against what was planted."""

    planted: Mapping[str, int]
    """Groups of files, or of classes, by part."""
    found: int = 0
    right: int = 0
    """Findings about what was planted."""
    known: int = 0
    """Others that are there in the clean twin, too."""
    reached: dict[str, set[int]] = field(default_factory=dict)
    """Numbers of what was found, by part."""
    wrong: list[Identity] = field(default_factory=list)


def look(kind: str, seen: Examined) -> list[Finding]:
    """All findings of a kind."""
    return labels.look(kind, seen) if kind in labels.KINDS else CHECKS[kind].find(seen)


def identity(finding: Finding, files: Mapping[str, File]) -> Identity:
    """Rows of the data set, classes and property."""
    if finding.kind == GivesLabelAway.kind:
        return (), (), finding.about
    rows = tuple(sorted(files[name].row for name in finding.images)) if finding.kind not in CLASSES else ()
    return rows, tuple(sorted(finding.classes)) if finding.kind in CLASSES else (), finding.about


def by_severity(findings: Sequence[Finding]) -> dict[str, int]:
    """How many there are of each."""
    return {severity.value: sum(found.severity is severity for found in findings) for severity in SEVERITIES}


def tally(
    kind: str, findings: Sequence[Finding], tree: Tree, files: Mapping[str, File], clean: Collection[Identity]
) -> Tally:
    """Which findings are about what was planted, and what of it was found."""
    kind = labels.ERRORS if kind == labels.NOTES else kind
    planted: dict[str, set[int]] = {}
    for file in tree.files:
        for plant in file.plants:
            if plant.kind == kind:
                planted.setdefault(plant.part, set()).add(plant.number)
    counts = {part: len(numbers) for part, numbers in planted.items()}
    if kind in CLASSES:
        counts = {"classes": 1}
    result = Tally(counts, found=len(findings))
    for finding in findings:
        plants = _classes_hit(finding, tree) if kind in CLASSES else _files_hit(finding, files, clean)
        own = [plant for plant in plants if plant.kind == kind]
        if own or any(kind in ALSO.get(plant.kind, ()) for plant in plants):
            result.right += 1
            for plant in own:
                result.reached.setdefault(plant.part, set()).add(plant.number)
        elif identity(finding, files) in clean:
            result.known += 1
        else:
            result.wrong.append(identity(finding, files))
    return result


def _files_hit(finding: Finding, files: Mapping[str, File], clean: Collection[Identity]) -> list[Plant]:
    """What was planted in the only file of a finding, or in several of a group that has no others but known ones."""
    about = [files[name] for name in finding.images]
    plants = Counter(plant for file in about for plant in file.plants)
    if finding.kind not in GROUPS:
        return sorted(plants)
    rows = {file.row for file in about}
    fits = len(rows) == 1 or any(rows <= set(known) for known, _, _ in clean)
    return sorted(plant for plant, count in plants.items() if count > 1) if fits else []


def _classes_hit(finding: Finding, tree: Tree) -> list[Plant]:
    hit = []
    for kind, classes in tree.classes.items():
        wanted, named = set(classes), set(finding.classes)
        if wanted == named if kind.startswith("twin") else wanted <= named:
            hit.append(Plant(kind, "classes", 0))
    return hit


def is_grave(severity: str) -> bool:
    """Whether more than one false alarm in a thousand images is too many."""
    return severity != Severity.NOTE.value
