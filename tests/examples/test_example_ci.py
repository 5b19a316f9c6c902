"""What is offered for continuous integration: files that parse, hooks that pre-commit takes, commands that exist."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_tree import follow

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
HOOKS, WORKFLOW = ROOT / ".pre-commit-hooks.yaml", ROOT / "examples/ci/github-actions.yml"


def hook() -> dict[str, Any]:
    (found,) = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_pre_commit_takes_the_hook() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    (found,) = clientlib.load_manifest(HOOKS)
    assert found["id"] == "sgoif-audit"
    assert found["pass_filenames"] is False


def test_the_hook_installs_what_an_audit_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    needed = [*extras["cli"], *extras["audit"], *extras["pretrained"]]
    assert hook()["additional_dependencies"] == [name for name in needed if not name.startswith("sgoif")]


@pytest.mark.skipif(os.name == "nt", reason="the hook is a line of bash")
@pytest.mark.parametrize("status", [0, 4])
def test_the_hook_audits_anew_each_time_and_passes_the_status_on(tmp_path: Path, status: int) -> None:
    tools, repository = tmp_path / "bin", tmp_path / "repository"
    tools.mkdir()
    stand_in = tools / "sgoif"  # says what it was called with, as the run directory an audit would fill
    stand_in.write_text(
        '#!/bin/bash\nset -e\nfor last; do :; done\nmkdir "$last"\nprintf "%s\\n" "$@" > "$last/words"\n'
        f"exit {status}\n"
    )
    stand_in.chmod(0o755)
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**outer, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    command = [*shlex.split(hook()["entry"]), "my photos", "--layout", "folder"]
    for _ in range(2):
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
    words = (repository / ".git/sgoif-audit/words").read_text().splitlines()
    out = str(Path(".git/sgoif-audit"))
    assert words == ["audit", "my photos", "--layout", "folder", "--fail-on", "error", "--out", out]


def parse(line: str) -> None:
    """As the command itself would, without running it."""
    command, rest = follow(shlex.split(line))
    command.make_context(command.name or "sgoif", list(rest))


def test_the_commands_are_taken() -> None:
    called = re.search(r"&& sgoif (.*)' --$", hook()["entry"])
    assert called is not None
    parse(called[1].replace('"$@"', "photos").replace('"$out"', "out"))
    (line,) = re.findall(r"run: sgoif (.*)", WORKFLOW.read_text(encoding="utf-8"))
    parse(line)
    with pytest.raises(Exception, match="--nonsense"):
        parse(f"{line} --nonsense")


def test_the_workflow_uploads_what_the_audit_writes() -> None:
    found = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    steps = {step.get("name", step.get("uses")): step for step in found["jobs"]["audit"]["steps"]}
    words = shlex.split(steps["Audit"]["run"])
    given = dict(itertools.pairwise(words))
    assert steps["Code scanning"]["with"]["sarif_file"] == given["--sarif"]
    kept = steps["Report"]["with"]["path"].split()
    assert {Path(path).parent.name for path in kept} == {given["--out"]}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    wanted = re.search(r"sgoif\[([\w,]+)\]", steps["Install"]["run"])
    assert wanted is not None
    assert set(wanted[1].split(",")) <= set(extras)
