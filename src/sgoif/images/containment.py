"""Files of a folder that may come from somebody else: no link is followed out of it."""

from pathlib import Path

from sgoif.images.text import shown


def contained(folder: Path, name: str) -> Path:
    """The path of an entry of a folder, links followed.

    Raises `FileNotFoundError` where there is none, and `ValueError` where a link leads out of the folder.
    """
    try:
        path = (folder / name).resolve(strict=True)
    except RuntimeError as error:  # how Python before 3.13 reports a link to itself
        raise ValueError(f"{shown(name)} is a link that leads to itself") from error
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{shown(name)} is a link out of the folder and is not followed; put a copy in its place")
    return path


def contained_file(folder: Path, name: str) -> Path:
    """The path of a file of a folder; `ValueError` also for a pipe, which would keep its reader waiting for ever."""
    path = contained(folder, name)
    if not path.is_file():
        raise ValueError(f"{shown(name)} is not a file")
    return path
