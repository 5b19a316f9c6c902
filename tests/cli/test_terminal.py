"""Results in a pipe: sentences stay whole and names are not cut off."""

from __future__ import annotations

import pytest

from sgoif.cli.terminal import results

SENTENCE = (
    "12 of 1,200 labels look wrong (at most 10% of these by mistake); estimated in all: 11.2%, between 0 and 399."
)


@pytest.mark.parametrize(("columns", "lines"), [(None, 1), ("60", 2)])
def test_a_sentence_is_broken_only_where_somebody_says_how_wide_it_may_be(
    columns: str | None, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    results().print(SENTENCE, markup=False, highlight=False)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == lines
    assert " ".join(printed.split()) == SENTENCE
