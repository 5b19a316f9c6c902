"""Pictures that are in several splits, so that a test is partly a test of memory."""

import re
from collections.abc import Sequence

import numpy as np

from sgoif.core.types import Array
from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import Finding, Severity
from sgoif.findings.kinds.copies import best_first, bits_apart
from sgoif.images.text import few, plural

TRAINING, TESTING = ("train", "training"), ("test", "testing", "eval")
NUMBERED = re.compile(r"(.*?)(\d{1,15})$", re.DOTALL)
SECONDS = 3.0
"""Between two frames of one burst."""
CHANCE = 1 / 2000
"""Share of unrelated pairs of one class that resemble each other as much as frames of a burst do. Each image follows
and is followed, so that one in a thousand of unrelated images has such a neighbour."""
APART, SECONDS_APART = 20, 60.0
"""Numbers, and seconds, from which on two images are not of one burst."""
PAIRS, LEAST_PAIRS = 100_000, 2_000
"""Unrelated pairs that are compared to learn what is usual, and the fewest that show what is rare."""
AT_ONCE = 4096
"""Pairs that are compared at once."""
LIFT = 10
"""Times as many frames must resemble each other as by chance; else their numbers or dates say nothing."""


def _by_duty(splits: Sequence[str]) -> list[str]:
    """The splits, those of tests in front and those of training last."""
    return sorted(
        set(splits), key=lambda split: (split.lower() in TRAINING, split.lower() not in TESTING, split.lower(), split)
    )


class _BetweenSplits(Check):
    """Groups of images of which some are in another split than others."""

    needs = ("splits",)

    def leak(self, seen: Examined, rows: Sequence[int], message: str, advice: str, *, keep: bool) -> Finding | None:
        """A finding about the group, the image to keep in front; None where all are in one split."""
        splits = _by_duty([seen.splits[row] for row in rows])
        if len(splits) < 2:
            return None
        ordered = sorted(best_first(seen, rows), key=lambda row: splits.index(seen.splits[row]))
        classes = sorted({label for label in seen.labels[ordered].tolist() if label >= 0})
        evidence: dict[str, float | int | str | bool | None] = {"images": len(ordered)}
        evidence |= {"hash_bits_apart": bits_apart(seen.measured, ordered), "splits": ", ".join(splits)}
        return self.finding(
            seen,
            ordered,
            f"{plural(len(ordered), 'image')} {message}: {few(splits)}",
            advice,
            evidence=evidence,
            classes=classes,
            keep=ordered[0] if keep else None,
        )


class Leaks(_BetweenSplits):
    """Exact and near copies in several splits: errors, since what a model scores on a picture that it was trained on
    says nothing about others.

    The copy in the test is the one to keep, then the one in the validation: so results stay comparable, and training
    hardly misses one picture. For exact copies there is no limit; those of near copies are explained in
    `sgoif.images.near_duplicates`, and what they find and miss was measured for `NearCopies`.
    """

    kind = "leaks"
    title = "Pictures in several splits"
    severity = Severity.ERROR

    def find(self, seen: Examined) -> list[Finding]:
        return [
            found
            for groups, alike in (
                (seen.same_pixels, "have the same pixels"),
                (seen.same_picture, "are nearly the same picture"),
            )
            for rows in groups
            if (
                found := self.leak(
                    seen,
                    rows,
                    f"{alike} and are in several splits",
                    "keep the copy that models are tested with and take the others out of training",
                    keep=True,
                )
            )
        ]


class Bursts(_BetweenSplits):
    """Frames of one burst in several splits: files with consecutive numbers, or photos taken within three seconds,
    that resemble each other without being copies.

    How alike they have to be is learned from the data set: more than all but one in 2,000 pairs of one class
    that are far apart in numbers and dates.
    So files whose numbers mean nothing give at most one false alarm in a thousand images, and where not ten times as
    many of different splits resemble each other as by chance, numbers or dates mean nothing and none is reported.
    Frames that are nearly one picture are leaks instead. Of planted bursts (turned by up to 4°, moved by up to 18%)
    features of a pretrained network, which are compared where there are some, find 81% among photos, thumbnails a third
    or fewer. Where the numbers mean nothing there was no finding.
    """

    kind = "bursts"
    title = "Frames of one burst in several splits"

    def find(self, seen: Examined) -> list[Finding]:
        if not len(seen.names):
            return []
        numbered = _numbered(seen.names, seen.splits)
        limit = _usual(seen, numbered)
        if limit is None:
            return []
        leader = np.arange(len(seen.names))
        number = {split: place for place, split in enumerate(_by_duty(seen.splits))}
        split_of = np.asarray([number[split] for split in seen.splits])
        for pairs in (_consecutive(numbered), _dated(seen)):
            alike = pairs[_apart(seen, pairs) < limit]
            among, found_among = (int(np.ptp(split_of[rows], axis=1).astype(bool).sum()) for rows in (pairs, alike))
            if found_among >= LIFT * CHANCE * among:
                for first, second in alike.tolist():
                    leader[_leader(leader, first)] = _leader(leader, second)
        bursts: dict[int, list[int]] = {}
        for row in range(len(leader)):
            bursts.setdefault(_leader(leader, row), []).append(row)
        copies = _copies(seen)
        return [
            found
            for rows in bursts.values()
            if len({int(copies[row]) for row in rows}) > 1
            and (
                found := self.leak(
                    seen,
                    rows,
                    "were taken one after another and are in several splits",
                    "move all frames of a burst to one split: put bursts, not single images, at random into splits",
                    keep=False,
                )
            )
        ]


def _apart(seen: Examined, pairs: Array) -> Array:
    """How far the rows of each pair are apart, between 0 and 2."""
    parts = [np.zeros(0, np.float32)]
    for start in range(0, len(pairs), AT_ONCE):
        left, right = (_units(seen, rows) for rows in pairs[start : start + AT_ONCE].T)
        parts.append(np.linalg.norm(left - right, axis=1))
    return np.concatenate(parts)


def _units(seen: Examined, rows: Array) -> Array:
    """What is compared, each row of length one."""
    if seen.features is not None:
        vectors = np.asarray(seen.features[rows], np.float32)
    else:
        vectors = np.asarray(seen.measured.thumbnail[rows], np.float32).reshape(len(rows), -1)
        vectors = vectors - vectors.mean(1, keepdims=True)
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6))


def _usual(seen: Examined, numbered: Sequence[tuple[str, int] | None]) -> float | None:
    """The distance below which hardly any random pair of one class is; None where there are too few pairs to know."""
    labels, taken = seen.labels, np.asarray(seen.measured.taken)
    random = np.random.default_rng(0)
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], labels, side="right")
    starts = np.searchsorted(labels[order], labels, side="left")
    first = random.integers(0, len(labels), PAIRS)
    second = order[random.integers(starts[first], ends[first])]
    numbers = np.asarray([np.nan if found is None else found[1] for found in numbered])
    near = np.abs(numbers[first] - numbers[second]) <= APART
    near |= np.abs(taken[first] - taken[second]) <= SECONDS_APART
    pairs = np.unique(np.sort(np.stack([first, second], 1)[(first != second) & ~near], axis=1), axis=0)
    if len(pairs) < LEAST_PAIRS:
        return None
    return float(np.quantile(_apart(seen, pairs), CHANCE))


def _numbered(names: Sequence[str], splits: Sequence[str]) -> list[tuple[str, int] | None]:
    """The number that each file's name ends with, and what stands before it, whatever the split; None without one."""
    found: list[tuple[str, int] | None] = []
    for name, split in zip(names, splits, strict=True):
        folder, slash, file = name.rpartition("/")
        match = NUMBERED.match(file.rpartition(".")[0] or file)
        found.append(None if match is None else (folder.removeprefix(split) + slash + match[1], int(match[2])))
    return found


def _consecutive(numbered: Sequence[tuple[str, int] | None]) -> Array:
    """Pairs of rows whose files differ only in their numbers, which follow each other."""
    rows: dict[tuple[str, int], list[int]] = {}
    for row, key in enumerate(numbered):
        if key is not None:
            rows.setdefault(key, []).append(row)
    pairs = [
        (row, after)
        for (text, number), here in rows.items()
        for row in here
        for after in rows.get((text, number + 1), ())
    ]
    return np.asarray(pairs, np.int64).reshape(-1, 2)


def _dated(seen: Examined) -> Array:
    """Pairs of rows that were taken one right after the other."""
    taken = np.asarray(seen.measured.taken, np.float64)
    order = np.flatnonzero(np.isfinite(taken))
    order = order[np.argsort(taken[order], kind="stable")]
    near = np.diff(taken[order]) <= SECONDS
    return np.stack([order[:-1][near], order[1:][near]], 1)


def _leader(leader: Array, row: int) -> int:
    while leader[row] != row:
        leader[row] = leader[leader[row]]
        row = int(leader[row])
    return row


def _copies(seen: Examined) -> Array:
    """A number for each row that its copies share."""
    number = np.arange(len(seen.names))
    for rows in (*seen.same_pixels, *seen.same_picture):
        number[list(rows)] = number[rows[0]]
    return number
