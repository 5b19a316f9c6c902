"""`sgoif sentinel score`: tables, page and messages."""

from __future__ import annotations

import csv
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentinel_cases import CLASSES, OWN, World, columns, rows, trained, write

from sgoif.cli import main
from sgoif.core.score_table import from_cell
from sgoif.tasks import Sentinel

Captured = pytest.CaptureFixture[str]
COLUMNS = ["path", "index", "score", "p_value", "is_strange", "predicted_label"]


def scored(capfd: Captured, world: World, *words: str | Path) -> dict[str, Any]:
    capfd.readouterr()
    assert main(["sentinel", "score", *map(str, words), *OWN, "--sentinel", str(world.sentinel), "--json"]) == 0
    told: dict[str, Any] = json.loads(capfd.readouterr().out)
    return told


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        found = [{key: from_cell(value) for key, value in row.items()} for row in reader]
    assert reader.fieldnames == COLUMNS
    return found


@pytest.fixture
def mixed(here: Path) -> Path:
    """Thirty pictures that belong and ten that do not, at two depths, and two files that are none."""
    for number, image in enumerate(rows(30, 5)[0]):
        write(here / "mixed" / f"row{number}.png", image)
    for number, image in enumerate(columns(10)):
        write(here / "mixed" / "deep" / "er" / f"column{number}.png", image)
    (here / "mixed" / "broken.png").write_bytes(b"no image")
    (here / "mixed" / "empty.jpg").touch()
    return here / "mixed"


def test_the_table_is_what_the_sentinel_says(world: World, mixed: Path, here: Path, capfd: Captured) -> None:
    told = scored(capfd, world, "mixed")
    out = here / "sgoif-scores-mixed"
    assert Path(told["directory"]) == out
    assert sorted(p.name for p in out.iterdir()) == ["scores.csv", "scores.parquet", "skipped.csv", "strangest.html"]
    table = read(out / "scores.csv")
    model = trained(world.normalise)
    sentinel = Sentinel.load(world.sentinel, model)
    images = np.concatenate([columns(10), rows(30, 5)[0]])
    names = [f"deep/er/column{n}.png" for n in range(10)] + [f"row{n}.png" for n in range(30)]
    x = world.normalise(torch.from_numpy(images)[:, None])
    scores, p, answers = sentinel.score(x), sentinel.p_value(x), model(x).argmax(1)
    by_name = {row["path"]: row for row in table}
    assert set(by_name) == set(names)
    for number, name in enumerate(names):
        row = by_name[name]
        assert float(row["score"]) == pytest.approx(float(scores[number]), rel=1e-4)
        assert float(row["p_value"]) == pytest.approx(float(p[number]))
        assert row["is_strange"] == str(bool(p[number] <= 0.05))
        assert row["predicted_label"] == CLASSES[int(answers[number])]
    order = [float(row["score"]) for row in table]
    assert order == sorted(order, reverse=True)
    assert {row["path"].split("/")[0] for row in table[:10]} == {"deep"}
    assert (told["images"], told["skipped"], told["calibration"]) == (40, 2, 150)
    assert told["strange"] == sum(row["is_strange"] == "True" for row in table)
    assert told["smallest_p_value"] == pytest.approx(1 / 151)
    assert [row["path"] for row in told["strangest"]] == [row["path"] for row in table[:10]]
    pandas = pytest.importorskip("pandas")
    parquet = pandas.read_parquet(out / "scores.parquet")
    assert list(parquet.columns) == COLUMNS
    assert parquet["score"].tolist() == pytest.approx(order)
    assert parquet["path"].tolist() == [row["path"] for row in table]


def test_what_cannot_be_read_is_named_and_left_out(world: World, mixed: Path, here: Path, capfd: Captured) -> None:
    assert main(["sentinel", "score", "mixed", *OWN, "--sentinel", str(world.sentinel), "--out", "out"]) == 0
    streams = capfd.readouterr()
    assert "left out 'broken.png': not an image" in streams.err
    assert "left out 'empty.jpg': the file is empty" in streams.err
    assert "of 40 images are strange" in " ".join(streams.out.split())
    assert "strangest.html" in streams.err
    with (here / "out" / "skipped.csv").open(newline="", encoding="utf-8") as handle:
        assert [row[0] for row in csv.reader(handle)] == ["name", "broken.png", "empty.jpg"]


def test_an_archive_without_labels_gets_the_same_scores(world: World, mixed: Path, here: Path, capfd: Captured) -> None:
    scored(capfd, world, "mixed", "--out", "folder")
    np.savez(here / "images.npz", x=rows(30, 5)[0])
    scored(capfd, world, "images.npz", "--out", "archive", "--batch-size", "7")
    folder = {row["path"]: float(row["score"]) for row in read(here / "folder" / "scores.csv")}
    for row in read(here / "archive" / "scores.csv"):
        assert row["path"] == row["index"]
        assert float(row["score"]) == pytest.approx(folder[f"row{row['index']}.png"], rel=1e-4)


def test_one_image_and_one_in_colour(world: World, here: Path, capfd: Captured) -> None:
    image = columns(1)[0]
    write(here / "grey.png", image)
    write(here / "rgb.png", np.stack([image] * 3, -1))
    results = [scored(capfd, world, name)["strangest"][0]["score"] for name in ("grey.png", "rgb.png")]
    assert results[0] == pytest.approx(results[1])


def test_the_share_of_false_alarms_is_kept_on_new_images(world: World, here: Path, capfd: Captured) -> None:
    np.savez(here / "fresh.npz", x=rows(600, 6)[0])
    told = scored(capfd, world, "fresh.npz", "--false-alarms", "0.1")
    assert told["strange"] < 0.2 * told["images"]  # 0.1, and four standard errors of a calibration of 150
    np.savez(here / "odd.npz", x=columns(100))
    assert scored(capfd, world, "odd.npz")["strange"] > 80


def test_a_share_that_the_calibration_cannot_tell_is_explained(world: World, here: Path, capfd: Captured) -> None:
    np.savez(here / "odd.npz", x=columns(5))
    told = scored(capfd, world, "odd.npz", "--false-alarms", "0.001")
    assert told["strange"] == 0
    page = Path(told["page"]).read_text()
    assert "nothing can be called strange" in page


def test_the_page_shows_the_strangest_and_no_more_than_asked(
    world: World, mixed: Path, here: Path, capfd: Captured
) -> None:
    told = scored(capfd, world, "mixed", "--show", "12")
    page = Path(told["page"]).read_text()
    assert page.count('<article class="card">') == 12
    assert page.count("data:image/") == 12
    names = [row["path"] for row in told["strangest"]]
    assert [page.index(f">{name}<") for name in names] == sorted(page.index(f">{name}<") for name in names)
    assert "<script" not in page


def test_names_cannot_speak_to_the_terminal(world: World, here: Path, capfd: Captured) -> None:
    write(here / "data" / "\x1b[31mred [bold]x[/].png", columns(1)[0])
    write(here / "data" / "=SUM(A1).png", columns(1)[0])
    assert main(["sentinel", "score", "data", *OWN, "--sentinel", str(world.sentinel)]) == 0
    streams = capfd.readouterr()
    assert "\x1b[31m" not in streams.out + streams.err
    assert "[bold]x[/]" in streams.out
    assert "'=SUM(A1).png" in (here / "sgoif-scores-data" / "scores.csv").read_text()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    world: World, mixed: Path, number: int, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("sgoif.images.errors.tempfile.TemporaryFile", refuse)
    assert main(["sentinel", "score", "mixed", *OWN, "--sentinel", str(world.sentinel), "--out", "closed"]) == 2
    streams = capfd.readouterr()
    assert "closed" in streams.err
    assert "scoring" not in streams.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "does not exist"),
        (["empty"], "holds no image"),
        (["broken"], "none of the 1 images"),
        (["good", "--sentinel", "none.npz"], "no such file"),
        (["good", "--sentinel", "note.txt"], "not a sentinel or is damaged"),
        (["good", "--sentinel", "cut.npz"], "not a sentinel or is damaged"),
        (["good", "--sentinel", "other.npz"], "not a sentinel or is damaged"),
        (["good", "--sentinel", "python.npz"], "saved from Python"),
        (["good", "--sentinel", "good"], "is a folder"),
        (["good", "--weights", "note.txt"], "not a safetensors file"),
        (["good", "--model", "no_module_of_this_name:make"], "cannot be imported"),
        (["good", "--false-alarms", "1"], "--false-alarms 1"),
        (["good", "--show", "0"], "--show 0"),
        (["good", "--out", "note.txt"], "cannot write"),
        (["good", "--layout", "cifar"], "cifar"),
    ],
)
def test_mistakes_get_a_sentence_and_exit_code_2(
    words: list[str], message: str, world: World, here: Path, capfd: Captured
) -> None:
    (here / "empty").mkdir()
    (here / "broken").mkdir()
    (here / "broken" / "x.png").write_bytes(b"no image")
    (here / "note.txt").write_text("hello")
    write(here / "good" / "x.png", columns(1)[0])
    (here / "cut.npz").write_bytes(world.sentinel.read_bytes()[:900])
    np.savez(here / "other.npz", x=columns(3))
    Sentinel.load(world.sentinel, trained(world.normalise)).save(here / "python.npz")
    given = [] if "--sentinel" in words else [*OWN, "--sentinel", str(world.sentinel)]
    assert main(["sentinel", "score", *given, *words]) == 2
    streams = capfd.readouterr()
    assert message in streams.err
    assert "Traceback" not in streams.err
    assert streams.out == ""
