"""A data set becomes a folder, and what an audit says of its files is compared with the truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sgoif.audit.choice import CHOICE
from sgoif.core.serialization import save_state
from sgoif.errors import SgoifError
from sgoif_bench.audits.folders import write_folder
from sgoif_bench.audits.left import read_left
from sgoif_bench.pretrained.sets import originals, read

image = pytest.importorskip("PIL.Image")
HEAD = "path,is_label_issue,probability_wrong"


def test_pixels_and_labels_stand_in_the_folder(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (20, 3, 8, 9), dtype=torch.uint8)
    labels = np.arange(20) % 3
    numbers = write_folder(tmp_path / "a", labels, 0, images, None)
    assert sorted(numbers) == list(range(20))
    assert list(numbers) != list(range(20))
    assert sum(1 for _ in tmp_path.rglob("*.png")) == 20
    for row in range(20):
        with image.open(tmp_path / "a" / f"{labels[row]:03d}" / f"{numbers[row]:06d}.png") as found:
            assert np.array_equal(np.asarray(found), images[row].permute(1, 2, 0).numpy())
    grey = images[:, :1]
    write_folder(tmp_path / "b", labels, 0, grey, None)
    with image.open(tmp_path / "b" / "000" / f"{numbers[0]:06d}.png") as found:
        assert np.array_equal(np.asarray(found), grey[0, 0].numpy())
    assert np.array_equal(write_folder(tmp_path / "c", labels, 0, grey, None), numbers)


def test_photos_keep_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        file = tmp_path / "photos" / ("glass", "metal")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((30, 20 + number, 3), 20 * number, dtype=np.uint8)).save(file)
    data = read("photos", str(tmp_path), 16, 5, lambda message: None)
    files = originals("photos", str(tmp_path), data.rows)
    assert files is not None
    assert [("glass", "metal").index(file.parent.name) for file in files] == data.labels.tolist()
    assert originals("digits", str(tmp_path), data.rows) is None
    assert originals("textures", str(tmp_path), data.rows) is None
    given = (data.labels + 1) % 2
    for folder in ("linked", "copied"):
        numbers = write_folder(tmp_path / folder, given, 1, data.images, files)
        for row, file in enumerate(files):
            written = tmp_path / folder / f"{given[row]:03d}" / f"{numbers[row]:06d}.jpg"
            assert written.read_bytes() == file.read_bytes()
        monkeypatch.setattr("os.link", no_link)


def no_link(source: Path, target: Path) -> None:
    raise OSError(18, "Invalid cross-device link")


def left(folder: Path, *rows: str) -> Path:
    (folder / "issues.csv").write_text("\n".join([HEAD, *rows]) + "\n", encoding="utf-8")
    summary = {"classes": 2, "skipped": 1, "noise_rate": {"estimate": 0.3}, "plan": {"model": "net"}, "stopped": "done"}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def test_the_order_of_the_table_is_the_ranking(tmp_path: Path) -> None:
    rows = [
        "001/000003.png,True,0.9",
        "000/000000.png,True,0.5",
        "000/000004.png,False,0.5",
        "001/000001.png,False,0.1",
    ]
    is_wrong = np.array([False, False, True, True, True])  # the third could not be read
    found = read_left(left(tmp_path, *rows), is_wrong)
    assert (found["examples"], found["wrong"], found["skipped"], found["classes"]) == (4, 2, 1, 2)
    assert found["metrics"] == {"aupr": pytest.approx((1 + 2 / 3) / 2), "auroc": 0.75, "p_at_100": 0.5}
    assert found["list"] == {"number": 2, "wrong_found": 0.5, "right_in_it": 0.5}
    assert (found["chosen"], found["agreement"], found["network"]) == (None, None, "net")
    save_state(tmp_path / CHOICE, {"method": "frozen", "agreement": {"frozen": 0.8, "scratch": 0.7}})
    found = read_left(tmp_path, is_wrong)
    assert (found["chosen"], found["agreement"]) == ("frozen", {"frozen": 0.8, "scratch": 0.7})


def test_an_empty_list_has_no_share_of_right_ones_and_a_table_in_disorder_is_refused(tmp_path: Path) -> None:
    found = read_left(left(tmp_path, "0/0.png,False,0.2", "0/1.png,False,0.1"), np.array([True, False]))
    assert found["list"] == {"number": 0, "wrong_found": 0.0, "right_in_it": None}
    with pytest.raises(SgoifError, match="most suspicious"):
        read_left(left(tmp_path, "0/0.png,False,0.1", "0/1.png,False,0.2"), np.array([True, False]))
