"""The model of an audit: a built-in network, one of timm, or the user's own; with fresh weights."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.audit.finetuning import TUNED, tuned_network
from sgoif.audit.networks import ResNet7, ResNet9
from sgoif.backbones import Backbone
from sgoif.backbones.efficientnet_lite import VARIANTS
from sgoif.backbones.named import PLAIN, timm_with
from sgoif.core.user_code import importable_from_here, own_function
from sgoif.errors import ModelError
from sgoif.images.text import shown

BUILT_IN: dict[str, Callable[[int, int, int], nn.Module]] = {
    "resnet7": lambda channels, classes, image: ResNet7(channels, classes, 24, image),
    "resnet7-whitened": lambda channels, classes, image: ResNet7(channels, classes, 24, image, whitened=True),
    "resnet9-small": lambda channels, classes, image: ResNet9(channels, classes, 16, image),
    "resnet9": lambda channels, classes, image: ResNet9(channels, classes, 64, image),
}
"""Built-in models by name, called with (channels, classes, side of the images)."""
AUTOMATIC = {"cpu": "resnet7-whitened", "cuda": "resnet9"}
TIMM = "timm:"
"""Before the name of a model of the package timm."""
TIMM_NAME = re.compile(TIMM + PLAIN.pattern)


def is_harmless(name: object) -> bool:
    """Whether a name stands for a network of this package or of timm, so that no other code runs to make it."""
    if not isinstance(name, str):
        return False
    tuned = TUNED.fullmatch(name)
    own, name = (VARIANTS, tuned["backbone"]) if tuned else (BUILT_IN, name)
    return name in own or TIMM_NAME.fullmatch(name) is not None


def trusted_model(named: object, given: str | None, where: str, say: Callable[[str], None]) -> str:
    """The model to make where a file names one: what the user gave, else what the file names if that is harmless.

    Files come from anywhere, and `package.module:function` is code to be run. So that is taken from the user alone; a
    file may name built-in networks and those of timm. `where` the name stands begins the message.
    """
    if given is not None:
        if given != named:
            say(f"the model is {shown(given)}, as --model says; {where} names {shown(named)}")
        return given
    return name_from_file(named, where)


def name_from_file(named: object, where: str) -> str:
    """The name of a model that stands in a file; raises where making it would run code of anybody's."""
    if isinstance(named, str) and is_harmless(named):
        return named
    raise ModelError(
        f"{where} names the model {shown(named)}. Making it would run code, for which the word of a file is not enough:"
        " if you know that code and trust it, name it yourself with --model package.module:function"
    )


def resolve(name: str, device: torch.device) -> str:
    """The name of the model; "auto" depends on the device. A name that cannot be one is refused early."""
    if name == "auto":
        return AUTOMATIC[device.type]
    _check_form(name)
    if name.startswith(TIMM):
        timm_with(name.removeprefix(TIMM), f"--model {name}")
    return name


def _check_form(name: str) -> None:
    """Raise where a name cannot be one of a model."""
    if name not in BUILT_IN and ":" not in name and not TUNED.fullmatch(name):
        raise ModelError(
            f"model {name!r} is not known: choose {', '.join(BUILT_IN)}, timm:NAME, or name your own as"
            " package.module:factory"
        )


def make_model(name: str, channels: int, classes: int, image: int, backbone: Backbone | None = None) -> nn.Module:
    """A model with fresh weights whose output was looked at: logits [batch, classes].

    One to fine-tune has pretrained weights and takes normalised images of three colours; `backbone` where it is loaded.
    """
    if name in BUILT_IN:
        return BUILT_IN[name](channels, classes, image)
    if TUNED.fullmatch(name):
        return tuned_network(name, classes, backbone)
    _check_form(name)
    make = _timm_model if name.startswith(TIMM) else _own_model
    model = make(name, channels, classes).float()
    _check_output(name, model, torch.zeros(2, channels, image, image), classes)
    return model


def _timm_model(name: str, channels: int, classes: int) -> nn.Module:
    wanted = name.removeprefix(TIMM)
    timm = timm_with(wanted, f"--model {name}")
    try:
        model = timm.create_model(wanted, pretrained=False, num_classes=classes, in_chans=channels)
    except Exception as error:
        raise ModelError(
            f"model {name!r}: timm cannot make it for {channels} channels and {classes} classes:"
            f" {type(error).__name__}: {error}"
        ) from error
    assert isinstance(model, nn.Module)
    return model


def _own_model(name: str, channels: int, classes: int) -> nn.Module:
    factory = own_function(name, "model", ModelError)
    with importable_from_here():
        arguments, keywords = _arguments(factory, channels, classes)
        try:
            model = factory(*arguments, **keywords)
        except Exception as error:
            given = ", ".join([*map(str, arguments), *(f"{key}={value}" for key, value in keywords.items())])
            raise ModelError(
                f"model {name!r}: calling it with ({given}) failed: {type(error).__name__}: {error}. A factory takes"
                " (channels, classes) or (classes)"
            ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"model {name!r} returned a {type(model).__name__}; expected a torch.nn.Module")
    return model


def _arguments(factory: Callable[..., Any], channels: int, classes: int) -> tuple[list[int], dict[str, int]]:
    """How to call a factory: by the names it uses, else by the number of arguments it needs."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return [channels, classes], {}
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for_channels = next((name for name in ("channels", "in_channels", "in_chans") if name in names), None)
    for_classes = next((name for name in ("classes", "num_classes", "n_classes") if name in names), None)
    if for_classes is not None:
        return [], {**({for_channels: channels} if for_channels else {}), for_classes: classes}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in positional)
    if any(p.kind is p.VAR_KEYWORD for p in parameters) and not positional:
        return [], {"num_classes": classes}
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return ([classes] if needed == 1 or (len(positional) == 1 and not takes_any) else [channels, classes]), {}


def _check_output(name: str, model: nn.Module, images: Tensor, classes: int) -> None:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(images)
    except Exception as error:
        raise ModelError(
            f"model {name!r} cannot run on images of shape {tuple(images.shape)}: {type(error).__name__}: {error}."
            " Give --image-size a size that fits it"
        ) from error
    finally:
        model.train(training)
    if not isinstance(output, Tensor) or output.shape != (len(images), classes):
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(f"model {name!r} returns {found}; expected logits of shape {(len(images), classes)}")
