"""`sgoif trace` on files: tables, page, decisions and messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trace_cases import CLASSES, MODEL, POISON, TARGET, World, read, rows, write

from sgoif.audit.batches import Normalisation
from sgoif.cli import main
from sgoif.tasks import PoisonTrace

Captured = pytest.CaptureFixture[str]
COLUMNS = ["path", "score", "probability", "family", "given_label", "selected"]


def options(world: World) -> list[str]:
    return ["--data", str(world.data), *MODEL, "--weights", str(world.weights)]


def traced(capfd: Captured, *words: str | Path) -> dict[str, Any]:
    capfd.readouterr()
    assert main(["trace", *map(str, words), "--json"]) == 0
    told: dict[str, Any] = json.loads(capfd.readouterr().out)
    return told


def test_victims_lead_to_the_poison_and_to_a_cleaned_copy(world: World, here: Path, capfd: Captured) -> None:
    told = traced(capfd, *options(world), "--victims", world.victims)
    out = here / "sgoif-trace-data"
    assert Path(told["directory"]) == out
    names = ["culprits.csv", "culprits.html", "culprits.parquet", "decisions.csv"]
    assert sorted(path.name for path in out.iterdir()) == names
    table = read(out / "culprits.csv")
    assert list(table[0]) == COLUMNS
    assert len(table) == told["examples"] == len(world.images)
    assert {row["path"] for row in table if row["selected"] == "True"} == world.poison
    assert {row["path"] for row in table[:POISON]} == world.poison
    assert all(row["given_label"] == TARGET for row in table[:POISON])
    assert (told["selected"], told["victims"]) == (POISON, 10)
    assert sum(family["size"] for family in told["families"]) == POISON
    assert told["to_restore"] is None or 1 <= told["to_restore"]["count"] <= 3 * POISON
    parquet = pytest.importorskip("pandas").read_parquet(out / "culprits.parquet")
    assert parquet["path"].tolist() == [row["path"] for row in table]
    decisions = read(out / "decisions.csv")
    assert {row["path"] for row in decisions} == world.poison
    assert {(row["decision"], row["given_label"], row["new_label"]) for row in decisions} == {("drop", TARGET, "")}
    assert main(["apply", str(out / "decisions.csv"), "--to", str(here / "clean")]) == 0
    left = {path.relative_to(here / "clean").as_posix() for path in (here / "clean").rglob("*.png")}
    everything = {path.relative_to(world.data).as_posix() for path in world.data.rglob("*.png")}
    assert left == everything - world.poison
    page = (out / "culprits.html").read_text(encoding="utf-8")
    assert page.count('class="link"') == 10 + len(told["families"])
    assert "victim0.png" in page


def test_the_table_is_what_the_adaptor_says(world: World, here: Path, capfd: Captured) -> None:
    traced(capfd, *options(world), "--victims", world.victims, "--out", "found")
    table = {row["path"]: row for row in read(here / "found" / "culprits.csv")}
    names = sorted(table)
    labels = np.array([CLASSES.index(name.split("/")[0]) for name in names])
    images = world.images[[int(name.split("/")[1][:3]) for name in names]]
    normalise = Normalisation.of(world.images[:, None])
    from PIL import Image

    victims = np.stack([np.array(Image.open(path)) for path in sorted(world.victims.iterdir())])
    trace = PoisonTrace.fit(
        world.model, (normalise(torch.from_numpy(images)[:, None]), torch.from_numpy(labels)), batch_size=256
    )
    found = trace.culprits(normalise(torch.from_numpy(victims)[:, None]))
    for number, name in enumerate(names):
        assert float(table[name]["score"]) == pytest.approx(found.score[number], rel=1e-2, abs=2e-2)
        assert float(table[name]["probability"]) == pytest.approx(found.probability[number], abs=2e-2)


def test_nothing_known_and_one_victim_by_name(world: World, here: Path, capfd: Captured) -> None:
    told = traced(capfd, *options(world), "--out", "a")
    assert told["victims"] is None
    assert told["to_restore"] is None
    assert {row["path"] for row in read(here / "a" / "decisions.csv")} == world.poison
    one = traced(capfd, *options(world), "--victims", world.victims / "victim3.png", "--label", TARGET, "--out", "b")
    assert one["victims"] == 1
    assert {row["path"] for row in read(here / "b" / "decisions.csv")} == world.poison


def test_an_archive_of_victims(world: World, here: Path, capfd: Captured) -> None:
    from PIL import Image

    pictures = np.stack([np.array(Image.open(path)) for path in sorted(world.victims.iterdir())])
    np.savez(here / "victims.npz", x=pictures)
    told = traced(capfd, *options(world), "--victims", "victims.npz", "--out", "c", "--show", "3")
    assert told["victims"] == 10
    assert told["selected"] == POISON
    page = (here / "c" / "culprits.html").read_text(encoding="utf-8")
    assert "3 of 10 victims" in page


def test_ordinary_victims_have_no_culprits(world: World, here: Path, capfd: Captured) -> None:
    for number, image in enumerate(rows(np.zeros(4, dtype=np.int64), 11)):
        write(here / "fine" / f"{number}.png", image)
    told = traced(capfd, *options(world), "--victims", "fine")
    assert told["selected"] == 0
    assert any("nothing stands apart" in note for note in told["notes"])
    decisions = here / "sgoif-trace-data" / "decisions.csv"
    assert read(decisions) == []
    assert main(["apply", str(decisions), "--to", str(here / "copy"), "--source", str(world.data)]) == 2
    assert "holds no decisions" in capfd.readouterr().err
    page = (here / "sgoif-trace-data" / "culprits.html").read_text(encoding="utf-8")
    assert "No training image stands apart" in page
    assert "sgoif apply" not in page


def test_a_terminal_is_told_in_words(world: World, here: Path, capfd: Captured) -> None:
    assert main(["trace", *options(world), "--victims", str(world.victims)]) == 0
    out, err = capfd.readouterr()
    assert f"{POISON} of {len(world.images)} training images stand apart" in out
    assert f"labelled {TARGET}" in out
    assert "sgoif apply" in out
    assert "culprits.html" in err
    assert main(["trace", *options(world), "--victims", str(world.victims), "--label", "high"]) == 0
    out, err = capfd.readouterr()
    assert "Nothing to remove was found" in out
    assert "10 of 10 victims do not get the label" in err


def test_unreadable_files_are_left_out(world: World, here: Path, capfd: Captured) -> None:
    shutil.copytree(world.data, here / "data")
    (here / "data" / "high" / "broken.png").write_bytes(b"no image")
    shutil.copytree(world.victims, here / "victims")
    (here / "victims" / "broken.png").write_bytes(b"none either")
    told = traced(capfd, "--data", "data", *MODEL, "--weights", world.weights, "--victims", "victims")
    assert told["examples"] == len(world.images)
    assert told["selected"] == POISON
    assert any("1 victim could not be read" in note for note in told["notes"])
    assert any("1 files could not be read" in note for note in told["notes"])


def test_outputs_in_another_order(world: World, here: Path, capfd: Captured) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(world.weights)
    swapped = torch.tensor([2, 0, 1])
    head = sorted(key for key in state if key.startswith("3."))
    for key in head:
        state[key] = state[key][swapped].contiguous()
    save_file(state, here / "swapped.safetensors")
    (here / "names.txt").write_text("\n".join(CLASSES[number] for number in swapped) + "\n")
    words = ["--data", str(world.data), *MODEL, "--weights", "swapped.safetensors", "--classes", "names.txt"]
    told = traced(capfd, *words, "--victims", world.victims)
    assert told["selected"] == POISON
    assert {family["label"] for family in told["families"]} == {TARGET}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to trace in"),
        (["no-run"], "not a run directory"),
        (["--data", "DATA"], "there is no model"),
        (["--data", "DATA", "--model", "trace_nets:small", "--label", "low"], "give them with --victims"),
        (["RUN", "--weights", "W"], "leave away --weights"),
        (["RUN", "--limit", "5", "--layout", "folder"], "--limit, --layout say how --data is read"),
        (["--data", "DATA", *MODEL, "--weights", "gone.safetensors"], "no such file"),
        (["--data", "DATA", *MODEL, "--weights", "W", "--victims", "gone"], "does not exist"),
        (["--data", "DATA", *MODEL, "--weights", "W", "--victims", "V", "--label", "lowe"], "did you mean 'low'"),
        (["--data", "DATA", *MODEL, "--weights", "W", "--show", "0"], "--show 0"),
        (["--data", "DATA", *MODEL, "--weights", "W", "--mean", "0.5"], "go together"),
        (["--data", "DATA", *MODEL, "--weights", "W", "--mean", "2", "--spread", "1"], "--mean"),
        (["--data", "DATA", *MODEL, "--weights", "W", "--image-size", "2"], "--image-size"),
        (["--data", "DATA", *MODEL, "--weights", "W", "--classes", "7"], "which of the model's outputs"),
        (["--data", "DATA", *MODEL, "--weights", "W", "--device", "tpu"], "--device"),
    ],
)
def test_mistakes_end_in_one_sentence(
    world: World, here: Path, capfd: Captured, words: list[str], message: str
) -> None:
    places = {"DATA": str(world.data), "W": str(world.weights), "V": str(world.victims), "RUN": "run"}
    assert main(["trace", *(places.get(word, word) for word in words)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert list(here.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_noticed_before_the_work(world: World, here: Path, capfd: Captured) -> None:
    (here / "taken").write_text("a file")
    assert main(["trace", *options(world), "--out", "taken"]) == 2
    assert "cannot write" in capfd.readouterr().err


def test_names_of_files_are_kept_as_they_are(world: World, here: Path, capfd: Captured) -> None:
    shutil.copytree(world.data, here / "data")
    odd = "=1+1 <b>&.png"
    source = here / "data" / sorted(world.poison)[0]
    source.rename(source.with_name(odd))
    traced(capfd, "--data", "data", *MODEL, "--weights", world.weights, "--victims", world.victims)
    rows_read = read(here / "sgoif-trace-data" / "decisions.csv")
    assert f"{TARGET}/{odd}" in {row["path"] for row in rows_read}
    page = (here / "sgoif-trace-data" / "culprits.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;.png" in page
    assert "<b>&.png" not in page
    assert (
        main(["apply", str(here / "sgoif-trace-data" / "decisions.csv"), "--to", str(here / "clean"), "--dry-run"]) == 0
    )
