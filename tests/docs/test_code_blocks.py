"""Every block of Python on every page runs; `doc_pages` says how a page asks for what it takes for granted."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from unittest import mock

import pytest
from doc_pages import ROOT, Block, Page, command_lines, name_of, pages, read, words
from doc_preludes import PRELUDES

from sgoif.cli import main
from sgoif.curvature import CURVATURES
from sgoif.solvers import SOLVERS
from sgoif_bench.labels.registry import METHODS as RIVALS
from sgoif_bench.ood.registry import METHODS

PAGES = [page for page in map(read, pages()) if page.blocks]
SKIPPED = [block for page in PAGES for block in page.blocks if block.skip]


def steps(page: Page) -> list[Block | str]:
    """The blocks, and for a story its commands, as they follow each other."""
    found: list[tuple[int, Block | str]] = [(block.line, block) for block in page.blocks]
    if page.story:
        lines = command_lines(page.path)
        found += [(int(at.rpartition(":")[2]), line) for at, line, in_sentence in lines if not in_sentence]
    return [step for _, step in sorted(found, key=lambda place: place[0])]


def run_page(page: Page) -> int:
    """Run the blocks in order; returns how many ran."""
    ran = 0
    with contextlib.ExitStack() as stack:
        names: dict[str, object] = {}
        for step in steps(page):
            if isinstance(step, str):
                assert main(words(step)) == 0, step
                continue
            block = step
            if block.prelude is not None:
                stack.close()
                if block.prelude not in PRELUDES:
                    raise ValueError(
                        f"{block.name}: there is no prelude {block.prelude!r}; there are {', '.join(PRELUDES)}"
                    )
                names = stack.enter_context(PRELUDES[block.prelude]())
                names["__name__"] = "__main__"
            code = compile(block.padded(), name_of(page.path), "exec", dont_inherit=True)
            if block.skip is None:
                exec(compile(block.first, f"{block.name} (first)", "exec", dont_inherit=True), names)
                exec(code, names)
                ran += 1
    return ran


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name_of(page.path), marks=[pytest.mark.slow] if page.slow else []) for page in PAGES],
)
def test_the_blocks_of_a_page_run(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as stack:
        for registry in (CURVATURES, SOLVERS, METHODS, RIVALS):  # pages may add to them
            stack.enter_context(mock.patch.dict(registry))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", UserWarning)
        ran = run_page(page)
    assert ran == sum(block.skip is None for block in page.blocks)


def test_few_blocks_are_left_out_and_each_says_why() -> None:
    for block in SKIPPED:
        print(f"left out: {block.name}: {block.skip}")
        compile(block.padded(), block.name, "exec", dont_inherit=True)
        assert len((block.skip or "").split()) >= 3, f"{block.name}: give a reason one can understand"
    blocks = sum(len(page.blocks) for page in PAGES)
    print(f"{len(SKIPPED)} of {blocks} blocks are left out")
    assert blocks > 40
    assert len(SKIPPED) <= blocks // 10


PAGE = """
<!-- run: prelude nothing -->
<!-- run: first
a = 1
-->
```python
b = a + 1
```

```python
assert b == 2
...      # later
```

<!-- run: prelude nothing -->
<!-- run: dots b = 7 -->
```python
fresh = "b" not in globals()
...                   # here
assert fresh and b == 7
```
"""


def test_blocks_share_names_until_the_next_prelude() -> None:
    page = read(ROOT / "docs" / "made-up.md", PAGE)
    assert [block.prelude for block in page.blocks] == ["nothing", None, "nothing"]
    assert run_page(page) == 3


def test_a_wrong_block_is_noticed_with_its_line() -> None:
    page = read(ROOT / "docs" / "made-up.md", "<!-- run: prelude nothing -->\n```python\nx = 1\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        run_page(page)
    assert caught.traceback[-1].lineno + 1 == 4
    assert page.blocks[0].line == 3


def test_a_skipped_block_is_not_run_but_read() -> None:
    good = read(ROOT / "docs" / "made-up.md", "<!-- run: skip needs a GPU, which is rare -->\n```python\n1 / 0\n```\n")
    assert good.blocks[0].skip == "needs a GPU, which is rare"
    assert run_page(good) == 0
    bad = read(
        ROOT / "docs" / "made-up.md", "<!-- run: skip needs a GPU, which is rare -->\n```python\nx = {1: 2, ...}\n```\n"
    )
    with pytest.raises(SyntaxError):
        run_page(bad)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<!-- run: nonsense -->\n```python\n1\n```", "none of prelude"),
        ("<!-- run: skip -->\n```python\n1\n```", "needs more words"),
        ("```python\n1\n```\n<!-- run: prelude loop -->", "no block of Python follows"),
    ],
)
def test_a_comment_that_cannot_be_followed_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(ROOT / "docs" / "made-up.md", text)


def test_an_unknown_prelude_is_named() -> None:
    with pytest.raises(ValueError, match="no prelude 'nonsense'"):
        run_page(read(ROOT / "docs" / "made-up.md", "<!-- run: prelude nonsense -->\n```python\n1\n```"))
