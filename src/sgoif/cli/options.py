"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from sgoif.audit.settings import DataSettings

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
Backbone = Annotated[
    str | None,
    typer.Option(
        help="A pretrained network in the place of a model of yours: lite0, lite1, lite2, timm:NAME, torchvision:NAME"
        " or hf:NAME. A linear head is learned from the labels of DATA."
    ),
]
Weights = Annotated[
    Path | None, typer.Option(help="Its .safetensors file; not needed where your factory loads weights itself.")
]
Limit = Annotated[int | None, typer.Option(help="Use only so many images, spread over the data.")]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Follow links that lead out of an image folder or into another class.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def reading(
    layout: Annotated[str, typer.Option(help="How the data are laid out; found out by itself.")] = "auto",
    split: Annotated[
        str | None, typer.Option(help="Which part of data that come in parts, e.g. train or test.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="What paths in a manifest are relative to.")] = None,
    image_column: Annotated[
        str | None, typer.Option(help="Column of a manifest, or array of an archive, with the images.")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Column of a manifest, or array of an archive, with the labels.")
    ] = None,
) -> None:
    """How images are read."""


def preparing(
    channels: Annotated[int | None, typer.Option(help="1 (grey) or 3 (colour).", show_default="as DATA")] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Mean of every channel that the model was trained with, white = 1, e.g. 0.49,0.48,0.45.",
            show_default="that of DATA",
        ),
    ] = None,
    spread: Annotated[
        str | None, typer.Option(help="Standard deviation of every channel, likewise.", show_default="that of DATA")
    ] = None,
) -> None:
    """How images are prepared for a model."""


def computing(
    batch_size: Annotated[int, typer.Option(help="Images in a batch; results do not depend on it.")] = 128,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """How a network is run over images, and what is printed."""


def with_options(*groups: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these groups behind its own; they reach it among its keywords."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in signature(command, eval_str=True).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        shared = [p for group in groups for p in signature(group, eval_str=True).parameters.values()]

        @wraps(command)
        def whole(**given: Any) -> None:
            command(**given)

        whole.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
        whole.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]
        return whole

    return decorate


def made_from(make: Callable[..., Made], given: Mapping[str, Any], **other: Any) -> Made:
    """What `make` returns for those options of a command that have the names of its arguments; `other` comes first."""
    options = {name: given[name] for name in signature(make).parameters if name in given}
    return make(**{**options, **other})


def data_of(path: Path | None, given: Mapping[str, Any]) -> DataSettings | None:
    """Where the images are and how they are read; None where none are named."""
    from sgoif.audit.settings import DataSettings

    return None if path is None else made_from(DataSettings, given, path=path)
