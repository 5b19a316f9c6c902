"""What a finished `sgoif audit` leaves for other commands: model, weights, images, and which of them were held out."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sgoif.audit.batches import Normalisation
from sgoif.audit.errors import RunDirectoryError
from sgoif.audit.finetuning import TUNED, load_pretrained, normalisation_of
from sgoif.audit.models import trusted_model
from sgoif.audit.plan import hold_out
from sgoif.audit.progress import Progress
from sgoif.audit.run_directory import CACHE, IDENTITY, NEWEST, RunDirectory, planted_labels, raise_if_foreign, to_go_on
from sgoif.audit.settings import AuditSettings
from sgoif.commands.image_batches import Preparation
from sgoif.commands.trained_model import TrainedModel
from sgoif.core.serialization import load_state
from sgoif.core.types import Indices
from sgoif.images import ImagesError, Pixels, open_pixels
from sgoif.images.errors import ChangedImagesError
from sgoif.images.text import shown

SUMMARY = "summary.json"


@dataclass(frozen=True)
class FinishedRun:
    """An audit that came to its end."""

    setup: TrainedModel
    """The network with the weights that the audit ended with."""
    pixels: Pixels
    trained: Indices
    held: Indices
    source: Path
    """Where its images lay."""
    planted: bool
    """Whether an earlier release made a few of its labels wrong on purpose."""

    def batches(
        self, rows: Indices, batch_size: int, what: str, show: Progress
    ) -> Iterator[tuple[Indices, Tensor, Tensor]]:
        """Rows, images as the network takes them, and labels, while `what` goes on."""
        prepared = self.setup.preparation
        show.stage(what, len(rows))
        for first in range(0, len(rows), batch_size):
            some = rows[first : first + batch_size]
            images = prepared.normalise(torch.from_numpy(np.array(self.pixels.array[some])))
            yield some, images, torch.from_numpy(np.asarray(self.pixels.labels[some], dtype=np.int64))
            show.advance(first + len(some), len(rows))


def open_run(path: Path, model: str | None, say: Callable[[str], None]) -> FinishedRun:
    """Open a run directory; raises where the run is not finished or parts of it are gone.

    `model` is what the user calls the network; without it, the run may name a built-in one or one of timm.
    """
    recorded = RunDirectory(path, AuditSettings(path)).recorded() if path.is_dir() else None
    if recorded is None:
        raise RunDirectoryError(f"--run {path} is not a run directory of `sgoif audit`: it holds no run.json")
    settings = AuditSettings.from_record(recorded["settings"])
    weights = path.absolute() / NEWEST
    try:
        plan = json.loads((path / SUMMARY).read_text(encoding="utf-8"))["plan"]
        named, frozen = plan["model"], "heads" in plan
    except FileNotFoundError as error:
        raise RunDirectoryError(
            f"the audit in {path} is not finished; go on with it first: {to_go_on(recorded)}"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunDirectoryError(f"{path / SUMMARY} is damaged ({error!r}); write it again with --resume") from error
    if frozen:
        raise RunDirectoryError(
            f"the audit in {path} judged labels by features of {shown(named)} and trained no network that could be used"
            " here; audit again with --finetune or --from-scratch, and another --out"
        )
    if not weights.is_file():
        raise RunDirectoryError(f"{weights} is gone, and with it the weights; run the audit again")
    try:
        pixels = open_pixels(path / CACHE)
    except ChangedImagesError as error:
        raise RunDirectoryError(f"{error}: {to_go_on(recorded)}") from error
    except ImagesError as error:
        raise RunDirectoryError(
            f"the prepared images of {path} are gone or damaged; to read them again: {to_go_on(recorded)}"
        ) from error
    made = {"data": pixels.digest, "prepared images": pixels.content}
    raise_if_foreign(weights, load_state(weights).get(IDENTITY), made, "Put the run's own back, or audit again")
    trained, held = hold_out(pixels.labels, settings.holdout, settings.seed, pixels.repeated())
    name = trusted_model(named, model, shown(path / SUMMARY), say)
    tuned = TUNED.fullmatch(name)
    if tuned is None:
        prepare = Preparation(pixels.size, pixels.channels, Normalisation.of(pixels.array))
    else:
        prepare = Preparation(pixels.size, 3, normalisation_of(load_pretrained(tuned["backbone"])))
    setup = TrainedModel(name, weights, pixels.class_names, prepare)
    return FinishedRun(setup, pixels, trained, held, Path(settings.path).absolute(), planted_labels(recorded))
