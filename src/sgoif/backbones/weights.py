"""Weights from a safetensors file into a network."""

from pathlib import Path

from torch import nn

from sgoif.errors import MissingExtraError, ModelError

NAMED, LONG = 8, 120
"""Most entries that a message lists, most letters of one."""


def load_weights(model: nn.Module, path: Path, where: str = "--weights") -> list[str]:
    """Load a safetensors file; returns the entries of the head that were left at their first values.

    The head may have another number of classes. Anything else that does not fit is an error that names it.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingExtraError("safetensors", "weights", where.rstrip(":")) from error
    try:
        stored = load_file(path)
    except FileNotFoundError as error:
        raise ModelError(f"{where} {path}: there is no such file") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{where} {path} is not a safetensors file or is damaged ({error})") from error
    if stored and all(name.startswith("module.") for name in stored):  # what data-parallel wrappers add
        stored = {name.removeprefix("module."): value for name, value in stored.items()}
    own = model.state_dict()
    head = head_entries(model)
    skipped = [name for name in head if name in own and (name not in stored or stored[name].shape != own[name].shape)]
    wrong = [
        f"{name} has shape {tuple(stored[name].shape)}, the model's {tuple(own[name].shape)}"
        for name in own
        if name in stored and name not in skipped and stored[name].shape != own[name].shape
    ]
    counters = {name for name in own if name.endswith("num_batches_tracked")}
    missing = [name for name in own if name not in stored and name not in skipped and name not in counters]
    extra = [name for name in stored if name not in own]
    if wrong or missing or extra:
        problems = [
            *wrong,
            *(f"{name} is missing from the file" for name in missing),
            *(f"{repr(name[:LONG])[1:-1]} is not in the model" for name in extra),
        ]
        listed = "; ".join(problems[:NAMED]) + (f"; and {len(problems) - NAMED} more" if len(problems) > NAMED else "")
        raise ModelError(f"{where} {path} does not fit the model: {listed}. Name the model it was made with")
    model.load_state_dict({name: value for name, value in stored.items() if name not in skipped}, strict=False)
    return skipped


def head_entries(model: nn.Module) -> list[str]:
    """Names of the weights of the last linear layer, where classes are told apart."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not names:
        return []
    return [f"{names[-1]}.{part}" if names[-1] else part for part in ("weight", "bias")]
