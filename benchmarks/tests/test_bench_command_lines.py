"""Every `sgoif-bench ...` on every page is a command that exists, with options that exist; what is cheap is run."""

from __future__ import annotations

import argparse
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from bench_cli_parts import Parsed, bench_parser, command, is_benchmark
from bench_paths import RESULTS
from doc_pages import command_lines, pages, words
from doc_pages import is_benchmark as starts_a_benchmark

from sgoif_bench.cli import main

LINES = [found for page in pages() for found in command_lines(page) if starts_a_benchmark(found[1])]


def parse(arguments: list[str]) -> None:
    """Parse as the command itself would, without running it; raises ValueError with what was wrong."""
    name, *rest = arguments or ["--help"]
    if name == "--help":
        return
    if is_benchmark(name):
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Parsed):
            patch.setattr(argparse.ArgumentParser, "error", _refuse)
            bench_parser(name, rest)
        return
    found = command(name)
    try:
        found.make_context(name, list(rest))
    except Exception as error:  # whichever click typer brings
        if type(error).__name__ not in ("Exit", "NoArgsIsHelpError"):  # --help
            raise ValueError(error.format_message()) from error  # type: ignore[attr-defined]


def _refuse(parser: argparse.ArgumentParser, message: str) -> Any:
    raise ValueError(message)


def options_exist(arguments: list[str]) -> None:
    """For a command named in a sentence, which need not be complete."""
    name, *rest = arguments
    if name in ("--help", "--version"):
        return
    found = command(name)
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help"}
    if is_benchmark(name):
        with pytest.raises(Parsed) as caught:
            bench_parser(name, ["--help"])
        known |= set(caught.value.parser._option_string_actions)
    for word in rest:
        option = word.partition("=")[0]
        if option.startswith("--") and option not in known:
            raise ValueError(f"there is no option {option}")


def check(line: str, in_sentence: bool) -> None:
    if in_sentence:
        options_exist([word.strip("[]") for word in words(re.sub(r"\[|\]|…|\.\.\.", " ", line))])
    else:
        parse(words(line))


@pytest.mark.parametrize("page", sorted({at.partition(":")[0] for at, _, _ in LINES}))
def test_the_benchmarks_of_a_page_can_be_parsed(page: str) -> None:
    wrong = []
    for at, line, in_sentence in LINES:
        if at.partition(":")[0] == page:
            try:
                check(line, in_sentence)
            except ValueError as error:
                wrong.append(f"{at}: {line}: {error}")
    assert not wrong, "\n".join(wrong)


def test_many_lines_were_found() -> None:
    assert sum(not in_sentence for _, _, in_sentence in LINES) > 15
    assert sum(in_sentence for _, _, in_sentence in LINES) > 15
    assert {"CHANGELOG.md", "docs/extending.md", "docs/benchmarks/ood.md"} <= {at.partition(":")[0] for at, *_ in LINES}


@pytest.mark.parametrize(
    ("line", "in_sentence", "complaint"),
    [
        ("sgoif-bench ood --data ROOT --nonsense 3", False, "--nonsense"),
        ("sgoif-bench labels --seeds", False, "--seeds"),
        ("sgoif-bench nonsense", False, "nonsense"),
        ("sgoif-bench table r.jsonl --nonsense", False, "--nonsense"),
        ("sgoif-bench ood --nonsense", True, "--nonsense"),
        ("python -m sgoif_bench.errors --nonsense", False, "--nonsense"),
    ],
)
def test_a_wrong_command_line_is_noticed(line: str, in_sentence: bool, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check(line, in_sentence)


CHEAP = sorted({line for _, line, inside in LINES if not inside and line.startswith("sgoif-bench table benchmarks/")})


@pytest.mark.parametrize("line", CHEAP)
def test_the_tables_of_the_pages_are_made(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "results").symlink_to(RESULTS)
    monkeypatch.chdir(tmp_path)
    assert main(words(line)) == 0, capsys.readouterr().err
    assert len(capsys.readouterr().out.splitlines()) > 3
