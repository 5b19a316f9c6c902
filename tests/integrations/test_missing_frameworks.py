"""Without a framework its callback cannot be imported, and the error names the command that installs it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from sgoif.errors import MissingExtraError


@pytest.mark.parametrize(
    ("module", "extra", "packages"),
    [
        ("lightning", "lightning", ["lightning", "lightning.pytorch", "pytorch_lightning"]),
        ("huggingface", "transformers", ["transformers"]),
    ],
)
def test_the_extra_is_named(module: str, extra: str, packages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"sgoif.integrations.{module}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install 'sgoif\[{extra}\]'"):
        importlib.import_module(f"sgoif.integrations.{module}")


def test_the_package_itself_imports_nothing_heavy() -> None:
    heavy = "{'lightning', 'transformers', 'tensorboard', 'wandb', 'mlflow', 'PIL', 'accelerate'}"
    code = f"import sys, sgoif.integrations, sgoif.integrations.records; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
