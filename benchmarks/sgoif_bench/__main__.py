"""`python -m sgoif_bench` is the command `sgoif-bench`."""

from sgoif_bench.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
