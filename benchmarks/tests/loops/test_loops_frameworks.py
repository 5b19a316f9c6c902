"""Loops that a framework or a compiler drives train as they do without the monitor; every loop has such a test."""

from __future__ import annotations

import pytest
from loop_cases import check_unchanged

from sgoif.errors import SettingError
from sgoif_bench.loops import registry
from sgoif_bench.loops.registry import LOOPS, Loop, check_installed

pytest.importorskip("sklearn", reason="scikit-learn carries the digits: pip install 'sgoif[demo]'")
FRAMEWORKS = {"lightning": "lightning", "trainer": "transformers", "accelerate": "accelerate"}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_training_is_unchanged_in_a_framework(name: str) -> None:
    package = FRAMEWORKS[name]
    assert LOOPS[name].needs == package
    pytest.importorskip(package, reason=f"the framework is not installed: pip install {package}")
    check_unchanged(name)


def test_training_is_unchanged_in_a_compiled_model() -> None:
    check_unchanged("compile")


def test_a_framework_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.LOOPS, "magic", Loop("magic", "magic:train", "magic", 1, needs="no_such_package"))
    with pytest.raises(SettingError, match=r"magic needs no_such_package.*leave it out of --loops"):
        check_installed("magic")


def test_every_loop_is_in_one_of_these_files(request: pytest.FixtureRequest) -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in request.path.parent.glob("test_loops_*.py"))
    assert [name for name in LOOPS if f'"{name}"' not in texts] == []
