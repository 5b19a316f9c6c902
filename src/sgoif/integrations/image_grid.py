"""A grid of images with a caption under each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.core.data import as_label, isolated_random_state, split_target
from sgoif.errors import AnchorError, MissingExtraError, SettingError

if TYPE_CHECKING:
    from sgoif.integrations.sinks import Picture

SIDE, MARGIN, LINE = 96, 6, 13
CAPTION = 20
"""Most characters of one line under an image of this size."""


def image_grid(
    dataset: Dataset[Any], indices: Sequence[int], influences: Sequence[float], class_names: Sequence[str] | None = None
) -> Picture:
    """Images of a data set, by index, with index, label and influence."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingExtraError("pillow", "tensorboard", "a grid of images") from error
    while hasattr(dataset, "dataset") and type(dataset).__module__.startswith("sgoif."):
        dataset = dataset.dataset  # the whole data set, which is what indices count
    columns = max(1, min(8, math.ceil(math.sqrt(len(indices)))))
    rows = math.ceil(len(indices) / columns)
    width, height = SIDE + MARGIN, SIDE + MARGIN + 2 * LINE
    canvas = Image.new("RGB", (columns * width + MARGIN, rows * height + MARGIN), "white")
    draw = ImageDraw.Draw(canvas)
    for place, (index, influence) in enumerate(zip(indices, influences, strict=True)):
        with isolated_random_state():
            inputs, target = split_target(dataset[index])
        left, top = MARGIN + place % columns * width, MARGIN + place // columns * height
        image = Image.fromarray(pixels(inputs))
        scale = SIDE / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        canvas.paste(
            image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR), (left, top)
        )
        name = _name_of(target, class_names)
        for line, text in enumerate((f"{index}: {name}", f"{influence:+.2f}")):
            # The built-in font knows few letters.
            shown = text.encode("ascii", "replace").decode()[:CAPTION]
            draw.text((left, top + SIDE + line * LINE), shown, fill="black")
    return np.asarray(canvas, dtype=np.uint8)


def _name_of(target: Any, class_names: Sequence[str] | None) -> str:
    """A class by its name; a target that is no class is not shown."""
    try:
        label = as_label(target)
    except AnchorError:
        return ""
    return str(label) if class_names is None else str(class_names[label])


def pixels(inputs: Any) -> Picture:
    """One input of a model as a picture, stretched to the whole range of brightness."""
    if isinstance(inputs, Mapping):
        found = [value for value in inputs.values() if isinstance(value, (Tensor, np.ndarray)) and value.ndim in (2, 3)]
        inputs = inputs.get("pixel_values", found[0] if found else None)
    array = inputs.detach().cpu().float().numpy() if isinstance(inputs, Tensor) else np.asarray(inputs)
    if array.ndim not in (2, 3) or array.dtype.kind not in "biuf":
        raise SettingError(f"an input of shape {array.shape} is not an image; expected 2 or 3 axes")
    if array.ndim == 2:
        array = array[None]
    if array.shape[0] not in (1, 3, 4) and array.shape[2] in (1, 3, 4):
        array = array.transpose(2, 0, 1)
    array = np.nan_to_num(array.astype(np.float32))
    array = array[:3] if len(array) >= 3 else array[:1].repeat(3, axis=0)
    low, high = float(array.min()), float(array.max())
    scaled = (array - low) * (255 / (high - low) if high > low else 0.0)
    return np.ascontiguousarray(scaled.transpose(1, 2, 0).round().astype(np.uint8))
