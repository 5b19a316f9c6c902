"""The part of an audit that trains no network: features of a pretrained one, and cross-fitted heads on them."""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from sgoif.audit.errors import AuditError
from sgoif.audit.progress import Progress
from sgoif.audit.results import Found
from sgoif.audit.run_directory import RunDirectory
from sgoif.audit.settings import FREE, AuditSettings
from sgoif.backbones import Backbone
from sgoif.core.types import Array, Indices
from sgoif.errors import SgoifError
from sgoif.features import choose_resolution, extract_features
from sgoif.images import Collection, Pixels
from sgoif.images.text import plural, shown
from sgoif.tasks import LabelFindings
from sgoif.tasks.crossfit import CrossFit
from sgoif.tasks.crossfit.crossfit import FOLDS, PARTS
from sgoif.tasks.crossfit.head import EPOCHS, RECIPE, Head


def frozen_identity(settings: AuditSettings, data: str, backbone: Backbone) -> dict[str, Any]:
    """What heads follow from beside the resolution: settings, the digest of the images, the network."""
    chosen = {name: value for name, value in settings.record().items() if name not in FREE}
    return {**chosen, "data": data, "network": backbone.digest, "heads": RECIPE}


class FrozenFeatures(NamedTuple):
    """What a pretrained network makes of the images."""

    size: int
    """Pixels a side that it looked at."""
    why: str
    """Why so many."""
    array: Array
    """Mapped from disk where it lies there in this order."""
    rows: list[int]
    """Where in the array each image is."""

    def of_all(self) -> Array:
        """One row for each image."""
        return self.array if self.rows == list(range(len(self.array))) else self.array[self.rows]


def frozen_features(
    settings: AuditSettings,
    collection: Collection,
    pixels: Pixels,
    backbone: Backbone,
    device: torch.device,
    show: Progress,
) -> FrozenFeatures:
    """The features of all images that could be read, from the cache where they are there."""
    if settings.image_size is None:
        size, why = choose_resolution(backbone, collection, device=device)
    else:
        size, why = settings.image_size, f"{settings.image_size} pixels, as asked"
    show.stage(f"features by {backbone.name} at {size} pixels", len(collection))
    features = extract_features(collection, backbone, size, device=device, progress=show.advance)
    place = {name: row for row, name in enumerate(np.array(collection.names, dtype=object)[features.rows].tolist())}
    if missing := [name for name in pixels.names if name not in place]:
        raise AuditError(
            f"{plural(len(missing), 'image')} could be read at first and not a second time (the first is"
            f" {shown(missing[0])}); run the audit again when nobody writes to the images"
        )
    return FrozenFeatures(size, why, features.array, [place[name] for name in pixels.names])


class FrozenRun:
    """Features of all images and the heads on them; what is done is kept in the run directory, head by head."""

    def __init__(
        self,
        directory: RunDirectory,
        collection: Collection,
        pixels: Pixels,
        backbone: Backbone,
        device: torch.device,
        show: Progress,
    ) -> None:
        self.directory, self.pixels, self.show, self.device = directory, pixels, show, device
        settings = directory.settings
        self.features = frozen_features(settings, collection, pixels, backbone, device, show)
        size, self.why = self.features.size, self.features.why
        self.name = f"{backbone.name}, frozen at {size} pixels"
        self.identity = {**frozen_identity(settings, pixels.digest, backbone), "resolution": size}
        self.crossfit = CrossFit(
            self.features.of_all(),
            pixels.labels,
            pixels.class_names,
            seed=settings.seed,
            copies=[group.indices for group in (*pixels.duplicates, *pixels.near_duplicates)],
            device=device,
        )
        self._train()

    def _train(self) -> None:
        self.show.stage("training heads on the features", PARTS * FOLDS)
        for fold in range(FOLDS):
            name, identity = f"head-{fold}.npz", {**self.identity, "fold": fold}
            if (state := self.directory.load_part(name, identity)) is not None:
                try:
                    self.crossfit.heads[fold] = Head.from_state(state)
                    continue
                except SgoifError:
                    pass  # it is trained again, in seconds

            advance = partial(self.show.advance, note=f"head {fold + 1} of {FOLDS}")
            self.directory.save_part(name, self.crossfit.train(fold, advance).state_dict(), identity)

    def agreement(self, rows: Indices) -> float:
        """The share of labels that the head agrees with that held out the image."""
        return self.crossfit.agreement(rows)

    @property
    def most_right(self) -> float:
        """The share of labels that are right, at most, as far as the heads can tell."""
        return 1 - self._findings.noise_rate().low if self._findings.rate_told else 1.0

    @cached_property
    def _findings(self) -> LabelFindings:
        return self.crossfit.findings()

    def found(self, checked: Mapping[int, int] | None) -> Found:
        """What the heads and the neighbours say of the labels."""
        crossfit = self.crossfit
        count = len(crossfit.labels)
        facts = {
            "model": self.name,
            "resolution": self.why,
            "heads": f"{FOLDS} of two layers, {EPOCHS} epochs each; every image is held out by one",
            "images": f"{count:,}",
            "device": self.device.type,
        }
        record: dict[str, Any] = {
            "trained_on": count,
            "held_out": len(crossfit.held),
            "plan": {"model": self.name, "heads": FOLDS, "epochs": EPOCHS, "device": self.device.type},
            "stopped": "all epochs done",
        }
        findings = self._findings if checked is None else crossfit.findings(checked)
        return Found(findings, crossfit.held, facts, record, (), crossfit.harmed)
