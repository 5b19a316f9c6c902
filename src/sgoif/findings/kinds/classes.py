"""Classes as a whole: too few images, far more of one than of another, and two names for what is one class."""

import unicodedata
from collections import Counter
from itertools import combinations
from statistics import NormalDist

import numpy as np
import torch

from sgoif.core.types import Array
from sgoif.features.reduced import neighbours_votes, principal
from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import Finding, Severity
from sgoif.images.text import few, plural, shown
from sgoif.tasks.labels.findings import DECIDED, LEAST_OF_CLASS

RATIO = 10
"""How many times as many images the largest class has as the smallest, from which on it is said."""
ALWAYS = 0.9
"""Share of one class from which on accuracy says little: always naming it reaches as much."""
PLURALS = (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("sses", "ss"), ("s", ""))
SHORT = 4
"""Letters of a word without which no plural is looked for: Cs is not the plural of C."""
LEAST, MOST_OF_CLASS, MOST = 20, 250, 20_000
"""Images of a class to compare it with others: at least, at most, and of all classes together."""
MIXED = 0.25
"""Share of neighbours in the other class, of those in both, from which on a pair is looked at: half of what it is by
chance."""
APART = 0.75
"""Accuracy that two classes have to reach to be held for two: half of the way from guessing to perfect."""
SURE = NormalDist().inv_cdf(0.999)
RIDGE = 0.1


class SmallClass(Check):
    """Classes of fewer images than a judgement of labels needs; counted, so there is no false alarm."""

    kind = "small-class"
    title = "Classes too small to judge"
    needs = ("labels",)

    def find(self, seen: Examined) -> list[Finding]:
        """One finding for each class, the smallest first."""
        sizes = _sizes(seen)
        return [
            self.finding(
                seen,
                np.flatnonzero(seen.labels == number),
                f"{shown(seen.class_names[number])} has {plural(sizes[number], 'image')}, too few to judge it",
                "Add images, or merge the class with another.",
                evidence={"images": int(sizes[number]), "limit": LEAST_OF_CLASS},
                classes=[number],
            )
            for number in np.argsort(sizes, kind="stable").tolist()
            if 0 < sizes[number] < LEAST_OF_CLASS
        ]


class Imbalance(Check):
    """Far more images of one class than of another.

    A note from ten to one on. A warning where one class has nine tenths of all images, so that always naming it is as
    good as a model of 90% accuracy. Counted, so there is no false alarm.
    """

    kind = "imbalance"
    title = "Classes of very different size"
    needs = ("labels",)

    def find(self, seen: Examined) -> list[Finding]:
        """One finding, or none."""
        sizes = _sizes(seen)
        there = np.flatnonzero(sizes)
        if len(there) < 2:
            return []
        least, most = (int(pick(sizes[there])) for pick in (np.argmin, np.argmax))
        small, large = int(there[least]), int(there[most])
        ratio, share = sizes[large] / sizes[small], sizes[large] / sizes.sum()
        if ratio < RATIO and share < ALWAYS:
            return []
        frequency = sizes[there] / sizes.sum()
        return [
            self.finding(
                seen,
                [],
                f"{shown(seen.class_names[large])} has {ratio:,.3g} times as many images as"
                f" {shown(seen.class_names[small])}",
                "Judge a model by its accuracy on each class; collect images of the small ones, or weigh them more.",
                evidence={
                    "images of the largest": int(sizes[large]),
                    "images of the smallest": int(sizes[small]),
                    "ratio": float(ratio),
                    "limit of the ratio": RATIO,
                    "share of the largest": float(share),
                    "limit of the share": ALWAYS,
                    "classes": len(there),
                    "classes of equal size that vary as much": float(np.exp(-np.sum(frequency * np.log(frequency)))),
                },
                classes=[large, small],
                severity=Severity.WARNING if share >= ALWAYS else Severity.NOTE,
            )
        ]


class TwinNames(Check):
    """Class names that differ only in case, spaces, hyphens, leading zeros or a plural."""

    kind = "twin-names"
    title = "Class names that mean the same"
    needs = ("labels",)

    def find(self, seen: Examined) -> list[Finding]:
        """One finding for each group of names."""
        groups: dict[str, list[int]] = {}
        for number in np.flatnonzero(_sizes(seen)).tolist():
            groups.setdefault(folded(seen.class_names[number]), []).append(number)
        return [
            self.finding(
                seen,
                [],
                f"{few(seen.class_names[number] for number in group)} look like names of one class",
                "Give them one name if they are one class.",
                evidence={f"images of {shown(seen.class_names[n])}": int(_sizes(seen)[n]) for n in group},
                classes=group,
            )
            for group in groups.values()
            if len(group) > 1
        ]


class TwinClasses(Check):
    """Pairs of classes that features of a pretrained network do not tell apart: two names for one class, perhaps.

    Looked at is each pair that mixes among nearest neighbours. A linear rule learned from one half of both classes is
    tried on the other: 50% is guessing. The pair is named where its accuracy stays below 75% beyond doubt (99.9%). It
    is a warning where classes are told apart on the whole, else a note: then it may be what the features do not show.

    Measured with features of lite0: of classes split at random in two all are found (6 photos, 3 of CIFAR-10); as they
    are, photos, CIFAR-10, textures and MNIST give nothing, SVHN two pairs of digits as notes.
    """

    kind = "twin-classes"
    title = "Classes that look the same"
    needs = ("labels", "features")

    def find(self, seen: Examined) -> list[Finding]:
        """One finding for each pair, the one that is least apart first."""
        sizes = _sizes(seen)
        large = np.flatnonzero(sizes >= LEAST)
        if seen.features is None or len(large) < 2:
            return []
        per = max(LEAST, min(MOST_OF_CLASS, MOST // len(large)))
        rng = np.random.default_rng(0)
        rows = np.concatenate([_some(rng, np.flatnonzero(seen.labels == number), per) for number in large])
        labels = np.searchsorted(large, seen.labels[rows])
        reduced = principal(np.asarray(seen.features[rows]))
        near = neighbours_votes(reduced, torch.from_numpy(labels), len(large), torch.arange(len(rows))).numpy()
        votes = np.zeros((len(large), len(large)))
        np.add.at(votes, labels, near)
        votes /= np.bincount(labels)[:, None]
        own = np.diag(votes)
        mixed = (votes + votes.T) / np.maximum(own[:, None] + own + votes + votes.T, 1e-12)
        apart_on_the_whole = len(large) > 2 and float(np.median(own / votes.sum(1))) >= DECIDED
        found = []
        for one, two in combinations(range(len(large)), 2):
            if mixed[one, two] >= MIXED:
                pair = np.flatnonzero((labels == one) | (labels == two))
                accuracy = linear_accuracy(reduced[pair].numpy(), labels[pair] == two)
                bound = accuracy + SURE * 0.5 / np.sqrt(len(pair))
                if bound < APART:
                    found.append((accuracy, bound, float(mixed[one, two]), int(large[one]), int(large[two])))
        return [
            self.finding(
                seen,
                [],
                f"{shown(seen.class_names[one])} and {shown(seen.class_names[two])} are told apart in {accuracy:.0%} of"
                " held-out images, where guessing reaches 50%",
                "Give them one name if they are one class; otherwise look for wrong labels in both.",
                evidence={"accuracy": accuracy, "upper bound": bound, "limit": APART, "mixed neighbours": mixing},
                classes=[one, two],
                severity=Severity.WARNING if apart_on_the_whole else Severity.NOTE,
            )
            for accuracy, bound, mixing, one, two in sorted(found)
        ]


class WrongClass(Check):
    """Classes most of whose labels are judged wrong: the folder has the wrong name, or two classes were swapped.

    A class that could not be learned looks the same, so small ones are left out.
    """

    kind = "wrong-class"
    title = "Classes most of whose labels are wrong"
    needs = ("labels", "labels_found")

    def find(self, seen: Examined) -> list[Finding]:
        """One finding for each class, the one with the largest share first."""
        if seen.labels_found is None:
            return []
        table = seen.labels_found.table()
        given, issue, better = table["given_label"], table["is_label_issue"], table["predicted_label"]
        found = []
        for number in range(len(seen.class_names)):
            own = given == number
            if (count := int(own.sum())) >= LEAST and (share := float(issue[own].mean())) > DECIDED:
                rather = Counter(better[own & issue].tolist()).most_common(1)[0][0]
                found.append((share, count, number, rather, seen.judged[np.flatnonzero(own & issue)]))
        return [
            self.finding(
                seen,
                rows,
                f"{share:.0%} of the labels of {shown(seen.class_names[number])} are judged wrong, most of them"
                f" {shown(seen.class_names[rather])}",
                "Look whether the class has the wrong name, or was swapped with another.",
                evidence={"share": share, "limit": DECIDED, "labels": count},
                classes=[number, rather],
            )
            for share, count, number, rather, rows in sorted(found, key=lambda entry: -entry[0])
        ]


def folded(name: str) -> str:
    """The name without case, separators, leading zeros and plural endings."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    words = "".join(letter if letter.isalnum() else " " for letter in plain).split()
    return " ".join(_plain_word(word) for word in words) or plain


def linear_accuracy(features: Array, second: Array) -> float:
    """Balanced share of rows that a linear rule, learned from the other half, puts in the right one of two classes."""
    fold = np.empty(len(features), dtype=np.int64)
    for of in (second, ~second):
        fold[of] = np.random.default_rng(0).permutation(np.arange(np.count_nonzero(of)) % 2)
    right = np.zeros(len(features), dtype=bool)
    for half in (0, 1):
        train, test = fold != half, fold == half
        means = [features[train & of].mean(0) for of in (~second, second)]
        inner = features[train] - np.where(second[train, None], means[1], means[0])
        spread = inner.T @ inner / len(inner)
        spread += RIDGE * np.trace(spread) / len(spread) * np.eye(len(spread)) + 1e-9 * np.eye(len(spread))
        towards = np.linalg.solve(spread, means[1] - means[0])
        right[test] = ((features[test] - (means[0] + means[1]) / 2) @ towards > 0) == second[test]
    return float(right[second].mean() + right[~second].mean()) / 2


def _plain_word(word: str) -> str:
    if word.isdecimal():
        return word.lstrip("0") or "0"
    if len(word) >= SHORT and not word.endswith("ss"):
        for ending, singular in PLURALS:
            if word.endswith(ending):
                return word.removesuffix(ending) + singular
    return word


def _sizes(seen: Examined) -> Array:
    return np.bincount(seen.labels[seen.labels >= 0], minlength=len(seen.class_names))


def _some(rng: np.random.Generator, rows: Array, most: int) -> Array:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
