"""The loops by name. Modules are imported when a loop is first run, not before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from sgoif_bench import methods
from sgoif_bench.loops.study import Study, Trained

PLACE = "sgoif_bench.loops.corpus"


@dataclass(frozen=True)
class Loop:
    """A training loop."""

    name: str
    train: str
    """`module:function` of the corpus that is called with a study."""
    title: str
    """As it stands in a table."""
    epochs: int
    needs: str | None = None
    """A package that not everybody has."""


_ALL = (
    Loop("pytorch-mnist", "mnist_example:train", "PyTorch's MNIST example", 3),
    Loop("pytorch-vit", "vit_example:train", "ViT, AdamW, warm-up and cosine", 6),
    Loop("cifar-resnet", "cifar_resnet:train", "CIFAR ResNet, SGD, crops and flips", 6),
    Loop("nanogpt", "nanogpt:train", "nanoGPT's accumulation, bfloat16", 4),
    Loop("adam", "optimizers:adam", "MLP, Adam", 4),
    Loop("adadelta", "optimizers:adadelta", "MLP, Adadelta", 4),
    Loop("adagrad", "optimizers:adagrad", "MLP, Adagrad", 4),
    Loop("rmsprop", "optimizers:rmsprop", "MLP, RMSprop", 4),
    Loop("lion", "optimizers:lion", "MLP, Lion", 4),
    Loop("lamb", "optimizers:lamb", "MLP, LAMB", 6),
    Loop("lbfgs", "lbfgs:train", "MLP, L-BFGS with a closure", 4),
    Loop("sam", "sam:train", "SAM, two passes a batch", 4),
    Loop("dropout", "dropout:train", "MLP, half dropped out", 6),
    Loop("weight-norm", "heads:weight_normed", "weight-normed head", 4),
    Loop("cosine", "heads:cosine", "cosine head", 4),
    Loop("checkpointing", "checkpointed:train", "gradient checkpointing", 4),
    Loop("label-smoothing", "losses:label_smoothing", "label smoothing", 3),
    Loop("class-weights", "losses:class_weights", "class-weighted loss", 3),
    Loop("focal", "losses:focal", "focal loss", 3),
    Loop("distillation", "losses:distillation", "distillation", 3),
    Loop("mixup", "mixing:mixup", "mixup", 4),
    Loop("cutmix", "mixing:cutmix", "CutMix", 4),
    Loop("timm", "timm_recipe:train", "timm's recipe: mixed, smoothed, averaged", 6),
    Loop("callbacks", "callbacks:train", "trainer with callbacks", 3),
    Loop("compile", "compiled:train", "torch.compile", 4),
    Loop("lightning", "lightning_fit:train", "Lightning", 3, needs="lightning"),
    Loop("trainer", "hf_trainer:train", "Hugging Face Trainer, accumulation", 3, needs="transformers"),
    Loop("accelerate", "accelerated:train", "Accelerate, accumulation", 3, needs="accelerate"),
)
LOOPS: dict[str, Loop] = {loop.name: loop for loop in _ALL}


def title_of(name: str) -> str:
    """A loop as a table calls it; one that is not registered goes by its name."""
    return methods.title_of(LOOPS, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Loops as the registry lists them, others behind."""
    return methods.in_order(LOOPS, names)


def choose(wanted: str) -> list[str]:
    """Loops from a list of names or `all`, in the order of the registry."""
    return methods.choose(LOOPS, {"all": list(LOOPS)}, wanted, "loop")


def missing_package(name: str) -> str | None:
    """The package that a loop needs and that is not installed."""
    package = LOOPS[name].needs
    return package if package is not None and find_spec(package) is None else None


def train_function(name: str) -> Callable[[Study], Trained]:
    """What trains by this loop."""
    return methods.resolve(f"{PLACE}.{LOOPS[name].train}")  # type: ignore[no-any-return]
