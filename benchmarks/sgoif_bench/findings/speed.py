"""Time and memory of the same checks: dark, bright, blurry, empty, odd shape and size, grey, exact and near copies.

    sgoif-bench findings-speed --data ROOT --set cifar10 --images 20000 --cleanvision PYTHON --out FILE.json

Each program looks at the same folder in a process of its own, one after the other, so that other work on the machine
meets all of them. CleanVision runs in another environment, whose Python is given, since it asks for packages that
nothing here needs. cleanlab's Datalab gets averages of 8 × 8 pixels, which are made before its clock starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from sgoif.errors import SettingError, SgoifError
from sgoif_bench.command import Device, Say, run_command, setting
from sgoif_bench.findings.pictures import NAMES, pictures
from sgoif_bench.findings.planting import Tree, clean

PROGRAM = "python -m sgoif_bench.findings.speed"
DEFAULT_OUT = "runs/findings-speed.json"
OURS = """
import tempfile
from sgoif.findings import Examined
from sgoif.findings.kinds.copies import ExactCopies, NearCopies
from sgoif.findings.kinds.quality import Blurry, Bright, Dark, Empty, GreyAmongColour, OddAspect, OddSize
from sgoif.images import open_images
from sgoif.images.preparation import prepare

def look(folder):
    with tempfile.TemporaryDirectory() as place:
        pixels = prepare(open_images(folder), place)
        near = [group.indices for group in pixels.near_duplicates]
        seen = Examined(pixels.names, pixels.labels, pixels.class_names, pixels.measurements(), near_copies=near)
        checks = (Blurry, Bright, Dark, Empty, GreyAmongColour, OddAspect, OddSize, ExactCopies, NearCopies)
        return {check.kind: len(check().find(seen)) for check in checks}
"""
CLEANVISION = """
from cleanvision import Imagelab

def look(folder):
    lab = Imagelab(data_path=folder)
    lab.find_issues(verbose=False)
    return {name[3:-6]: int(lab.issues[name].sum()) for name in lab.issues if name.startswith("is_")}
"""
DATALAB = """
from pathlib import Path
import numpy as np
from PIL import Image
from cleanlab import Datalab

def prepared(folder):
    files = sorted(file for file in Path(folder).rglob("*.*") if file.is_file())
    small = [np.asarray(Image.open(file).convert("RGB").resize((8, 8), Image.Resampling.BOX)) for file in files]
    return np.stack(small).reshape(len(files), -1).astype(np.float32)

def look(features):
    lab = Datalab({"number": list(range(len(features)))}, verbosity=0)
    lab.find_issues(features=features, issue_types={"near_duplicate": {}})
    return {"near_duplicate": int(lab.get_issues("near_duplicate")["is_near_duplicate_issue"].sum())}
"""
TIMED = """
import json, os, resource, sys, time

def now():
    return time.perf_counter(), sum(os.times()[:4])

def peak():
    own = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return 1024 * max(int(own[0].split()[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)

if __name__ == "__main__":
    given = globals().get("prepared", str)(sys.argv[1])
    before = now()
    found = look(given)
    seconds, cpu = (after - start for after, start in zip(now(), before))
    with open(sys.argv[2], "w") as file:
        json.dump({"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": peak(), "found": found}, file)
"""
"""What is put behind each of them: time and CPU time from the import of packages to the end,
and the peak of the largest process, as Linux tells it."""


@dataclass(frozen=True)
class SpeedSettings:
    """What is compared."""

    data: str | None = setting(None, help="folder that holds the data sets; generated images and digits need none")
    set: str = setting("generated", help=f"images: one of {', '.join(NAMES)}")
    images: int = setting(2000, help="how many of them")
    repeats: int = setting(3, help="times that each program runs")
    cleanvision: str | None = setting(None, help="python of an environment with CleanVision; unset: without it")
    datalab: bool = setting(True, help="with cleanlab's Datalab, from this environment")
    scratch: str = setting("runs/findings", help="folder for the images, which are removed afterwards")
    device: Device = setting("cpu", help="takes part in nothing here but the description of the machine")

    def __post_init__(self) -> None:
        if self.set not in NAMES:
            raise SettingError(f"there is no set {self.set!r}; choose from {', '.join(NAMES)}")
        if self.images < 100 or self.repeats < 1:
            raise SettingError("--images is at least 100, and --repeats at least 1")


def timed(python: str, code: str, folder: Path, answer: Path) -> dict[str, Any]:
    """Seconds, CPU seconds and peak memory of a process that looks at a folder, and how many things it found."""
    words = [python, "-c", code + TIMED, str(folder), str(answer)]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise SgoifError(f"{python} ended with exit code {done.returncode}: {said[-1] if said else 'it said nothing'}")
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return {**found, "load": os.getloadavg()[0]}


def run_speed(settings: SpeedSettings, tell: Say) -> dict[str, Any]:
    """Compare the time and the memory of checks that need no network with those of CleanVision and cleanlab."""
    programs = {"sgoif": (sys.executable, OURS)}
    if settings.cleanvision is not None:
        programs["cleanvision"] = settings.cleanvision, CLEANVISION
    if settings.datalab:
        programs["datalab"] = sys.executable, DATALAB
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
    Path(settings.scratch).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="speed-", dir=settings.scratch) as name:
        place = Path(name).absolute()
        source = pictures(settings.set, settings.data, settings.images, tell)
        files = [replace(file, split="all") for file in clean(source, 0).files]
        count = len(Tree(files).write(place / "images"))
        for repeat in range(settings.repeats):
            for program, (python, code) in programs.items():
                found = timed(python, code, place / "images" / "all", place / "answer.json")
                runs[program].append(found)
                tell(f"{repeat + 1} of {settings.repeats}: {program} {found['seconds']:.1f} s")
    names = ("seconds", "cpu_seconds", "peak_bytes")
    medians = {program: {name: median(run[name] for run in some) for name in names} for program, some in runs.items()}
    return {"images": count, "medians": medians, "runs": runs}


def show(whole: Mapping[str, Any]) -> str:
    """A line for each program."""
    return "\n".join(
        f"{program}: {found['seconds']:.1f} s, {found['cpu_seconds']:.1f} CPU seconds,"
        f" {whole['images'] / found['cpu_seconds']:.0f} images per CPU second, {found['peak_bytes'] / 2**20:.0f} MiB"
        for program, found in whole["medians"].items()
    )


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the comparison from the command line; returns the exit code."""
    return run_command(program, SpeedSettings, run_speed, show, arguments, DEFAULT_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
