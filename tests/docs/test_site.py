"""The site is made of every page, and what leaves docs/ stays readable there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT, pages
from site_hooks import BESIDE, DOCS, on_config, rewritten


def navigation() -> list[str]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return re.findall(r":\s+(\S+\.md)$", text, flags=re.MULTILINE)


def test_every_page_is_in_the_navigation() -> None:
    there = {page.relative_to(DOCS).as_posix() for page in pages() if page.is_relative_to(DOCS)}
    named = navigation()
    assert len(named) == len(set(named))
    assert there <= set(named), f"name them in mkdocs.yml: {sorted(there - set(named))}"
    assert set(BESIDE.values()) <= set(named)


def test_programs_are_not_published_and_nothing_is_fetched() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert {"*.py"} <= set(text.partition("exclude_docs: |")[2].partition("\ntheme")[0].split())
    assert "font: false" in text
    assert not re.search(r"https?://", text)


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("docs/a.md", "[x](b.md#c)", "[x](b.md#c)"),
        ("docs/method.md", "[x](../README.md#figures)", "[x](readme.md#figures)"),
        ("docs/tutorials/trainer.md", "[`x`](../../examples/digits.py)", "[`x`](../files/examples/digits.py)"),
        ("README.md", "[x](docs/method.md) ![y](docs/images/report.png)", "[x](method.md) ![y](images/report.png)"),
        ("README.md", "[`results/`](benchmarks/results/)", "`results/`"),
        ("README.md", "[x](https://example.org) [y](#a)", "[x](https://example.org) [y](#a)"),
        ("README.md", "[x](nowhere.md)", "[x](nowhere.md)"),
        (
            "docs/a.md",
            "<!-- run: skip a b c -->\n```python\n[x](../README.md)\n```",
            "```python\n[x](../README.md)\n```",
        ),
        ("docs/a.md", "<!-- table: name -->\n| a |\n<!-- end -->\n", "| a |\n"),
    ],
)
def test_links_are_made_to_stay_on_the_site(source: str, text: str, expected: str) -> None:
    assert rewritten(text, ROOT / source, {}) == expected


def test_files_that_are_linked_to_are_published() -> None:
    published: dict[str, Path] = {}
    rewritten("[x](../examples/digits.py) [y](site_hooks.py)", DOCS / "made-up.md", published)
    assert published == {
        "files/examples/digits.py": ROOT / "examples" / "digits.py",
        "files/docs/site_hooks.py": DOCS / "site_hooks.py",
    }


def test_pages_that_are_not_written_yet_are_left_out() -> None:
    nav: list[Any] = [{"Start": "index.md"}, {"More": [{"A": "nonsense.md"}]}, {"B": "readme.md"}]
    assert on_config({"nav": nav})["nav"] == [{"Start": "index.md"}, {"B": "readme.md"}]


def test_the_whole_site_can_be_built(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed: pip install 'sgoif[docs]'")
    pytest.importorskip("material", reason="the extra docs is not installed: pip install 'sgoif[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site"))
    build(config)
    assert (tmp_path / "site" / "index.html").is_file()
    assert "InfluenceMonitor" in (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    published = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.py")}
    assert all(name.startswith("files/examples/") for name in published)
