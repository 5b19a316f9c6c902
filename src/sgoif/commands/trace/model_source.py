"""Where a model and the images it was trained on come from: a run of `sgoif audit`, or files."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from sgoif.audit.errors import RunDirectoryError
from sgoif.audit.progress import Progress
from sgoif.audit.run_directory import RUN
from sgoif.commands.backbone_model import learned_model, open_backbone, preparation_of
from sgoif.commands.finished_run import FinishedRun, open_run
from sgoif.commands.image_batches import Unreadable, collection_batches, preparation_for, thumbnail_of
from sgoif.commands.trace.settings import TraceSettings
from sgoif.commands.trained_model import TrainedModel, check_model, label_positions, output_names
from sgoif.core.types import Indices
from sgoif.device.selection import choose_device
from sgoif.errors import SettingError
from sgoif.images import Collection, open_images

Batch = tuple[Tensor, Tensor, Tensor]
"""(x, y, number) of training images."""
LOOKING = "looking at the training images"


class RunSource:
    """What a finished audit left behind: a model, and its training images by number."""

    def __init__(self, settings: TraceSettings, show: Progress) -> None:
        path = settings.run
        assert path is not None
        if not (path / RUN).is_file():
            raise RunDirectoryError(
                f"{path} is not a run directory of `sgoif audit`: it holds no {RUN}. Give one, or --data PATH with"
                " --model and --weights"
            )
        self._run: FinishedRun = open_run(path, settings.model, show.say)
        pixels = self._run.pixels
        self.names, self.picture, self.class_names = pixels.names, pixels.thumbnails, pixels.class_names
        self.preparation = self._run.setup.preparation
        self.source = self._run.source
        self._batch_size = settings.batch_size
        self.model = self._run.setup.build(choose_device(settings.device))
        self.notes: list[str] = []
        if self._run.planted:
            self.notes.append(
                "an earlier release made a few labels of this run wrong on purpose: some images may be named for that"
            )
        self.described = {
            "run": str(path.absolute()),
            "images": str(self.source),
            "model": self._run.setup.model,
            "trained on": f"{len(self._run.trained):,} images; {len(self._run.held):,} were held out",
        }

    def batches(self, show: Progress) -> Iterator[Batch]:
        for some, images, labels in self._run.batches(self._run.trained, self._batch_size, LOOKING, show):
            yield images, labels, torch.from_numpy(some)


class FileSource:
    """The same from a factory, a file of weights, and images in any layout."""

    def __init__(self, settings: TraceSettings, show: Progress) -> None:
        assert settings.data is not None
        device = choose_device(settings.device)
        if settings.model is not None:
            check_model(settings.model, settings.weights, device)
        self._data: Collection = open_images(settings.data.path, **settings.data.options)
        self.names, self.picture, self.source = self._data.names, partial(thumbnail_of, self._data), self._data.source
        self.notes = list(self._data.notes)
        self.class_names, self._labels = _named(self._data, settings.classes)
        show.stage("looking at images", 0)
        self._batch_size = settings.batch_size
        setup = self._of_backbone(settings, device, show) if settings.backbone else self._of_model(settings)
        self.preparation, self.model = setup.preparation, setup.build(device)
        weights = "loaded by the model itself" if settings.weights is None else str(settings.weights.absolute())
        self.described = {
            "images": str(self.source),
            "model": setup.model,
            "weights": "pretrained, and a head that was learned from these images" if settings.backbone else weights,
            "images seen as": f"{self.preparation.size}×{self.preparation.size} pixels",
        }

    def _of_model(self, settings: TraceSettings) -> TrainedModel:
        assert settings.model is not None
        preparation = preparation_for(self._data.store, settings)
        return TrainedModel(settings.model, settings.weights, self.class_names, preparation)

    def _of_backbone(self, settings: TraceSettings, device: torch.device, show: Progress) -> TrainedModel:
        assert settings.backbone is not None
        backbone = open_backbone(settings.backbone)
        prepare, silent = preparation_of(backbone, settings.image_size), Unreadable(lambda _: None)
        found = collection_batches(self._data, prepare, self._batch_size, "learning a head from labels", silent, show)
        batches = ((batch.images, torch.from_numpy(self._labels[batch.numbers])) for batch in found)
        return learned_model(backbone, prepare, self.class_names, batches, device)

    def batches(self, show: Progress) -> Iterator[Batch]:
        unreadable = Unreadable(show.say)
        for batch in collection_batches(self._data, self.preparation, self._batch_size, LOOKING, unreadable, show):
            yield batch.images, torch.from_numpy(self._labels[batch.numbers]), torch.tensor(batch.numbers)
        unreadable.summarise()
        if unreadable.found:
            self.notes.append(f"{len(unreadable.found)} files could not be read and were left out")


ModelSource = RunSource | FileSource


def open_source(settings: TraceSettings, show: Progress) -> ModelSource:
    """The model and images that the settings name."""
    return RunSource(settings, show) if settings.run is not None else FileSource(settings, show)


def _named(data: Collection, classes: str | None) -> tuple[list[str], Indices]:
    """Names of the model's outputs, and the labels of the data as positions among them."""
    names = output_names(classes, data.class_names)
    if classes is not None and classes.isdecimal() and len(names) != len(data.class_names):
        raise SettingError(
            f"--classes {classes}: the data have {len(data.class_names)} classes, and nothing says which of the"
            " model's outputs they are; give a file with the names of the outputs, one a line"
        )
    return names, label_positions(data, names)
