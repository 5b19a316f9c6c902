"""Every setting of an audit: one place, validated when made."""

import re
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from sgoif.device.selection import Device
from sgoif.errors import SettingError
from sgoif.settings import Options

AUTOMATIC = "auto"
"""The model where none is named."""
NO_BACKBONE = "none"
SMALLEST_IMAGE, LARGEST_IMAGE = 8, 1024
FREE = frozenset({"path", "out", "fdr", "checked", "nproc", "baseline", "fail_on", "sarif", "junit"})
"""Settings that may differ on resume: where things lie (the data have a digest of their own), what only the outputs
depend on, and how many processes share the work."""
PRETRAINED = frozenset({"backbone", "finetune", "from_scratch"})
"""Settings of pretrained networks."""
OF_A_NETWORK = frozenset({"epochs", "batch_size", "learning_rate", "augment", "early_stop", "budget", "nproc"})
"""Settings of a network that is trained; one that the run itself chooses has the usual ones."""
EARLIER = {"from_scratch": True}
"""What runs did before there was a setting for it."""


@dataclass(frozen=True)
class DataSettings(Options):
    """Which images, and how they are laid out; the fields are arguments of `sgoif.images.open_images`."""

    path: Path
    """Image folder, manifest, or another layout that `sgoif.images.open_images` reads."""
    layout: str = "auto"
    """How the data are laid out; "auto" finds out."""
    split: str | None = None
    """Which part of data that come in parts, e.g. "train"."""
    root: Path | None = None
    """What paths in a manifest are relative to."""
    image_column: str | None = None
    """Column of a manifest with the paths."""
    label_column: str | None = None
    """Column of a manifest with the labels."""
    limit: int | None = None
    """Use only so many images, spread over the data."""

    @property
    def options(self) -> dict[str, Any]:
        """How the images are read, as `sgoif.images.open_images` takes it."""
        return {item.name: getattr(self, item.name) for item in fields(DataSettings) if item.name != "path"}


@dataclass(frozen=True)
class AuditSettings(DataSettings):
    """What to audit and how. None means: chosen from the data (see `sgoif.audit.plan`)."""

    out: Path | None = None
    """Run directory. None: `sgoif-audit-<name>` in the current directory."""
    follow_links: bool = False
    """Follow links that lead out of an image folder, or from one class into another."""
    model: str = AUTOMATIC
    """A built-in model, `timm:NAME`, or `package.module:factory` for your own."""
    weights: Path | None = None
    """A safetensors file to start from."""
    backbone: str = "lite0"
    """The pretrained network, as `sgoif.backbones.load_backbone` takes it; "none" for a small one from scratch."""
    finetune: bool = False
    """Train the pretrained network further, all of it."""
    from_scratch: bool = False
    """Train a small network of fresh weights."""
    epochs: int | None = None
    """Passes over the training images; early stopping may end a run before."""
    batch_size: int | None = None
    """Images in a batch."""
    image_size: int | None = None
    """Side of the images the model sees, in pixels."""
    learning_rate: float | None = None
    """Peak of the learning rate."""
    holdout: float = 0.1
    """Share of the images that is held out of training to judge the others; it is scored as well."""
    augment: bool = True
    """Shift images a little and, in colour, mirror them."""
    early_stop: bool = True
    """Stop when the model memorises, or when the ranking has settled."""
    budget: float | None = None
    """Largest share of training time for the scoring. With it a run depends on the clock and cannot be repeated bit
    for bit."""
    fdr: float = 0.1
    """Share of right labels that may be among those called wrong."""
    checked: Path | None = None
    """decisions.csv with decisions about held-out images: where most labels of a class are wrong, they tell the classes
    apart. Can be given to a finished run with `--resume`."""
    baseline: Path | None = None
    """findings.json of an earlier run: what it has is not new."""
    fail_on: Literal["error", "warning"] | None = None
    """Severity from which on a finding, with a baseline a new one, makes the command exit with 4."""
    sarif: Path | None = None
    """A file for the findings in SARIF."""
    junit: Path | None = None
    """A file for the findings as JUnit tests: one for each kind, which fails as `fail_on` says, or else at an error."""
    seed: int = 0
    """Seed of the split, the first weights, the batches and their augmentation."""
    device: Device = "auto"
    """Where to train; "auto" takes a GPU where there is one."""
    nproc: int = 1
    """Processes on this machine that train together, each on a part of every batch and on a GPU of its own."""

    def __post_init__(self) -> None:
        for name in ("path", "out", "root", "weights", "checked", "baseline", "sarif", "junit"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, Path(value))

        need = self.need
        for name, least in (("epochs", 1), ("batch_size", 2), ("image_size", SMALLEST_IMAGE), ("limit", 2)):
            value = getattr(self, name)
            valid = value is None or (isinstance(value, int) and value >= least)
            need(valid, name, f"a whole number of at least {least}, or nothing to have it chosen")
        need((self.image_size or 0) <= LARGEST_IMAGE, "image_size", f"at most {LARGEST_IMAGE} pixels")
        need(isinstance(self.nproc, int) and self.nproc >= 1, "nproc", "a whole number of at least 1")
        need(self.learning_rate is None or 0 < self.learning_rate < 100, "learning_rate", "a number between 0 and 100")
        need(0 < self.holdout <= 1 / 3, "holdout", "a share in (0, 1/3]")
        need(self.budget is None or 0 < self.budget < 1, "budget", "a share of training time in (0, 1), or nothing")
        need(0 < self.fdr < 1, "fdr", "a share strictly between 0 and 1, for instance 0.1")
        need(isinstance(self.seed, int) and self.seed >= 0, "seed", "a whole number of at least 0")
        need(self.fail_on in (None, "error", "warning"), "fail_on", "error or warning, or nothing")
        need(self.device in get_args(Device), "device", f"one of {', '.join(get_args(Device))}")
        need(bool(self.model) and "@" not in self.model, "model", "a built-in model or package.module:factory")
        need(isinstance(self.backbone, str) and bool(self.backbone), "backbone", "lite0 or another name, or none")
        self._raise_if_contradictory()

    def _raise_if_contradictory(self) -> None:
        """Refuse what asks for two networks at once."""
        pretrained = "--finetune" if self.finetune else f"--backbone {self.backbone}"
        asked = {
            "--from-scratch": self.from_scratch,
            f"--backbone {NO_BACKBONE}": self.backbone == NO_BACKBONE and self.finetune,
            "--model": self.model != AUTOMATIC,
            "--weights": self.weights is not None,
        }
        if self.asks_for_pretrained and (other := [option for option, given in asked.items() if given]):
            raise SettingError(
                f"{pretrained} starts from a pretrained network, which {other[0]} does without: give one of the two"
            )

    @property
    def asks_for_pretrained(self) -> bool:
        """Whether a pretrained network is asked for in so many words."""
        return self.finetune or self.backbone not in (AuditSettings.backbone, NO_BACKBONE)

    @property
    def from_scratch_asked(self) -> bool:
        """Whether a network without pretrained features is asked for, be it the user's own."""
        own = self.model != AUTOMATIC or self.weights is not None
        return self.from_scratch or self.backbone == NO_BACKBONE or own

    @property
    def automatic(self) -> bool:
        """Whether the run itself chooses between pretrained features and a network that is trained."""
        return not self.finetune and not self.from_scratch_asked

    def raise_if_pointless(self) -> None:
        """Refuse settings of a network where the run itself chooses whether to train one."""
        own = [item for item in fields(self) if item.name in OF_A_NETWORK]
        changed = [item.name for item in own if getattr(self, item.name) != item.default]
        if self.automatic and changed:
            raise SettingError(
                f"{changed[0]} is about the training of a network: give --finetune or --from-scratch with it. Without"
                " them, labels are judged by features of a pretrained network if these serve best"
            )

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.out or Path(f"sgoif-audit-{folder_name(self.path)}")

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, "follow_links": self.follow_links}

    def record(self) -> dict[str, Any]:
        """The settings in terms of JSON, as written into run.json."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """What `record` wrote, be it that of an earlier release."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in {**EARLIER, **record}.items() if name in known})

    def differences(self, other: dict[str, Any]) -> list[str]:
        """What a run with the recorded settings would do otherwise, as "epochs was 30, now 20"."""
        mine, before = self.record(), {**{item.name: item.default for item in fields(self)}, **EARLIER, **other}
        return [
            f"{name} was {_shown(before[name])}, now {_shown(value)}"
            for name, value in mine.items()
            if name not in FREE and before[name] != value
        ]

    def command(self, *extra: str) -> str:
        """The command line that gives these settings."""
        words = ["sgoif", "audit", str(self.path)]
        for item in fields(self):
            value, option = getattr(self, item.name), item.name.replace("_", "-")
            if item.name == "path" or value == item.default:
                continue
            switch = {True: f"--{option}", False: f"--no-{option}"}.get(value) if isinstance(value, bool) else None
            words += [f"--{option}", str(value)] if switch is None else [switch]
        return shlex.join([*words, *extra])


def folder_name(path: Path) -> str:
    """The name of a file or folder, reduced to what is harmless in the name of another one."""
    name = re.sub(r"[^\w.-]+", "-", path.resolve().name).strip("-.")[:60]
    return name or "data"


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)
