from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from review_runs import CLASSES, make_run

from sgoif.audit.decisions import read_decisions
from sgoif.cli import main
from sgoif.commands.review.session import ReviewSession
from sgoif.core.score_table import from_cell, write_csv

HEAD = "path,decision,given_label,new_label"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_run(tmp_path / "run")
    return tmp_path / "run"


def review(run: Path, keys: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """`sgoif review` with one answer a line."""
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{key}\n" for key in keys.split())))
    return main(["review", str(run), *options])


def facts(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["review", str(run), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def kept(run: Path) -> dict[str, tuple[str, str, str]]:
    return {
        row.path: (row.decision, row.given_label, row.new_label) for row in read_decisions(run / "decisions.csv")[0]
    }


def test_every_answer_is_saved_as_the_page_would_and_apply_reads_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ReviewSession(run)
    looks = session.review.looks(4).tolist()
    assert review(run, "k d o 3 o ca", monkeypatch) == 0
    labels = session.labels
    expected = {looks[0]: ("keep", ""), looks[1]: ("drop", "")}
    for path, name in ((looks[2], CLASSES[0]), (looks[3], "cat")):
        names = session.class_names
        new = names[2] if path == looks[2] else name
        expected[path] = ("relabel", new) if new != labels[path][0] else ("keep", "")
    assert kept(run) == {path: (kind, labels[path][0], new) for path, (kind, new) in expected.items()}
    rows, sources = read_decisions(run / "decisions.csv")
    assert len(rows) == 4
    assert sources == [str(run.parent / "data")]


def test_it_goes_on_where_it_stopped_and_says_more_with_every_look(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert review(run, "k k k k k q", monkeypatch) == 0
    assert "5 more of the drawn examples" in capsys.readouterr().out
    assert facts(run, capsys)["looks"] == 5
    assert review(run, " ".join("k" * 10), monkeypatch) == 0
    said = capsys.readouterr().out
    assert "from 10 random looks" in said
    assert "from 15 random looks" in said
    assert facts(run, capsys)["decided"] == 15


def test_after_the_random_looks_the_list_is_gone_through_from_its_top(run: Path) -> None:
    session = ReviewSession(run)
    looks = session.review.looks(40).tolist()
    coming = list(session.remaining(40))
    assert coming[:40] == looks
    assert coming[40:] == [path for path in session.labels if path not in looks]
    session.decide(looks[0], "keep")
    session.decide(looks[1], "skip")
    again = ReviewSession(run)
    assert again.skipped == {looks[1]}
    drawn = again.review.looks(40, [looks[1]]).tolist()
    assert looks[1] not in drawn
    assert next(again.remaining(40)) == drawn[1]


def test_skips_are_kept_as_undecided_and_undone_answers_leave_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert review(run, "s k u x u q", monkeypatch) == 0
    assert not (run / "decisions.csv").exists()
    first, *_ = ReviewSession(run).looks(2)
    assert review(run, "s k q", monkeypatch) == 0
    again = ReviewSession(run)
    assert {path: kind for path, (kind, *_) in kept(run).items()} == {first: "skip", again.looks(1)[0]: "keep"}
    found = again.estimate()
    assert (found.decided, len(found.looks)) == (1, 1)


def test_the_plan_alone_is_listed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = ReviewSession(run).review.looks(5).tolist()
    assert review(run, "k q", monkeypatch) == 0
    capsys.readouterr()
    assert main(["review", str(run), "--plan", "--count", "5"]) == 0
    assert capsys.readouterr().out.split() == looks[1:]


def test_decisions_made_on_the_page_are_taken_over(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = ReviewSession(run)
    looks = session.review.looks(30).tolist()
    for number, path in enumerate(looks):
        session.decide(path, "drop" if number % 3 == 0 else "keep")
    made = (run / "decisions.csv").rename(tmp_path / "exported.csv")
    assert main(["review", str(run), "--decisions", str(made), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["looks"], found["found"], found["decided"]) == (30, 10, 30)
    assert found["share"]["low"] < found["share"]["estimate"] < found["share"]["high"]
    assert len(found["to_look_at"]) == 10
    assert "random looks" in found["report"]
    assert len(kept(run)) == 30


def test_decisions_about_findings_are_kept_and_ask_for_no_label(run: Path) -> None:
    columns = ("path", "decision", "given_label", "new_label", "source", "new_split", "finding")
    first, second, third = list(ReviewSession(run).looks(3))
    given = ReviewSession(run).labels[first][0]
    rows = [
        (first, "drop", given, "", "/data", "", "copies"),
        (second, "keep", ReviewSession(run).labels[second][0], "", "/data", "", ""),
        ("test/other.png", "move", "", "", "/data", "val", "leaks"),
        ("val/other.png", "relabel", "cat", "dog", "/data", "", ""),
    ]
    write_csv(run / "page.csv", columns, rows)
    session = ReviewSession(run, run / "page.csv")
    assert session.skipped == {first}
    assert first not in list(session.remaining(10))
    assert (session.estimate().decided, session.estimate().found) == (1, 0)
    session.decide(third, "keep")
    with open(run / "decisions.csv", newline="", encoding="utf-8") as file:
        saved = {
            from_cell(row["path"]): (row["decision"], row["new_split"], row["finding"]) for row in csv.DictReader(file)
        }
    assert saved == {
        first: ("drop", "", "copies"),
        second: ("keep", "", ""),
        third: ("keep", "", ""),
        "test/other.png": ("move", "val", "leaks"),
        "val/other.png": ("relabel", "", ""),
    }
    session.decide(first, "keep")
    assert set(ReviewSession(run).further) == {"test/other.png", "val/other.png"}


def test_new_labels_in_other_splits_are_kept_where_a_page_offers_no_moves(run: Path) -> None:
    columns = ("path", "decision", "given_label", "new_label", "source", "finding")
    write_csv(run / "page.csv", columns, [("val/other.png", "relabel", "cat", "dog", "/data", "copies")])
    session = ReviewSession(run, run / "page.csv")
    assert (set(session.further), session.decided) == ({"val/other.png"}, {})


def test_a_finished_list_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    make_run(tmp_path / "run", size=6, wrong=2)
    assert review(tmp_path / "run", "d k k k k k", monkeypatch) == 0
    assert "All 6 labels are decided. Wrong: 1." in capsys.readouterr().out


def test_names_from_the_data_cannot_move_the_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("review_runs.CLASSES", ("a\x1b[2J", "b\rc", "[red]d"))
    make_run(tmp_path / "run", size=9)
    assert review(tmp_path / "run", "o q", monkeypatch) == 0
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said
    assert "\r" not in said
    assert "a\\x1b[2J" in said
    assert "[red]d" in said


def test_the_plan_stays_when_the_audit_ranks_anew(run: Path) -> None:
    before = ReviewSession(run).review
    lines = (run / "issues.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "issues.csv").write_text("".join([lines[0], *reversed(lines[1:])]), encoding="utf-8")
    after = ReviewSession(run).review
    assert after.looks(40).tolist() == before.looks(40).tolist()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "issues.csv").unlink(), "holds no issues.csv"),
        (lambda run: (run / "run.json").unlink(), "holds no run.json"),
        (lambda run: (run / "issues.csv").write_text("path\nx\n"), "is damaged"),
        (lambda run: (run / "review.json").write_text('{"size": 3}'), "remove it to draw anew"),
        (lambda run: (run / "decisions.csv").write_text(f"{HEAD}\nq,keep,,\n"), "about 'q'"),
        (lambda run: (run / "decisions.csv").write_text(f"{HEAD}\ncat/000.png,may,,\n"), "'may'"),
    ],
)  # fmt: skip
def test_what_is_not_a_finished_run_is_told(
    run: Path, spoil: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run)
    assert main(["review", str(run), "--json"]) == 2
    assert message in capsys.readouterr().err


def test_a_picture_opens_only_when_asked(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    opened: list[list[str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda words, **_: opened.append([str(word) for word in words]))
    first = ReviewSession(run).review.looks(1).tolist()[0]
    picture = run.parent / "data" / first
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"")
    assert review(run, "q", monkeypatch) == 0
    assert opened == []
    assert review(run, "k q", monkeypatch, "--open") == 0
    assert opened[0][-1] == str(picture)
    assert "is no file by itself" in capsys.readouterr().err  # the second one
