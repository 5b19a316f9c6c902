"""The tables of the page about findings: what was planted, what is found of it, and false alarms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import fill

from pages.cells import RESULTS, Line, read_result, table
from pages.pretrained import TITLES
from sgoif_bench.findings.grid import KIND
from sgoif_bench.findings.kinds import CLASSES, GROUPS, is_grave
from sgoif_bench.findings.table import alarms, kinds_of, sets_of, share

PAGE = "findings.md"
FILE = "findings.jsonl"
LOOKED = "findings-looked.json"
SPEED, SCALE = "findings-speed.json", "findings-scale.json"
PERFECT = "100/100"
PROGRAMS = {"sgoif": "SG-OIF", "cleanvision": "CleanVision", "datalab": "Datalab, near copies alone"}


def _lines() -> list[Line]:
    return KIND.read([RESULTS / FILE])


def found() -> str:
    """Recall and precision of every kind, a column for each set; kinds of which nothing is missed are one row."""
    lines = _lines()
    sets = sets_of(lines)
    rows, perfect = [], []
    for kind in kinds_of(lines):
        cells = []
        for name in sets:
            some = [line for line in lines if (line["kind"], line["set"]) == (kind, name)]
            cells.append(f"{share(some, 'recall')}/{share(some, 'precision')}" if some else "–")
        if set(cells) == {PERFECT}:
            perfect.append(kind)
        else:
            rows.append([kind, *cells])
    if perfect:
        rows.insert(0, [", ".join(perfect), *(PERFECT for _ in sets)])
    return table(("kind", *(TITLES[name] for name in sets)), rows)


def copies() -> str:
    """Which near copies are found, by what they went through."""
    lines = [line for line in _lines() if line["kind"] == "near-copies"]
    sets = sets_of(lines)
    parts = dict.fromkeys(part for line in lines for part in sorted(line["planted"]))
    rows = [
        [part, *(_percent([line for line in lines if line["set"] == name], part) for name in sets)] for part in parts
    ]
    return table(("copies", *(TITLES[name] for name in sets)), rows)


def false_alarms() -> str:
    """Errors and warnings in the clean twins: how many, how many of them are so to the eye, and the others."""
    lines, looked = _lines(), read_result(LOOKED)["so"]
    sets = sets_of(lines)
    rows = []
    for kind in kinds_of(lines):
        listed = "copies" if kind in GROUPS else kind
        if kind in CLASSES or not any(
            is_grave(found["severity"]) for line in lines if line["kind"] == kind for found in line["clean"]
        ):
            continue
        cells = []
        for name in sets:
            some = [line for line in lines if (line["kind"], line["set"]) == (kind, name)]
            cells.append(_alarms(some, looked.get(name, {}).get(listed, [])) if some else "–")
        rows.append([kind, *cells])
    return table(("kind", *(TITLES[name] for name in sets)), rows)


def speed() -> str:
    """A row for every program."""
    whole = read_result(SPEED)
    rows = []
    for program, measured in whole["medians"].items():
        rate = whole["images"] / measured["cpu_seconds"]
        rows.append(
            [
                PROGRAMS[program],
                f"{measured['seconds']:.0f}",
                f"{measured['cpu_seconds']:.0f}",
                f"{rate:,.0f}",
                f"{measured['peak_bytes'] / 2**20:,.0f}",
            ]
        )
    return table(("program", "seconds", "CPU seconds", "images per CPU second", "peak MiB"), rows)


def scale() -> str:
    """A sentence about a large folder, and one about going on after a kill."""
    found = read_result(SCALE)
    whole, killed, resumed = found["whole"], found["killed"], found["resumed"]
    told = (
        f"All {len(whole['looked'])} kinds that need no network, in {found['images']:,} JPEG files of CIFAR:"
        f" {whole['cpu_seconds']:.0f} CPU seconds, {found['images'] / whole['cpu_seconds']:.0f} images in each,"
        f" {whole['whole_seconds']:.0f} seconds ({found['images_per_second']:.0f} a second, at a load of"
        f" {whole['load']:.0f}), at most {whole['peak_bytes'] / 2**20:.0f} MiB."
        f" Killed when {killed['read']:,} were read, it went on behind {resumed['first_told']:,}"
        f" and found {'the same' if found['same_findings'] else 'SOMETHING ELSE'}."
    )
    return fill(told, 132) + "\n"


def _percent(lines: Sequence[Line], part: str) -> str:
    planted = sum(line["planted"][part] for line in lines)
    return f"{100 * sum(line['found'][part] for line in lines) / planted:.0f}"


def _alarms(lines: Sequence[Line], so: Sequence[Sequence[int]]) -> str:
    """All in 1,000 images, and those that are not so."""
    grave = [found["rows"] for line in lines for found in line["clean"] if is_grave(found["severity"])]
    images = sum(line["clean_images"] for line in lines)
    false = 1000 * sum(not any(set(rows) <= set(group) for group in so) for rows in grave) / images
    return f"{false:.2f} ({alarms(lines):.2f})" if alarms(lines) else "0"


TABLES: dict[str, Callable[[], str]] = {
    "findings": found,
    "findings-copies": copies,
    "findings-alarms": false_alarms,
    "findings-speed": speed,
    "findings-scale": scale,
}
