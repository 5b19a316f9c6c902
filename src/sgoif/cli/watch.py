"""`sgoif watch`: serve a running audit until Ctrl-C."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch")(watch_command)


def watch_command(
    run: Annotated[Path, typer.Argument(help="Run directory of `sgoif audit`, running or finished.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; unless told otherwise, other machines cannot reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 0,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with the link on standard output, then serve.")
    ] = False,
) -> None:
    """Watch an audit while it trains: curves, warnings and the worst images so far. Changes nothing; Ctrl-C ends it."""
    from sgoif.commands.watch.server import WatchServer

    with WatchServer(run, host, port) as server:
        if as_json:
            print(json.dumps({"link": server.link}), flush=True)
        print(f"watching {run} at {server.link} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if browse:
            import webbrowser

            webbrowser.open(server.link)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("no longer watching; the audit itself goes on", file=sys.stderr)
