"""Received files to tamper with, the commands that take the name of a model from them, and a module that tells."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sgoif.core.serialization import load_state, save_state

OWN = ["--model", "name_nets:tiny"]
COMMANDS = {
    "sentinel score": ["sentinel", "score", "images", "--out", "scores", "--device", "cpu"],
    "sentinel watch": ["sentinel", "watch", "images", "--device", "cpu"],
    "sentinel fit": ["sentinel", "fit", "--run", "run", "--out", "new.npz", "--device", "cpu"],
    "trace": ["trace", "run", "--out", "traced", "--device", "cpu"],
    "unlearn init": ["unlearn", "init", "run", "--device", "cpu"],
    "audit": ["audit", "images", "--out", "run", "--resume", "--device", "cpu", "--epochs", "1"],
}


@dataclass(frozen=True)
class Received:
    """Files that somebody else could have written."""

    folder: Path
    """Everything lies in it."""

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def sentinel(self) -> Path:
        return self.folder / "sentinel.npz"


def rename_in_run(run: Path, name: object) -> None:
    """Let the run say that it trained another model."""
    for file, part in (("summary.json", "plan"), ("run.json", "settings")):
        content = json.loads((run / file).read_text())
        content[part]["model"] = name
        (run / file).write_text(json.dumps(content))


def rename_in_sentinel(path: Path, name: object) -> None:
    state = load_state(path)
    save_state(path, {**state, "about": {**state["about"], "model": name}})


def rename(received: Received, name: object) -> None:
    rename_in_run(received.run, name)
    rename_in_sentinel(received.sentinel, name)


def witness(module: Path, marker: Path, rest: str = "") -> None:
    """A module that leaves a mark when it is imported."""
    module.write_text(f"open({str(marker)!r}, 'w').close()\n{rest}\n")
