"""`sgoif sentinel fit`: learn from images that belong, calibrate on images that were held out, write one file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.audit.progress import Progress
from sgoif.audit.settings import DataSettings
from sgoif.commands.backbone_model import BackboneModel, learned_model, open_backbone, preparation_of
from sgoif.commands.finished_run import FinishedRun, open_run
from sgoif.commands.image_batches import Preparation, Unreadable, collection_batches, preparation_for
from sgoif.commands.sentinel.archive import KEPT_BACK, NOT_LEARNED, SentinelDescription, check_target, save
from sgoif.commands.sentinel.settings import FitSettings
from sgoif.commands.trained_model import TrainedModel, check_model, digest, label_positions, output_names
from sgoif.core.types import Indices
from sgoif.device.selection import choose_device
from sgoif.errors import SettingError
from sgoif.images import Collection, ImagesError, open_images, open_unlabelled
from sgoif.tasks.ood import Sentinel
from sgoif.tasks.ood.network import Network, Seen
from sgoif.tasks.ood.reference import OneInMany
from sgoif.tasks.ood.sentinel import HELD_BACK, LEAST_CALIBRATION

AGREES = 0.5
"""A model that agrees with fewer labels than this is likely to have its classes in another order."""
Pair = tuple[Tensor, Tensor | None]


def fit(settings: FitSettings, show: Progress) -> dict[str, Any]:
    """Fit a sentinel and write it; returns what to tell about it, in terms of JSON."""
    start = time.monotonic()
    check_target(settings.out)
    device = choose_device(settings.device)
    if settings.model is not None and settings.run is None:
        check_model(settings.model, settings.weights, device)
    run = None if settings.run is None else open_run(settings.run, settings.model, show.say)
    data = None if settings.data is None else _open(settings.data, settings.ignore_labels, show)
    if run is not None:
        setup = run.setup
    elif settings.backbone is not None:
        setup = _of_backbone(settings.backbone, settings, data, device, show)
    else:
        setup = _of_data(settings, data, show)
    model = setup.build(device)
    source = _Source(settings, setup.preparation, show)
    if data is not None:
        labels = _labels(data, setup.class_names, settings.classes, show)
        reference, count, held = source.of_collection(data, labels, "learning what belongs"), len(data), None
    else:
        assert run is not None
        reference, count, held = source.of_run(run, run.trained, "learning what belongs"), len(run.trained), run
    calibration, origin = _calibration(settings, held, source, count, show)
    sentinel, agreement = _learned(model, device, reference, calibration, settings.gate)
    source.unreadable.summarise()
    if agreement is not None and agreement < AGREES:
        show.say(
            f"the model agrees with only {agreement:.0%} of the labels. If its classes are in another order, give"
            " them with --classes FILE; if the labels mean something else, give --ignore-labels; if the preparation"
            " differs, --image-size, --mean and --spread"
        )
    back = int(OneInMany(HELD_BACK).chosen(source.taken).sum()) if calibration is None else 0
    images = source.taken - back
    prepared = setup.preparation
    description = SentinelDescription(
        model=setup.model,
        weights=None if setup.weights is None else str(setup.weights.absolute()),
        digest=digest(model),
        class_names=setup.class_names,
        image_size=prepared.size,
        channels=prepared.channels,
        mean=list(prepared.normalise.mean),
        spread=list(prepared.normalise.spread),
        images=images,
        calibrated_on=origin,
        backbone=isinstance(setup, BackboneModel),
    )
    save(settings.out, sentinel, description, setup.head if isinstance(setup, BackboneModel) else None)
    kept = len(sentinel.calibration)
    return {
        "sentinel": settings.out.absolute(),
        "model": description.model,
        "weights": description.weights,
        "classes": len(description.class_names),
        "image_size": description.image_size,
        "channels": description.channels,
        "mean": [value / 255 for value in description.mean],
        "spread": [value / 255 for value in description.spread],
        "images": images,
        "agreement": agreement,
        "calibration": kept,
        "calibrated_on": origin,
        "smallest_p_value": 1 / (kept + 1),
        "skipped": len(source.unreadable.found),
        "seconds": time.monotonic() - start,
    }


def _open(images: DataSettings, ignore_labels: bool, show: Progress) -> Collection:
    try:
        collection = (open_unlabelled if ignore_labels else open_images)(images.path, **images.options)
    except ImagesError as error:
        if ignore_labels or not images.path.exists():
            raise
        raise ImagesError(f"{error}. Images without classes are taken with --ignore-labels --classes N") from error
    for note in collection.notes:
        show.say(note)
    return collection


def _of_data(settings: FitSettings, data: Collection | None, show: Progress) -> TrainedModel:
    assert data is not None
    assert settings.model is not None
    class_names = output_names(settings.classes, data.class_names)
    if not class_names:
        raise SettingError("without labels the number of classes is not known; give it with --classes")
    show.stage("looking at images", 0)
    preparation = preparation_for(data.store, settings)
    if settings.mean is None:
        mean, spread = (
            ",".join(f"{value / 255:.3f}" for value in values)
            for values in (preparation.normalise.mean, preparation.normalise.spread)
        )
        show.say(
            f"images of {preparation.size}×{preparation.size} pixels, normalised by their own mean {mean} and spread"
            f" {spread}; where the model was trained with others, give --mean and --spread"
        )
    return TrainedModel(settings.model, settings.weights, class_names, preparation)


def _of_backbone(
    name: str, settings: FitSettings, data: Collection | None, device: torch.device, show: Progress
) -> BackboneModel:
    """A backbone with a head learned from the data, but for the images that are kept back to calibrate."""
    assert data is not None
    backbone = open_backbone(name)
    prepare, back = preparation_of(backbone, settings.image_size), OneInMany(HELD_BACK)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        silent, what = Unreadable(lambda _: None), "learning a head from labels"
        for batch in collection_batches(data, prepare, settings.batch_size, what, silent, show):
            learned = ~back.chosen(len(batch.numbers)) | (settings.calibration is not None)
            yield batch.images[learned], torch.from_numpy(data.labels[batch.numbers])[learned]

    return learned_model(backbone, prepare, list(data.class_names), batches(), device)


def _labels(data: Collection, class_names: Sequence[str], classes: str | None, show: Progress) -> Indices | None:
    """Labels as positions among the model's outputs; None where nothing says which is which."""
    if not data.class_names:
        return None
    if list(data.class_names) != list(class_names) and classes is not None and classes.isdecimal():
        show.say(
            f"labels are not used: the data have {len(data.class_names)} classes and the model {classes}, and nothing"
            " says which is which. A file with the names of its outputs (--classes FILE) would"
        )
        return None
    advice = ". Rename the classes of the data, or give --ignore-labels to go by the model's answers"
    return label_positions(data, class_names, advice)


def _calibration(
    settings: FitSettings, run: FinishedRun | None, source: _Source, count: int, show: Progress
) -> tuple[Iterable[Pair] | None, str]:
    """Batches to calibrate with, and where they come from; None: some of the reference are kept back."""
    if settings.calibration is not None:
        held = open_unlabelled(settings.calibration)
        for note in held.notes:
            show.say(note)
        return source.of_collection(held, None, "calibrating", learned=False), held.source.name
    if run is not None and len(run.held) >= LEAST_CALIBRATION:
        return source.of_run(run, run.held, "calibrating", learned=False), "the images that the audit held out"
    if count // HELD_BACK < LEAST_CALIBRATION:
        raise ImagesError(
            f"{count} images are too few: one in five is kept back for the calibration, which needs at least"
            f" {LEAST_CALIBRATION}. Give more, or images that the model was not trained on with --calibration"
        )
    if settings.backbone is not None:
        return None, NOT_LEARNED
    show.say(
        f"calibrating on {KEPT_BACK}; if the model was trained on these, p-values are too small. Images that it has"
        " never seen make them honest: --calibration DATA"
    )
    return None, KEPT_BACK


class _Source:
    """Batches from wherever the images lie, with progress."""

    def __init__(self, settings: FitSettings, prepare: Preparation, show: Progress) -> None:
        self._batch_size, self._prepare, self._show = settings.batch_size, prepare, show
        self.unreadable = Unreadable(show.say)
        self.taken = 0
        """Images given out to learn from."""

    def of_collection(
        self, data: Collection, labels: Indices | None, what: str, *, learned: bool = True
    ) -> Iterator[Pair]:
        for batch in collection_batches(data, self._prepare, self._batch_size, what, self.unreadable, self._show):
            self.taken += learned * len(batch.numbers)
            yield batch.images, None if labels is None else torch.from_numpy(labels[batch.numbers])

    def of_run(self, run: FinishedRun, rows: Indices, what: str, *, learned: bool = True) -> Iterator[Pair]:
        for some, images, labels in run.batches(rows, self._batch_size, what, self._show):
            self.taken += learned * len(some)
            yield images, labels


def _learned(
    model: nn.Module, device: torch.device, reference: Iterator[Pair], calibration: Iterable[Pair] | None, gate: bool
) -> tuple[Sentinel, float | None]:
    """A sentinel, and the share of labels that the model agrees with; None without labels."""
    first = next(reference, None)
    if first is None:
        raise ImagesError("none of the images can be read: a sentinel needs examples of what belongs")
    network = Network(model, first[0][:1].to(device))
    right = labelled = 0

    def seen() -> Iterator[tuple[Seen, Tensor | None]]:
        nonlocal right, labelled
        for images, labels in chain([first], reference):
            view = network.see(images.to(device))
            if labels is not None:
                right += int((view.logits.argmax(1).cpu() == labels).sum())
                labelled += len(labels)
            yield view, labels

    held_out = None if calibration is None else (network.see(images.to(device)) for images, _ in calibration)
    sentinel = Sentinel.fit_outputs(network, seen(), held_out, gate=gate)
    return sentinel, right / labelled if labelled else None
