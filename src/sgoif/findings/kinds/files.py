"""Files that cannot be used, or are not what their names say."""

from pathlib import PurePosixPath

from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import Finding, Severity

NAMED = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), ("JPEG", "MPO")),
    **dict.fromkeys((".png", ".apng"), ("PNG",)),
    **dict.fromkeys((".bmp", ".dib"), ("BMP", "DIB")),
    **dict.fromkeys((".tif", ".tiff"), ("TIFF",)),
    **dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm"), ("PPM",)),
    **dict.fromkeys((".jp2", ".j2k", ".jpx"), ("JPEG2000",)),
    **{f".{name.lower()}": (name,) for name in ("GIF", "WEBP", "AVIF", "TGA", "ICO")},
}
"""What a file of such a name should hold."""


class Unreadable(Check):
    """Files without content, cut off, damaged, or of no known format.

    Found by decoding every one of them whole. There is no limit, and so there are no false alarms.
    """

    kind = "unreadable"
    title = "Unreadable files"
    severity = Severity.ERROR

    def find(self, seen: Examined) -> list[Finding]:
        advice = "Fetch it again from where it came, or delete it."
        return [
            Finding(self.kind, self.severity, f"The image is lost: {file.reason}.", (file.name,), advice=advice)
            for file in seen.unreadable
            if file.damaged
        ]


class LeftOut(Check):
    """What was not looked at although nothing is wrong with it, as far as is known: links, loose files, no label."""

    kind = "left-out"
    title = "Files left out"
    severity = Severity.NOTE

    def find(self, seen: Examined) -> list[Finding]:
        return [
            Finding(self.kind, self.severity, f"Left out: {file.reason}.", (file.name,))
            for file in seen.unreadable
            if not file.damaged
        ]


class Misnamed(Check):
    """Files in another format than their names say, such as a PNG called .jpg.

    The format is what the file was decoded as, so there are no false alarms. A note, since most programs look at the
    content and not at the name.
    """

    kind = "misnamed"
    title = "Files in another format than they are named"
    severity = Severity.NOTE

    def find(self, seen: Examined) -> list[Finding]:
        found = []
        for row, (name, encoded) in enumerate(zip(seen.names, seen.measured.format.tolist(), strict=True)):
            suffix, kind = PurePosixPath(name).suffix.lower(), encoded.decode()
            if kind and suffix in NAMED and kind not in NAMED[suffix]:
                message = f"A {kind} file is called {suffix}."
                evidence = {"format": kind, "suffix": suffix}
                found.append(self.finding(seen, [row], message, "Rename it, or convert it.", evidence=evidence))
        return found
