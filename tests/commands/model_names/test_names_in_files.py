"""What a received file calls its model is never imported on the word of that file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from name_cases import COMMANDS, OWN, Received, rename, rename_in_sentinel

from sgoif.audit.models import BUILT_IN, trusted_model
from sgoif.cli import main
from sgoif.core.serialization import load_state, save_state
from sgoif.errors import ModelError

Captured = pytest.CaptureFixture[str]
WITNESS = "witness:make"
ASKED = "name it yourself with --model package.module:function"


@pytest.mark.parametrize("command", COMMANDS)
def test_code_that_a_file_names_runs_only_if_the_user_names_it_too(
    received: Received, marker: Path, capfd: Captured, command: str
) -> None:
    for name in ("witness", WITNESS):
        rename(received, name)
        before = sorted(received.folder.rglob("*"))
        assert main(COMMANDS[command]) == 2
        said = capfd.readouterr()
        assert f"names the model '{name}'" in said.err
        assert ASKED in said.err
        assert f"--model {name}" not in said.err  # nothing to be pasted without a thought
        assert not marker.exists()
        assert sorted(received.folder.rglob("*")) == before
    assert main([*COMMANDS[command], "--model", WITNESS]) in ((0, 3) if command == "sentinel watch" else (0,))
    assert marker.exists()


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "audit"])
def test_the_users_name_wins_over_that_of_the_file_and_that_is_said(
    received: Received, marker: Path, capfd: Captured, command: str
) -> None:
    rename(received, WITNESS)
    assert main([*COMMANDS[command], *OWN]) in (0, 3)
    assert f"the model is 'name_nets:tiny', as --model says; {named_by(command)} names 'witness:make'" in (
        " ".join(capfd.readouterr().err.split())
    )
    assert not marker.exists()


def named_by(command: str) -> str:
    return "the sentinel 'sentinel.npz'" if command in ("sentinel score", "sentinel watch") else "'run/summary.json'"


def test_another_model_than_the_one_that_was_trained_does_not_fit_the_weights(
    received: Received, capfd: Captured
) -> None:
    for command in ("sentinel fit", "trace", "unlearn init"):
        assert main([*COMMANDS[command], "--model", "resnet7"]) == 2
        assert "does not hold the weights of this model" in capfd.readouterr().err
    assert main([*COMMANDS["audit"], "--model", "resnet7"]) == 2
    assert "model was 'name_nets:tiny', now 'resnet7'" in capfd.readouterr().err


@pytest.mark.parametrize("name", [["witness:make"], {"witness": "make"}, 7, None, ""])
def test_a_name_that_is_no_text_is_refused_with_a_sentence(
    received: Received, capfd: Captured, marker: Path, name: object
) -> None:
    rename_in_sentinel(received.sentinel, name)
    summary = json.loads((received.run / "summary.json").read_text())
    summary["plan"]["model"] = name
    (received.run / "summary.json").write_text(json.dumps(summary))
    for command in ("sentinel score", "sentinel fit"):
        assert main(COMMANDS[command]) == 2
        assert ASKED in capfd.readouterr().err
    assert not marker.exists()


@pytest.mark.parametrize("name", ["timm:hf-hub:owner/net", "timm:hf_hub:owner/net", "timm:local-dir:net", "timm:"])
def test_a_file_makes_timm_fetch_nothing(
    received: Received, capfd: Captured, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class Obliging:
        """A timm that has every model."""

        asked: list[str] = []  # noqa: RUF012

        def is_model(self, name: str) -> bool:
            self.asked.append(name)
            return True

        def create_model(self, name: str, **options: Any) -> object:
            self.asked.append(name)
            return None

    monkeypatch.setitem(sys.modules, "timm", Obliging())  # type: ignore[arg-type]
    rename(received, name)
    for command in COMMANDS:
        assert main(COMMANDS[command]) == 2
        assert ASKED in capfd.readouterr().err
    assert Obliging.asked == []


def test_names_are_shown_without_what_a_terminal_acts_on(received: Received, capfd: Captured) -> None:
    rename(received, "\x1b[2Jwitness:make\n")
    for command in COMMANDS.values():
        assert main(command) == 2
        err = capfd.readouterr().err
        assert "'\\x1b[2Jwitness:make\\n'" in err
        assert "\x1b" not in err
    run = json.loads((received.run / "run.json").read_text())
    run["settings"] |= {"path": "\x1b[2Jimages", "model": "resnet7"}
    (received.run / "run.json").write_text(json.dumps(run))
    assert main([*COMMANDS["audit"], "--epochs", "2"]) == 2
    assert main([word for word in COMMANDS["audit"] if word != "--resume"]) == 2
    err = capfd.readouterr().err
    assert err.count("\\x1b[2Jimages") == 2
    assert "\x1b" not in err


def test_a_run_that_is_there_does_not_hand_out_a_command_with_code_in_it(
    received: Received, capfd: Captured, marker: Path
) -> None:
    rename(received, WITNESS)
    assert main(["audit", "images", "--out", "run"]) == 2
    (received.run / "summary.json").unlink()
    assert main(COMMANDS["trace"]) == 2
    err = capfd.readouterr().err
    assert err.count("--resume --model NAME, where NAME was 'witness:make'") == 2
    assert "--model witness" not in err


DESCRIPTION: dict[str, Callable[[Any], Any]] = {
    "weights": lambda _: 5,
    "class_names": lambda names: [*names, 5],
    "image_size": lambda _: 10**9,
    "channels": lambda _: "3",
    "mean": lambda _: [1.0, 2.0],
    "spread": lambda _: None,
    "digest": lambda _: [],
}


@pytest.mark.parametrize("part", DESCRIPTION)
def test_a_description_that_makes_no_sense_is_refused_before_anything_is_made_of_it(
    received: Received, capfd: Captured, part: str
) -> None:
    state = load_state(received.sentinel)
    about = {**state["about"], part: DESCRIPTION[part](state["about"][part])}
    save_state(received.sentinel, {**state, "about": about})
    assert main([*COMMANDS["sentinel score"], *OWN]) == 2
    assert "is damaged" in capfd.readouterr().err


def test_weights_that_a_sentinel_names_are_read_as_data_alone(received: Received, capfd: Captured) -> None:
    import pickle

    class Program:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(received.folder / "opened"), "w")

    state = load_state(received.sentinel)
    for name in ("weights.npz", "weights.pt", "weights.safetensors"):
        (received.folder / name).write_bytes(pickle.dumps(Program()))
        about = {**state["about"], "weights": str(received.folder / name)}
        save_state(received.sentinel, {**state, "about": about})
        assert main([*COMMANDS["sentinel score"], *OWN]) == 2
        assert "Traceback" not in capfd.readouterr().err
    assert not (received.folder / "opened").exists()


@pytest.mark.parametrize("name", [*BUILT_IN, "timm:resnet18", "timm:vit_base_patch14_reg4_dinov2.lvd142m"])
def test_networks_that_bring_no_code_along_may_be_named_by_files(name: str) -> None:
    said: list[str] = []
    assert trusted_model(name, None, "a file", said.append) == name
    assert trusted_model(name, name, "a file", said.append) == name
    assert said == []


@pytest.mark.parametrize("name", ["auto", "os:kill", "Timm:resnet18", "timm:resnet18\n", "timm:a b", " resnet9"])
def test_anything_else_may_not(name: str) -> None:
    with pytest.raises(ModelError, match=r"^a file names the model .* --model package\.module:function"):
        trusted_model(name, None, "a file", print)
