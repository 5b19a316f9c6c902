"""Features for an unlearner: from a finished audit, with image paths as ids, or from an archive."""

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgoif.audit.progress import Progress
from sgoif.commands.finished_run import open_run
from sgoif.core.serialization import DAMAGE, check_unpacked
from sgoif.core.types import Indices
from sgoif.device.selection import choose_device
from sgoif.errors import SettingError
from sgoif.tasks.unlearning import Unlearner

FEATURES, LABELS = ("features", "x"), ("labels", "y")
HELD_FEATURES, HELD_LABELS = ("held_features", "held_x"), ("held_labels", "held_y")
Array = np.ndarray[Any, Any]


def fit_run(
    path: Path, model: str | None, batch_size: int, device: str, options: dict[str, Any], show: Progress
) -> Unlearner:
    """The model of an audit and the images that it was trained on; those that it held out judge removals."""
    run = open_run(path, model, show.say)

    def batches(rows: Indices, what: str) -> Iterator[tuple[Any, Any, list[str]]]:
        for some, images, labels in run.batches(rows, batch_size, what, show):
            yield images, labels, [run.pixels.names[row] for row in some]

    return Unlearner.fit(
        run.setup.build(choose_device(device)),
        batches(run.trained, "reading features of the training images"),
        held_out=batches(run.held, "reading features of the held-out images"),
        class_names=run.pixels.class_names,
        **options,
    )


def fit_archive(path: Path, device: str, options: dict[str, Any], show: Progress) -> Unlearner:
    """The features of an archive; its held-out examples judge removals, where it has any."""
    arrays = read_arrays(path)
    features, labels = _pick(arrays, FEATURES, path), _pick(arrays, LABELS, path)
    held = [names for names in (HELD_FEATURES, HELD_LABELS) if any(name in arrays for name in names)]
    if len(held) == 1:
        raise SettingError(f"--features {path} has {held[0][0]} alone; held_features and held_labels go together")
    pair = (_pick(arrays, HELD_FEATURES, path), _pick(arrays, HELD_LABELS, path)) if held else None
    if pair is None:
        show.say(
            f"{path} holds no held-out examples (held_features, held_labels): removals are judged by training examples,"
            " which says less"
        )
    names = arrays.get("class_names")
    ids = arrays.get("ids")
    show.stage("fitting the head", 0)
    return Unlearner.from_features(
        torch.from_numpy(features).to(choose_device(device)),
        torch.from_numpy(labels),
        None if ids is None else _texts(ids, "ids", path),
        held_out=None if pair is None else (torch.from_numpy(pair[0]), torch.from_numpy(pair[1])),
        class_names=None if names is None else _texts(names, "class_names", path),
        **options,
    )


def read_arrays(path: Path) -> dict[str, Array]:
    """All arrays of an archive."""
    try:
        with zipfile.ZipFile(path) as directory:
            check_unpacked(path, directory)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise SettingError(f"--features {path}: there is no such file") from error
    except DAMAGE as error:
        raise SettingError(
            f"--features {path} is not an .npz archive of plain arrays, or is damaged ({error}); texts must be stored"
            " as a numpy array of text, not of objects"
        ) from error


def _pick(arrays: dict[str, Array], names: Sequence[str], path: Path) -> Array:
    found = next((arrays[name] for name in names if name in arrays), None)
    if found is None:
        there = ", ".join(arrays) or "nothing"
        raise SettingError(f"--features {path} has no array {' or '.join(names)}; it holds {there}")
    if found.dtype.kind not in "fiu":
        raise SettingError(f"--features {path}: {names[0]} must be numbers, not {found.dtype}")
    return found.astype(np.int64) if found.dtype.kind in "iu" else found


def _texts(array: Array, name: str, path: Path) -> list[str]:
    if array.ndim != 1 or array.dtype.kind not in "Uiu":
        raise SettingError(f"--features {path}: {name} must be a list of texts or whole numbers")
    return [str(item) for item in array.tolist()]
