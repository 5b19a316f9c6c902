"""One job: write the folder and its twin, examine both, and write down what was found."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sgoif.backbones import Backbone, load_backbone
from sgoif.core.types import Array
from sgoif.features import choose_resolution, extract_features
from sgoif.findings import Examined
from sgoif.images import open_images
from sgoif.images.collection import Collection
from sgoif.images.preparation import prepare
from sgoif_bench.command import Say, say
from sgoif_bench.findings.grid import Job
from sgoif_bench.findings.kinds import by_severity, identity, is_grave, look, tally
from sgoif_bench.findings.labels import KINDS as LABELS
from sgoif_bench.findings.labels import judged, mislabelled
from sgoif_bench.findings.pictures import Pictures, foreign, pictures
from sgoif_bench.findings.planting import Tree, clean, planted
from sgoif_bench.findings.settings import FindingsSettings
from sgoif_bench.jobs import OneDevice
from sgoif_bench.journal import Line


@dataclass
class Runner(OneDevice[Job]):
    """Does jobs, one after the other."""

    settings: FindingsSettings
    command: str
    device: torch.device
    tell: Say = say

    def __post_init__(self) -> None:
        self._pictures: tuple[str, Pictures] | None = None

    def pictures(self, job: Job) -> Pictures:
        """The images of a job; one set is kept in memory, as jobs come set by set."""
        if self._pictures is None or self._pictures[0] != job.set:
            self.forget()
            self._pictures = job.set, pictures(job.set, self.settings.data, self.settings.limit, self.tell)
        return self._pictures[1]

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is written that data are missing, or too few."""
        for job in {(job.set, labels_of(job)): job for job in reversed(jobs)}.values():
            self._planted(job)
        if jobs and self.settings.backbone != "none":
            load_backbone(self.settings.backbone)

    def forget(self) -> None:
        """Give the images' memory back."""
        self._pictures = None

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        whole, scratch = self.pictures(job), Path(self.settings.scratch)
        scratch.mkdir(parents=True, exist_ok=True)
        trees = {"clean": clean(whole, job.seed), "planted": self._planted(job)}
        found, files, counts = {}, {}, {}
        with TemporaryDirectory(prefix=f"{job.set}-{job.seed}-", dir=scratch) as name:
            place, size = Path(name).absolute(), None
            for side, tree in trees.items():
                files[side] = tree.write(place / side)
                start = time.perf_counter()
                seen, size = self._examined(job, place / side, place / f"{side}-prepared", size)
                found[side] = {kind: look(kind, seen) for kind in job.methods}
                counts[side] = len(seen.names)
                self.tell(f"{job.set} {side}: {counts[side]:,} images in {time.perf_counter() - start:.0f} s")
        lines = []
        for kind in job.methods:
            known = [identity(finding, files["clean"]) for finding in found["clean"][kind]]
            same = set() if kind in LABELS else set(known)  # whoever looks through a list looks at all of it
            result = tally(kind, found["planted"][kind], trees["planted"], files["planted"], same)
            reached = {part: len(result.reached.get(part, ())) for part in result.planted}
            total, new = sum(result.planted.values()), result.found - result.known
            severities = by_severity(found["clean"][kind])
            grave = sum(number for severity, number in severities.items() if is_grave(severity))
            lines.append(
                {
                    **self.origin(job, kind),
                    "images": counts["planted"],
                    "clean_images": counts["clean"],
                    "planted": result.planted,
                    "found": reached,
                    "findings": result.found,
                    "right": result.right,
                    "known": result.known,
                    "severity": by_severity(found["planted"][kind]),
                    "clean_severity": severities,
                    "metrics": {
                        "recall": sum(reached.values()) / total,
                        "precision": result.right / new if new else None,
                        "alarms": 1000 * grave / counts["clean"],
                    },
                    "clean": [
                        {"rows": rows, "classes": classes, "about": about, "severity": finding.severity.value}
                        for (rows, classes, about), finding in zip(known, found["clean"][kind], strict=True)
                    ],
                    "wrong": [
                        {"rows": rows, "classes": classes, "about": about} for rows, classes, about in result.wrong
                    ],
                }
            )
        return lines, {}

    def _planted(self, job: Job) -> Tree:
        """The folder in which something is planted."""
        if labels_of(job):
            return mislabelled(self.pictures(job), job.seed, self.settings.wrong)
        strangers = foreign(job.set, self.settings.data, self.tell)
        return planted(self.pictures(job), strangers, job.seed, self.settings.rate)

    def _examined(self, job: Job, folder: Path, prepared: Path, size: int | None) -> tuple[Examined, int | None]:
        """A folder as checks see it, and the size at which the network saw its images."""
        collection = open_images(folder, every_split=not labels_of(job))
        pixels = prepare(collection, prepared)
        features = None
        backbone = load_backbone(self.settings.backbone) if self.settings.backbone != "none" else None
        if backbone is not None:
            size = size or choose_resolution(backbone, collection, device=self.device)[0]
            features = _features(collection, pixels.names, backbone, size, self.device)
            if labels_of(job):
                return judged(pixels, features, job.seed, self.device.type), size
        splits = dict(zip(collection.names, collection.splits or [], strict=True))
        return Examined(
            pixels.names,
            pixels.labels,
            pixels.class_names,
            pixels.measurements(),
            splits=[splits[name] for name in pixels.names],
            near_copies=[group.indices for group in pixels.near_duplicates],
            unreadable=pixels.skipped,
            features=features,
        ), size


def labels_of(job: Job) -> bool:
    """Whether a job is about wrong labels, which are planted in a folder of their own."""
    return not set(job.methods).isdisjoint(LABELS)


def _features(
    collection: Collection, names: Sequence[str], backbone: Backbone, size: int, device: torch.device
) -> Array:
    features = extract_features(collection, backbone, size, device=device)
    place: Mapping[str, int] = {collection.names[number]: row for row, number in enumerate(features.rows.tolist())}
    return features.array[[place[name] for name in names]]
