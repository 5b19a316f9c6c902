"""Damaged files: every reader answers with a result or with a documented error, soon and in little memory."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif_bench.faults.damage import INSIDE, damaged
from sgoif_bench.faults.fuzz import LIMIT_BYTES, LIMIT_SECONDS, Bench, fuzz, memory
from sgoif_bench.faults.readers import READERS, Reader

EXAMPLES = 25
FEW = partial(
    settings,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(request.param, tmp_path / "folder")


all_readers = pytest.mark.parametrize("bench", READERS, ids=lambda reader: reader.name, indirect=True)


@all_readers
def test_the_sound_file_is_read(bench: Bench) -> None:
    assert bench.once(bench.sound) is None


@all_readers
def test_damage_gives_a_documented_error_or_none(bench: Bench) -> None:
    before = memory()

    @FEW(max_examples=EXAMPLES)
    @given(seed=st.integers(0, 2**32 - 1))
    def tried(seed: int) -> None:
        start = time.monotonic()
        bench.once(bench.damaged(random.Random(seed)))
        assert time.monotonic() - start < LIMIT_SECONDS

    tried()
    assert memory() - before < LIMIT_BYTES


@all_readers
def test_random_bytes_give_a_documented_error_or_none(bench: Bench) -> None:
    @FEW(max_examples=8)
    @given(content=st.binary(max_size=300))
    def tried(content: bytes) -> None:
        bench.once(content)

    tried()


@pytest.mark.parametrize("shape", INSIDE)
def test_damage_from_within_differs_and_repeats(shape: str, tmp_path: Path) -> None:
    reader = next(reader for reader in READERS if reader.shape == shape)
    sound = Bench(reader, tmp_path / "folder").sound
    made = [INSIDE[shape](sound, random.Random(seed)) for seed in range(30)]
    assert len(set(made)) > 10
    assert sum(content != sound for content in made) > 20
    if shape not in ("zip", "gzip"):  # these note the time
        assert made == [INSIDE[shape](sound, random.Random(seed)) for seed in range(30)]
    assert damaged(sound, "bytes", random.Random(1)) == damaged(sound, "bytes", random.Random(1))


def _write(folder: Path) -> None:
    (folder / "file").write_bytes(bytes(range(200)))


def _brittle(folder: Path) -> None:
    content = (folder / "file").read_bytes()
    if len(content) < 100:
        raise SgoifError("too short")
    if content[:3] != bytes(range(3)):
        raise ZeroDivisionError("as nobody expected")


def test_a_crash_is_noticed_and_its_file_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brittle = Reader("brittle reader", "file", _write, _brittle)
    monkeypatch.setattr("sgoif_bench.faults.fuzz.READERS", [brittle])
    monkeypatch.setattr("sgoif_bench.faults.fuzz.TURN", 1.0)
    found = fuzz(tmp_path / "work", 1.5, 0, tmp_path / "crashes", lambda message: None)
    counts = found["readers"]["brittle reader"]
    assert counts["crashes"][0]["why"] == "ZeroDivisionError: as nobody expected"
    kept = (tmp_path / "crashes" / counts["crashes"][0]["file"]).read_bytes()
    assert kept[:3] != bytes(range(3))
    assert counts["files"] == counts["read"] + sum(counts["errors"].values()) + len(counts["crashes"])
    more = fuzz(tmp_path / "work", 0.5, 0, tmp_path / "crashes", lambda message: None, found)
    assert more["readers"]["brittle reader"]["files"] > counts["files"] - 1
    assert more["seconds"] > found["seconds"]
    assert more["turns"] > found["turns"]
