"""Where things lie: tests mirror the packages by name, files stay short, and names that were given up do not return."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES, TESTS = ROOT / "src" / "sgoif", ROOT / "tests"
MOST_LINES, MOST_ROOT_MODULES = 500, 8

BESIDE_THE_PACKAGES = {"docs", "examples", "packaging"}
"""Folders of tests that are about no package; `support` holds helpers alone."""

BY_MODULE = (
    "core", "device", "distributed", "tracking", "curvature", "solvers", "stability", "anchors", "scoring", "analysis",
    "execution", "engine", "monitor",
)  # fmt: skip
"""Packages whose test files are called test_<module> or test_<package>, with a topic after it or without."""

GIVEN_UP = {
    "": (
        "vectors answers table state imports ranks processes choosing heads operators step_record glimpse checks "
        "stepping looking diary waiting backlog recorded recording streams halves cadence instruments snapshot "
        "competence steering means"
    ),
    "tasks": "shift",
    "tasks/poisoning": "kinship found restoring reading",
    "tasks/unlearning": "opening storing refusals solving",
    "audit": "looks handover cleaned live rundir",
    "images": "alike opening stores",
}
"""Names that modules had once, by the package they lay in: each has another name that says more."""


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def modules(package: str) -> set[str]:
    """Names of the modules of a package, its sub-packages included."""
    found = {path.stem for path in (SOURCES / package).rglob("*.py")} - {"__init__"}
    return found | {path.name for path in (SOURCES / package).glob("*/") if path.name != "__pycache__"}


def test_every_folder_of_tests_is_that_of_a_package() -> None:
    known = {path.parent.name for path in SOURCES.glob("*/__init__.py")} | {"monitor"} | BESIDE_THE_PACKAGES
    tests = python_files(TESTS)
    folders = {path.relative_to(TESTS).parts[0] for path in tests if path.name.startswith("test_")}
    assert folders - {Path(__file__).name} <= known
    assert not list((TESTS / "support").glob("test_*"))


@pytest.mark.parametrize("package", BY_MODULE)
def test_a_test_file_is_named_after_what_it_tests(package: str) -> None:
    files = [path.stem.removeprefix("test_") for path in (TESTS / package).glob("test_*.py")]
    assert files
    names = modules(package) | {package}
    strange = [name for name in files if not any(f"{name}_".startswith(f"{module}_") for module in names)]
    assert strange == [], f"no module of {package} is called so; its modules: {sorted(names)}"


def test_no_two_test_files_have_one_name() -> None:
    """They are imported by name, from folders that are no packages."""
    names = Counter(path.name for path in python_files(TESTS, ROOT / "benchmarks" / "tests"))
    assert [name for name, count in names.items() if count > 1 and name != "conftest.py"] == []


def test_no_file_is_longer_than_can_be_read_at_once() -> None:
    files = python_files(*(ROOT / name for name in ("src", "tests", "benchmarks", "docs", "examples")))
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_bytes().splitlines()) for path in files}
    assert len(lengths) > 100
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_few_modules_lie_at_the_root() -> None:
    assert 1 < len(list(SOURCES.glob("*.py"))) <= MOST_ROOT_MODULES


def test_names_that_were_given_up_do_not_return() -> None:
    returned = [f"{package}/{name}" for package, names in GIVEN_UP.items() for name in names.split()
                if (SOURCES / package / name).is_dir() or (SOURCES / package / f"{name}.py").exists()]  # fmt: skip
    engine = set(GIVEN_UP[""].split())
    returned += [f"{package}/{name}" for package in BY_MODULE for name in sorted(engine & modules(package))]
    assert returned == []
