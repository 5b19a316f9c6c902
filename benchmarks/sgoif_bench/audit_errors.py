"""How far the answer of `sgoif audit` can be believed on data of any size: its own training, with wrong labels planted.

    python -m sgoif_bench.audit_errors --data FILE.npz --size 10000 --noise symmetric --rate 0.1 --out FILE.json

FILE.npz holds `images` (uint8, [n, height, width] or with channels last) and `labels`, the right ones; `superclasses`
(one per class) where flips should stay within them, and any other array of labels for `--noise human`. `--evidence` and
`--again` are those of `sgoif_bench.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.audit.plan import hold_out, make_plan, usual_batch
from sgoif.audit.settings import AuditSettings
from sgoif.audit.training import Training
from sgoif.errors import SettingError
from sgoif.tasks.labels.evidence import anchor_evidence, training_evidence
from sgoif.tasks.labels.judgement import judge
from sgoif_bench.command import Device, Say, check_writable, run_command, say, setting
from sgoif_bench.errors import Kind, Labels, load_evidence, plant, read_archive, save_evidence, stated_and_real
from sgoif_bench.metrics import detection_metrics
from sgoif_bench.noise import (
    CIFAR10_FLIPS,
    DIGIT_FLIPS,
    next_class,
    next_in_superclass,
    noise_matrix_from_trace,
)

PROGRAM = "python -m sgoif_bench.audit_errors"
FLIPS: dict[str, Callable[[int], Mapping[int, int]]] = {
    "cifar10": lambda classes: CIFAR10_FLIPS,
    "digits": lambda classes: DIGIT_FLIPS,
    "next": next_class,
}


@dataclass(frozen=True)
class AuditErrorsSettings:
    """One audit."""

    data: str | None = setting(None, help="FILE.npz with images and labels")
    size: int = setting(10_000, help="images drawn at random")
    noise: Kind = setting("symmetric", help="kind of wrong labels")
    rate: float = setting(0.1, help="share of all labels that are wrong")
    flips: Literal["cifar10", "digits", "next"] = setting("next", help="which classes are confused (class-dependent)")
    sparsity: float = setting(0.0, help="share of zeros in the matrix")
    human: str | None = setting(None, help="array of FILE.npz with the labels of people")
    model: str = setting(
        "auto",
        help="network, as for sgoif audit; resnet7 and resnet7-whitened come with the batches they have without a GPU",
    )
    epochs: int | None = setting(None, help="epochs of training; unset: as the audit plans")
    augment: bool = setting(True, help="shift and mirror images")
    early_stop: bool = setting(True, help="stop where the model memorises, as the audit does")
    device: Device = setting("auto", help="where to train")
    seed: int = setting(0, help="seed of the draw, the noise and the audit")
    evidence: str | None = setting(None, help="FILE.npz to keep what the run knew")
    again: str | None = setting(None, help="FILE.npz kept by --evidence: judge it again instead of training")

    def __post_init__(self) -> None:
        if self.data is None and self.again is None:
            raise SettingError("--data FILE.npz is needed, with arrays images and labels")
        if self.noise == "human" and self.human is None and self.again is None:
            raise SettingError("--noise human needs --human KEY")


@dataclass(frozen=True)
class Drawn:
    """Some images with planted noise, as a training of the audit takes them."""

    array: NDArray[np.uint8]
    labels: Labels
    true: Labels
    class_names: list[str] = field(default_factory=list)


def draw(settings: AuditErrorsSettings) -> Drawn:
    """The images of one run."""
    arrays = read_archive(Path(str(settings.data)))
    if not {"images", "labels"} <= arrays.keys():
        raise SettingError(f"{settings.data} has {', '.join(arrays)}; expected are images and labels")
    images, labels = arrays["images"], arrays["labels"].astype(np.int64)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or len(images) != len(labels):
        raise SettingError(
            f"{settings.data} has images of {images.dtype} and shape {list(images.shape)} for {len(labels)} labels;"
            " expected are as many images of bytes, [n, height, width] or with channels last"
        )
    generator = np.random.default_rng((settings.seed, settings.size))
    chosen = np.sort(generator.choice(len(labels), size=min(settings.size, len(labels)), replace=False))
    pixels, true, classes = images[chosen], labels[chosen], int(labels.max()) + 1
    planes = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    within, trace = arrays.get("superclasses"), classes * (1 - settings.rate)

    def people() -> Labels:
        if settings.human is None or settings.human not in arrays:
            raise SettingError(f"{settings.data} has no array {settings.human!r}; it has {', '.join(arrays)}")
        return arrays[settings.human][chosen].astype(np.int64)

    given = plant(
        settings.noise,
        true,
        classes,
        settings.rate,
        settings.seed,
        images=pixels,
        flips=lambda: FLIPS[settings.flips](classes) if within is None else next_in_superclass(within.tolist()),
        matrix=lambda: noise_matrix_from_trace(classes, trace, settings.sparsity, settings.seed),
        people=people,
    ).labels
    return Drawn(np.ascontiguousarray(planes), given, true, [str(c) for c in range(classes)])


def train(settings: AuditErrorsSettings, tell: Say) -> dict[str, Any]:
    """Train as the audit does; what the run knew, and the truth."""
    images = draw(settings)
    rows, held = hold_out(images.labels, AuditSettings(Path()).holdout, settings.seed)
    batch = usual_batch(len(rows), torch.device("cpu")) if settings.model.startswith("resnet7") else None
    audit = AuditSettings(
        Path(),
        model=settings.model,
        epochs=settings.epochs,
        batch_size=batch,
        augment=settings.augment,
        early_stop=settings.early_stop,
        seed=settings.seed,
        device=settings.device,
    )
    training = Training(images, audit, make_plan(audit, len(rows)), rows, held)
    try:
        while not training.finished():
            training.advance()
            if training.step % training.plan.steps_per_epoch == 0:
                tell(f"epoch {training.epoch} of {training.plan.epochs}: loss {training.loss:.3f}")
        return {
            "training": training_evidence(training.monitor),
            "anchors": anchor_evidence(training.monitor),
            "true": images.true.astype(np.int16),
            "given": images.labels.astype(np.int16),
        }
    finally:
        training.close()


def run_audit_errors(settings: AuditErrorsSettings, tell: Say = say) -> dict[str, Any]:
    """Train (or read what a run knew), judge, and compare with the truth."""
    if settings.evidence is not None:
        check_writable(Path(settings.evidence))
    known = load_evidence(Path(settings.again)) if settings.again is not None else train(settings, tell)
    if settings.evidence is not None:
        save_evidence(Path(settings.evidence), known)
    true, given = known["true"].astype(np.int64), known["given"].astype(np.int64)
    wrong, classes = given != true, int(max(true.max(), given.max())) + 1
    verdict = judge(known["training"], known["anchors"], classes)
    planted = wrong[verdict.training.index]
    return {
        "agreement": known["anchors"].agreement(),
        "structure": verdict.structure,
        "aupr": detection_metrics(planted, verdict.suspicion)["aupr"] if planted.any() else None,
        "calibration": stated_and_real(verdict, wrong, true),
    }


def _shown(result: Mapping[str, Any]) -> str:
    c = result["calibration"]
    ranked = "" if result["aupr"] is None else f"AUPR {100 * result['aupr']:.1f}, "
    real = "-" if c["false_discovery_rate"] is None else f"{c['false_discovery_rate']:.3f}"
    return (
        f"agreement {100 * result['agreement']:.0f}%, {ranked}{c['selected']} selected, FDR {real}; noise"
        f" {100 * c['noise_rate']:.1f}% ({100 * c['noise_rate_low']:.1f} to {100 * c['noise_rate_high']:.1f}), really"
        f" {100 * c['noise_rate_true']:.1f}%; calibration error {c['expected_calibration_error']:.3f}"
    )


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run one audit from the command line; returns the exit code."""
    return run_command(program, AuditErrorsSettings, run_audit_errors, _shown, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
