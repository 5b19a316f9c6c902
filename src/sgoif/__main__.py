"""`python -m sgoif` is the command `sgoif`."""

import os
import sys

if __name__ == "__main__":
    # `python -m` looks for modules in the current folder first, the command `sgoif` does not: a `timm.py` in a folder
    # that was downloaded is not what a file there means by timm. It stays where sgoif itself comes from there.
    here, home = os.getcwd(), os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if not sys.flags.safe_path and sys.path[0] == here and here != home:
        del sys.path[0]

    from sgoif.cli import main

    raise SystemExit(main())
