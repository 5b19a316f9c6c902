"""What changed between two versions: images, classes and findings.

Images are recognised by what is in them. What has one name and one content in both versions is the same image; of the
rest, equal contents are one image that was moved, or given another class; what still has one name was changed. Only
what is left was added or removed. A finding is the same one after its images were moved.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from sgoif.commands.diff.versions import Version
from sgoif.findings import Finding

LIKENESS: tuple[Callable[[str, str | None], Any], ...] = (
    lambda name, label: (label, PurePosixPath(name).name),
    lambda _, label: label,
    lambda *_: None,
)
"""What copies of one image have to share, by its name and class, from the strictest on."""


@dataclass(frozen=True)
class Change:
    """An image of both versions, under its old and its new name and class."""

    old: str
    new: str
    old_class: str | None
    new_class: str | None


@dataclass(frozen=True)
class ImageChanges:
    """Every image of two versions is in exactly one of these."""

    same: int
    moved: tuple[Change, ...]
    """Same content and class, another name."""
    relabelled: tuple[Change, ...]
    """Same content, another class, whatever the name."""
    changed: tuple[Change, ...]
    """Same name, other content."""
    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True)
class FindingChanges:
    """Findings of the newer version, and those of the older one that it has no more."""

    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    still: tuple[Finding, ...]


def compare_images(old: Version, new: Version) -> ImageChanges:
    """Which images are the same, and what happened to the others."""
    in_place = [
        name for name, (content, _) in old.images.items() if name in new.images and content == new.images[name][0]
    ]
    found = [_change(old, new, name, name) for name in in_place]
    known = set(in_place)
    left, right = ([name for name in version.images if name not in known] for version in (old, new))
    found += [_change(old, new, *names) for names in _pairs(old, new, left, right)]
    matched_old, matched_new = {pair.old for pair in found}, {pair.new for pair in found}
    left, right = [n for n in left if n not in matched_old], [n for n in right if n not in matched_new]
    both = set(left) & set(right)
    return ImageChanges(
        same=sum(pair.old == pair.new and pair.old_class == pair.new_class for pair in found),
        moved=tuple(pair for pair in found if pair.old != pair.new and pair.old_class == pair.new_class),
        relabelled=tuple(pair for pair in found if pair.old_class != pair.new_class),
        changed=tuple(_change(old, new, name, name) for name in left if name in both),
        removed=tuple(name for name in left if name not in both),
        added=tuple(name for name in right if name not in both),
    )


def _change(old: Version, new: Version, before: str, after: str) -> Change:
    return Change(before, after, old.images[before][1], new.images[after][1])


def _pairs(old: Version, new: Version, left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    """Names of equal contents; of several copies those first that kept their class and file name, then their class."""
    pairs: list[tuple[str, str]] = []
    taken: set[str] = set()
    rest = [name for name in left if old.images[name][0]]
    for like in LIKENESS:
        waiting: defaultdict[Any, list[str]] = defaultdict(list)
        for name in reversed(right):
            content, label = new.images[name]
            if content and name not in taken:
                waiting[content, like(name, label)].append(name)
        unmatched = []
        for name in rest:
            content, label = old.images[name]
            if candidates := waiting.get((content, like(name, label))):
                pairs.append((name, candidates.pop()))
                taken.add(pairs[-1][1])
            else:
                unmatched.append(name)
        rest = unmatched
    return pairs


def compare_findings(old: Sequence[Finding], new: Sequence[Finding], images: ImageChanges) -> FindingChanges:
    """Which findings are new, which are gone and which are still there."""
    names = {pair.old: pair.new for pair in (*images.moved, *images.relabelled)}
    before = {
        replace(finding, images=tuple(names.get(name, name) for name in finding.images)).id: finding for finding in old
    }
    after = {finding.id: finding for finding in new}
    return FindingChanges(
        new=tuple(finding for key, finding in after.items() if key not in before),
        gone=tuple(finding for key, finding in before.items() if key not in after),
        still=tuple(finding for key, finding in after.items() if key in before),
    )


def class_sizes(old: Version, new: Version) -> list[dict[str, Any]]:
    """Every class with its number of images in both versions, 0 where it does not occur."""
    before, after = old.classes, new.classes
    names = sorted({*before, *after})
    return [{"class": name, "before": before.get(name, 0), "after": after.get(name, 0)} for name in names]
