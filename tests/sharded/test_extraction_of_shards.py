"""Features of shards: those of the images, whoever computes them and however often that is interrupted."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from backbone_cases import NAME, filters, offer
from PIL import Image
from shard_cases import command, finished, make_shards, pairs, picture, tables, tar

from sgoif.cli import main
from sgoif.sharded import extract_shards


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)


def features(shards: str, out: Path, *options: str) -> list[str]:
    return ["features", shards, "--out", str(out), "--backbone", NAME, "--device", "cpu", *options]


def test_rows_are_what_the_network_makes_of_the_images(alone: Any) -> None:
    rows = [row for table in tables(alone.features).values() for row in table]
    assert sorted(row["key"] for row in rows) == [f"train/{number:05}" for number in range(240)]
    assert json.loads((alone.features / "features.json").read_text())["width"] == 144
    backbone = filters()
    for row in rows[::60]:
        number = int(row["key"][-5:])
        image = np.asarray(Image.open(io.BytesIO(picture(number, number % 3))).convert("RGB")).copy()
        expected = backbone.features(torch.from_numpy(image).permute(2, 0, 1)[None])[0].half()
        assert torch.allclose(torch.tensor(row["features"], dtype=torch.float16), expected, atol=2e-3)
        assert row["shard"] == f"part-{number // 60:03}.tar"


def test_two_processes_write_the_same_files_as_one(alone: Any, tmp_path: Path) -> None:
    told = finished(*(command(*features(alone.shards, tmp_path, "--json"), rank=rank) for rank in (0, 1)))
    assert [json.loads(out)["shards"] for out, _ in told] == [2, 2]
    assert tables(tmp_path) == tables(alone.features)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_a_run_that_was_killed_goes_on(alone: Any, tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", 3)
    last = tmp_path / "shards" / "part-002.tar"
    content = last.read_bytes()
    last.unlink()
    os.mkfifo(last)  # nobody writes to it, so the run stands still when it has come so far
    out = tmp_path / "out"
    process = command(*features(shards, out))
    until = time.monotonic() + 60
    while not list(out.glob(".part-002*")) and time.monotonic() < until:
        time.sleep(0.02)
    assert len(list(out.glob("*.parquet"))) == 2
    process.kill()
    process.wait()
    last.unlink()
    last.write_bytes(content)
    next(out.glob("part-000*.parquet")).write_bytes(b"PAR1 cut off")
    done = extract_shards([shards], out, NAME)
    assert (done.shards, done.before, done.images) == (3, 1, 120)
    assert list(tables(out).values()) == list(tables(alone.features).values())[:3]


def test_what_cannot_be_read_is_named_and_stops_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damaged = tar([*pairs(0, 4), ("bad.jpg", b"no image"), ("bad.cls", b"1"), ("alone.cls", b"2")])
    (tmp_path / "0.tar").write_bytes(damaged)
    (tmp_path / "1.tar").write_bytes(damaged[: damaged.index(b"alone.cls") - 512])
    (tmp_path / "3.tar").write_bytes(tar([]))
    code = main(features(f"{tmp_path}/{{0..3}}.tar", tmp_path / "out", "--json"))
    printed, messages = capfd.readouterr()
    found = json.loads(printed)
    assert code == 2
    assert "2.tar' was left out: " in messages
    assert "no such file" in messages
    assert (found["images"], found["left_out"], found["shards"], len(found["failed"])) == (8, 4, 4, 1)
    first, second, empty = tables(tmp_path / "out").values()
    assert [(row["key"], row["problem"]) for row in first[4:]] == [
        ("bad", "not an image in a known format"),
        ("alone", "it has no image"),
    ]
    assert [row["features"] for row in first[4:]] == [None, None]
    assert "damaged" in second[-1]["problem"]
    assert empty == []


def test_addresses_of_fsspec(alone: Any, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for number in range(4):
        address = alone.shards.replace("{000..003}", f"{number:03}")
        memory.pipe(f"/photos/part-{number:03}.tar", Path(address).read_bytes())
    assert extract_shards(["memory://photos/part-{000..003}.tar"], tmp_path, NAME).images == 240
    assert sorted(map(str, tables(tmp_path).values())) == sorted(map(str, tables(alone.features).values()))


def test_features_of_two_networks_are_not_mixed(alone: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer(monkeypatch, seed=1)
    with pytest.raises(ValueError, match=r"holds features by 'timm:filters at 24 pixels'.*choose another folder"):
        extract_shards([alone.shards], alone.features, NAME)
    (tmp_path / "mine.parquet").touch()
    with pytest.raises(ValueError, match="Parquet files of others"):
        extract_shards([alone.shards], tmp_path, NAME)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]


def test_pyarrow_is_asked_for_by_name(alone: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"'sgoif\[tables\]'"):
        extract_shards([alone.shards], tmp_path, NAME)
