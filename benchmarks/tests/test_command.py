"""Commands made from settings: options, exit codes, what goes to which stream."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sgoif.core.provenance import plain, write_json
from sgoif.errors import SettingError
from sgoif_bench.command import Device, Say, run_command, setting
from sgoif_bench.result_texts import command_line


@dataclass(frozen=True)
class Settings:
    name: str = setting(help="required")
    count: int | None = setting(None, help="optional")
    device: Device = setting("cpu", help="device")

    def __post_init__(self) -> None:
        if self.count == 13:
            raise SettingError("count = 13 is unlucky; take 12")


def greet(settings: Settings, tell: Say) -> dict[str, Any]:
    """Greet."""
    if settings.count == 130:
        raise KeyboardInterrupt
    tell("working")
    return {"greeting": f"hello {settings.name}", "count": settings.count, "undefined": float("nan")}


def run(*arguments: str) -> int:
    return run_command("greet", Settings, greet, lambda result: str(result["greeting"]), arguments)


def test_json_is_alone_on_standard_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "result-DEVICE.json"
    assert run("--name", "you", "--count", "2", "--json", "--out", str(out)) == 0
    streams = capsys.readouterr()
    printed = json.loads(streams.out)
    assert printed["greeting"] == "hello you"
    assert printed["undefined"] is None
    assert printed["command"].startswith("greet --name you")
    assert {"torch", "python", "numpy"} <= set(printed["versions"])
    assert "working" in streams.err
    assert json.loads((tmp_path / "new" / "result-cpu.json").read_text()) == printed


def test_plain_output_is_what_show_returns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--name", "you") == 0
    assert capsys.readouterr().out == "hello you\n"


def test_mistakes_are_sentences_with_exit_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("--name", "you", "--count", "13") == 2
    assert capsys.readouterr().err == "greet: count = 13 is unlucky; take 12\n"
    assert run("--name", "you", "--out", str(tmp_path)) == 2
    assert "cannot be written" in capsys.readouterr().err
    for arguments in ([], ["--name", "you", "--count", "two"], ["--nam", "you"]):
        with pytest.raises(SystemExit) as leaving:
            run(*arguments)
        assert leaving.value.code == 2


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--name", "you", "--count", "130") == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_recorded_command_does_not_tell_where_things_are() -> None:
    assert (
        command_line("sgoif-bench x", ["--data", "/home/me", "--rate", "0.2"]) == "sgoif-bench x --data DATA --rate 0.2"
    )
    assert command_line("x", ["--data=/home/me"]) == "x --data=DATA"
    assert command_line("x", ["--out", "/home/me/a.json", "--json"]) == "x --out a.json --json"
    assert command_line("x", ["--out=results/a.json", "--say", "a b"]) == "x --out=results/a.json --say 'a b'"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_json(target, {"value": 1})
    with pytest.raises(TypeError):
        write_json(target, {"value": object()})
    assert json.loads(target.read_text()) == {"value": 1}
    assert plain({1: (float("inf"), 2.0)}) == {"1": [None, 2.0]}
