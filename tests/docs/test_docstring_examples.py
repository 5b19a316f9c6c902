"""The examples in docstrings run: every `Example:` of what docs/api.md shows, and of its public methods."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT
from doc_preludes import PRELUDES

FENCE = re.compile(r"^Example:\n+(?P<rest>(?:    .*\n|\s*\n)+)", re.MULTILINE)
CODE = re.compile(r"^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.findall(r"^::: (sgoif\.[\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
FRAMEWORKS = {"sgoif.integrations.lightning": "lightning", "sgoif.integrations.huggingface": "trainer"}
MUST_HAVE = [
    "sgoif.tasks.labels.errors.LabelErrors",
    "sgoif.backbones.base.Backbone",
    "sgoif.features.extraction.extract_features",
    "sgoif.reports.label_report.write_label_report",
    "sgoif.tasks.ood.sentinel.Sentinel",
    "sgoif.tasks.ood.stream.ShiftWatch",
    "sgoif.tasks.unlearning.unlearner.Unlearner",
    "sgoif.tasks.curriculum.curriculum.Curriculum",
    "sgoif.tasks.poisoning.trace.PoisonTrace",
    "sgoif.tasks.poisoning.recorder.PoisonWatch",
    "sgoif.integrations.lightning.InfluenceCallback",
    "sgoif.integrations.huggingface.InfluenceCallback",
    "sgoif.integrations.records.follow",
]


def docstrings(name: str) -> dict[str, str]:
    """Those of a class or function, and of the public methods that the class defines itself, by dotted name.

    They are read from the source, so that no framework need be installed.
    """
    module, _, own = name.rpartition(".")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == own:
            inner = [part for part in node.body if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")]
            for part in (node, *(inner if isinstance(node, ast.ClassDef) else ())):
                found[name if part is node else f"{name}.{part.name}"] = ast.get_docstring(part) or ""
    return found


def examples(docstring: str) -> list[str]:
    """The blocks of Python under `Example:`, in order."""
    sections = (textwrap.dedent(section["rest"]) for section in FENCE.finditer(inspect.cleandoc(docstring) + "\n"))
    return [block["code"] for section in sections for block in CODE.finditer(section)]


FOUND = {name: code for shown in SHOWN for name, text in docstrings(shown).items() if (code := examples(text))}


def prelude_of(name: str, code: str) -> str:
    """A framework's own; else `trained` where the example takes a monitor for granted."""
    for module, prelude in FRAMEWORKS.items():
        if name.startswith(module):
            return prelude
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return "trained" if {node.id for node in names} & {"monitor", "loader", "train"} - made else "loop"


@pytest.mark.parametrize("name", FOUND)
def test_the_example_of_a_docstring_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGOIF_CACHE", str(tmp_path / "cache"))
    code = "\n".join(FOUND[name])
    with PRELUDES[prelude_of(name, code)]() as names, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        given: dict[str, Any] = {**names, "__name__": "__main__"}
        exec(compile(code, f"{name} (example)", "exec", dont_inherit=True), given)


def test_what_people_use_has_an_example() -> None:
    assert [name for name in MUST_HAVE if name not in FOUND] == []


def test_examples_are_told_from_other_sections() -> None:
    text = "Args:\n    a: b\n\nExample:\n    ```python\n    x = 1\n\n    assert x == 1\n    ```\n\nReturns:\n    c\n"
    assert examples(text) == ["x = 1\n\nassert x == 1\n"]
    assert examples("Example of nothing.\n\n```python\n1 / 0\n```") == []
    assert prelude_of("sgoif.x", "monitor = 1\nmonitor") == "loop"
    assert prelude_of("sgoif.x", "print(monitor)") == "trained"
