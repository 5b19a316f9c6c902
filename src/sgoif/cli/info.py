"""`sgoif info`: what a result can depend on, and what is installed."""

from sgoif.cli.options import AsJson
from sgoif.cli.terminal import print_json, results


def info_command(as_json: AsJson = False) -> None:
    """Show versions, devices, what decides whether runs repeat, and which extras are there; for a bug report."""
    from rich.table import Table
    from rich.text import Text

    from sgoif.commands.info import facts, shown

    found = facts()
    if as_json:
        print_json(found)
        return
    listing = Table(show_header=False, box=None)
    for name, value in shown(found):
        listing.add_row(Text(name), Text(value))
    results().print(listing)
