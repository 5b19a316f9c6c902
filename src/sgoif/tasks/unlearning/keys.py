"""The key that proves who wrote a log: 32 random bytes in a file of the user's own, outside the folder of the log,
where it would be copied, backed up and handed on with it.
"""

import os
import secrets
import stat
from pathlib import Path

from sgoif.core.serialization import flush_folder
from sgoif.errors import SettingError

LEAST_KEY = 32
"""Bytes."""
OTHERS = stat.S_IWGRP | stat.S_IRWXO
"""Rights that make a key file worthless; that a group can read it is left to those who share a log."""
LARGE = 4096


def default_key_file() -> Path:
    """Where the key is unless somebody says otherwise: in the user's own configuration directory."""
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        folder = named if named.is_absolute() else Path.home() / ".config"
    except RuntimeError as error:
        raise SettingError(
            "there is no home folder to keep a key in; give a key file of your own: --key FILE"
        ) from error
    return folder / "sgoif" / "unlearning.key"


def own_key_file() -> Path | None:
    """The same where there is one."""
    try:
        own = default_key_file()
    except SettingError:
        return None
    return own if own.exists() else None


def open_key(path: str | os.PathLike[str] | None = None, *, make: bool = False) -> bytes:
    """The key in a file, by default in the user's own; `make` writes a new one where there is none."""
    place = default_key_file() if path is None else Path(path)
    if make and not os.path.lexists(place):
        _make(place)
    return _read(place)


def check_apart(key_file: Path, *files: Path) -> None:
    """Raise where a key lies in the folder of a state or a log, or below it."""
    if key_file.resolve() == default_key_file().resolve():
        return  # a home folder is not handed on with a run, even where somebody works right in it
    for file in files:
        folder = file.resolve().parent
        if key_file.resolve().is_relative_to(folder):
            raise SettingError(
                f"--key {key_file} lies in the folder of {file}: whoever gets that folder could forge the log. Keep the"
                " key elsewhere"
            )


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        if path.is_file():
            return  # another process was faster
        why = (error.strerror or str(error)).lower()
        raise SettingError(
            f"the key file {path} cannot be written ({why}); give one elsewhere: --key FILE, or in Python"
            " open_key(FILE, make=True)"
        ) from error
    with open(file, "w", encoding="ascii") as writing:
        writing.write(secrets.token_hex(LEAST_KEY) + "\n")
        writing.flush()
        os.fsync(writing.fileno())
    flush_folder(path.parent)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(LARGE)
    except FileNotFoundError as error:
        raise SettingError(
            f"there is no key file {path}; give the one that the log was begun with: --key FILE"
        ) from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SettingError(f"the key file {path} cannot be read ({why})") from error
    if os.name == "posix" and mode & OTHERS:
        raise SettingError(
            f"the key file {path} is open to others (mode {stat.S_IMODE(mode):o}), who could forge the log; close it:"
            f" chmod 600 {path}"
        )
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) < LEAST_KEY:
        raise SettingError(
            f"{path} is not a key file: expected at least {2 * LEAST_KEY} hexadecimal digits, as `sgoif unlearn init`"
            " writes them"
        )
    return key
