"""Properties that give the label away without a look at what an image shows: all cows are dark, all dogs are wide.

A one-rule classifier knows nothing of an image but which part of the range of one property it is in: parts of about
equally many images, and one of its own for each frequent value. It names the class that is most frequent there,
relative to the size of the class, on images that it was not learned from (five folds). Its accuracy is the mean over
classes, so guessing reaches 1 / classes whatever their sizes. Each class is also told from all others together, where
guessing reaches a half. What counts is the share of the way from guessing to perfect.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sgoif.core.types import Array
from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import Finding, Severity
from sgoif.images.text import few, shown

FOLDS = 5
FALSE_ALARMS = 0.001
"""Of all properties of a set together, as often as its labels have nothing to do with them."""
MATTERS, WARNS = 0.25, 0.5
"""Share of the way from guessing to perfect from which on a property is named; and from which on it is a warning."""
CLASS_MATTERS, CLASS_WARNS = 0.5, 0.9
"""The same for one class against all others."""
DEPENDENT = 2**0.5
"""Standard deviations are larger by so much (1.3 to 1.4 with shuffled labels) since each fold is judged by the others:
what it has more of, they have less of."""
LEAST = 10
"""Images of a class without which it is left out."""
IN_PART, MOST_PARTS = 20, 256
"""Images in a part of the range, at least; and parts, at most."""
NAMED = 5
TOKENS = re.compile(r"\d+|[^\W\d_]+")


class Rule(NamedTuple):
    """What a one-rule classifier reaches on held-out images."""

    accuracy: float
    """Mean over classes of the share that it names rightly."""
    share: float
    """Of the way from guessing to perfect; with the next for each class against all others."""
    deviations: float
    """Standard deviations above guessing."""
    class_share: Array
    class_deviations: Array


class GivesLabelAway(Check):
    """A property, other than what an image shows, from which the class can be told.

    A model may learn it in place of the class, and fail where it is not there. Some belong to the class (ships are on
    blue water), so what is found is a question. A property is named where it leads a quarter of the way from guessing
    to perfect, or half of it for one class against the others, and farther than chance in 999 of 1,000 sets. It is a
    warning from half of the way on, or nine tenths for one class; names of files and dates, which a model does not see,
    are always a note.

    Of 4,520 sets of measured photos and textures with shuffled labels, of 30 to 2,527 images, none gave a finding. As
    they are, photos give saturation (38% of 6 classes), the border (43%) and numbers of files, textures the size of the
    file, MNIST its size, brightness and contrast (digit 1), CIFAR-10 and SVHN nothing; all are notes. Planted in one
    class of photos or CIFAR-10, all are found and warnings, in nine tenths of one all are found, in half of one half.
    """

    kind = "gives-label-away"
    title = "Properties that give the label away"
    needs = ("labels",)

    def find(self, seen: Examined) -> list[Finding]:
        """One finding for each property, the one that leads farthest first."""
        sizes = np.bincount(seen.labels[seen.labels >= 0], minlength=len(seen.class_names))
        large = np.flatnonzero(sizes >= LEAST)
        rows = np.flatnonzero(np.isin(seen.labels, large))
        if len(large) < 2:
            return []
        labels = np.searchsorted(large, seen.labels[rows])
        parts = max(2, min(max(2 * len(large), 8), len(rows) // IN_PART, MOST_PARTS))
        properties = ((name, values[rows]) for name, values in _values(seen))
        known = [(name, values, in_parts(values, parts)) for name, values in properties]
        known = [(name, values, part) for name, values, part in known if np.ptp(part) > 0]
        tests = len(known) * (1 + len(large))
        limit = NormalDist().inv_cdf(1 - FALSE_ALARMS / max(tests, 1))
        found = []
        for name, values, part in known:
            rule = one_rule(part, labels, len(large))
            given = (rule.class_share >= CLASS_MATTERS) & (rule.class_deviations > limit)
            whole = rule.share >= MATTERS and rule.deviations > limit
            if whole or given.any():
                order = np.argsort(-rule.class_share, kind="stable")
                named = [at for at in order[:NAMED].tolist() if given[at]]
                found.append((max(rule.share, rule.class_share.max()), self._finding(
                    seen, name, values, labels, large, named, rule, limit
                )))  # fmt: skip
        return [finding for _, finding in sorted(found, key=lambda pair: -pair[0])]

    def _finding(
        self,
        seen: Examined,
        name: str,
        values: Array,
        labels: Array,
        large: Array,
        named: Sequence[int],
        rule: Rule,
        limit: float,
    ) -> Finding:
        evidence: dict[str, float | int | str | bool | None] = {
            "property": name,
            "accuracy": rule.accuracy,
            "accuracy of guessing": 1 / len(large),
            "share of the way": rule.share,
            "standard deviations above guessing": rule.deviations,
            "limit of the share": MATTERS,
            "limit of the share for a class": CLASS_MATTERS,
            "limit of the deviations": limit,
        }
        for at in named:
            text = shown(seen.class_names[large[at]])
            evidence[f"accuracy for {text} against the others"] = float(1 + rule.class_share[at]) / 2
            if np.issubdtype(values.dtype, np.number) and values.ndim == 1:
                own = labels == at
                evidence[f"mean of {text}"], evidence[f"mean without {text}"] = _mean(values[own]), _mean(values[~own])
        grave = rule.share >= WARNS or any(rule.class_share[at] >= CLASS_WARNS for at in named)
        whom = f", {few(seen.class_names[large[at]] for at in named)} most of all" if named else ""
        return self.finding(
            seen,
            [],
            f"{name} alone tells the class of {rule.accuracy:.0%} of held-out images, where guessing reaches"
            f" {1 / len(large):.0%}{whom}",
            "Check whether it would be there in use; otherwise take images of all classes in the same way.",
            evidence=evidence,
            classes=[int(large[at]) for at in named],
            severity=Severity.WARNING if grave and name not in UNSEEN else Severity.NOTE,
            about=name,
        )


def one_rule(parts: Array, labels: Array, classes: int) -> Rule:
    """What the part of a range that each image is in says about its class."""
    sizes = np.bincount(labels, minlength=classes)
    order = np.lexsort((np.random.default_rng(0).permutation(len(labels)), labels))
    fold = np.empty(len(labels), dtype=np.int64)
    fold[order] = np.arange(len(labels)) % FOLDS
    cells = int(parts.max(initial=0)) + 1
    each = np.bincount((fold * cells + parts) * classes + labels, minlength=FOLDS * cells * classes)
    each = each.reshape(FOLDS, cells, classes)
    right, named, single, called = np.zeros((4, classes))
    for held in each:
        learned = each.sum(0) - held
        density = learned / np.maximum(learned.sum(0), 1)
        best = density == density.max(1, keepdims=True)
        chosen = best / best.sum(1, keepdims=True)
        right += (held * chosen).sum(0)
        named += held.sum(1) @ chosen
        rest = (density.sum(1, keepdims=True) - density) / (classes - 1)
        yes = (density > rest) + 0.5 * (density == rest)
        # A class against all others, each of them of equal weight.
        single += (held * yes).sum(0) / sizes
        weighed = held / sizes
        called += ((weighed.sum(1, keepdims=True) - weighed) * yes).sum(0) / (classes - 1)
    recall, frequency = right / sizes, named / len(labels)
    accuracy, guessing = float(recall.mean()), 1 / classes
    spread = DEPENDENT * float(np.sqrt(np.sum(frequency * (1 - frequency) / sizes))) / classes
    class_share = single - called
    often = (single + called) / 2
    others = (np.sum(1 / sizes) - 1 / sizes) / (classes - 1) ** 2
    class_spread = DEPENDENT * np.sqrt(np.maximum(often * (1 - often), 0.25 / len(labels)) * (1 / sizes + others))
    return Rule(
        accuracy,
        (accuracy - guessing) / (1 - guessing),
        (accuracy - guessing) / max(spread, 1e-12),
        class_share,
        class_share / class_spread,
    )


def in_parts(values: Array, parts: int) -> Array:
    """The part of the range that each value is in: numbers or texts [n], or the numbers of a colour [n, 3]."""
    if values.ndim == 2:
        # As many as there may be: one colour is in few of them.
        each = max(2, int(min(len(values) // IN_PART, MOST_PARTS) ** (1 / values.shape[1])))
        columns = [in_parts(column, each) for column in values.T]
        joined = np.zeros(len(values), dtype=np.int64)
        for column in columns:
            joined = joined * (int(column.max(initial=0)) + 1) + column
        return np.asarray(np.unique(joined, return_inverse=True)[1])
    distinct, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    if not np.issubdtype(values.dtype, np.number):  # the most frequent ones, and all the others as one
        rank = np.empty(len(distinct), dtype=np.int64)
        rank[np.argsort(-counts, kind="stable")] = np.arange(len(distinct))
        return np.asarray(np.minimum(rank, parts - 1)[at])
    there = values[~np.isnan(values)]
    edges = np.unique(np.quantile(there, np.arange(1, parts) / parts)) if len(there) else there
    # Between edges lies one part, on an edge another: a value that many images share is a part of its own.
    found = np.searchsorted(edges, values, "left") + np.searchsorted(edges, values, "right")
    return np.where(np.isnan(values), 2 * len(edges) + 1, found)


def _values(seen: Examined) -> Iterator[tuple[str, Array]]:
    """Name and values of each property that is not the same in all images."""
    for name, of in PROPERTIES.items():
        yield name, np.asarray(of(seen), dtype=np.float64)
    yield from _of_names(seen.names, seen.class_names).items()


def _of_names(names: Sequence[str], class_names: Sequence[str]) -> Mapping[str, Array]:
    """What the names of files say, but for the words of class names, which name the folders of classes."""
    known = {_singular(word) for name in class_names for word in TOKENS.findall(name)}
    words, numbers, endings = [], [], []
    for name in names:
        path = PurePosixPath(name)
        tokens = [token for token in TOKENS.findall(str(path.with_suffix(""))) if _singular(token) not in known]
        digits = [token for token in tokens if token.isdecimal()]
        words.append(" ".join(token for token in tokens if not token.isdecimal()))
        numbers.append(float(digits[-1][-15:]) if digits else np.nan)
        endings.append(path.suffix.casefold())
    return {
        "the name of the file": np.array(words, dtype=object),
        "the number in its name": np.array(numbers),
        "the ending of its name": np.array(endings, dtype=object),
    }


def _singular(word: str) -> str:
    return word.casefold().removesuffix("s")


def _mean(values: Array) -> float | None:
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else None


PROPERTIES: dict[str, Callable[[Examined], Array]] = {
    "brightness": lambda seen: seen.measured.brightness,
    "contrast": lambda seen: seen.measured.contrast,
    "saturation": lambda seen: seen.measured.saturation,
    "sharpness": lambda seen: seen.measured.sharpness,
    "being grey": lambda seen: seen.measured.grey,
    "the colour of the border": lambda seen: seen.measured.border,
    "how plain the border is": lambda seen: seen.measured.border_spread,
    "the number of pixels": lambda seen: seen.measured.width.astype(np.int64) * seen.measured.height,
    "the aspect": lambda seen: seen.measured.width / np.maximum(seen.measured.height, 1),
    "the size of the file": lambda seen: seen.measured.file_bytes,
    "the date taken": lambda seen: seen.measured.taken,
}
UNSEEN = ("the name of the file", "the number in its name", "the date taken")
"""What a model does not see."""
