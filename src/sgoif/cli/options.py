"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from sgoif.commands.settings import DataSettings

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]

Model = Annotated[
    str | None,
    typer.Option(
        help="resnet7-whitened, resnet7, resnet9-small, resnet9, timm:NAME, or package.module:factory for your own."
        " With a run only for your own, which is imported on your word and not on that of a file."
    ),
]
Weights = Annotated[
    Path | None, typer.Option(help="Its .safetensors file; not needed where your factory loads weights itself.")
]
Channels = Annotated[int | None, typer.Option(help="1 (grey) or 3 (colour).", show_default="as DATA")]
Mean = Annotated[
    str | None,
    typer.Option(
        help="Mean of every channel that the model was trained with, white = 1, e.g. 0.49,0.48,0.45.",
        show_default="that of DATA",
    ),
]
Spread = Annotated[
    str | None, typer.Option(help="Standard deviation of every channel, likewise.", show_default="that of DATA")
]
Layout = Annotated[str, typer.Option(help="How the data are laid out; found out by itself.")]
Split = Annotated[str | None, typer.Option(help="Which part of data that come in parts, e.g. train or test.")]
Root = Annotated[Path | None, typer.Option(help="What paths in a manifest are relative to.")]
ImageColumn = Annotated[str | None, typer.Option(help="Column of a manifest, or array of an archive, with the images.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of a manifest, or array of an archive, with the labels.")]
Limit = Annotated[int | None, typer.Option(help="Use only so many images, spread over the data.")]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Follow links that lead out of an image folder or into another class.")
]
BatchSize = Annotated[int, typer.Option(help="Images in a batch; results do not depend on it.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def device_of(name: str) -> Literal["auto", "cpu", "cuda"]:
    """A device as settings take it, which refuse what is none of them."""
    return name  # type: ignore[return-value]  # the settings refuse what is none of them


def data_of(
    path: Path | None,
    layout: str,
    split: str | None,
    root: Path | None,
    image_column: str | None,
    label_column: str | None,
    limit: int | None,
) -> DataSettings | None:
    """Where the images are and how they are read; None where none are named."""
    from sgoif.commands.settings import DataSettings

    return None if path is None else DataSettings(path, layout, split, root, image_column, label_column, limit)
