"""Every `sgoif ...` on every page is a command that exists, with options that exist; what is cheap is run.

Command lines of `sgoif-bench` are looked at by the tests of the benchmarks.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_tree import follow
from doc_pages import ROOT, command_lines, is_benchmark, name_of, pages, words

from sgoif.cli import main

LINES = [found for page in pages() for found in command_lines(page) if not is_benchmark(found[1])]
PLACEHOLDERS = {"N": "1", "R": "0.1"}


def parse(arguments: list[str]) -> None:
    """Parse as the command itself would, without running it; raises ValueError with what was wrong."""
    command, rest = follow(arguments)
    try:
        command.make_context(command.name or "sgoif", list(rest))
    except Exception as error:  # whichever click typer brings
        if type(error).__name__ not in ("Exit", "NoArgsIsHelpError"):  # --help, --version
            raise ValueError(error.format_message()) from error  # type: ignore[attr-defined]


def options_exist(arguments: list[str]) -> None:
    """For a command named in a sentence, which need not be complete."""
    command, rest = follow(arguments)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help"}
    for word in rest:
        option = word.partition("=")[0]
        if option.startswith("--") and option not in known:
            raise ValueError(f"there is no option {option}")


def synopsis(line: str) -> str:
    """A line that shows what can be given as one that gives all of it."""
    line = re.sub(r"[\[\]]", " ", line).replace(" | ", " ").replace("...", "")
    given = [PLACEHOLDERS.get(word, word.partition("|")[0]) for word in shlex.split(line)]
    return shlex.join(given)


def check(line: str, in_sentence: bool) -> None:
    if in_sentence:
        options_exist([word.strip("[]") for word in words(re.sub(r"\[|\]|…|\.\.\.", " ", line))])
    else:
        parse(words(synopsis(line) if "[" in line else line))


@pytest.mark.parametrize("page", sorted({at.partition(":")[0] for at, _, _ in LINES}))
def test_the_commands_of_a_page_can_be_parsed(page: str) -> None:
    wrong = []
    for at, line, in_sentence in LINES:
        if at.partition(":")[0] == page:
            try:
                check(line, in_sentence)
            except ValueError as error:
                wrong.append(f"{at}: {line}: {error}")
    assert not wrong, "\n".join(wrong)


def test_many_lines_were_found() -> None:
    assert sum(not in_sentence for _, _, in_sentence in LINES) > 40
    assert sum(in_sentence for _, _, in_sentence in LINES) > 20
    assert {"README.md", "docs/sentinel.md", "docs/unlearning.md"} <= {at.partition(":")[0] for at, _, _ in LINES}


@pytest.mark.parametrize(
    ("line", "in_sentence", "complaint"),
    [
        ("sgoif audit photos/ --nonsense", False, "--nonsense"),
        ("sgoif audit", False, "(?i)path"),
        ("sgoif audit photos/ --epochs many", False, "--epochs"),
        ("sgoif nonsense", False, "nonsense"),
        ("sgoif trace RUN --nonsense 3", False, "--nonsense"),
        ("sgoif demo --seed", False, "--seed"),
        ("sgoif bench ood", False, "bench"),
        ("sgoif audit PATH [--out DIR] [--nonsense]", False, "--nonsense"),
        ("sgoif unlearn init --nonsense", True, "--nonsense"),
        ("sgoif trace --nonsense", True, "--nonsense"),
        ("sgoif sentinel nonsense", True, "nonsense"),
    ],
)
def test_a_wrong_command_line_is_noticed(line: str, in_sentence: bool, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check(line, in_sentence)


def test_lines_are_read_whole() -> None:
    text = (
        "Text `sgoif info --json` here.\n\n    sgoif-bench ood --data ROOT \\\n      --sets mnist   # a comment\n"
        "    x | sgoif sentinel watch --list -\n"
    )
    found = [(line, inside) for _, line, inside in command_lines(ROOT / "README.md", text)]
    assert found == [
        ("sgoif info --json", True),
        ("sgoif-bench ood --data ROOT  --sets mnist", False),
        ("sgoif sentinel watch --list -", False),
    ]
    assert words("python -m sgoif_bench.errors --again E.npz") == ["errors", "--again", "E.npz"]
    assert words("sgoif-bench ood --seeds 1") == ["ood", "--seeds", "1"]
    benchmarks = ["python -m sgoif_bench.errors", "A=1 sgoif-bench ood", "sgoif info", "python -m sgoif info"]
    assert [is_benchmark(line) for line in benchmarks] == [True, True, False, False]
    assert words("torchrun --nproc-per-node 4 -m sgoif audit photos/") == ["audit", "photos/"]


CHEAP = sorted({line for _, line, inside in LINES if not inside and re.match(r"sgoif info", line)})


@pytest.mark.parametrize("line", [line for line in CHEAP if "[" not in line])
def test_what_is_cheap_is_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    assert main(words(line)) == 0, capsys.readouterr().err
    assert len(capsys.readouterr().out.splitlines()) > 3 or "--json" in line


def test_pages_have_names() -> None:
    assert name_of(ROOT / "docs" / "sentinel.md") == "docs/sentinel.md"
