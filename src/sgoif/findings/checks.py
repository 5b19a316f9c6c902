"""All checks, and looking for everything at once.

from sgoif.findings.checks import find_all
report = find_all(Examined(...))
report.summary(len(names))                      # what is wrong, in five lines
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import SEVERITIES, Finding, Severity
from sgoif.findings.kinds.classes import Imbalance, SmallClass, TwinClasses, TwinNames, WrongClass
from sgoif.findings.kinds.copies import ExactCopies, NearCopies
from sgoif.findings.kinds.files import LeftOut, Misnamed, Unreadable
from sgoif.findings.kinds.giveaways import GivesLabelAway
from sgoif.findings.kinds.labels import WrongLabels
from sgoif.findings.kinds.leaks import Bursts, Leaks
from sgoif.findings.kinds.off_topic import OffTopic, OutlierInClass
from sgoif.findings.kinds.quality import Blurry, Bright, Dark, Empty, GreyAmongColour, OddAspect, OddSize
from sgoif.images.text import plural, shown

CHECKS: tuple[Check, ...] = (
    WrongLabels(),
    Unreadable(),
    Leaks(),
    ExactCopies(),
    NearCopies(),
    Bursts(),
    WrongClass(),
    TwinClasses(),
    TwinNames(),
    OffTopic(),
    OutlierInClass(),
    GivesLabelAway(),
    Dark(),
    Bright(),
    Blurry(),
    Empty(),
    GreyAmongColour(),
    OddAspect(),
    OddSize(),
    SmallClass(),
    Imbalance(),
    Misnamed(),
    LeftOut(),
)
"""In the order in which they are shown."""
TITLES = {check.kind: check.title for check in CHECKS}
MISSING = {
    "features": "it needs features of a pretrained network, and there are none",
    "labels": "it needs labels, and there are none",
    "splits": "it needs the images of several splits, and there is one",
    "labels_found": "it needs judged labels, and none were judged",
}
"""Why a check does not look, by what it lacks."""
NAMED = 3
"""Kinds that a summary names."""
Tell = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Report:
    """What was found, and what was looked for."""

    findings: list[Finding]
    """By kind, in the order of `CHECKS`."""
    looked: tuple[str, ...]
    """Kinds that were looked for."""
    not_looked: Mapping[str, str]
    """Other kinds, and why not."""

    def severities(self) -> dict[str, int]:
        """How many findings there are of each severity."""
        return {level.value: sum(found.severity == level for found in self.findings) for level in SEVERITIES}

    def kinds(self) -> dict[str, int]:
        """How many findings there are of each kind that has any."""
        return dict(Counter(found.kind for found in self.findings))

    def summary(self, images: int) -> list[str]:
        """At most five lines: what is wrong, how much of it, and what to do first."""
        if not self.findings:
            looked = plural(len(self.looked), "kind")
            return [f"nothing wrong was found in {plural(images, 'image')}, looking for {looked} of it"]
        counts = ", ".join(plural(count, level) for level, count in self.severities().items() if count)
        ranked = sorted(self.kinds(), key=lambda kind: SEVERITIES.index(self._gravest(kind).severity))
        lines = [f"{counts} in {plural(images, 'image')}"]
        for kind in ranked[:NAMED]:
            gravest = self._gravest(kind)
            level = [found for found in self.findings if (found.kind, found.severity) == (kind, gravest.severity)]
            among = len({name for found in level for name in found.images})
            about = f" about {plural(among, 'image')}" if among else ""
            one = f": {gravest.message.rstrip('.')}" if len(level) == 1 else ""
            lines.append(f"{gravest.severity}, {TITLES.get(kind, kind)}: {plural(len(level), 'finding')}{about}{one}")
        more = f"; {plural(len(ranked) - NAMED, 'more kind')} in findings.json" if len(ranked) > NAMED else ""
        gravest = self._gravest(ranked[0])
        where = ", ".join([TITLES.get(gravest.kind, gravest.kind), *map(shown, gravest.images[:1])])
        first = gravest.advice.rstrip(".") or "look at it"
        lines.append(f"to do first ({where}): {first[0].lower()}{first[1:]}{more}")
        return lines

    def _gravest(self, kind: str) -> Finding:
        own = (found for found in self.findings if found.kind == kind)
        return min(own, key=lambda found: SEVERITIES.index(found.severity))


def find_all(
    seen: Examined,
    tell: Tell = lambda done, total, kind: None,
    *,
    judged: Examined | None = None,
    checks: Sequence[Check] = CHECKS,
) -> Report:
    """Everything that is wrong, as far as it can be told from what there is.

    A check that lacks something, or fails, does not look; the report says why.

    Args:
        seen: all images.
        tell: called before each check with the number of checks that are done, that of all, and its kind.
        judged: the images whose labels matter, where these are not all, as with a test split: what a check needs of
            labels or features is theirs.
        checks: those to look with.
    """
    findings: list[Finding] = []
    looked: list[str] = []
    not_looked: dict[str, str] = {}
    for number, check in enumerate(checks):
        tell(number, len(checks), check.kind)
        own = judged if judged is not None and set(check.needs) - {"splits"} else seen
        if missing := [need for need in check.needs if not _there(own, need)]:
            not_looked[check.kind] = MISSING[missing[0]]
            continue
        try:
            findings += check.find(own)
        except Exception as error:  # what one check cannot digest must not cost what the others found
            not_looked[check.kind] = f"it failed: {type(error).__name__} ({shown(error)})"
        else:
            looked.append(check.kind)
    tell(len(checks), len(checks), "")
    return Report(findings, tuple(looked), not_looked)


def failing(findings: Sequence[Finding], least: Severity, known: frozenset[str] | None = None) -> list[Finding]:
    """Findings of at least this severity that are not `known` by their id."""
    grave = SEVERITIES[: SEVERITIES.index(least) + 1]
    return [found for found in findings if found.severity in grave and (known is None or found.id not in known)]


def _there(seen: Examined, need: str) -> bool:
    if need == "labels":
        return bool((seen.labels >= 0).any())
    if need == "splits":
        return len(set(seen.splits)) > 1
    return getattr(seen, need) is not None
