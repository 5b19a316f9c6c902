"""How much memory images take at most, each in a process of its own: bytes beside what there was before."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from PIL import Image

from sgoif.images.decode import decode, to_plain


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def taken(what: str, side: int) -> int:
    """By decoding a file, or by converting an image of some mode, where asked with a transparent shade."""
    if what.endswith((".png", ".tif")):
        before = peak()
        image = decode(Path(what))
    else:
        mode, _, shade = what.partition(" ")
        source = Image.new(mode, (side, side))
        if shade:
            source.info["transparency"] = 0
        before = peak()
        image = to_plain(source)
    assert image.mode in ("L", "RGB")
    assert image.size == (side, side)
    return peak() - before


def main(cases: list[tuple[str, int]]) -> None:
    to_plain(Image.new("RGBA", (8, 8)))
    to_plain(Image.new("F", (8, 8)))
    found = []
    for what, side in cases:
        reader, writer = os.pipe()
        if not os.fork():
            os.write(writer, str(taken(what, side)).encode())
            os._exit(0)
        os.close(writer)
        os.wait()
        found.append(int(os.read(reader, 100)))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
