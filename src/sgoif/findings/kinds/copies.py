"""Pictures that occur more than once: exact copies, and copies that were encoded, resized or brightened since."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from sgoif.core.types import Array
from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import SEVERITIES, Finding, Severity
from sgoif.images.measurements import Measurements
from sgoif.images.text import few, plural


def best_first(seen: Examined, rows: Sequence[int]) -> list[int]:
    """The image to keep in front: the most pixels, then the largest file, then the shortest name, as copies of a file
    are called "photo (1)" or "photo copy".
    """
    measured = seen.measured

    def rank(row: int) -> tuple[int, int, int, str]:
        pixels = int(measured.width[row]) * int(measured.height[row])
        return -pixels, -int(measured.file_bytes[row]), len(seen.names[row]), seen.names[row]

    return sorted(map(int, rows), key=rank)


def bits_apart(measured: Measurements, rows: Sequence[int]) -> int:
    """The most bits of 64 in which the perceptual hash of a row differs from that of the first."""
    hashes = np.asarray(measured.hash, dtype=np.uint64)[list(rows)]
    return int(np.unpackbits((hashes ^ hashes[0]).view(np.uint8).reshape(len(hashes), -1), axis=1).sum(1).max())


def _classes(labels: Array, rows: Sequence[int]) -> list[int]:
    """The classes of the rows, the one of most of them in front; rows without a label have none."""
    return [number for number, _ in Counter(label for label in labels[list(rows)].tolist() if label >= 0).most_common()]


class _Copies(Check):
    """Groups of one kind of copies. Where the labels of a group differ, it is one finding; otherwise there is one for
    each split that has several of them, since copies in two splits are a leak.
    """

    between_classes: Severity
    alike: str

    @abstractmethod
    def groups(self, seen: Examined) -> Sequence[Sequence[int]]:
        """Rows of each group."""

    def evidence(self, seen: Examined, rows: Sequence[int]) -> dict[str, float | int | str | bool | None]:
        return {"images": len(rows)}

    def find(self, seen: Examined) -> list[Finding]:
        found = [finding for group in self.groups(seen) for finding in self._of_group(seen, best_first(seen, group))]
        return sorted(found, key=lambda finding: (SEVERITIES.index(finding.severity), -len(finding.classes)))

    def _of_group(self, seen: Examined, rows: list[int]) -> Iterator[Finding]:
        classes = _classes(seen.labels, rows)
        if len(classes) > 1:
            yield self._contradiction(seen, rows, classes)
            return
        splits = [seen.splits[row] if seen.splits else "" for row in rows]
        for split in dict.fromkeys(splits):
            members = [row for row, of in zip(rows, splits, strict=True) if of == split]
            if len(members) > 1:
                yield self.finding(
                    seen,
                    members,
                    f"{plural(len(members), 'image')} {self.alike}",
                    "keep one, here the one with the most pixels or else the largest file: copies count several times"
                    " in training, and a random hold-out gets some of what was trained on",
                    evidence=self.evidence(seen, members),
                    classes=classes,
                    keep=members[0],
                )

    def _contradiction(self, seen: Examined, rows: list[int], classes: list[int]) -> Finding:
        counts = [int((seen.labels[rows] == number).sum()) for number in classes]
        most = counts[0] > sum(counts[1:])
        agreed = [row for row in rows if seen.labels[row] == classes[0]]
        advice = (
            "keep the best image of the class that most of them have, if that is what it shows, and drop the others"
            if most
            else "decide which class is right, keep one image of it and drop the others"
        )
        return self.finding(
            seen,
            rows,
            f"{plural(len(rows), 'image')} {self.alike}, but the labels differ:"
            f" {few([seen.class_names[number] for number in classes])}",
            advice,
            evidence={**self.evidence(seen, rows), "of_the_first_class": counts[0]},
            classes=classes,
            severity=self.between_classes,
            keep=agreed[0] if most else None,
        )


class ExactCopies(_Copies):
    """Images whose decoded pixels are equal, whatever their files are called or hold besides.

    There is no limit to choose, and no false alarm: equal pixels are a fact. With different labels at least one label
    is wrong, or the task has several answers for one picture: an error. In one class a copy counts twice in training
    and may land on both sides of a random split, which people rarely want and can mend in a minute: a warning.
    """

    kind = "copies"
    title = "Exact copies"
    between_classes = Severity.ERROR
    alike = "have the same pixels"

    def groups(self, seen: Examined) -> Sequence[Sequence[int]]:
        return seen.same_pixels


class NearCopies(_Copies):
    """Images that are nearly the same picture, as `sgoif.images.near_duplicates` finds them: encoded anew, at another
    size, brighter, cropped, mirrored, and the exact copies of these. Its limits are shares of what lies between an
    image and its nearest neighbour in the same data set.

    Among 2,527 photos, 15,000 images of 32 pixels and 1,200 textures, errors and warnings about groups that are not one
    picture to the eye were at most 0.8 in 1,000 images: checkers in two colours, bottles photographed alike. Of planted
    copies of photos and small images were found: encoded as JPEG 92% or more, at 0.6 to 1.6 times the size 92%,
    brighter or darker 97%, mirrored 96%, cropped by up to 5% a side 73 to 84%; fewer of textures. Those without colour
    are found by `sgoif.findings.same_pictures`, most of them.

    With different labels one is likely wrong: a warning. In one class many data sets hold them on purpose (frames of a
    video, augmented images), and they do no harm within one split: a note.
    """

    kind = "near-copies"
    title = "Nearly the same images"
    severity = Severity.NOTE
    between_classes = Severity.WARNING
    alike = "are nearly the same picture"

    def groups(self, seen: Examined) -> Sequence[Sequence[int]]:
        return seen.same_picture

    def evidence(self, seen: Examined, rows: Sequence[int]) -> dict[str, float | int | str | bool | None]:
        return {"images": len(rows), "hash_bits_apart": bits_apart(seen.measured, rows)}
