"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from sgoif.commands.settings import DataSettings

Made = TypeVar("Made")
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


def made_from(make: Callable[..., Made], given: Mapping[str, Any], **other: Any) -> Made:
    """What `make` returns for those options of a command that have the names of its arguments; `other` comes first."""
    options = {name: given[name] for name in signature(make).parameters if name in given}
    return make(**{**options, **other})


def data_of(path: Path | None, given: Mapping[str, Any]) -> DataSettings | None:
    """Where the images are and how they are read; None where none are named."""
    from sgoif.commands.settings import DataSettings

    return None if path is None else made_from(DataSettings, given, path=path)
