"""What is measured of every image while it is decoded: numbers that say whether it is dark, blurred or a copy."""

from dataclasses import dataclass

from sgoif.core.types import Array


@dataclass(frozen=True, eq=False)
class Measurements:
    """One row for each readable image. Brightness and colours lie between 0 and 1."""

    width: Array
    height: Array
    """int32 [n], upright as a person sees it."""
    file_bytes: Array
    """int64 [n]; 0 where images share a file."""
    grey: Array
    """bool [n]: every pixel is grey."""
    brightness: Array
    """float32 [n]: the mean."""
    darkest: Array
    brightest: Array
    """float32 [n]: the 5th and the 99th percentile of brightness."""
    contrast: Array
    """float32 [n]: the standard deviation of brightness."""
    entropy: Array
    """float32 [n]: bits of the histogram of brightness, 0 to 8."""
    sharpness: Array
    """float32 [n]: how much lies in the finest details, whatever the contrast."""
    colour: Array
    """float32 [n, 3]: the mean."""
    saturation: Array
    """float32 [n]: the mean."""
    border: Array
    """float32 [n, 3]: the mean colour of the outermost pixels."""
    border_spread: Array
    """float32 [n]: their standard deviation; small where the background is plain."""
    content: Array
    """uint8 [n, 16]: a digest of the decoded pixels, equal for exact copies."""
    hash: Array
    """uint64 [n]: a perceptual hash, few bits apart for near copies."""
    thumbnail: Array
    """uint8 [n, 8, 8, 3]: the image shrunk to so many averages."""
    taken: Array
    """float64 [n]: seconds since 1970 when the camera took it, by EXIF; nan: not known."""

    def __len__(self) -> int:
        return len(self.width)
