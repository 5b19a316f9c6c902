"""`sgoif watch`: serve a running audit until Ctrl-C."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sgoif.cli.terminal import message


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
        message(f"watching {run} at {server.link} (Ctrl-C ends it)")
        if browse:
            import webbrowser

            webbrowser.open(server.link)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            message("no longer watching; the audit itself goes on")
