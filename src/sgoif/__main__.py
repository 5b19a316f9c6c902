"""`python -m sgoif` is the command `sgoif`."""

from sgoif.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
