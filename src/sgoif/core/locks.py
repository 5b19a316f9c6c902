"""Locks on open files, held until the file is closed or the process ends, however it ends."""

import errno

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""What a file system without locks answers."""


def lock(file: int) -> str | None:
    """Lock an open file; the reason where its file system has no locks, None where it is locked.

    Raises `BlockingIOError` where another process holds the lock, and other `OSError` where something else went wrong.
    Nothing is locked on Windows.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return (error.strerror or str(error)).lower()
        raise
    return None
