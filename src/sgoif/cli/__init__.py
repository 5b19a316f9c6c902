"""The command `sgoif`: exit codes, and one sentence instead of a stack trace for a user's mistake.

The commands themselves are in `sgoif.cli.app`, which needs the extra "cli"; this module needs nothing.
"""

import io
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec

from sgoif.errors import HealthWarning, MissingExtraError, SettingError, SgoifError, sentence

MISTAKE, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 a mistake in what was asked, 130 interrupted.

    `sgoif sentinel watch` adds 3, an alarm, `sgoif audit --fail-on` 4, something that it asks about.
    """
    make_printable()
    try:
        for package in ("typer", "rich"):
            if find_spec(package) is None:
                raise MissingExtraError(package, "cli", "The command line")
        given = list(sys.argv[1:] if arguments is None else arguments)
        if given[:1] == ["bench"]:
            raise SettingError(f"the benchmarks are a program of their own: {shlex.join(['sgoif-bench', *given[1:]])}")
        from sgoif.cli.app import app

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HealthWarning)  # commands say in words of their own what a list rests on
            app(args=given, prog_name="sgoif")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        print("sgoif: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (SgoifError, OSError) as error:
        print(f"sgoif: {sentence(error)}", file=sys.stderr)
        return MISTAKE
    return 0


def make_printable() -> None:
    """Let every text be printed: what a locale has no letters for is escaped, a stream that was closed is a sink."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    raise SystemExit(main())
