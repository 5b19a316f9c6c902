"""Images in which little can be seen, or that differ in kind from the others of their set.

An image is found where its value lies beyond an absolute limit *and* is unusual for the set: further from the median
than 3.09 standard deviations, beyond which one of a thousand values of a normal distribution lies. The deviation is
taken from the quartile on that side, so that up to a quarter of the images may be bad and skewed sets have the spread
of the side that is asked about. Where the class of an image has 20 images or more, it has to be unusual among them as
well. So nobody is told that handwritten digits are mostly empty, or that every picture taken by night is dark.
"""

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from sgoif.core.types import Array
from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import Finding, Severity

DEVIATIONS, QUARTILE = 3.09, 0.6745
"""Of a normal distribution: beyond the first lies one value of a thousand, beyond the second one of four."""
FEW = 20
"""Images below which a class says nothing about what is usual in it."""
RARE = 0.05


def fence(values: Array) -> float:
    """Below it a value is unusually low among these; −∞ where there is none. Not a number means unknown."""
    known = values[~np.isnan(values)]
    if not len(known):
        return float("-inf")
    quarter, median = np.percentile(known, [25, 50])
    return float(median - (median - quarter) * DEVIATIONS / QUARTILE)


def unusually_low(values: Array, labels: Array) -> Array:
    """Which values lie below the fence of all of them and, in classes that are not small, below that of their class."""
    low: Array = values < fence(values)
    for label in np.unique(labels[low & (labels >= 0)]):
        rows = np.flatnonzero(labels == label)
        if len(rows) >= FEW:
            low[rows] &= values[rows] < fence(values[rows])
    return low


class _Low(Check):
    """Images with a value that is low in itself and for the set."""

    column: ClassVar[str]
    limit: ClassVar[float]
    message: ClassVar[str]
    advice: ClassVar[str]

    @abstractmethod
    def scale(self, values: Array) -> Array:
        """Brings values to where low ones are bad and equal steps mean about as much everywhere."""

    def find(self, seen: Examined) -> list[Finding]:
        values = getattr(seen.measured, self.column).astype(np.float64)
        scaled = self.scale(values)
        rows = np.flatnonzero(unusually_low(scaled, seen.labels) & (scaled < self.scale(np.array([self.limit]))))
        usual = float(np.nanmedian(values)) if len(rows) else 0.0
        return [
            self.finding(
                seen,
                [row],
                self.message,
                self.advice,
                evidence={self.column: round(float(values[row]), 4), "limit": self.limit, "usual": round(usual, 4)},
            )
            for row in rows[np.argsort(scaled[rows], kind="stable")]
        ]


class Dark(_Low):
    """Images in which hardly anything can be seen for darkness.

    The 99th percentile of brightness lies below 0.32: even the lights are darker than a middle grey. CleanVision takes
    the same limit. Beside that it has to be unusual, which spares textures and pictures of the night: none of 2,527
    photographs, 10,000 CIFAR images and 1,200 textures is found, where CleanVision finds 28 textures. The price: of
    textures darkened to a fifth only one in six is found, of photographs all.
    """

    kind = "dark"
    title = "Dark images"
    column, limit = "brightest", 0.32
    message = "The image is almost black."
    advice = "Replace or brighten it, or delete it if nothing can be recognised."

    def scale(self, values: Array) -> Array:
        return values


class Bright(_Low):
    """Images that are white but for a few pixels.

    The 5th percentile of brightness lies above 0.95, as in CleanVision, and is unusual for the set: drawings on white
    are not overexposed. Of the 13,727 images named at `Dark` two are found, small aeroplanes in an all but white sky.
    """

    kind = "bright"
    title = "Overexposed images"
    column, limit = "darkest", 0.95
    message = "The image is almost white."
    advice = "Replace or darken it, or delete it if nothing can be recognised."

    def scale(self, values: Array) -> Array:
        return 1 - values


class Blurry(_Low):
    """Images without fine details: out of focus, moved, or enlarged from a small one.

    Sharpness is 0.25 where adjacent pixels are joined by straight lines. A Gaussian blur of two pixels (at 256 pixels
    of the longer side) brings 99 of 100 photographs and CIFAR images below 0.34, and contrast makes no difference. Of
    the 13,727 images named at `Dark` 13 are found; of the nine photographs among them six are out of focus or moved,
    the others can be disputed. CleanVision takes the strength of edges instead, which is low in sharp images of low
    contrast: it finds 70, most of them sharp, and of photographs with a planted blur none.
    """

    kind = "blurry"
    title = "Blurry images"
    column, limit = "sharpness", 0.34
    message = "The image has no fine details: it is out of focus, moved, or was enlarged."
    advice = "Replace it by the sharp original, or delete it if what it shows cannot be recognised."

    def scale(self, values: Array) -> Array:
        detail: Array = np.log(np.maximum(values - 0.25, 0.02))  # below that all are equally smooth
        return detail


class Empty(_Low):
    """Images of almost one brightness.

    The standard deviation of brightness is below 0.01, two and a half of 255 levels, which noise and compression alone
    bring about, and unusual for the set. CleanVision takes the entropy of the histogram, which is low for drawings and
    digits with few shades, and high for noise. Of the 13,727 images named at `Dark` four are found, textures of one
    colour.
    """

    kind = "empty"
    title = "Nearly empty images"
    column, limit = "contrast", 0.01
    message = "There is almost nothing in the image."
    advice = "Delete it unless an empty picture is a right example of its class."

    def scale(self, values: Array) -> Array:
        contrast: Array = np.log(np.maximum(values, 1e-4))
        return contrast


class _Odd(Check):
    """Images with a logarithm that lies far from the others, on either side."""

    severity = Severity.NOTE
    factor: ClassVar[float]
    advice: ClassVar[str]
    messages: ClassVar[tuple[str, str]]
    """For what lies below, and above."""

    @abstractmethod
    def value(self, seen: Examined) -> Array:
        """Positive, one for each image."""

    def find(self, seen: Examined) -> list[Finding]:
        if not len(seen.measured):
            return []
        values = self.value(seen)
        logs = np.log(values)
        usual, far = float(np.median(logs)), np.log(self.factor) - 1e-9
        found = []
        for sign, message in zip((1, -1), self.messages, strict=True):
            beyond = unusually_low(sign * logs, seen.labels) & (sign * (usual - logs) >= far)
            rows = np.flatnonzero(beyond)
            for row in rows[np.argsort(sign * logs[rows], kind="stable")].tolist():
                evidence = {
                    "width": int(seen.measured.width[row]),
                    "height": int(seen.measured.height[row]),
                    self.kind: round(float(values[row]), 3),
                    "usual": round(float(np.exp(usual)), 3),
                }
                found.append(self.finding(seen, [row], message, self.advice, evidence=evidence))
        return found


class OddAspect(_Odd):
    """Images far more elongated than the others, or far less.

    The longer side divided by the shorter, whichever is upright, differs from the median by a factor of 2 or more: with
    photographs of 4:3, from 8:3 on. CleanVision takes 1:0.35 whatever the set, so that it finds every line of a set of
    text and none of its squares.
    """

    kind = "aspect"
    title = "Images of an odd shape"
    factor = 2.0
    messages = ("The image is far less elongated than the others.", "The image is far more elongated than the others.")
    advice = "See whether it was cut, stretched or joined from several."

    def value(self, seen: Examined) -> Array:
        width, height = seen.measured.width.astype(float), seen.measured.height.astype(float)
        longer: Array = np.maximum(width, height) / np.minimum(width, height)
        return longer


class OddSize(_Odd):
    """Images far smaller than the others, or far larger.

    The root of the number of pixels differs from the median by a factor of 2 or more. CleanVision asks for three
    interquartile ranges alone, with which, among images of one size, each that differs by a pixel is odd.
    """

    kind = "size"
    title = "Images of an odd size"
    factor = 2.0
    messages = ("The image is far smaller than the others.", "The image is far larger than the others.")
    advice = "See whether it is a preview, or comes from another source."

    def value(self, seen: Examined) -> Array:
        side: Array = np.sqrt(seen.measured.width.astype(float) * seen.measured.height)
        return side


class GreyAmongColour(Check):
    """Images without colour where fewer than one in twenty have none, in the set and in their class.

    Every pixel is exactly grey, so there is no limit but that share. CleanVision finds images that are *stored* as
    grey, all of them where a set is grey, and none that are stored with three equal channels.
    """

    kind = "grey"
    title = "Grey images among colour"
    severity = Severity.NOTE

    def find(self, seen: Examined) -> list[Finding]:
        grey = seen.measured.grey
        share = float(grey.mean()) if len(grey) else 0.0
        found = []
        for row in np.flatnonzero(grey).tolist() if share < RARE else ():
            among = grey[seen.labels == seen.labels[row]] if seen.labels[row] >= 0 else grey
            if len(among) < FEW or among.mean() < RARE:
                message = "The image is grey, as few of the others are."
                advice = "See whether it comes from another source; train with grey copies if such images are to come."
                found.append(self.finding(seen, [row], message, advice, evidence={"share": round(share, 4)}))
        return found
