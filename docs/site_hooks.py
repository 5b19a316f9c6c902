"""What the site does to the pages before they are built; `mkdocs.yml` names this file.

The pages are written to be read in the repository, so some of their links leave docs/. Here README, change log and
guide for contributors become pages of the site, files that a page links to are published beside it, and a link to what
cannot be published (a folder, a page from elsewhere) becomes plain text. Comments for the tests are taken out. A page
of the navigation that has not been written yet is left out of it, with a warning; a page that no navigation names
makes the build fail.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BESIDE = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LARGEST = 2**20
"""Bytes of a file that is published because a page links to it."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
MARK = re.compile(r"^<!-- (?:run: |table: |end ).*?-->\n?", re.MULTILINE | re.DOTALL)
log = logging.getLogger("mkdocs.plugins.site_hooks")


def rewritten(text: str, source: Path, published: dict[str, Path]) -> str:
    """The page with links that lead out of docs/ made to stay on the site; `published` collects what they need.

    `source` is where the page lies in the repository; its place on the site is its place in docs/, or BESIDE's.
    """
    place = BESIDE.get(source.name, "") if source.parent == ROOT else source.relative_to(DOCS).as_posix()

    def replace(found: re.Match[str]) -> str:
        picture, words, link = found.groups()
        target, mark, heading = link.partition("#")
        if not target or re.match(r"^[a-z]+:", link):
            return found[0]
        path = Path(os.path.normpath(source.parent / target))
        if not path.is_relative_to(ROOT) or not path.exists():
            return found[0]  # for the strict build to complain about
        if path.is_relative_to(DOCS) and path.suffix != ".py":
            there = path.relative_to(DOCS).as_posix()
        elif path.parent == ROOT and path.name in BESIDE:
            there = BESIDE[path.name]
        elif path.is_file() and path.suffix != ".md" and path.stat().st_size <= LARGEST:
            there = "files/" + path.relative_to(ROOT).as_posix()
            published[there] = path
        else:
            return words
        return f"{picture}[{words}]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{mark}{heading})"

    # Links may wrap and hold code, so blocks of code are set aside and inline code is left where it is.
    parts = re.split(r"(^```.*?^```)", MARK.sub("", text), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)


def on_config(config: Any) -> Any:
    """Leave out of the navigation what is not there yet."""

    def kept(entries: list[Any]) -> list[Any]:
        found = []
        for entry in entries:
            ((title, below),) = entry.items()
            if isinstance(below, list):
                if inner := kept(below):
                    found.append({title: inner})
            elif (DOCS / below).is_file() or below in BESIDE.values():
                found.append(entry)
            else:
                log.info("%s is named in the navigation and has not been written", below)
        return found

    config["nav"] = kept(config["nav"])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages beside docs/ and every file that a page links to."""
    from mkdocs.structure.files import File

    published: dict[str, Path] = {}
    for name, place in BESIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=rewritten(text, ROOT / name, published)))
    for page in sorted(DOCS.rglob("*.md")):
        rewritten(page.read_text(encoding="utf-8"), page, published)
    for place, path in published.items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page of docs/; those of the others were rewritten when they were added."""
    if page.file.src_uri in BESIDE.values():
        return markdown
    return rewritten(markdown, DOCS / page.file.src_uri, {})
