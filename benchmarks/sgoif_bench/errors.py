"""How well wrong labels are found, and how far the stated probabilities can be believed: `LabelErrors` on CIFAR-10.

    python -m sgoif_bench.errors --data ROOT --noise symmetric --rate 0.2 --seed 0 --out FILE.json

One run of training gives the ranking and every single signal beside it (mean loss, margins, influence), the calibrated
probabilities, the noise rate, the selection at a false discovery rate, the suggested labels, and the epoch at which the
first percent of the list is at least 95% wrong labels. `--evidence FILE.npz` keeps what the run knew, so that
`--again FILE.npz` can judge it again without training.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sgoif.core.data import split_holdout
from sgoif.core.serialization import DAMAGE, atomic_write
from sgoif.errors import SettingError
from sgoif.monitor import InfluenceMonitor
from sgoif.tasks.labels.checked import to_check
from sgoif.tasks.labels.evidence import Evidence, Rows, anchor_evidence, training_evidence
from sgoif.tasks.labels.judgement import Judgement, judge, suggestions
from sgoif_bench.batches import Batches, LabelledImages
from sgoif_bench.cifar import CLASSES, read_cifar10
from sgoif_bench.command import Device, Say, check_writable, choose_device, run_command, say, setting
from sgoif_bench.metrics import detection_metrics, expected_calibration_error
from sgoif_bench.models import MODELS
from sgoif_bench.noise import (
    CIFAR10_FLIPS,
    NoisyLabels,
    by_matrix,
    class_dependent,
    instance_dependent,
    noise_matrix_from_trace,
    symmetric,
)
from sgoif_bench.noise.human import human, read_human
from sgoif_bench.noise.labels import checked_share
from sgoif_bench.optimizers import make_optimizer
from sgoif_bench.signals import SignalTracker

PROGRAM = "python -m sgoif_bench.errors"
Labels = NDArray[np.int64]
Kind = Literal["none", "class-dependent", "symmetric", "matrix", "instance", "human"]
MATRIX_SEED = 0
"""Matrices that are drawn are those of the benchmark of detectors; the run's seed chooses the examples."""
FOUND = 0.95
COLUMNS = ("influence", "margin", "logit_margin", "loss")
SIGNALS = ("loss", "margin", "prob_margin")
TRUTH = ("true", "given")
"""What is kept of every run beside its evidence."""


@dataclass(frozen=True)
class ErrorsSettings:
    """One run of the protocol."""

    data: str | None = setting(None, help="folder that holds cifar-10-batches-bin/")
    noise: Kind = setting("class-dependent", help="kind of wrong labels")
    rate: float = setting(0.2, help="share of all labels that are wrong (all kinds but human)")
    matrix: str | None = setting(None, help="JSON file with P(given | true) for --noise matrix; unset: drawn")
    sparsity: float = setting(0.0, help="share of zeros in a matrix that is drawn")
    human: str | None = setting(None, help="FILE.npz:KEY with human labels for --noise human")
    spared: float = setting(0.0, help="share of the wrong labels that is put right again")
    model: Literal["resnet9", "resnet18", "small-cnn"] = setting("resnet9", help="network")
    epochs: int = setting(20, help="epochs of training")
    batch_size: int = setting(512, help="examples in a batch")
    augment: bool = setting(True, help="random crops and mirroring")
    anchors: int = setting(2000, help="held-out examples, with their noisy labels")
    limit: int | None = setting(None, help="use only the first so many training images")
    device: Device = setting("auto", help="where to train")
    seed: int = setting(0, help="seed of noise, split, initial weights and batches")
    evidence: str | None = setting(None, help="FILE.npz to keep what the run knew")
    checked: int = setting(0, help="held-out examples, drawn at random, whose right label is told to the judge")
    again: str | None = setting(None, help="FILE.npz kept by --evidence: judge it again instead of training")
    opinion: str | None = setting(
        None, help="FILE.npz:KEY of people's labels: which right ones of the list they contest"
    )

    def __post_init__(self) -> None:
        if self.data is None and self.again is None:
            raise SettingError("--data ROOT is needed: the folder that holds cifar-10-batches-bin/")
        if self.checked < 0:
            raise SettingError(f"checked = {self.checked} must be 0 or more")
        checked_share(self.spared, "spared")
        if self.noise == "human" and (self.human is None or ":" not in self.human) and self.again is None:
            raise SettingError("--noise human needs --human FILE.npz:KEY")
        if self.opinion is not None and ":" not in self.opinion:
            raise SettingError(f"opinion = {self.opinion!r} must be FILE.npz:KEY")


def plant(
    kind: Kind,
    true: Labels,
    classes: int,
    rate: float,
    seed: int,
    *,
    images: Tensor | NDArray[np.uint8],
    flips: Callable[[], Mapping[int, int]],
    matrix: Callable[[], NDArray[np.float64]],
    people: Callable[[], Labels],
) -> NoisyLabels:
    """Labels with noise of a kind, and which of them are wrong; what a kind needs is made or read for it alone."""
    if kind == "symmetric":
        return symmetric(true, classes, rate, seed)
    if kind == "class-dependent":
        return class_dependent(true, flips(), seed=seed, overall=rate)
    if kind == "matrix":
        return by_matrix(true, matrix(), seed)
    if kind == "instance":
        return instance_dependent(true, images, classes, rate, seed)
    given = people() if kind == "human" else true.copy()
    if given.min() < 0 or given.max() >= classes:
        raise SettingError(
            f"labels must go from 0 to {classes - 1}; those of people go from {given.min()} to {given.max()}"
        )
    return NoisyLabels(given, given != true)


def make_noise(images: Tensor, labels: Labels, settings: ErrorsSettings) -> NoisyLabels:
    """Labels as the settings want them, and which of them are wrong."""

    def people() -> Labels:
        path, _, key = str(settings.human).rpartition(":")
        given = read_human(path, key)[: len(labels)]
        if given.shape != labels.shape:
            raise SettingError(f"{path} has {len(given)} labels for {len(labels)} images under {key!r}")
        return given

    def matrix() -> NDArray[np.float64]:
        if settings.matrix is not None:
            return _read_matrix(Path(settings.matrix))
        trace = round(CLASSES * (1 - settings.rate), 9)
        return noise_matrix_from_trace(CLASSES, trace, settings.sparsity, MATRIX_SEED)

    noisy = plant(
        settings.noise,
        labels,
        CLASSES,
        settings.rate,
        settings.seed,
        images=images,
        flips=lambda: CIFAR10_FLIPS,
        matrix=matrix,
        people=people,
    )
    generator = np.random.default_rng((settings.seed, 0x5BA3))
    wrong = noisy.is_wrong & (generator.random(len(labels)) >= settings.spared)
    return NoisyLabels(np.where(wrong, noisy.labels, labels), wrong)


def _read_matrix(path: Path) -> NDArray[np.float64]:
    try:
        return np.atleast_2d(np.asarray(json.loads(path.read_text())["matrix"], dtype=np.float64))
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{path} is not a JSON object with a list of rows under 'matrix' ({error!r})") from error


def run_errors(settings: ErrorsSettings, tell: Say = say) -> dict[str, Any]:
    """Train (or read what a run knew), judge, and compare with the truth."""
    start = time.perf_counter()
    if settings.evidence is not None:
        check_writable(Path(settings.evidence))
    if settings.again is not None:
        watched = (f"signal_{name}" for name in SIGNALS)
        known = load_evidence(Path(settings.again), "rows", "epochs", "first_percent", *watched)
    else:
        known = _train(settings, tell)
    if settings.evidence is not None:
        save_evidence(Path(settings.evidence), known)
    people = None
    if settings.opinion is not None:
        path, _, key = settings.opinion.rpartition(":")
        people = human(known["true"], path, key, CLASSES).labels
    result = evaluate(known, settings.checked, settings.seed, people)
    return {**result, "seconds": time.perf_counter() - start}


def _train(settings: ErrorsSettings, tell: Say) -> dict[str, Any]:
    device = choose_device(settings.device)
    torch.manual_seed(settings.seed)
    assert settings.data is not None
    images, labels = read_cifar10(settings.data)
    images, true = images[: settings.limit], labels[: settings.limit].numpy()
    given, _ = make_noise(images, true, settings)
    everything = LabelledImages(images, torch.from_numpy(given))
    share = settings.anchors / len(given)
    training, held_out = split_holdout(everything, share=share, seed=settings.seed, labels=everything.labels)
    rows = np.asarray(training.indices)

    on_gpu = device.type == "cuda"
    layout = torch.channels_last if on_gpu else torch.contiguous_format
    model = MODELS[settings.model](3, CLASSES).to(device, memory_format=layout)  # type: ignore[call-overload]
    where = torch.from_numpy(rows)
    batches = Batches(
        images[where].to(device),
        torch.from_numpy(given)[where].to(device),
        where,
        settings.batch_size,
        seed=settings.seed,
        augment=settings.augment,
        channels_last=on_gpu,
    )
    optimizer, scheduler = make_optimizer(model, steps=settings.epochs * len(batches))

    def autocast() -> AbstractContextManager[Any]:
        return torch.autocast("cuda", dtype=torch.bfloat16) if on_gpu else nullcontext()

    tracker = SignalTracker(len(given), device)
    first_percent: list[float] = []
    with InfluenceMonitor(
        model, optimizer, anchors=held_out, size=len(given), max_anchors=len(held_out), seed=settings.seed
    ) as monitor:
        for epoch in range(settings.epochs):
            model.train()
            for x, y, index in batches:
                with monitor.step(index):
                    with autocast():
                        logits = model(x)
                    F.cross_entropy(logits.float(), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                tracker.update(logits, y, index.to(device))
            if max(first_percent, default=0.0) < FOUND:
                first_percent.append(_first_percent(monitor, given != true))
            tell(f"epoch {epoch + 1} of {settings.epochs}: first percent {100 * first_percent[-1]:.1f}% wrong")
        known = {
            "training": training_evidence(monitor),
            "anchors": anchor_evidence(monitor),
        }
    signals = {f"signal_{name}": values[rows].astype(np.float32) for name, values in tracker.suspicion().items()}
    epochs = {"epochs": settings.epochs, "first_percent": np.array(first_percent)}
    return {
        **known,
        **epochs,
        **signals,
        "rows": rows,
        "true": true.astype(np.int16),
        "given": given.astype(np.int16),
    }


def _first_percent(monitor: InfluenceMonitor, wrong: NDArray[np.bool_]) -> float:
    """Share of wrong labels in the first percent of the ranking at this moment."""
    evidence, anchors = training_evidence(monitor), anchor_evidence(monitor)
    order = np.argsort(-judge(evidence, anchors, CLASSES).suspicion)
    return float(wrong[evidence.index[order[: max(1, len(order) // 100)]]].mean())


def evaluate(known: Mapping[str, Any], checked: int = 0, seed: int = 0, people: Labels | None = None) -> dict[str, Any]:
    """Everything that is asked of a judgement, from what a run knew and the truth.

    Of so many held-out examples somebody has checked the label. `people` are labels of all examples by people, who may
    contest what counts as the truth.
    """
    true, given = known["true"], known["given"]
    wrong = given != true
    looked_at = {int(example): int(true[example]) for example in to_check(known["anchors"].index, checked, seed)}
    verdict = judge(known["training"], known["anchors"], CLASSES, looked_at)
    index = verdict.training.index
    place = np.searchsorted(known["rows"], index)
    single = {name: known[f"signal_{name}"][place] for name in SIGNALS}
    single["influence"] = verdict.training.influence
    result: dict[str, Any] = {
        "wrong_share": float(wrong[index].mean()),
        "structure": verdict.structure,
    }
    if wrong[index].any():
        found = {name: detection_metrics(wrong[index], values) for name, values in single.items()}
        found["label_errors"] = detection_metrics(wrong[index], verdict.suspicion)
        result["methods"] = found
        best = max((name for name in single), key=lambda name: found[name]["aupr"])
        result["best_single"] = {"name": best, "aupr": found[best]["aupr"]}
        reached = np.flatnonzero(np.asarray(known["first_percent"]) >= FOUND)
        result["found_at_share"] = float(reached[0] + 1) / int(known["epochs"]) if len(reached) else None
    result["calibration"] = stated_and_real(verdict, wrong, true)
    if people is not None:
        result["opinion"] = contested(verdict, wrong, people)
    return result


def stated_and_real(verdict: Judgement, wrong: NDArray[np.bool_], true: NDArray[np.int64]) -> dict[str, Any]:
    """Stated against real: over training and held-out examples together."""
    index, other, p, chosen = _whole(verdict)
    is_wrong = wrong[index]
    caught = chosen[is_wrong[chosen]]
    top = np.argsort(-p, kind="stable")[:100]
    rate = verdict.rate
    return {
        "expected_calibration_error": expected_calibration_error(p, is_wrong),
        "noise_rate": rate.estimate,
        "noise_rate_low": rate.low,
        "noise_rate_high": rate.high,
        "noise_rate_true": float(is_wrong.mean()),
        "known": float(verdict.knows),
        "estimates": verdict.estimates,
        "slope": verdict.curve.slope,
        "selected": len(chosen),
        "false_discovery_rate": float(1 - is_wrong[chosen].mean()) if len(chosen) else None,
        "recall": float(len(caught) / is_wrong.sum()) if is_wrong.any() else None,
        "top_100_expected": float(p[top].mean()),
        "top_100_real": float(is_wrong[top].mean()),
        "suggested_right": float((other[caught] == true[index[caught]]).mean()) if len(caught) else None,
    }


def contested(verdict: Judgement, wrong: NDArray[np.bool_], people: Labels) -> dict[str, Any]:
    """Of the examples that are selected at 0.1 though their labels are right: how many people would label otherwise.

    `agreed` are those to which they give the suggested label: a data set has wrong labels of its own, and these may be
    some. `share` is that of contested labels among all right ones.
    """
    index, other, _, chosen = _whole(verdict)
    right = chosen[~wrong[index[chosen]]]
    otherwise = people[index] != np.concatenate([verdict.training.given, verdict.anchors.given])
    return {
        "selected": len(chosen),
        "right": len(right),
        "contested": int(otherwise[right].sum()),
        "agreed": int((people[index[right]] == other[right]).sum()),
        "share": float(otherwise[~wrong[index]].mean()),
    }


def _whole(verdict: Judgement) -> tuple[Labels, Labels, NDArray[np.float64], Labels]:
    """Index, suggested label and probability of training and held-out examples together, and which are selected."""
    parts = (verdict.training, verdict.anchors)
    p = np.concatenate([verdict.probability, verdict.anchor_probability])
    index = np.concatenate([part.index for part in parts])
    other = np.concatenate([suggestions(part, by_group=True) for part in parts])
    v = np.concatenate([verdict.suspicion, verdict.anchor_suspicion])
    return index, other, p, verdict.selected(v, 0.1)


def save_evidence(path: Path, known: Mapping[str, Any]) -> None:
    """Keep what a run knew, in half precision."""
    arrays: dict[str, Any] = {}
    for name, value in known.items():
        if not isinstance(value, Evidence):
            arrays[name] = value
            continue
        arrays |= {f"{name}.index": value.index.astype(np.int32), f"{name}.given": value.given.astype(np.int16)}
        arrays |= {f"{name}.{column}": getattr(value, column).astype(np.float16) for column in COLUMNS}
        for rows in ("groups", "classes"):
            means: Rows = getattr(value, rows)
            arrays[f"{name}.{rows}"] = means.mean.astype(np.float16)
            if means.slots is not None:
                arrays[f"{name}.{rows}.slots"] = means.slots.astype(np.int16)
    atomic_write(path, lambda handle: np.savez_compressed(handle, **arrays))


def load_evidence(path: Path, *besides: str) -> dict[str, Any]:
    """What `save_evidence` kept; the arrays named besides have to be there too.

    Examples whose label was made wrong on purpose, as earlier releases did (`decoys`), are left out.
    """
    archive = read_archive(path)

    def rows(name: str) -> Rows:
        slots = archive.get(f"{name}.slots")
        return Rows(archive[name], None if slots is None else slots.astype(np.int64))

    known: dict[str, Any] = {name: array for name, array in archive.items() if "." not in name}
    missing = [name for name in (*TRUTH, *besides) if name not in known]
    try:
        for part in ("training", "anchors"):
            known[part] = Evidence(
                index=archive[f"{part}.index"].astype(np.int64),
                given=archive[f"{part}.given"].astype(np.int64),
                **{column: archive[f"{part}.{column}"].astype(np.float64) for column in COLUMNS},
                groups=rows(f"{part}.groups"),
                classes=rows(f"{part}.classes"),
            )
    except KeyError as error:
        missing.append(error.args[0])
    if missing:
        raise SettingError(f"{path} was not kept by --evidence of this command: it has no array {missing[0]!r}")
    planted = known.pop("decoys", None)
    return {**known, "training": known["training"].without(planted)}


def read_archive(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive}
    except OSError:
        raise
    except DAMAGE as error:
        raise SettingError(f"{path} is not an .npz archive of arrays") from error


def _table(result: Mapping[str, Any]) -> str:
    lines = []
    for name, metrics in result.get("methods", {}).items():
        lines.append(f"{name:<14} AUPR {100 * metrics['aupr']:5.1f}  P@1% {100 * metrics['p_at_1']:5.1f}")
    c = result["calibration"]
    real = "-" if c["false_discovery_rate"] is None else f"{c['false_discovery_rate']:.3f}"
    lines.append(
        f"noise {100 * c['noise_rate']:.1f}% ({100 * c['noise_rate_low']:.1f} to {100 * c['noise_rate_high']:.1f}), "
        f"really {100 * c['noise_rate_true']:.1f}%; calibration error {c['expected_calibration_error']:.3f}; "
        f"{c['selected']} selected, FDR {real}; top 100: {c['top_100_expected']:.2f}, really {c['top_100_real']:.2f}"
    )
    if c["known"] < 1:
        lines.append("the model has learned too little to judge labels: train longer (--epochs) or on more images")
    return "\n".join(lines)


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run the protocol from the command line; returns the exit code."""
    return run_command(program, ErrorsSettings, run_errors, _table, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
