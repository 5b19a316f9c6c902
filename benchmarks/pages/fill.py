"""Fill the tables of the benchmark pages from the result files.

A page marks the place of a table with

    <!-- table: NAME -->
    …
    <!-- end -->

and whatever stands between is replaced; `pages` has a module for every page. `make tables` rewrites the pages,
`--check` only says which are out of date; a test does that too, so no figure of a table is typed by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from pages import (
    audits,
    controller,
    costs,
    curriculum,
    engine,
    faults,
    fidelity,
    findings,
    label_errors,
    labels,
    loops,
    ood,
    paper_numbers,
    poisoning,
    pretrained,
    readme,
    unlearning,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
MARK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
MODULES = (
    audits,
    controller,
    costs,
    curriculum,
    engine,
    faults,
    fidelity,
    findings,
    label_errors,
    labels,
    loops,
    ood,
    paper_numbers,
    poisoning,
    pretrained,
    readme,
    unlearning,
)
PAGES = list(dict.fromkeys(DOCS / "benchmarks" / module.PAGE for module in MODULES))
TABLES: dict[str, Callable[[], str]] = {name: make for module in MODULES for name, make in module.TABLES.items()}


def filled(text: str) -> str:
    """The page with every table as the result files have it."""

    def replace(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise SystemExit(f"there is no table {match[2]!r}; choose from {', '.join(TABLES)}")
        return f"{match[1]}{TABLES[match[2]]()}{match[3]}"

    return MARK.sub(replace, text)


def main() -> int:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    check = parser.parse_args().check
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    if stale:
        print(f"{'out of date' if check else 'rewritten'}: {', '.join(stale)}", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
