"""Backbones by name: of this package, timm, torchvision, transformers, or with weights of a local file."""

import importlib
import re
from collections.abc import Callable
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sgoif.backbones.base import Backbone, make_backbone
from sgoif.backbones.efficientnet_lite import PACKAGE, VARIANTS, load_lite
from sgoif.backbones.weights import NAMED, head_entries, load_weights
from sgoif.errors import MissingExtraError, ModelError

WITH_FILE = re.compile(r"(?P<model>(?:(?:timm|torchvision):)?[A-Za-z0-9_.-]+):(?P<file>.+\.safetensors)")
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""A network that timm itself has. `timm:hf-hub:OWNER/NAME` and `timm:local-dir:PATH` would be somebody else's."""
COLOURS, SIDE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), 224
"""Mean and spread of ImageNet and pixels a side, where a model says nothing else."""
REASON = 300
"""Letters of the error of another package that a message repeats."""


def load_backbone(name: str) -> Backbone | None:
    """The pretrained network of a name, without its head.

    Args:
        name: one of `known_backbones()`. A file of weights holds the state of `network(classes)` of the same lite
            backbone, or of the model of timm or torchvision.

    Returns:
        The backbone on the CPU; None for "none".

    Raises:
        MissingExtraError: what it needs is not installed.
        ModelError: the name is not known, or its weights are damaged, of another version or out of reach.
    """
    if name == "none":
        return None
    given = WITH_FILE.fullmatch(name)
    model, file = (given["model"], Path(given["file"])) if given else (name, None)
    source, colon, wanted = model.partition(":")
    if model in VARIANTS:
        return load_lite(name, model, file)
    if colon and wanted and source in SOURCES and (file is None or source != "hf"):
        return SOURCES[source](name, wanted, file)
    choices = "; ".join(f"{known} ({what})" for known, what in known_backbones().items())
    raise ModelError(f"backbone {name!r} is not known. There are: {choices}")


def known_backbones() -> dict[str, str]:
    """Names and forms of names that `load_backbone` takes, with what stands behind them."""
    lite = {
        name: f"EfficientNet-Lite{name[-1]}, {variant.size} pixels, {_there(PACKAGE.format(name))}"
        for name, variant in VARIANTS.items()
    }
    return lite | {
        "timm:NAME": f"a model of timm, {_there('timm')}",
        "torchvision:NAME": f"a classifier of torchvision, {_there('torchvision')}",
        "hf:NAME": f"a vision model of the Hugging Face hub or in a folder, {_there('transformers')}",
        "lite0:FILE.safetensors": "with weights of your own; so also timm:NAME:FILE and torchvision:NAME:FILE",
        "none": "no pretrained network",
    }


def timm_with(wanted: str, where: str) -> Any:
    """The package timm, which has this model; `where` it is asked for begins the message where it has not."""
    timm = _imported("timm", "timm", where)
    if not PLAIN.fullmatch(wanted) or not timm.is_model(wanted):
        raise _no_such(f"{where}: timm", wanted, timm.list_models(), "timm.list_models()")
    return timm


def _of_timm(name: str, wanted: str, file: Path | None) -> Backbone:
    timm = timm_with(wanted, f"backbone {name!r}")
    model = _fetched(name, file, "Hugging Face", lambda: timm.create_model(wanted, pretrained=file is None))
    seen = timm.data.resolve_model_data_config(model)
    model.reset_classifier(0)
    return make_backbone(name, model, seen["input_size"][-1], seen["mean"], seen["std"])


def _of_torchvision(name: str, wanted: str, file: Path | None) -> Backbone:
    models = _imported("torchvision.models", "timm", f"backbone {name!r}")
    classifiers = models.list_models(module=models)
    if wanted not in classifiers:
        raise _no_such(f"backbone {name!r}: torchvision", wanted, classifiers, "torchvision.models.list_models()")
    weights = models.get_model_weights(wanted).DEFAULT
    model = _fetched(name, file, "PyTorch", lambda: models.get_model(wanted, weights=None if file else weights))
    head, seen = head_entries(model), weights.transforms()
    if not head:
        raise ModelError(f"backbone {name!r}: its head is no linear layer, so there are no features before it")
    model.set_submodule(head[0].removesuffix(".weight"), nn.Identity())
    return make_backbone(name, model, seen.crop_size[0], tuple(seen.mean), tuple(seen.std))


def _of_hugging_face(name: str, wanted: str, _: Path | None) -> Backbone:
    transformers = _imported("transformers", "transformers", f"backbone {name!r}")

    def load(here: bool) -> tuple[Any, Any, dict[str, Any]]:
        seen, _ = transformers.ImageProcessingMixin.get_image_processor_dict(wanted, local_files_only=here)
        model, found = transformers.AutoModel.from_pretrained(
            wanted, local_files_only=here, trust_remote_code=False, output_loading_info=True
        )
        return model, found["missing_keys"], seen

    def load_here_or_there() -> tuple[Any, Any, dict[str, Any]]:
        try:
            return load(True)
        except OSError:  # not in the cache
            return load(False)

    model, missing, seen = _fetched(name, None, "Hugging Face", load_here_or_there)
    tower = getattr(model, "vision_model", model)  # of a model of images and text, the part that sees
    prefix = "" if tower is model else "vision_model."
    lacking = [entry.removeprefix(prefix) for entry in sorted(missing) if entry.startswith(prefix)]
    if other := [entry for entry in lacking if "pooler" not in entry]:
        raise ModelError(f"backbone {name!r}: its weights are damaged or of another version, {other[0]} is missing")
    if lacking:  # made up at random by transformers, another one each time
        tower.pooler = None
    side = (seen.get("crop_size") if seen.get("do_center_crop") else None) or seen.get("size") or SIDE
    size = side if isinstance(side, int) else side.get("height") or side.get("shortest_edge") or SIDE
    mean, std = (tuple(seen.get(key) or usual) for key, usual in zip(("image_mean", "image_std"), COLOURS, strict=True))
    return make_backbone(name, Pooled(tower), size, mean, std)


SOURCES: dict[str, Callable[[str, str, Path | None], Backbone]] = {
    "timm": _of_timm,
    "torchvision": _of_torchvision,
    "hf": _of_hugging_face,
}


class Pooled(nn.Module):
    """A vision model of transformers as one tensor: what its pooler gives, else its first token."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, images: Tensor) -> Tensor:
        found = self.tower(pixel_values=images)
        pooled = found.get("pooler_output")
        first: Tensor = found.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)
        return first


def _imported(module: str, extra: str, where: str) -> Any:
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, extra, where) from error
    except Exception as error:  # a torchvision that was built for another torch, say
        raise ModelError(f"{where}: {package} cannot be imported: {type(error).__name__}: {error}") from error


def _fetched(name: str, file: Path | None, source: str, make: Callable[[], Any]) -> Any:
    """What `make` returns, with the weights of a file where one is given."""
    try:
        model = make()
    except Exception as error:
        reason = " ".join(str(error).split())[:REASON] or type(error).__name__
        raise ModelError(
            f"the weights of backbone {name!r} cannot be had ({reason}): they come from {source} once and stay in its"
            " cache, so run this once with a network, or copy that cache from a machine that did"
        ) from error
    if file is not None:
        load_weights(model, file, f"backbone {name!r}:")
    return model


def _no_such(package: str, wanted: str, there: list[str], listing: str) -> ModelError:
    close = get_close_matches(wanted, there, n=NAMED, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}?" if close else f"{listing} names them all"
    return ModelError(f"{package} has no model {wanted!r}; {hint}")


def _there(package: str) -> str:
    try:
        return "installed" if find_spec(package) else "not installed"
    except ValueError:  # in sys.modules, though not from a file
        return "installed"
