"""One job: train once, let every method that looks at that training score all sets, write down what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.core.provenance import plain
from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.batches import normalise
from sgoif_bench.command import Say, say
from sgoif_bench.jobs import OneDevice, reason_of
from sgoif_bench.journal import Line
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.labels.kept import KeptSets
from sgoif_bench.labels.noises import make_noise
from sgoif_bench.labels.problem import Problem
from sgoif_bench.labels.recipes import ANCHOR_SHARE
from sgoif_bench.memory import Peak
from sgoif_bench.noise import NoisyLabels
from sgoif_bench.ood.datasets import Found, expected, find, read_outliers, shares_images
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.evaluation import BATCH, Panel, accuracy, exactly
from sgoif_bench.ood.grid import Job
from sgoif_bench.ood.measures import Scores, averages, ood_measures
from sgoif_bench.ood.networks import given_network, trained_network
from sgoif_bench.ood.pictures import Files, Look, Pictures, Stack, spread
from sgoif_bench.ood.protocol import TITLES, protocol_of
from sgoif_bench.ood.recipes import STATISTICS, OodTraining
from sgoif_bench.ood.registry import ABLATIONS, METHODS, POST_HOC, new_detector, train_function
from sgoif_bench.ood.settings import OodSettings

KEEP = 2**30
"""Bytes of images up to which a test set that was read from files is kept in memory for the next job."""


@dataclass
class Runner(OneDevice[Job]):
    """Does jobs, one after the other, on one device."""

    settings: OodSettings
    command: str
    device: torch.device
    tell: Say = say

    def __post_init__(self) -> None:
        self._sets = KeptSets(self.settings.data, self.tell, self.settings.test_limit)
        self._found: dict[str, dict[str, Found]] = {}
        self._read: dict[tuple[str, Look], Stack] = {}

    def data(self, name: str, training: OodTraining, *, train: bool = True) -> LabelledData:
        """An in-distribution set as the recipe wants it."""
        if name not in self._sets:
            self._read.clear()
        return self._sets.get(name, training, train=train)

    def found(self, name: str) -> dict[str, Found]:
        """The out-of-distribution sets of an in-distribution set that are there."""
        if name not in self._found:
            root = Path(self.settings.data or ".")
            looked = {ood: find(ood, root, name) for ood in protocol_of(self.settings.protocol).groups(name)}
            self._found[name] = {
                ood: replace(place, pictures=spread(place.pictures, self.settings.test_limit))
                for ood, place in looked.items()
                if place is not None
            }
        return self._found[name]

    def missing(self, name: str) -> list[str]:
        """The out-of-distribution sets of the protocol that are not there."""
        return [ood for ood in protocol_of(self.settings.protocol).groups(name) if ood not in self.found(name)]

    def there(self, trainings: Mapping[str, OodTraining]) -> dict[str, list[str]]:
        """What can be read for each of these in-distribution sets; what cannot is told."""
        for name, training in trainings.items():
            if self.settings.data is None:
                raise SettingError(f"--data ROOT is needed: the folder that holds {name} and its outliers")
            places = "; ".join(f"{TITLES[ood]} ({expected(ood, name)})" for ood in self.missing(name))
            if not self.found(name):
                self.data(name, training)  # a wrong root lacks this too, and says so first
                raise SettingError(f"no out-of-distribution set for {name} was found below --data: {places}")
            if places:
                self.tell(f"{name}, protocol {self.settings.protocol}: not found below --data and left out: {places}")
        return {name: list(self.found(name)) for name in trainings}

    def noisy(self, job: Job) -> tuple[LabelledData, NoisyLabels]:
        """The training set of a job with its wrong labels."""
        data = self.data(job.set, job.training)
        return data, make_noise(job.noise, data, job.seed, self.settings.human)

    def check(self, jobs: Sequence[Job]) -> None:
        """Find out before anything is trained that a data set, a noise, a network or a number does not fit."""
        for job in {job.set: job for job in reversed(jobs)}.values():
            data, _ = self.noisy(job)
            self.data(job.set, job.training, train=False)
            shape = data.images.shape
            model = job.training.recipe(int(shape[-1])).model(int(shape[1]), len(data.classes))
            Network(model, torch.zeros(1, *shape[1:]))
            if self.settings.weights is not None:
                given_network(self.problem(job), Path(self.settings.weights))
        if self.settings.outliers is not None:
            self._check_outliers(Path(self.settings.outliers), {job.set for job in jobs})

    def _check_outliers(self, outliers: Path, names: set[str]) -> None:
        for place in (place for name in names for place in self.found(name).values()):
            if shares_images(outliers, Path(self.settings.data or "."), place):
                raise SettingError(
                    f"--outliers {outliers} is a test set ({place.name}) or holds images of it; methods must not train"
                    " with it"
                )

    def forget(self) -> None:
        """Give the data sets' memory back."""
        for kept in (self._sets, self._found, self._read):
            kept.clear()

    def problem(self, job: Job) -> Problem:
        """What is trained on."""
        data, noise = self.noisy(job)
        recipe = job.training.recipe(int(data.images.shape[-1]))
        recipe = replace(recipe, anchors=min(recipe.anchors, max(2, len(data) // ANCHOR_SHARE)))
        problem = Problem(data.images, noise.labels, len(data.classes), recipe, self.device, job.seed)
        problem.mean, problem.spread = STATISTICS.get(job.set, (problem.mean, problem.spread))
        return problem

    def lines(self, job: Job) -> tuple[list[Line], dict[str, str]]:
        torch.manual_seed(job.seed)
        peak = Peak(self.device)
        examined = Examined(self, job)
        ways = {POST_HOC: examined.post_hoc, ABLATIONS: examined.watched}
        outcomes = ways.get(job.family, examined.trained)()
        problem, given = examined.problem, self.data(job.set, job.training)
        about = {
            "classes": problem.classes,
            "examples": len(problem),
            "wrong": int((problem.labels != given.labels).sum()),
            "missing": self.missing(job.set),
            "fpr95_positive": protocol_of(job.protocol).positive,
            "memory": peak.read(),
        }
        lines = [
            plain({**self.origin(job, name, family=job.family, shared=job.shared), **about, **outcome})
            for name, outcome in outcomes.items()
        ]
        return lines, examined.failures

    def read(self, found: Found, look: Look) -> Pictures:
        """A set as it is scored: from memory where it was read before and is not too large."""
        size = len(found.pictures) * look.channels * look.side**2
        if not isinstance(found.pictures, Files) or size > KEEP:
            return found.pictures
        if (found.source, look) not in self._read:
            parts = list(found.pictures.batches(look, BATCH))
            if not parts:
                raise SettingError(f"{found.name}: none of the images in {found.source} can be read")
            self._read[found.source, look] = Stack(torch.cat(parts))
        return self._read[found.source, look]


class Examined:
    """A job at work: the sets that are scored, and what every method makes of them."""

    def __init__(self, runner: Runner, job: Job) -> None:
        self.runner, self.job = runner, job
        self.problem = runner.problem(job)
        self.test = runner.data(job.set, job.training, train=False)
        self.found = runner.found(job.set)
        channels, side = (int(size) for size in self.problem.images.shape[1:3])
        self.look = Look(channels, side, "bicubic" if job.set == "imagenet" else "bilinear")
        self.failures: dict[str, str] = {}

    def tell(self, message: str) -> None:
        """A line about this job."""
        self.runner.tell(f"  {self.job}: {message}")

    def post_hoc(self) -> dict[str, Line]:
        """One network, one look at every batch, all detectors."""
        model, training = self.network()
        network = Network(model, self.normalised(self.test.images[:1]), getattr(model, "stages", None))
        start = time.perf_counter()
        bank = Bank(network, lambda: ((x, y) for x, y, _ in self.problem.plain_batches()))
        banked = time.perf_counter() - start
        detectors, fitting = self._fitted(bank)
        panel: Panel[Seen] = Panel(network.see, {name: each.score for name, each in detectors.items()})
        trainings = 0.0 if self.runner.settings.weights is not None else 1.0
        costs = {
            name: {"seconds": training + banked + spent, "fit_seconds": spent, "trainings": trainings}
            for name, spent in fitting.items()
        }
        return self._judged(panel, model, model, costs)

    def watched(self) -> dict[str, Line]:
        """One training with a monitor for every method, and the sentinel that each of them makes."""
        from sgoif_bench.ood.online import watched_sentinels  # only ablations need it

        start = time.perf_counter()
        sentinels = watched_sentinels(self.problem, self.job.methods, self.tell)
        if self.problem.on_gpu:
            torch.cuda.synchronize(self.problem.device)
        seconds = time.perf_counter() - start
        network = next(iter(sentinels.values())).network
        panel: Panel[Seen] = Panel(network.see, {name: each.strangeness for name, each in sentinels.items()})
        share = 1 - self.problem.recipe.anchors / len(self.problem)
        costs = {
            name: {"seconds": seconds, "trainings": share, "details": {"trust": each.trust}}
            for name, each in sentinels.items()
        }
        return self._judged(panel, network.model, network.model, costs)

    def trained(self) -> dict[str, Line]:
        """A method that trains in its own way."""
        (name,) = self.job.methods
        outliers = self._outliers() if METHODS[name].needs_outliers else None
        start = time.perf_counter()
        scorer = train_function(name)(self.problem, outliers, self.tell)
        if self.problem.on_gpu:
            torch.cuda.synchronize(self.problem.device)
        seconds = time.perf_counter() - start
        panel: Panel[Tensor] = Panel(lambda x: x, {name: scorer.score})
        cost = {"seconds": seconds, "trainings": scorer.trainings, "details": scorer.details}
        return self._judged(panel, scorer.classifier, self.problem.new_model(), {name: cost})

    def _judged(
        self, panel: Panel[Any], classifier: nn.Module | None, plain_network: nn.Module, costs: Mapping[str, Line]
    ) -> dict[str, Line]:
        """Everything that is measured once the methods are ready to score."""
        inside = panel.scores(self.batches(Stack(self.test.images)), self.job.set)
        outside: dict[str, dict[str, Scores]] = {}
        for name, found in self.found.items():
            outside[name] = panel.scores(self.batches(self.runner.read(found, self.look)), name)
            left_out = unreadable(found)
            self.tell(f"{TITLES[name]} scored" + (f"; {left_out} images cannot be read" if left_out else ""))
        right = None if classifier is None else self.accuracy(classifier)
        timing = panel.cost(plain_network, self.normalised(exactly(self.test.images[:BATCH], BATCH)))
        self.failures |= panel.failures
        return {
            method: {**self._measured(method, inside, outside, right, timing[method]), "details": {}, **costs[method]}
            for method in panel.score
        }

    def _measured(
        self,
        method: str,
        inside: Mapping[str, Scores],
        outside: Mapping[str, Mapping[str, Scores]],
        right: float | None,
        timing: Mapping[str, float],
    ) -> Line:
        protocol = protocol_of(self.job.protocol)
        groups = protocol.groups(self.job.set)
        measured = {
            name: ood_measures(inside[method], scores[method], protocol.positive) for name, scores in outside.items()
        }
        return {
            "metrics": {"accuracy": right, **timing, **averages(measured, groups)},
            "ood": {
                name: {"group": groups[name], **self._about(name, len(outside[name][method])), **figures}
                for name, figures in measured.items()
            },
            "tested": len(self.test),
        }

    def _about(self, name: str, images: int) -> Line:
        found = self.found[name]
        return {"images": images, "unreadable": unreadable(found), "source": found.source}

    def accuracy(self, classifier: nn.Module) -> float:
        """Share of the in-distribution test images that are classified rightly."""
        return accuracy(classifier, self.batches(Stack(self.test.images)), self.test.labels)

    def network(self) -> tuple[nn.Module, float]:
        """The network that post-hoc detectors look at, and the seconds that its training took."""
        settings = self.runner.settings
        if settings.weights is not None:
            return given_network(self.problem, Path(settings.weights)), 0.0
        kept = None if settings.networks is None else Path(settings.networks) / f"{self.job.network}.pt"
        return trained_network(self.problem, self.tell, kept)

    def _fitted(self, bank: Bank) -> tuple[dict[str, Detector], dict[str, float]]:
        """The detectors that could learn from the training data, and the seconds that each took."""
        detectors: dict[str, Detector] = {}
        seconds: dict[str, float] = {}
        for name in self.job.methods:
            # Every detector starts from the same state: what one draws must not depend on which others are there.
            torch.manual_seed(self.job.seed)
            start = time.perf_counter()
            try:
                detectors[name] = new_detector(name, self.job.seed, self.problem.spread).fit(bank)
            except Exception as error:
                self.failures[name] = reason_of(error)
                continue
            if self.problem.on_gpu:
                torch.cuda.synchronize(self.problem.device)
            seconds[name] = time.perf_counter() - start
            self.tell(f"{METHODS[name].title} fitted in {seconds[name]:.1f} s")
        return detectors, seconds

    def _outliers(self) -> Tensor:
        pictures = read_outliers(Path(self.runner.settings.outliers or ""))
        parts = list(pictures.batches(self.look, BATCH))
        if not parts:
            raise SettingError(f"--outliers {self.runner.settings.outliers}: none of the images can be read")
        return torch.cat(parts)

    def batches(self, pictures: Pictures) -> Iterator[Tensor]:
        """Images as the network takes them, batch by batch."""
        for images in pictures.batches(self.look, BATCH):
            yield self.normalised(images)

    def normalised(self, images: Tensor) -> Tensor:
        """Bytes as the network takes them: with the statistics of the in-distribution set, on its device."""
        x = normalise(images.to(self.problem.device), self.problem.mean, self.problem.spread)
        layout = torch.channels_last if self.problem.on_gpu else torch.contiguous_format
        return x.contiguous(memory_format=layout)


def unreadable(found: Found) -> int:
    """How many images of a set could not be read so far."""
    return len(found.pictures.unreadable) if isinstance(found.pictures, Files) else 0
