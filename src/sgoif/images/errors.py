"""What can be wrong with images and with the place they are prepared in."""

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sgoif.errors import SgoifError
from sgoif.images.text import shown

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ImagesError(SgoifError, ValueError):
    """The images cannot be read, or there are too few of them to work with."""


class UnreadableImageError(ImagesError):
    """One image cannot be decoded; the others are not concerned."""


class ChangedImagesError(ImagesError):
    """Prepared images are all there, but not as they were written."""


def why(error: Exception) -> str:
    """What an error of another package says, in a line."""
    text = error.strerror.lower() if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    return text[:300] or type(error).__name__


def cannot_write(folder: Path, error: OSError) -> ImagesError:
    """The sentence for a folder that cannot be written to, or a disk that is full."""
    if error.errno in FULL:
        return ImagesError(
            f"the disk that holds {shown(folder)} is full ({error.strerror}). Nothing half written was left there;"
            " free some space or choose another folder, then run the same command again (an audit with --resume)"
        )
    reason = error.strerror or str(error)
    return ImagesError(f"cannot write to {shown(folder)}: {reason}. Choose a folder that you may write to")


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Turn a disk that fills up while results are written into a sentence."""
    try:
        yield
    except OSError as error:
        raise cannot_write(folder.absolute(), error) from error


def make_writable(folder: Path) -> None:
    """Make a folder and try to write there, so that a long run does not end with the news that it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(b"x")
    except OSError as error:
        raise cannot_write(folder, error) from error
