"""Links on the pages lead somewhere: files exist, headings exist, and the package's page needs nobody's server."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from doc_pages import ROOT, anchors, links, name_of, pages

ELSEWHERE = re.compile(r"^(https?|mailto):")


def broken(page: Path, text: str | None = None) -> list[str]:
    """What is wrong with the links of a page."""
    wrong = []
    for line, link in links(page, text):
        if ELSEWHERE.match(link):
            continue
        target, _, heading = link.partition("#")
        path = (page.parent / unquote(target)).resolve() if target else page
        if not path.exists():
            wrong.append(f"{name_of(page)}:{line}: there is no {target}")
        elif not path.is_relative_to(ROOT):
            wrong.append(f"{name_of(page)}:{line}: {target} is outside the repository")
        elif heading and path.suffix == ".md" and heading not in anchors(path):
            wrong.append(f"{name_of(page)}:{line}: {target or name_of(page)} has no heading #{heading}")
    return wrong


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
def test_every_link_leads_somewhere(page: Path) -> None:
    assert not (wrong := broken(page)), "\n".join(wrong)


def test_there_are_links_to_check() -> None:
    assert sum(1 for page in pages() for _ in links(page)) > 60


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[a](docs/nonsense.md)", "there is no docs/nonsense.md"),
        ("![a](docs/images/nonsense.png)", "there is no docs/images/nonsense.png"),
        ("[a](docs/method.md#nonsense)", "no heading #nonsense"),
        ("[a](#nonsense)", "no heading #nonsense"),
        ("[a](../../etc)", "there is no|outside the repository"),
    ],
)
def test_a_link_that_leads_nowhere_is_noticed(text: str, complaint: str) -> None:
    assert re.search(complaint, " ".join(broken(ROOT / "README.md", text)))


def test_code_holds_no_links() -> None:
    text = "`f[x](y.md)` and\n\n```python\na[b](c.md)\n```\n\n    a[b](c.md)\n"
    assert list(links(ROOT / "README.md", text)) == []


def test_headings_are_named_as_on_github() -> None:
    assert {"in-your-own-loop", "two-commands"} <= anchors(ROOT / "README.md")
