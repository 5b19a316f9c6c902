"""What stands on the pages: blocks of Python, command lines, links. Read with regular expressions, no tool needed.

Comments in a page, invisible to its readers, say how its Python is run:

    <!-- run: prelude NAME -->      from here on, a fresh namespace with the names that `doc_preludes` gives it
    <!-- run: skip REASON -->       the next block is compiled but not run, and the reason is counted and shown
    <!-- run: dots CODE -->         what a line that is only `...` does in the next block
    <!-- run: first                 CODE, over as many lines as it takes, is run before the next block
    CODE -->
    <!-- run: slow -->              the page is left out of the plain suite
    <!-- run: story -->             the same, and its command lines are run too, between the blocks where they stand

All blocks of a page run in order in one namespace. A page that names no prelude gets `loop`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = "loop"
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL
)
MARK = re.compile(r"^<!-- run: (?P<order>\w+)(?P<rest>.*?)-->", re.MULTILINE | re.DOTALL)
ORDERS = ("prelude", "skip", "dots", "first", "slow", "story")
INLINE = re.compile(r"(?<!`)`((?:python -m )?sgoif(?:-bench)? [^`]+)`(?!`)")
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
PROGRAM = re.compile(
    r"^\s*(?:\$ )?(?:[\w.]+=\S+ )*(?:\S*/)?(sgoif(?:-bench)?|python -m sgoif\S*|torchrun .* -m sgoif) ?(.*)$",
    re.DOTALL,
)


def pages() -> list[Path]:
    """Every page a reader can get to: the README and its companions, and what the site is made of."""
    beside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")]
    return [*beside, *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass
class Block:
    """One block of Python on a page."""

    page: Path
    line: int
    code: str
    prelude: str | None = None
    """Set where a fresh namespace begins."""
    skip: str | None = None
    dots: str | None = None
    first: str = ""

    @property
    def name(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    def padded(self) -> str:
        """The code at its own line of the page, so that a traceback names it."""
        code = self.code
        if self.dots is not None:
            code = re.sub(r"^( *)\.\.\.(?=\s*(?:#.*)?$)", lambda at: at[1] + self.dots, code, flags=re.MULTILINE)
        return "\n" * (self.line - 1) + code


@dataclass
class Page:
    """The blocks of a page in order."""

    path: Path
    blocks: list[Block] = field(default_factory=list)
    slow: bool = False
    story: bool = False
    """Whether its command lines are run as well."""


def read(path: Path, text: str | None = None) -> Page:
    """The Python blocks of a page with what its comments say about them."""
    text = path.read_text(encoding="utf-8") if text is None else text
    page = Page(path)
    fences = [found for found in FENCE.finditer(text) if found["language"] in ("python", "py", "pycon")]
    inside = [(found.start(), found.end()) for found in FENCE.finditer(text)]
    marks = [mark for mark in MARK.finditer(text) if not any(start <= mark.start() < end for start, end in inside)]
    waiting: dict[str, str] = {}
    for event in sorted([*fences, *marks], key=lambda found: found.start()):
        if event.re is MARK:
            order, rest = event["order"], event["rest"].strip()
            place = f"{name_of(path)}:{text.count(chr(10), 0, event.start()) + 1}"
            if order not in ORDERS:
                raise ValueError(f"{place}: 'run: {order}' is none of {', '.join(ORDERS)}")
            if order in ("slow", "story"):
                page.slow = True
                page.story |= order == "story"
            elif not rest:
                raise ValueError(f"{place}: 'run: {order}' needs more words")
            else:
                waiting[order] = f"{waiting[order]}\n{rest}" if order == "first" and order in waiting else rest
            continue
        line = text.count("\n", 0, event.start()) + 2
        code = re.sub(rf"^{event['indent']}", "", event["code"], flags=re.MULTILINE)
        prelude = waiting.pop("prelude", None if page.blocks else DEFAULT)
        page.blocks.append(
            Block(
                path,
                line,
                code,
                prelude,
                waiting.pop("skip", None),
                waiting.pop("dots", None),
                waiting.pop("first", ""),
            )
        )
    if waiting:
        raise ValueError(f"{name_of(path)}: no block of Python follows 'run: {next(iter(waiting))}'")
    return page


def command_lines(path: Path, text: str | None = None) -> Iterator[tuple[str, str, bool]]:
    """Every `sgoif ...` of a page: where it is, the line without its comment, and whether it stands in a sentence."""
    text = path.read_text(encoding="utf-8") if text is None else text
    lines = text.splitlines()
    fenced = False
    python = False
    number = 0
    while number < len(lines):
        line = lines[number]
        at = f"{name_of(path)}:{number + 1}"
        number += 1
        if line.lstrip().startswith("```"):
            fenced = not fenced
            python = line.strip() in ("```python", "```py", "```pycon")
            continue
        if fenced and python:
            continue
        if fenced or line.startswith("    "):
            while number < len(lines) and (
                line.rstrip().endswith("\\") or (PROGRAM.match(line) and line.count("'") % 2)
            ):
                line = line.rstrip().removesuffix("\\") + " " + lines[number].strip()
                number += 1
            line = re.sub(r"\s#.*$", "", line).strip()
            for part in line.split(" | "):
                if PROGRAM.match(part):
                    yield at, part.strip(), False
        else:
            for found in INLINE.finditer(line):
                yield at, found[1], True


def words(line: str) -> list[str]:
    """The arguments after `sgoif` or `sgoif-bench`, NAME first where a module of the benchmarks is started."""
    found = PROGRAM.match(line)
    assert found is not None, line
    program, rest = found[1], found[2]
    given = shlex.split(rest)
    module = re.search(r"-m sgoif_bench\.(\w+)(?:\.run)?$", program)
    return [module[1], *given] if module else given


def is_benchmark(line: str) -> bool:
    """Whether a command line starts a benchmark, which is no part of the package."""
    found = PROGRAM.match(line)
    return found is not None and re.search(r"sgoif-bench|-m sgoif_bench", found[1]) is not None


def links(path: Path, text: str | None = None) -> Iterator[tuple[int, str]]:
    """Every link and picture of a page, with its line; what stands in code is no link."""
    text = path.read_text(encoding="utf-8") if text is None else text
    text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    text = re.sub(r"`[^`\n]*`", lambda found: "" if "](" in found[0] else found[0], text)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    for found in LINK.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def anchors(path: Path) -> set[str]:
    """The names that headings get, as GitHub and the site make them."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        count = 0
        while (name := slug if not count else f"{slug}-{count}") in found:
            count += 1
        found.add(name)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
