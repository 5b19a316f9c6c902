"""Turns a settings dataclass and a function into a command: one option per field, `--out` and `--json` on top.

Results go to standard output, progress and messages to standard error. A mistake is answered with a sentence and exit
code 2, Ctrl-C with exit code 130.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sgoif.core.provenance import machine, plain, versions, write_json
from sgoif.core.serialization import check_writable
from sgoif.device.selection import Device, choose_device
from sgoif.errors import SettingError, SgoifError, sentence
from sgoif_bench.result_texts import command_line

__all__ = [
    "Device",
    "Say",
    "answered",
    "check_writable",
    "choose_device",
    "listed",
    "option_parser",
    "run_command",
    "run_grid",
    "say",
    "seeds_of",
    "sentence",
    "setting",
]

Say = Callable[[str], None]


def setting(default: Any = dataclasses.MISSING, *, help: str) -> Any:
    """A dataclass field that explains itself on the command line; without a default it is a required option."""
    return dataclasses.field(default=default, metadata={"help": help})


def say(message: str) -> None:
    """A line for the person who waits."""
    print(message, file=sys.stderr, flush=True)


def listed(text: str, option: str) -> list[str]:
    """What stands between the commas of an option, each once."""
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise SettingError(f"--{option} is empty; give at least one, separated by commas")
    return words


def seeds_of(text: str) -> list[int]:
    """The numbers of `--seeds`."""
    words = listed(text, "seeds")
    for word in words:
        if not word.isdecimal():
            raise SettingError(f"--seeds takes whole numbers from 0 up, separated by commas; got {word!r}")
    return [int(word) for word in words]


def run_command(
    program: str,
    settings_type: type[Any],
    run: Callable[[Any, Say], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None = None,
    default_out: str | None = None,
) -> int:
    """Parse, run, print, write. The exit code is returned; only --help and unreadable options leave by SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed = vars(option_parser(program, settings_type, run.__doc__ or "", default_out).parse_args(given))
    out, as_json = parsed.pop("out"), parsed.pop("json")

    def act() -> int:
        settings = settings_type(**parsed)
        device = choose_device(settings.device)
        target = Path(out.replace("DEVICE", device.type)) if out else None
        if target is not None:
            check_writable(target)
        result = run(settings, say)
        origin = {"command": command_line(program, given), "versions": versions(), "machine": machine(device)}
        whole = plain({**origin, "settings": _public(settings), **result})
        if target is not None:
            write_json(target, whole)
            say(f"result written to {target}")
        print(json.dumps(whole, allow_nan=False) if as_json else show(whole))
        return 0

    return answered(program, act)


def run_grid(
    program: str,
    settings_type: type[Any],
    run: Callable[[Any, Path, str], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None,
    default_out: str,
) -> int:
    """The same for a grid, which keeps its results in a JSON Lines file itself; exit code 1 where a cell failed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = option_parser(program, settings_type, run.__doc__ or "", default_out, file="FILE.jsonl")
    parsed = vars(options.parse_args(given))
    out, as_json = Path(parsed.pop("out")), parsed.pop("json")

    def act() -> int:
        whole = run(settings_type(**parsed), out, command_line(program, given))
        print(json.dumps(whole, allow_nan=False) if as_json else show(whole))
        return 1 if whole["failed"] else 0

    return answered(program, act)


def answered(program: str, act: Callable[[], int]) -> int:
    """The exit code of an action; a mistake is answered with a sentence and 2, Ctrl-C with 130."""
    try:
        return act()
    except (SgoifError, OSError) as error:
        say(f"{program}: {sentence(error)}")
        return 2
    except KeyboardInterrupt:
        say(f"{program}: interrupted")
        return 130


UNNAMED, FILES = ("data", "plot", "evidence", "scratch"), ("matrix", "human", "again", "cleanvision")


def _public(settings: Any) -> dict[str, Any]:
    """The settings; files that say nothing about the result are left out, others go by their name alone."""
    values = {name: value for name, value in dataclasses.asdict(settings).items() if name not in UNNAMED}
    return {name: Path(value).name if name in FILES and value else value for name, value in values.items()}


def option_parser(
    program: str, settings_type: type[Any], doc: str, default_out: str | None, *, file: str = "FILE.json"
) -> argparse.ArgumentParser:
    """One option per field of the settings, `--out` for such a file, and `--json`."""
    parser = argparse.ArgumentParser(
        prog=program, description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    hints = get_type_hints(settings_type)
    for item in dataclasses.fields(settings_type):
        flag = "--" + item.name.replace("_", "-")
        required = item.default is dataclasses.MISSING
        kind = _without_none(hints[item.name])
        options: dict[str, Any] = {"dest": item.name, "help": item.metadata.get("help"), "required": required}
        if not required:
            options["default"] = item.default
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(kind) is Literal:
            options["choices"] = get_args(kind)
        else:
            options["type"] = kind
        parser.add_argument(flag, **options)
    parser.add_argument("--out", default=default_out, metavar=file, help="where to write the whole result")
    parser.add_argument("--json", action="store_true", help="print the whole result as one JSON object")
    return parser


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint
