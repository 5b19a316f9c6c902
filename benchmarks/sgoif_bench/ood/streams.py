"""How the alarm of the sentinel behaves on streams of real images.

    python -m sgoif_bench.ood.streams --data ROOT --set cifar10 --outliers svhn --out FILE.json

A network is trained by the recipe of `bench ood`, a sentinel fitted on its training data, and all test images are
scored once. Every stream then has its own random half of the in-distribution test images as calibration and is drawn
from the other half, without repetition:

    unchanged   nothing but such images: an alarm is a false one
    mixed       from some input on, a share of the inputs comes from another set
    drifting    inputs are blurred more and more
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SettingError
from sgoif.tasks.ood import Alarm, Sentinel, ShiftWatch
from sgoif_bench.command import Device, Say, choose_device, run_command, setting
from sgoif_bench.ood.pictures import Pictures, Stack
from sgoif_bench.ood.protocol import protocol_of
from sgoif_bench.ood.runner import Examined, Runner
from sgoif_bench.ood.settings import OodSettings

PROGRAM = "python -m sgoif_bench.ood.streams"
Scores = NDArray[np.float64]
LEVELS = 20
"""Steps in which the blur grows."""


@dataclass(frozen=True)
class StreamSettings:
    """Streams of one in-distribution set."""

    data: str = setting(help="folder that holds the data sets, as for `bench ood`")
    set: str = setting("cifar10", help="what the network is trained on")
    outliers: str = setting("svhn", help="the set that is mixed in; one of those of the protocol `house`")
    epochs: int | None = setting(None, help="epochs of training; unset: as in `bench ood`")
    networks: str | None = setting(None, help="folder that keeps trained networks, as for `bench ood`")
    streams: int = setting(1000, help="unchanged streams")
    changed: int = setting(100, help="streams of each kind that changes")
    length: int = setting(2000, help="inputs in a stream")
    share: float = setting(0.1, help="share of the other set in a mixed stream")
    change: int = setting(500, help="input from which on a mixed stream is mixed, beside streams mixed from the start")
    blur: float = setting(2.0, help="standard deviation, in pixels, that the blur reaches at the end")
    false_alarms: float = setting(0.01, help="nominal chance of a false alarm")
    device: Device = setting("auto", help="where to train")
    seed: int = setting(0, help="seed of the network and of the streams")

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or not 0 < self.false_alarms < 1 or self.blur <= 0:
            raise SettingError(
                f"share = {self.share} and false_alarms = {self.false_alarms} must lie between 0 and 1, blur ="
                f" {self.blur} above 0"
            )
        if min(self.streams, self.changed, self.length) < 1 or not 0 <= self.change < self.length:
            raise SettingError(
                f"streams = {self.streams}, changed = {self.changed} and length = {self.length} must be at least 1,"
                f" change = {self.change} before the end"
            )
        if self.outliers not in protocol_of("house").groups(self.set):
            raise SettingError(
                f"outliers = {self.outliers!r} is none of the sets for {self.set}:"
                f" {', '.join(protocol_of('house').groups(self.set))}"
            )


def run_streams(settings: StreamSettings, tell: Say) -> dict[str, Any]:
    """Measure false alarms and delays of the sentinel's alarm on streams of test images."""
    scores = _scored(settings, tell)
    inside, outside, blurred = scores["inside"], scores["outside"], scores["blurred"]
    if len(inside) < 2 * settings.length:
        raise SettingError(
            f"{len(inside)} test images are too few for streams of {settings.length}: half of them calibrate"
        )
    random = np.random.default_rng(settings.seed)

    def followed(stream: Scores, calibration: Scores) -> Alarm | None:
        watch = ShiftWatch(
            None,
            torch.from_numpy(calibration),
            false_alarms=settings.false_alarms,
            seed=int(random.integers(2**31)),
        )
        return watch.update_scores(torch.from_numpy(stream))

    def drawn() -> tuple[NDArray[np.int64], Scores]:
        order = random.permutation(len(inside))
        return order[: settings.length], inside[order[settings.length :][: len(inside) // 2]]

    false = 0
    for number in range(settings.streams):
        chosen, calibration = drawn()
        false += followed(inside[chosen], calibration) is not None
        if (number + 1) % 100 == 0:
            tell(f"{number + 1} unchanged streams: {false} false alarms")
    mixed = {}
    for start in dict.fromkeys((0, settings.change)):
        alarms = []
        for _ in range(settings.changed):
            chosen, calibration = drawn()
            others = outside[random.integers(len(outside), size=settings.length)]
            strange = (random.random(settings.length) < settings.share) & (np.arange(settings.length) >= start)
            alarms.append(followed(np.where(strange, others, inside[chosen]), calibration))
        mixed[f"from {start}"] = _about(alarms, start, settings.changed)
        tell(f"mixed from input {start}: {mixed[f'from {start}']}")
    level = (np.arange(settings.length) * LEVELS) // settings.length
    alarms = []
    for _ in range(settings.changed):
        chosen, calibration = drawn()
        alarms.append(followed(blurred[level, chosen], calibration))
    drifting = _about(alarms, 0, settings.changed)
    tell(f"drifting: {drifting}")
    return {
        "accuracy": scores["accuracy"],
        "unchanged": {"streams": settings.streams, "false_alarms": false, "share": false / settings.streams},
        "mixed": mixed,
        "drifting": drifting,
    }


def _about(alarms: list[Alarm | None], start: int, streams: int) -> dict[str, Any]:
    """How soon a change at `start` was found; an alarm before it is a false one."""
    raised = [alarm for alarm in alarms if alarm is not None and alarm.time > start]
    delays = sorted(alarm.time - start for alarm in raised)
    late = [float("inf")] * (streams - len(raised))
    middle = median([*delays, *late])
    return {
        "streams": streams,
        "found": len(raised),
        "too_early": sum(alarm is not None and alarm.time <= start for alarm in alarms),
        "median_delay": middle if np.isfinite(middle) else None,
        "longest_delay": delays[-1] if delays else None,
        "median_change_error": median(abs(alarm.change - start) for alarm in raised) if raised else None,
        "stranger": sum(alarm.towards == "stranger" for alarm in raised),
    }


def _scored(settings: StreamSettings, tell: Say) -> dict[str, Any]:
    """Scores of the test images, of the other set, and of the test images at every level of blur."""
    whole = OodSettings(
        data=settings.data,
        sets=settings.set,
        protocol="house",
        methods="sentinel",
        seeds=str(settings.seed),
        epochs=settings.epochs,
        networks=settings.networks,
        device=settings.device,
    )
    runner = Runner(whole, PROGRAM, choose_device(settings.device), tell)
    if settings.outliers not in runner.found(settings.set):
        runner.there(whole.trainings())
        raise SettingError(f"{settings.outliers} was not found below --data")
    (job,) = whole.jobs()
    examined = Examined(runner, job)
    model, _ = examined.network()
    sentinel = Sentinel.fit(model, ((x, y) for x, y, _ in examined.problem.plain_batches()))

    def score(pictures: Pictures) -> Scores:
        parts = [sentinel.score(x) for x in examined.batches(pictures)]
        found: Scores = torch.cat(parts).double().cpu().numpy()
        return found

    outside = runner.read(runner.found(settings.set)[settings.outliers], examined.look)
    images = examined.test.images
    widths = [settings.blur * level / (LEVELS - 1) for level in range(LEVELS)]
    return {
        "inside": score(Stack(images)),
        "outside": score(outside),
        "blurred": np.stack([score(Stack(blurred(images, width))) for width in widths]),
        "accuracy": examined.accuracy(model),
    }


def blurred(images: Tensor, width: float) -> Tensor:
    """Bytes [n, C, H, W] after a Gaussian of this standard deviation in pixels; borders are reflected."""
    reach = min(int(np.ceil(3 * width)), min(images.shape[2:]) - 1)
    if reach < 1:
        return images
    at = torch.arange(-reach, reach + 1, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (at / width) ** 2)
    kernel = (kernel / kernel.sum()).to(images.device)
    parts = []
    for part in images.split(1000):
        n, channels, height, side = part.shape
        x = F.pad(part.float().reshape(n * channels, 1, height, side), (reach,) * 4, mode="reflect")
        x = F.conv2d(F.conv2d(x, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
        parts.append(x.round().clamp(0, 255).byte().reshape(part.shape))
    return torch.cat(parts)


def _shown(result: dict[str, Any]) -> str:
    unchanged = result["unchanged"]
    lines = [f"false alarms in {unchanged['streams']} unchanged streams: {100 * unchanged['share']:.1f}%"]
    for name, found in {
        **{f"mixed {key}": value for key, value in result["mixed"].items()},
        "drifting": result["drifting"],
    }.items():
        lines.append(f"{name}: found in {found['found']} of {found['streams']}, median delay {found['median_delay']}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run from the command line; returns the exit code."""
    return run_command(program, StreamSettings, run_streams, _shown, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
