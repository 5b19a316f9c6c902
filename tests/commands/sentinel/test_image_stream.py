"""`sgoif sentinel watch`: alarms, exit codes, and lists that grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentinel_cases import OWN, World, columns, rows, trained, write

from sgoif.cli import main
from sgoif.tasks import Sentinel

Captured = pytest.CaptureFixture[str]


def watched(capfd: Captured, world: World, *words: str) -> tuple[int, dict[str, Any]]:
    capfd.readouterr()
    code = main(["sentinel", "watch", *words, *OWN, "--sentinel", str(world.sentinel), "--json"])
    return code, json.loads(capfd.readouterr().out)


@pytest.fixture
def stream(here: Path) -> Path:
    """Sixty frames that belong, then forty that do not; their order by the alphabet is another one."""
    for number, image in enumerate([*rows(60, 7)[0], *columns(40)]):
        write(here / "frames" / f"frame{number + 1}.png", image)
    return here / "frames"


def test_without_a_change_there_is_no_alarm(world: World, here: Path, capfd: Captured) -> None:
    np.savez(here / "usual.npz", x=rows(200, 8)[0])
    code, told = watched(capfd, world, "usual.npz")
    assert code == 0
    assert told == {"inputs": 200, "alarm": None, "skipped": 0, "seconds": told["seconds"]}
    assert main(["sentinel", "watch", "usual.npz", *OWN, "--sentinel", str(world.sentinel)]) == 0
    assert capfd.readouterr().out.startswith("no alarm: 200 images")


def test_the_alarm_is_that_of_the_sentinel_over_frames_in_order(world: World, stream: Path, capfd: Captured) -> None:
    code, told = watched(capfd, world, "frames")
    assert code == 3
    following = Sentinel.load(world.sentinel, trained(world.normalise)).watch(0.01)
    images = np.concatenate([rows(60, 7)[0], columns(40)])
    names = [f"frame{number + 1}.png" for number in range(100)]
    x = world.normalise(torch.from_numpy(images)[:, None])
    expected = following.update(x, names)
    assert expected is not None
    assert told["inputs"] == told["alarm"]["time"] == expected.time
    assert told["alarm"] == {
        "time": expected.time,
        "change": expected.change,
        "change_name": names[expected.change],
        "towards": "stranger",
        "drivers": list(expected.drivers),
        "evidence": pytest.approx(expected.evidence, rel=1e-3),
    }
    assert abs(expected.change - 60) <= 2


def test_a_person_reads_where_and_why(world: World, stream: Path, capfd: Captured) -> None:
    assert main(["sentinel", "watch", "frames", *OWN, "--sentinel", str(world.sentinel), "--false-alarms", "0.05"]) == 3
    out = capfd.readouterr().out
    assert "have become stranger" in out
    assert "an alarm needs 20" in out
    assert "images that drove it: 'frame" in out


def test_a_list_gives_the_order_and_missing_files_are_left_out(
    world: World, stream: Path, here: Path, capfd: Captured
) -> None:
    names = [f"frame{number}.png" for number in [*range(61, 101), *range(1, 61)]]
    (here / "list.txt").write_bytes("\r\n".join(["gone.png", *names]).encode())
    code, told = watched(capfd, world, "frames", "--list", "list.txt")
    assert (code, told["skipped"]) == (3, 1)
    assert told["alarm"]["change_name"] == "frame61.png"
    (here / "list.txt").write_text("".join(f"frames/frame{number}.png\n" for number in range(1, 41)))
    assert watched(capfd, world, "--list", "list.txt")[0] == 0


def test_a_growing_list_is_followed_and_left_at_the_alarm(
    world: World, stream: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reading, "r"))
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(watched(capfd, world, "frames", "--list", "-")))
    thread.start()
    for number in range(1, 101):
        os.write(writing, f"frame{number}.png\n".encode())
    thread.join(timeout=60)  # the list is still open: whoever waits for its end waits for ever
    alive = thread.is_alive()
    os.close(writing)
    assert not alive
    code, told = answers[0]
    assert code == 3
    assert 61 <= told["inputs"] <= 100


def test_the_process_ends_with_the_alarm_while_its_list_is_open(world: World, stream: Path) -> None:
    program = "from sgoif.cli import main\nimport sys\nsys.exit(main(sys.argv[1:]))"
    paths = os.pathsep.join(filter(None, [*sys.path, str(Path(__file__).parent)]))
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            program,
            "sentinel",
            "watch",
            "frames",
            "--list",
            "-",
            *OWN,
            "--sentinel",
            str(world.sentinel),
        ],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("".join(f"frame{number}.png\n" for number in range(1, 101)))
        process.stdin.flush()
        assert process.wait(timeout=120) == 3, process.stderr.read()


def test_an_empty_list_on_standard_input_is_a_quiet_stream(
    world: World, here: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\n\r\n")
    os.close(writing)
    monkeypatch.setattr("sys.stdin", os.fdopen(reading, "r"))
    assert watched(capfd, world, "--list", "-") == (
        0,
        {"inputs": 0, "alarm": None, "skipped": 0, "seconds": pytest.approx(0, abs=60)},
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to watch"),
        (["nowhere"], "does not exist"),
        (["--list", "none.txt"], "no such file"),
        (["--list", "blank.txt"], "is empty"),
        (["blank.txt", "--list", "blank.txt"], "not a folder"),
        (["broken.png"], "no image can be read"),
        (["frames", "--false-alarms", "0"], "--false-alarms 0"),
        (["frames", "--sentinel", "none.npz"], "sgoif sentinel fit"),
    ],
)
def test_mistakes_get_a_sentence_and_exit_code_2(
    words: list[str], message: str, world: World, stream: Path, here: Path, capfd: Captured
) -> None:
    (here / "blank.txt").write_text("\n")
    (here / "broken.png").write_bytes(b"no image")
    given = [] if "--sentinel" in words else [*OWN, "--sentinel", str(world.sentinel)]
    assert main(["sentinel", "watch", *given, *words]) == 2
    streams = capfd.readouterr()
    assert message in streams.err
    assert "Traceback" not in streams.err
    assert streams.out == ""
