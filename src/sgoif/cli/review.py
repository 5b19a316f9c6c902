"""`sgoif review`: decide about suspicious images in a terminal, one key each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import AsJson
from sgoif.cli.terminal import message, print_json, print_sentence

if TYPE_CHECKING:
    from sgoif.commands.review.session import ReviewSession

LOOKS, LISTED = 40, 30
KEYS = "k keep   r relabel   o other label   d drop   s skip   u undo   q quit"


def review_command(
    run: Annotated[Path, typer.Argument(help="Run directory of a finished `sgoif audit`.")],
    count: Annotated[int, typer.Option(min=1, help="Random looks to take before going down the list.")] = LOOKS,
    plan: Annotated[bool, typer.Option("--plan", help="Only list the random looks that are not taken yet.")] = False,
    decisions: Annotated[
        Path | None, typer.Option(help="decisions.csv made elsewhere, as on the page; its decisions are taken over.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Show every picture with the system's viewer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Decide about labels, and hear how many are wrong in all, how many are left, and when to stop.

    The first looks are drawn at random over the whole list, so that what they say holds whatever the model is worth;
    then the list is gone through from its top. Every decision is saved at once in RUN/decisions.csv, which `sgoif
    apply` reads.
    """
    from sgoif.commands.review.session import ReviewSession
    from sgoif.tasks.review import report

    session = ReviewSession(run, decisions)
    if not as_json and not plan:
        _ask(session, count, browse)
    found = session.estimate()
    if as_json:
        waiting = [path for path in session.looks(count) if path not in session.decided]
        facts: dict[str, Any] = {"decided": found.decided, "found": found.found, "looks": len(found.looks)}
        facts |= {name: getattr(found, name)._asdict() for name in ("share", "left", "recall")}
        print_json({**facts, "reviewed": found.reviewed, "to_look_at": waiting, "report": report(found)})
    elif plan:
        for path in session.looks(count):
            if path not in session.decided:
                print_sentence(_plain(path))
    else:
        print_sentence(report(found))
        if found.decided:
            message(f"decided: {found.decided:,}. Next: sgoif apply {_plain(run / 'decisions.csv')} --to CLEAN/")


def _ask(session: ReviewSession, count: int, browse: bool) -> None:
    """Show one image after the other until there is none left or somebody has enough."""
    from sgoif.tasks.review import report
    from sgoif.tasks.review.report import ENOUGH

    message(KEYS)
    done: list[str] = []
    while (path := next(session.remaining(count), None)) is not None:
        given, suggested, _ = session.labels[path]
        print_sentence(f"{_plain(path)}   label: {_plain(given)}   suggested: {_plain(suggested)}")
        if browse:
            _show(session.source / path)
        key = _key()
        if key == "q":
            return
        if key == "u":
            if done:
                session.undo(done.pop())
            continue
        if not _decide(session, path, key):
            message(KEYS)
            continue
        done.append(path)
        if len(session.decided) >= ENOUGH:
            print_sentence(report(session.estimate()))


def _decide(session: ReviewSession, path: str, key: str) -> bool:
    """What one key does; False where it means nothing."""
    given, suggested, _ = session.labels[path]
    if key == "r" and suggested == given:
        key = "o"
    label = _label(session.class_names) if key == "o" else suggested
    if key in ("k", "d", "s"):
        session.decide(path, {"k": "keep", "d": "drop", "s": "skip"}[key])
    elif key in ("r", "o") and label is not None:
        session.decide(path, "relabel", label)
    else:
        return False
    return True


def _label(names: list[str]) -> str | None:
    """A label that somebody types: its name, the beginning of one name alone, or its number."""
    listed = "   ".join(f"{number} {_plain(name)}" for number, name in enumerate(names, start=1))
    message(f"which label? {listed if len(names) <= LISTED else f'{len(names):,} names; type the beginning of one'}")
    text = sys.stdin.readline().strip()
    if text in names:
        return text
    if text.isdecimal() and 1 <= int(text) <= len(names):
        return names[int(text) - 1]
    fitting = [name for name in names if text and name.startswith(text)]
    return fitting[0] if len(fitting) == 1 else None


def _key() -> str:
    """One key; where there is no terminal, the first letter of a line."""
    if sys.stdin.isatty():
        import click

        return click.getchar().lower()
    line = sys.stdin.readline()
    return line.strip()[:1].lower() if line else "q"


def _show(path: Path) -> None:
    """Open a picture as the system does."""
    if not path.is_file():
        message(f"{_plain(path)} is no file by itself and cannot be opened")
    elif sys.platform == "win32":
        os.startfile(path)
    else:
        opener = "open" if sys.platform == "darwin" else "xdg-open"
        try:
            subprocess.Popen([opener, path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except OSError as error:
            message(f"{opener} could not be started ({error.strerror}); look at {_plain(path)} yourself")


def _plain(text: object) -> str:
    from sgoif.images.text import shown

    return shown(text, 200)[1:-1]
