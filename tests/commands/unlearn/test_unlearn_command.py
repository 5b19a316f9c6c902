"""`sgoif unlearn`: requests, plans, removals and logs from the command line."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from unlearn_cases import COUNT, Captured, told, write_features

from sgoif.cli import main
from sgoif.tasks import Unlearner
from sgoif.tasks.unlearning.log import read_log


def test_from_features_to_a_checked_removal(here: Path, capfd: Captured) -> None:
    opened = told(capfd, "init", "--features", "f.npz", "--device", "cpu")
    assert (opened["examples"], opened["deleted"]) == (COUNT, 0)
    assert opened["log_head"] == read_log("unlearning.jsonl")[-1].hash
    first = told(capfd, "request", "img/3.png", "--reason", "a letter")
    assert (first["number"], first["ids"], first["reason"]) == (1, ["img/3.png"], "a letter")
    (here / "ids.txt").write_text("img/10.png\n\nimg/11.png\n")
    second = told(capfd, "request", "img/12.png", "--from", "ids.txt")
    assert second["ids"] == ["img/12.png", "img/10.png", "img/11.png"]
    plan = told(capfd, "plan")
    assert sorted(entry["number"] for entry in plan["pending"]) == [1, 2]
    urgencies = [entry["urgency"] for entry in plan["pending"]]
    assert urgencies == sorted(urgencies, reverse=True)

    removal = told(capfd, "remove", "--request", "2")
    assert (removal["requests"], removal["holds"]) == ([2], True)
    assert told(capfd, "remove")["requests"] == [1]
    check = told(capfd, "check")
    assert check["holds"]
    assert check["closed"] > 0.8
    assert told(capfd, "plan")["deleted"] == 4
    verified = told(capfd, "verify", "--expect", first["log_head"])
    assert verified["intact"]
    assert verified["expected_at"] == 3
    assert verified["head"] == check["log_head"]

    told(capfd, "head", "--out", "head.npz")
    with np.load("head.npz", allow_pickle=False) as arrays:
        head = Unlearner.load("unlearning.npz").head()
        np.testing.assert_array_equal(arrays["weight"], head.weight.numpy())
        assert arrays["bias"].shape == (3,)


def test_the_same_is_found_as_in_python(begun: Path, capfd: Captured) -> None:
    with np.load("f.npz") as arrays:
        unlearner = Unlearner.from_features(
            arrays["features"],
            arrays["labels"],
            arrays["ids"].tolist(),
            held_out=(arrays["held_features"], arrays["held_labels"]),
            log=None,
        )
    expected = unlearner.request(["img/7.png", "img/8.png"])
    assert told(capfd, "request", "img/7.png", "img/8.png")["effect"] == asdict(expected.effect)


def test_what_a_person_sees(begun: Path, capfd: Captured) -> None:
    many = [f"img/{number}.png" for number in range(40, 60)]
    assert main(["unlearn", "request", "img/1.png"]) == 0
    assert main(["unlearn", "request", *many]) == 0
    shown = capfd.readouterr().out
    assert "request 1, 1 example: CAN WAIT" in shown
    assert "request 2, 20 examples: RETRAIN NOW" in shown
    assert "it deletes 20 examples of 120" in shown
    assert main(["unlearn", "plan"]) == 0
    shown = capfd.readouterr().out
    assert shown.index("request 2:") < shown.index("request 1:")
    assert main(["unlearn", "remove"]) == 0
    assert "Certificate: the head is within" in capfd.readouterr().out
    assert main(["unlearn", "plan"]) == 0
    shown = capfd.readouterr().out
    assert "waiting for the network to be trained again" in shown
    assert main(["unlearn", "verify"]) == 0
    shown = capfd.readouterr().out
    assert "sound: 6 entries, head " in shown
    assert "--expect" in shown


def test_help_names_the_shapes_of_arrays(capfd: Captured) -> None:
    assert main(["unlearn", "init", "--help"]) == 0
    assert "features (n × D)" in " ".join(capfd.readouterr().out.replace("│", " ").split())


def test_nothing_waits(begun: Path, capfd: Captured) -> None:
    assert main(["unlearn", "plan"]) == 0
    assert "nothing is waiting" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["request", "nobody"], "no example is called 'nobody'"),
        (["request", "img/1.png"], "asked for before, in request 1, which is pending"),
        (["request"], "no example is named"),
        (["request", "--from", "none.txt"], "--from none.txt cannot be read"),
        (["request", "img/2.png", "--state", "none.npz"], "make one with `sgoif unlearn init`"),
        (["request", "img/2.png", "--state", "f.npz"], "not the state of an unlearner"),
        (["request", "img/2.png", "--device", "abacus"], "--device abacus"),
        (["request", "img/2.png", "--log", "none.jsonl"], "is gone"),
        (["remove", "--request", "9"], "no pending request 9"),
        (["verify", "none.jsonl"], "there is no log none.jsonl"),
        (["head", "--out", "unlearning.npz"], "cannot be written"),
        (["head", "--out", "head.safetensors"], "a numpy archive is written"),
        (["init", "--features", "f.npz"], "requests that must not be lost"),
        (["init", "--features", "f.npz", "--state", "s.npz"], "the log unlearning.jsonl exists"),
        (["init"], "give either RUN"),
        (["init", "run", "--features", "f.npz"], "give either RUN"),
        (["init", "nowhere", "--state", "s.npz", "--log", "l"], "not a run directory"),
        (["init", "--features", "none.npz", "--state", "s.npz", "--log", "l"], "no such file"),
        (["init", "--features", "unlearning.jsonl", "--state", "s.npz", "--log", "l"], "not an .npz archive"),
        (["init", "--features", "f.npz", "--state", "s.npz", "--log", "s.npz"], "the same file"),
        (["init", "--features", "f.npz", "--state", "s.npz", "--log", "l", "--l2", "0"], "l2=0.0"),
        (["init", "--features", "f.npz", "--state", "s.npz", "--log", "l", "--max-flips", "-1"], "flips=-1"),
        (["init", "--features", "f.npz", "--state", "s.npz", "--log", "l", "--batch-size", "0"], "--batch-size 0"),
    ],
)
def test_mistakes_get_a_sentence_and_exit_code_2(begun: Path, words: list[str], message: str, capfd: Captured) -> None:
    assert main(["unlearn", "request", "img/1.png"]) == 0
    before = sorted(path.name for path in begun.iterdir())
    capfd.readouterr()
    assert main(["unlearn", *words]) == 2
    streams = capfd.readouterr()
    assert message in streams.err
    assert streams.err.count("sgoif:") == 1
    assert "Traceback" not in streams.err
    assert streams.out == ""
    assert sorted(path.name for path in begun.iterdir()) == before
    assert main(["unlearn", "request", "img/4.png"]) == 0  # nothing was lost


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": None}, "has no array features or x"),
        ({"labels": None}, "has no array labels or y"),
        ({"held_labels": None}, "go together"),
        ({"ids": np.zeros((COUNT, 2))}, "ids must be a list"),
        ({"labels": np.array(["a"] * COUNT)}, "labels must be numbers"),
        ({"ids": np.array([object()] * COUNT)}, "not of objects"),
        ({"ids": np.array(["a"] * COUNT)}, "unique"),
    ],
)
def test_archives_that_do_not_fit(here: Path, changes: dict[str, Any], message: str, capfd: Captured) -> None:
    write_features(here / "f.npz", **changes)
    assert main(["unlearn", "init", "--features", "f.npz"]) == 2
    assert message in capfd.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["f.npz"]


def test_other_names_of_arrays_and_no_held_out_examples(here: Path, capfd: Captured) -> None:
    with np.load("f.npz") as arrays:
        np.savez("g.npz", x=arrays["features"], y=arrays["labels"])
    assert main(["unlearn", "init", "--features", "g.npz"]) == 0
    streams = capfd.readouterr()
    assert "no held-out examples" in streams.err
    assert "training examples" in streams.out
    assert main(["unlearn", "request", "0", "17"]) == 0


class TestLog:
    def test_a_tampered_log(self, begun: Path, capfd: Captured) -> None:
        assert main(["unlearn", "request", "img/1.png"]) == 0
        log = begun / "unlearning.jsonl"
        log.write_text(log.read_text().replace("img/1.png", "img/2.png"))
        capfd.readouterr()
        assert main(["unlearn", "verify"]) == 3
        assert "BROKEN: line 2 (entry 2, request) was changed after it was written" in capfd.readouterr().out
        assert main(["unlearn", "verify", "--json"]) == 3
        found = json.loads(capfd.readouterr().out)
        assert (found["intact"], found["line"], found["entries"]) == (False, 2, 1)
        state = (begun / "unlearning.npz").read_bytes()
        assert main(["unlearn", "request", "img/9.png"]) == 2
        assert "cannot be trusted: line 2" in capfd.readouterr().err
        assert (begun / "unlearning.npz").read_bytes() == state

    def test_a_log_that_was_cut_off(self, begun: Path, capfd: Captured) -> None:
        noted = told(capfd, "request", "img/1.png")["log_head"]
        log = begun / "unlearning.jsonl"
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
        assert main(["unlearn", "verify", "--expect", noted]) == 3
        assert "cut off" in capfd.readouterr().out
        assert main(["unlearn", "plan"]) == 2
        assert "its end was cut off" in capfd.readouterr().err

    def test_a_log_of_another_state(self, begun: Path, capfd: Captured) -> None:
        write_features(begun / "g.npz", seed=1)
        assert main(["unlearn", "init", "--features", "g.npz", "--state", "s.npz", "--log", "other.jsonl"]) == 0
        assert main(["unlearn", "request", "img/1.png", "--log", "other.jsonl"]) == 2
        assert "does not belong to the state" in capfd.readouterr().err

    def test_a_refusal_is_in_the_log_and_the_state_knows_it(self, begun: Path, capfd: Captured) -> None:
        assert main(["unlearn", "request", "nobody", "--reason", "typo"]) == 2
        assert [entry.kind for entry in read_log("unlearning.jsonl")] == ["opened", "refused"]
        assert main(["unlearn", "request", "img/1.png"]) == 0
        assert [entry.kind for entry in read_log("unlearning.jsonl")][2:] == ["request", "decision"]

    def test_a_state_that_was_lost_after_the_log_was_written(self, begun: Path, capfd: Captured) -> None:
        shutil.copy("unlearning.npz", "older.npz")
        assert main(["unlearn", "request", "img/1.png"]) == 0
        assert main(["unlearn", "remove"]) == 0
        shutil.copy("older.npz", "unlearning.npz")
        for _ in range(2):  # what was done again is saved, and need not be done a third time
            told(capfd, "head", "--out", "head.npz")
            assert told(capfd, "plan")["deleted"] == 1
            kinds = [entry.kind for entry in read_log("unlearning.jsonl")]
            assert (kinds[-1], kinds.count("recovered")) == ("recovered", 1)
        assert told(capfd, "check")["holds"]

    def test_a_state_that_cannot_be_written_begins_no_log(self, here: Path, capfd: Captured) -> None:
        (here / "file").write_text("x")
        words = ["unlearn", "init", "--features", "f.npz", "--device", "cpu"]
        assert main([*words, "--state", "file/state.npz"]) == 2
        assert "cannot write to" in capfd.readouterr().err
        assert not (here / "unlearning.jsonl").exists()
        assert main(words) == 0
        assert not list(here.glob(".*"))

    def test_state_and_log_that_moved(self, begun: Path, capfd: Captured) -> None:
        (begun / "archive").mkdir()
        shutil.move("unlearning.jsonl", "archive/log-2025.jsonl")
        assert main(["unlearn", "request", "img/1.png", "--log", "archive/log-2025.jsonl"]) == 0
        assert main(["unlearn", "request", "img/2.png"]) == 0  # the state remembers
        assert len(read_log("archive/log-2025.jsonl")) == 5

    def test_after_a_new_training_the_log_goes_on(self, begun: Path, capfd: Captured) -> None:
        assert main(["unlearn", "request", "img/1.png"]) == 0
        words = ["init", "--features", "f.npz", "--continue"]
        assert main(["unlearn", *words]) == 2
        assert "should have been deleted" in capfd.readouterr().err
        with np.load("f.npz") as arrays:
            stay = arrays["ids"] != "img/1.png"
            kept = {name: arrays[name][stay] for name in ("features", "labels", "ids")}
        write_features(begun / "f.npz", **kept)
        assert told(capfd, *words)["examples"] == COUNT - 1
        assert [entry.kind for entry in read_log("unlearning.jsonl")][-1] == "retrained"
        assert told(capfd, "request", "img/2.png")["number"] == 1


OWN = ["--model", "unlearn_nets:tiny"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short audit of bright rows; the images are gone."""
    folder = tmp_path_factory.mktemp("audited")
    generator = np.random.default_rng(4)
    for number in range(120):
        image = 40 + 20 * generator.normal(size=(8, 8))
        image[2 * (number % 3) + 1] += 120
        path = folder / "data" / ("high", "low", "middle")[number % 3] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(path)
    words = [*OWN, "--device", "cpu", "--epochs", "2", "--json"]
    assert main(["audit", str(folder / "data"), *words, "--out", str(folder / "run")]) == 0
    shutil.rmtree(folder / "data")
    return folder / "run"


class TestRun:
    def test_paths_are_ids_and_held_out_images_judge(
        self, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured
    ) -> None:
        monkeypatch.chdir(tmp_path)
        summary = json.loads((run / "summary.json").read_text())
        opened = told(capfd, "init", str(run), *OWN, "--device", "cpu")
        assert opened["examples"] == summary["trained_on"]
        unlearner = Unlearner.load("unlearning.npz")
        assert unlearner.class_names == ["high", "low", "middle"]
        assert len(unlearner.queries) == summary["held_out"]
        assert unlearner.queries.kind == "held-out"
        name = unlearner.ids[0]
        assert name.endswith(".png")
        assert told(capfd, "request", name)["ids"] == [name]
        assert told(capfd, "remove")["holds"]
        assert unlearner.head_name == "5"

    def test_a_run_that_is_not_finished(
        self, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured
    ) -> None:
        monkeypatch.chdir(tmp_path)
        shutil.copytree(run, "part")
        Path("part/summary.json").unlink()
        assert main(["unlearn", "init", "part"]) == 2
        assert "not finished" in capfd.readouterr().err
        assert not Path("unlearning.jsonl").exists()
