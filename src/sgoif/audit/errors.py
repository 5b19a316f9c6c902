"""What can go wrong in an audit, beside the mistakes that the parts below report themselves."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sgoif.errors import SgoifError
from sgoif.images.errors import FULL


class AuditError(SgoifError, RuntimeError):
    """The data cannot be audited, or the run cannot go on."""


class RunDirectoryError(SgoifError, RuntimeError):
    """The run directory is occupied, in use, belongs to another run, or cannot be written."""


class AuditInterrupted(KeyboardInterrupt):
    """The audit was asked to stop; the text says what was saved and how to go on."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


@contextmanager
def explained_writes(folder: Path, kept: str) -> Iterator[None]:
    """Turn a full or read-only disk into a sentence; `kept` says what is still there."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            cause, cure = "the disk is full", "free some space"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            cause, cure = "the folder cannot be written", "give it write permission"
        else:
            raise
        raise RunDirectoryError(f"{folder}: {cause}. {kept} To go on, {cure} and run again with --resume") from error
