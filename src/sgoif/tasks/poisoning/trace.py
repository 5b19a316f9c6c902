"""`PoisonTrace`: from a wrong behaviour, or from nothing, to the training examples that cause it.

With victims (`culprits`), examples that have the wrong label are ranked by how much they resemble them
(`victim_similarity`). Without (`suspects`), every class is searched for a small group that stands apart (`signature`).
In both cases a mixture says whether any example stands apart at all and which (`mixture`), the thresholds below decide,
and those selected are grouped into families (`families`).

The thresholds were set on trained networks with and without poison; docs/benchmarks/poisoning.md says which runs were
in view. With victims the direction does not come from the training examples, so less is needed than without.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from sgoif.core.data import isolated_random_state
from sgoif.core.logits import two_classes
from sgoif.core.types import Indices
from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Seen
from sgoif.tasks.poisoning.families import find_families
from sgoif.tasks.poisoning.feature_extraction import TrainingFeatures, extract_features
from sgoif.tasks.poisoning.geometry import Geometry, fit_geometry, project
from sgoif.tasks.poisoning.mixture import Mixture, Values, fit_mixture, robust_units
from sgoif.tasks.poisoning.recorder import PoisonWatch, wrong_labels
from sgoif.tasks.poisoning.removal_estimate import Level, RemovalEstimate, estimate_removal
from sgoif.tasks.poisoning.signature import LARGE_APART, LARGEST_SHARE, LEAST_EXAMPLES, group_separation, signature
from sgoif.tasks.poisoning.trace_result import Evidence, Thresholds, TraceResult, VictimCauses
from sgoif.tasks.poisoning.victim_similarity import VictimSimilarity, victim_similarity
from sgoif.tracking.evaluation import evaluation

LARGE = Thresholds(separation=LARGE_APART, contrast=LARGE_APART, members=3, share=0.5)
KNOWN = Thresholds(separation=3.5, contrast=2.5, members=3, share=LARGEST_SHARE, larger=LARGE)
UNKNOWN = Thresholds(separation=5.5, contrast=5.5, members=5, share=LARGEST_SHARE)
OUTSTANDING = 3.0
"""Without victims, so many times as far apart as in a typical other class must a group stand. Honest kinds of image
stand apart as well, and how far depends on the data; poison is rarely in most classes."""
EXPLAINED = 200
"""Victims for which the most responsible examples are listed."""
LISTED = 8
"""Examples listed for each of them."""
LEAST_TRIED, TRIED_SHARE = 50, 0.02
"""The estimate of how many to remove tries up to twice those selected, and at least this many or this share of all."""


class PoisonTrace:
    """Finds the training examples that cause a wrong behaviour of a finished network; made by `fit`.

    Example:
        ```python
        from sgoif.tasks import PoisonTrace

        trace = PoisonTrace.fit(model, train_set)
        found = trace.culprits(x[:5])                       # inputs that get a wrong answer; or trace.suspects()
        print(found.selected, found.families)               # which to remove, and how they belong together
        found.table().to_csv("culprits.csv")
        ```
    """

    def __init__(
        self,
        views: TrainingFeatures,
        watch: PoisonWatch | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> None:
        if names is not None and len(names) != views.classes:
            raise SettingError(f"{len(names)} class names were given for {views.classes} classes")
        self.views, self.watch, self.seed, self.names = views, watch, seed, names
        self.geometry: Geometry = fit_geometry(views.features, views.labels, views.classes)
        self._given: Indices = views.labels.cpu().numpy()

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        train_set: Any,
        labels: Any = None,
        watch: PoisonWatch | None = None,
        batch_size: int = 256,
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> Self:
        """Read the features of every training example once; the model is not changed.

        Args:
            model: the finished network.
            train_set: a data set or a loader of (x, y) or (x, y, index), without augmentation.
            labels: in place of the labels that it has.
            watch: a `PoisonWatch` of the training run, which sees triggers while they are learned.
            batch_size: examples in one forward pass.
            seed: of everything that is drawn.
            names: those of the classes, for notes.
        """
        if watch is not None:
            watch.finish()
        return cls(extract_features(model, train_set, labels, batch_size), watch, seed, names)

    def __len__(self) -> int:
        return len(self._given)

    # --- with victims -------------------------------------------------------------------------------------------

    def culprits(self, victims: Tensor, labels: Any = None) -> TraceResult:
        """Find the training examples that make the network give victims their wrong label.

        Args:
            victims: a batch as the network takes it; victims of several labels are traced label by label.
            labels: the wrong label of all or of each; what the network answers unless given.

        Returns:
            Scores of all examples, those to remove, their families, and how many removals would be enough.
        """
        seen = self._see(victims)
        answers = two_classes(seen.logits)
        wrong = answers.argmax(1).cpu() if labels is None else wrong_labels(labels, len(victims), self.views.classes)
        features = project(seen.features).to(self.views.features.device)
        score, probability = np.full(len(self), -np.inf), np.zeros(len(self))
        evidence, responsible, notes = [], {}, self._notes_on(answers, wrong)
        for label in torch.unique(wrong).tolist():
            rows = self._rows(label)
            members = torch.nonzero(wrong == label).squeeze(1)
            if len(rows) < LEAST_EXAMPLES:
                notes.append(
                    f"only {len(rows)} training examples have the label {self._class_name(label)}, too few to compare"
                )
                continue
            whitened = self._whitened(rows, label)
            sought = self.geometry.whiten(features[members.to(features.device)], label)
            found = victim_similarity(whitened, sought)
            posterior = found.mixture.posterior(found.values)
            count = int((posterior > 0.5).sum())
            score[rows] = found.values
            evidence.append(KNOWN.judge(label, found.mixture, count))
            probability[rows] = posterior * evidence[-1].belief
            for number, own in zip(members.tolist(), sought, strict=True):
                if number < EXPLAINED:
                    responsible[number] = self._responsible(label, rows, whitened, own, found)
        finite = np.isfinite(score)
        score[~finite] = (score[finite].min() if finite.any() else 0.0) - 1.0
        none = np.zeros(0, dtype=np.int64), np.zeros(0)
        explained = [
            responsible.get(number, VictimCauses(label, *none))
            for number, label in enumerate(wrong[:EXPLAINED].tolist())
        ]
        found_all = self._found(score, probability, evidence, notes, explained)
        found_all.estimating = partial(self._estimate_removal, found_all, seen, wrong)
        return found_all

    def _see(self, victims: Tensor) -> Seen:
        shape = self.views.shape
        if not isinstance(victims, Tensor) or tuple(victims.shape[1:]) != shape or not len(victims):
            given = tuple(victims.shape) if isinstance(victims, Tensor) else type(victims).__name__
            raise SettingError(
                f"victims must be a batch of inputs of shape {shape}, as the network takes them; got {given}"
            )
        if not bool(torch.isfinite(victims).all()):
            raise SettingError("victims hold values that are not finite numbers")
        network = self.views.network
        device = network.head.weight.device
        with isolated_random_state(device), evaluation(network.model):
            parts = [network.see(some.to(device)) for some in victims.split(256)]
        joined = tuple(torch.cat(stage) for stage in zip(*(part.pooled for part in parts), strict=True))
        logits, features = torch.cat([part.logits for part in parts]), torch.cat([part.features for part in parts])
        return Seen(logits, logits, features, tuple(stage.unsqueeze(2) for stage in joined))

    def _notes_on(self, answers: Tensor, wrong: Tensor) -> list[str]:
        missed = int((answers.argmax(1).cpu() != wrong).sum())
        if not missed:
            return []
        verb = "does" if missed == 1 else "do"
        return [f"{missed} of {len(wrong)} victims {verb} not get the label that is traced for them from this network"]

    def _responsible(
        self, label: int, rows: Indices, whitened: Tensor, own: Tensor, found: VictimSimilarity
    ) -> VictimCauses:
        direction = torch.nn.functional.normalize(own, dim=0)
        alone = robust_units((whitened @ direction).double().cpu().numpy())
        both = (alone + found.values) / 2
        first = np.argsort(-both, kind="stable")[:LISTED]
        return VictimCauses(label, self.views.index[rows[first]], both[first])

    def _estimate_removal(self, found: TraceResult, seen: Seen, wrong: Tensor) -> RemovalEstimate | None:
        views = self.views
        levels = [Level("head", views.features, project(seen.features))]
        names = views.network.stages
        for name, stage, own in reversed(list(zip(names, views.stages, seen.pooled, strict=False))):
            levels.append(Level(name, stage, own))
        most = max(LEAST_TRIED, round(TRIED_SHARE * len(self)), 2 * len(found.selected))
        order = np.lexsort((-found.score, -found.probability))
        return estimate_removal(levels, views.labels, views.classes, order, wrong, most, self.seed)

    # --- with nothing known -------------------------------------------------------------------------------------

    def suspects(self) -> TraceResult:
        """Training examples that form a small group apart from the others of their label, in any class."""
        along = None if self.watch is None else self.watch.signatures(self.views.index)
        score, probability = np.zeros(len(self)), np.zeros(len(self))
        mixtures: dict[int, Mixture] = {}
        halves: list[int] = []
        small = 0
        for label in range(self.views.classes):
            rows = self._rows(label)
            if len(rows) < LEAST_EXAMPLES:
                small += len(rows) > 0
                continue
            values = signature(self._whitened(rows, label), self.seed).values
            if along is not None:
                values = values + along[rows]
            if not np.ptp(values) > 0:
                continue
            units = robust_units(values)
            mixture = fit_mixture(units)
            distance = group_separation(mixture, len(rows))
            if distance and mixture.share > LARGEST_SHARE:
                # Either half may be the planted one, so the whole class comes before others, the smaller half first.
                values = values - values.min()
                halves.append(label)
            score[rows] = values * distance
            mixtures[label], probability[rows] = mixture, mixture.posterior(units)
        evidence = []
        for label, mixture in mixtures.items():
            rows = self._rows(label)
            others = [other.separation for name, other in mixtures.items() if name != label]
            limits = UNKNOWN.at_least(OUTSTANDING * float(np.median(others))) if others else UNKNOWN
            evidence.append(limits.judge(label, mixture, int((probability[rows] > 0.5).sum())))
            probability[rows] *= evidence[-1].belief
        notes = [
            f"the examples labelled {self._class_name(label)} fall into two large parts that stand far apart; one may"
            " have been planted, but nothing in the run says which: look at both"
            for label in halves
        ]
        if small:
            notes.append(f"{small} classes have fewer than {LEAST_EXAMPLES} examples and were not searched")
        return self._found(score, probability, evidence, notes)

    # --- both ---------------------------------------------------------------------------------------------------

    def _class_name(self, label: int) -> str:
        return str(label) if self.names is None else self.names[label]

    def _rows(self, label: int) -> Indices:
        return np.flatnonzero(self._given == label)

    def _whitened(self, rows: Indices, label: int) -> Tensor:
        features = self.views.features
        return self.geometry.whiten(features[torch.from_numpy(rows).to(features.device)], label)

    def _found(
        self,
        score: Values,
        probability: Values,
        evidence: list[Evidence],
        notes: list[str],
        responsible: list[VictimCauses] | None = None,
    ) -> TraceResult:
        views = self.views
        chosen = np.zeros(len(self), dtype=bool)
        for item in evidence:
            if item.passed:
                rows = self._rows(item.label)
                # The belief is a factor common to the class; what is left is the posterior.
                chosen[rows] = probability[rows] > 0.5 * item.belief
        rows = np.flatnonzero(chosen)
        rows = rows[np.lexsort((-score[rows], -probability[rows]))]
        if len(rows):
            at = torch.from_numpy(rows).to(views.features.device)
            whitened = self.geometry.whiten(views.features[at], views.labels[at])
            families = find_families(views.index[rows], self._given[rows], whitened, views.second[rows], self.seed)
        else:
            families = []
        evidence.sort(key=lambda item: -item.belief)
        return TraceResult(
            score=score,
            probability=probability,
            selected=views.index[rows],
            families=families,
            index=views.index,
            given=self._given,
            evidence=evidence,
            responsible=responsible or [],
            notes=notes,
        )
