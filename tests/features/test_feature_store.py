"""The file that features are kept in: where it lies, what it refuses, several writers."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from feature_cases import photos, run

from sgoif.features import CacheError, cache_folder
from sgoif.features.store import FeatureStore

WIDTH = 6


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=32).digest()


def rows(numbers: range) -> np.ndarray:
    return np.stack([np.full(WIDTH, number, dtype=np.float16) for number in numbers])


def store(folder: Path) -> FeatureStore:
    return FeatureStore(folder, "digest", 32, WIDTH)


def add(folder: Path, numbers: range) -> None:
    for number in numbers:
        store(folder).append([key(number), key(number + 1000)], rows(range(number, number + 2)))


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"SGOIF_CACHE": "/a/b"}, "/a/b"),
        ({"SGOIF_CACHE": "~/b", "XDG_CACHE_HOME": "/x"}, "/home/me/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/sgoif"),
        ({"XDG_CACHE_HOME": "x"}, "/home/me/.cache/sgoif"),
        ({}, "/home/me/.cache/sgoif"),
    ],
)
def test_where_features_are_kept(variables: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SGOIF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(found)


def test_without_a_home_a_folder_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SGOIF_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(CacheError, match="there is no home folder to keep features in; set SGOIF_CACHE to a folder"):
        cache_folder()


def test_rows_come_back_under_their_keys(tmp_path: Path) -> None:
    store(tmp_path).append([key(n) for n in range(5)], rows(range(5)))
    found = store(tmp_path).read()
    assert isinstance(found.of([key(1), key(2)]), np.memmap)
    assert found.of([key(3), key(1), key(3)])[:, 0].tolist() == [3, 1, 3]
    assert found.of([]).shape == (0, WIDTH)
    assert not found.rows.flags.writeable
    with pytest.raises(CacheError):
        found.of([key(9)])


def test_an_end_cut_short_comes_off_before_the_next_record(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.append([key(0)], rows(range(1)))
    with one.file.open("ab") as file:
        file.write(b"half a record")
    one.append([key(1)], rows(range(1, 2)))
    assert sorted(one.read().where.values()) == [0, 1]
    assert one.read().of([key(1)])[0, 0] == 1


def test_several_processes_write_in_turns(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    parts = [range(start, start + 150) for start in (0, 200, 400)]
    workers = [context.Process(target=add, args=(tmp_path, part)) for part in parts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    found = store(tmp_path).read()
    numbers = [number for part in parts for number in part]
    assert len(found.rows) == len(found.where) == 2 * len(numbers)
    assert found.of([key(number) for number in numbers])[:, 0].tolist() == numbers


def test_a_full_disk_is_a_sentence_and_what_was_kept_stays(tmp_path: Path) -> None:
    store(tmp_path).append([key(n) for n in range(5)], rows(range(5)))
    size = store(tmp_path).file.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 60, before[1]))
    try:
        with pytest.raises(CacheError, match=r"the disk that holds .* is full: free some space.*kept so far is still"):
            store(tmp_path).append([key(n) for n in range(5, 10)], rows(range(5, 10)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store(tmp_path).file.stat().st_size == size
    assert len(store(tmp_path).read().where) == 5


def test_a_folder_that_may_only_be_read_serves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(photos(tmp_path / "in", 20), tmp_path / "cache")
    plain_open = Path.open

    def refused(path: Path, mode: str = "r", *arguments: int, **named: int) -> object:
        if path.is_relative_to(tmp_path / "cache") and mode != "rb":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return plain_open(path, mode, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refused)
    assert run(tmp_path / "in", tmp_path / "cache").array.equal(first.array)
    photos(tmp_path / "in", 21)
    with pytest.raises(
        CacheError, match=r"cannot be kept in .* \(read-only file system\): set SGOIF_CACHE to one that"
    ):
        run(tmp_path / "in", tmp_path / "cache")


def test_a_file_in_place_of_the_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    with pytest.raises(CacheError, match="features cannot be kept in"):
        run(photos(tmp_path / "in", 1), tmp_path / "cache")
