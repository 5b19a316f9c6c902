"""One thing that is wrong, or may be, with a set of images."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How sure it is that something has to be done."""

    ERROR = "error"
    """Wrong whatever the data are for: an unreadable file, one picture with two labels."""
    WARNING = "warning"
    """Likely to harm a model, or what is believed of it."""
    NOTE = "note"
    """Worth knowing."""


SEVERITIES = tuple(Severity)
"""The gravest first."""


@dataclass(frozen=True)
class Finding:
    """What was found, in which images, how it is known, and what to do."""

    kind: str
    """As `sgoif.findings.checks.CHECKS` names it."""
    severity: Severity
    message: str
    """One sentence without the names of images."""
    images: tuple[str, ...] = ()
    """Names of the images that it is about, the one to look at first in front; none: it is about all of them."""
    classes: tuple[str, ...] = ()
    """Names of the classes that it is about."""
    evidence: Mapping[str, float | int | str | bool | None] = field(default_factory=dict)
    """Measured values and the limits they were held against."""
    advice: str = ""
    """What to do about it, one sentence."""
    keep: str | None = None
    """Of several copies the image to keep."""
    about: str = ""
    """What it is about where neither images nor classes say so, such as a property; it alone then tells findings of a
    kind apart."""

    @property
    def id(self) -> str:
        """The same in every run that finds the same thing in the same images, whatever else changes."""
        sha = hashlib.blake2b(digest_size=8)
        told_by = [self.about] if self.about else [*sorted(self.images), "", *sorted(self.classes)]
        for part in (self.kind, *told_by):
            encoded = part.encode("utf-8", "surrogatepass")
            sha.update(len(encoded).to_bytes(8, "big") + encoded)
        return sha.hexdigest()
