"""What is handed out: a wheel and an sdist with the right contents, and a package that works where only the wheel is.

The environment of the last test is empty but for the wheel: Python alone, no packages. torch and what the demo needs
weigh gigabytes, so they are lent from the environment of the tests through a .pth file; the package itself is not,
which the test checks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("build", reason="build is not installed: pip install build hatchling")
pytest.importorskip("hatchling", reason="hatchling is not installed: pip install build hatchling")

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 43_500
"""Of Python in the wheel: what ships has to stay small enough for one person to know."""
COMMANDS = (
    "audit",
    "watch",
    "review",
    "apply",
    "diff",
    "export",
    "trace",
    "features",
    "judge",
    "sentinel",
    "unlearn",
    "demo",
    "info",
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP", "VIRTUAL"))
    }
    environment |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist. The wheel is built from the sdist, as installers do."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"sgoif-{PROJECT['version']}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if not name.startswith(f"sgoif-{PROJECT['version']}.dist-info/")}
    sources = ROOT / "src"
    wanted = {
        path.relative_to(sources).as_posix()
        for path in (sources / "sgoif").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == wanted
    assert {"sgoif/py.typed", "sgoif/reports/assets/page.html", "sgoif/reports/assets/page.css"} <= inside
    assert not any(name.startswith(("tests", "results", "docs")) or name.endswith((".pyc", ".npz")) for name in inside)
    assert wheel.stat().st_size < 2**21


def test_the_wheel_is_the_product_alone_and_stays_small(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    sources = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    assert {name.partition("/")[0] for name in sources} == {"sgoif"}
    imports = re.compile(r"^\s*(?:from|import)\s+(?:sgoif_bench|benchmarks|tests)\b", re.MULTILINE)
    assert [name for name, text in sources.items() if imports.search(text)] == []
    lines = sum(len(text.splitlines()) for text in sources.values())
    assert 20_000 < lines <= MOST_LINES, f"{lines:,} lines of Python in the wheel"


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    described = Parser().parsestr(archive.read(f"sgoif-{PROJECT['version']}.dist-info/METADATA").decode())
    assert described["Name"] == "sgoif"
    assert described["Version"] == PROJECT["version"]
    assert described["Requires-Python"] == PROJECT["requires-python"]
    assert set(described.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    needed = [line for line in described.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(line.split(">")[0] for line in needed) == ["numpy", "torch"]
    assert "# SG-OIF" in described.get_payload()
    scripts = archive.read(f"sgoif-{PROJECT['version']}.dist-info/entry_points.txt").decode()
    assert "sgoif = sgoif.cli:main" in scripts


def test_the_sdist_can_be_tested_and_documented(built: Path) -> None:
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt", "mkdocs.yml"} <= names
    assert {"src/sgoif/py.typed", "tests/conftest.py", "docs/site_hooks.py", "docs/index.md"} <= names
    assert any(name.startswith("examples/") for name in names)
    assert not any(name.startswith((".git/", "site/", "runs/", "data/", ".venv/")) for name in names)


def test_the_version_stands_in_one_form(wheel: Path) -> None:
    import sgoif

    assert sgoif.__version__ == PROJECT["version"]


def test_the_reference_names_every_extra() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").partition("## Extras")[2]
    rows = {line.split("|")[1].strip().strip("`") for line in page.splitlines() if line.startswith("| `")}
    assert set(PROJECT["optional-dependencies"]) <= rows


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel alone."""

    folder: Path
    python: Path
    program: str


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("installed") / "empty"
    venv.create(place, with_pip=False)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    # The pip of these tests installs into the other environment, which has none: that saves seconds.
    command = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index")
    run(*command, str(wheel), cwd=place)
    packages = run(str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=place)
    lent = Path(packages.stdout.strip()) / "zz_lent_by_the_tests.pth"
    lent.write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return Installed(place, python, str(python.parent / "sgoif"))


def test_the_wheel_is_what_is_imported(installed: Installed, tmp_path: Path) -> None:
    python = str(installed.python)
    where = run(python, "-c", "import sgoif; print(sgoif.__file__)", cwd=tmp_path).stdout.strip()
    assert Path(where).is_relative_to(installed.folder), "the installed package, not the sources"
    version = f"sgoif {PROJECT['version']}\n"
    assert run(python, "-m", "sgoif", "--version", cwd=tmp_path).stdout == version


ASKED = """
import sys
from sgoif.cli import main
print([main([name, "--help"]) for name in sys.argv[1:]])
import sgoif.commands.sentinel.fitting, sgoif.commands.sentinel.image_stream, sgoif.commands.trace.trace
import sgoif.commands.unlearn.session, sgoif.commands.watch.server
print("INFO")
main(["info", "--json"])
print("DEMO")
main(["demo", "--epochs", "2", "--json", "--out", "found"])
"""


def test_every_command_of_the_wheel_explains_itself_and_the_demo_runs(installed: Installed, tmp_path: Path) -> None:
    """One process for all: each of its own would import the packages again."""
    from sgoif.cli.app import PANELS

    assert set(COMMANDS) == {name for names in PANELS.values() for name in names}
    shown = run(str(installed.python), "-c", ASKED, *COMMANDS, cwd=tmp_path).stdout
    helped, told, ran = re.split("^(?:INFO|DEMO)\n", shown, flags=re.MULTILINE)
    assert helped.splitlines()[-1] == str([0] * len(COMMANDS))
    assert all(f"sgoif {name} " in helped for name in COMMANDS)
    info, found = json.loads(told), json.loads(ran)
    assert info["versions"]["sgoif"] == PROJECT["version"]
    assert info["extras"]["cli"]["installed"]
    assert set(info["extras"]) == set(PROJECT["optional-dependencies"]) - {"dev", "docs"}
    assert set(found["methods"]) >= {"influence", "loss"}
    assert "<html" in (tmp_path / "found" / "report.html").read_text(encoding="utf-8")


def test_the_wheel_audits(installed: Installed, tmp_path: Path) -> None:
    """A tiny audit from end to end, by the program that is installed."""
    random, labels = np.random.default_rng(0), np.arange(80) % 2
    images = random.integers(60, size=(80, 8, 8), dtype=np.uint8) + (120 * labels[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "images.npz", x=images, y=labels)
    words = ("--epochs", "1", "--batch-size", "16", "--device", "cpu", "--model", "resnet7", "--out", "run", "--json")
    found = json.loads(run(installed.program, "audit", "images.npz", *words, cwd=tmp_path).stdout)
    assert found["images"] == 80
    assert "<html" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
