"""A large folder of small images: time and memory of all checks that need no network, and of going on after a kill.

    sgoif-bench findings-scale --data ROOT --sets cifar10,cifar100 --images 100000 --out FILE.json

The images are written as JPEG of quality 90. One process reads them, looks for everything and writes findings.json and
findings.parquet. Another is killed when half of the images are read, and a third goes on where that one was.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sgoif.errors import SettingError, SgoifError
from sgoif.findings import Examined
from sgoif.findings.checks import find_all
from sgoif.findings.record import About, read_findings, write_findings, write_findings_table
from sgoif.images import open_images, prepare
from sgoif_bench.command import Device, Say, listed, run_command, setting
from sgoif_bench.findings.pictures import NAMES, pictures

PROGRAM = "python -m sgoif_bench.findings.scale"
DEFAULT_OUT = "runs/findings-scale.json"
QUALITY = 90
FINDINGS = "findings.json"
START = "spawn"
"""How a process starts: anew, so that its memory is its own."""


@dataclass(frozen=True)
class ScaleSettings:
    """What is looked at."""

    data: str | None = setting(None, help="folder that holds the data sets; generated images and digits need none")
    sets: str = setting("generated", help=f"whose images, one set after the other: of {', '.join(NAMES)}")
    images: int = setting(2000, help="how many of them in all")
    scratch: str = setting("runs/findings", help="folder for the images, which are removed afterwards")
    device: Device = setting("cpu", help="takes part in nothing here but the description of the machine")

    def __post_init__(self) -> None:
        if unknown := [name for name in listed(self.sets, "sets") if name not in NAMES]:
            raise SettingError(f"there is no set {unknown[0]!r}; choose from {', '.join(NAMES)}")
        if self.images < 100:
            raise SettingError("--images is at least 100")


def write_images(settings: ScaleSettings, place: Path, tell: Say) -> int:
    """A folder for each class of each set; returns how many images were written."""
    names = listed(settings.sets, "sets")
    left = settings.images
    for number, name in enumerate(names):
        source = pictures(name, settings.data, -(-left // (len(names) - number)), tell)
        for row, label in enumerate(source.labels.tolist()):
            file = place / f"{name} {source.classes[label]}" / f"{row:06d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            source.image(row).save(file, quality=QUALITY)
        left -= len(source)
    return settings.images - left


def look(folder: Path, out: Path, told: Connection) -> None:
    """Prepare, look, and write; tells how many images are read, and at last what it took."""
    steps = [("", time.perf_counter())]

    def ended(step: str) -> None:
        steps.append((step, time.perf_counter()))

    collection = open_images(folder)
    ended("opening")
    pixels = prepare(collection, out, progress=lambda done, total: told.send(done))
    ended("reading")
    near = [group.indices for group in pixels.near_duplicates]
    about = pixels.names, pixels.labels, pixels.class_names, pixels.measurements()
    seen = Examined(*about, near_copies=near, unreadable=pixels.skipped)
    report = find_all(seen)
    ended("looking")
    write_findings(out / FINDINGS, report, About("images", len(pixels), pixels.class_names))
    write_findings_table(out / "findings.parquet", report.findings)
    ended("writing")
    with open("/proc/self/status", encoding="utf-8") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    seconds = {step: now - before for (_, before), (step, now) in pairwise(steps)}
    told.send(
        {
            "seconds": seconds,
            "cpu_seconds": sum(os.times()[:4]),
            "peak_bytes": 1024 * (peak + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss),
            "looked": report.looked,
            "found": report.kinds(),
        }
    )


def run_look(folder: Path, out: Path, kill_at: int | None = None) -> dict[str, Any]:
    """In a process of its own, which is killed where so many images are read."""
    context: Any = multiprocessing.get_context(START)
    receiver, sender = context.Pipe(duplex=False)
    start = time.perf_counter()
    process = context.Process(target=look, args=(folder, out, sender))
    process.start()
    sender.close()
    told: Any = 0
    first = None
    try:
        while isinstance(told, int) and (kill_at is None or told < kill_at):
            told = receiver.recv()
            first = first or told
    except EOFError as error:
        raise SgoifError("the process that looks through the images ended before it was done") from error
    finally:
        if isinstance(told, int):
            process.kill()
        process.join()
    found = {"read": told} if isinstance(told, int) else told
    return {**found, "first_told": first, "whole_seconds": time.perf_counter() - start, "load": os.getloadavg()[0]}


def run_scale(settings: ScaleSettings, tell: Say) -> dict[str, Any]:
    """Time and memory of looking through a large folder of small images, and of going on after a kill."""
    Path(settings.scratch).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="scale-", dir=settings.scratch) as name:
        place = Path(name).absolute()
        count = write_images(settings, place / "images", tell)
        tell(f"{count:,} images are written")
        whole = run_look(place / "images", place / "whole")
        tell(f"whole: {whole['whole_seconds']:.0f} s")
        killed = run_look(place / "images", place / "resumed", kill_at=count // 2)
        tell(f"killed at {killed['read']:,}: {killed['whole_seconds']:.0f} s")
        resumed = run_look(place / "images", place / "resumed")
        tell(f"resumed at {resumed['first_told']:,}: {resumed['whole_seconds']:.0f} s")
        files = [place / run / FINDINGS for run in ("whole", "resumed")]
        return {
            "images": count,
            "image_bytes": sum(file.stat().st_size for file in (place / "images").rglob("*.jpg")),
            "images_per_second": count / whole["whole_seconds"],
            "whole": whole,
            "killed": killed,
            "resumed": resumed,
            "same_findings": read_findings(files[0]) == read_findings(files[1]),
        }


def show(whole: Mapping[str, Any]) -> str:
    """Three sentences."""
    one, killed, resumed = whole["whole"], whole["killed"], whole["resumed"]
    return (
        f"{whole['images']:,} images in {one['whole_seconds']:.0f} s, {whole['images_per_second']:.0f} a second,"
        f" {one['cpu_seconds']:.0f} CPU seconds, at most {one['peak_bytes'] / 2**20:.0f} MiB.\n"
        f"Killed when {killed['read']:,} were read, the next run began at {resumed['first_told']:,}:"
        f" {resumed['whole_seconds']:.0f} s, {'the same' if whole['same_findings'] else 'OTHER'} findings."
    )


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run it from the command line; returns the exit code."""
    return run_command(program, ScaleSettings, run_scale, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
