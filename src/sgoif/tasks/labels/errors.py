"""The answers: `LabelErrors` reads a finished or running monitor."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Integral
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from sgoif.core.data import Part, read_labels, whole_dataset
from sgoif.core.score_table import ScoreTable
from sgoif.errors import SettingError
from sgoif.tasks.argument_checks import check_labels
from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.checked import to_check
from sgoif.tasks.labels.evidence import evidence_of
from sgoif.tasks.labels.judgement import Judgement, Tier, judge, suggestions
from sgoif.tasks.labels.noise_rate import NoiseRate
from sgoif.tasks.review import RankedReview, ReviewEstimate

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor

FDR = 0.1
DECIDED = 0.5
NAMED = 5
"""Classes that a note names."""
KNOWN, LEAST_OF_CLASS = 0.4, 5
"""Agreement with the labels of a class below which a note names it, from so many held-out examples on."""
LEAST_WIDTH = 0.05
"""Width of the interval of the rate up to which no note is needed."""


class LabelErrors:
    """Which labels are wrong, what they should be, and how sure that is; taken from a monitor at this moment.

    Args:
        monitor: the monitor of a finished or running training.
        dataset: indexed like the loop; explanations and reports read the examples from it. Without it, examples are
            found by way of a hold-out that was made with `split_holdout`.
        class_names: one name for every class.
        checked: the right labels of some held-out examples, by index. Where most labels of a class are wrong, a couple
            of them per class decide which class is which (`to_check` names some to look at).
        closing_pass: whether the trained model looks at every training example once more. None: where the run was so
            short that this counts (less than ten looks at an example) and the examples are at hand, at most 50,000
            of them. The run is unchanged.
        label: with several labels per example, the one to ask about: whether it is rightly there (1) or not (0), a
            question of two classes for every example.

    Of mixed labels (mixup, cutmix) the class of an example is that of its index. Values and tokens are no labels:
    `monitor.scores()` ranks such examples by influence.

    Example:
        ```python
        from sgoif.tasks import LabelErrors

        errors = LabelErrors(monitor, dataset=dataset)
        print(errors)                                       # how many look wrong, and how many surely are
        print(errors.select(fdr=0.1))                       # indices of the surely wrong, most probable first
        print(errors.review_plan(40))                       # indices to look at, to know how many are wrong in all
        errors.table(fdr=0.1).to_csv("labels.csv")          # one row per example
        ```
    """

    def __init__(
        self,
        monitor: InfluenceMonitor,
        *,
        dataset: Dataset[Any] | None = None,
        class_names: Sequence[str] | None = None,
        checked: Mapping[int, int] | None = None,
        closing_pass: bool | None = None,
        label: int | None = None,
    ) -> None:
        check_labels(monitor, label, "LabelErrors")
        _check_classes_by_index("checked", checked or {})
        self.monitor = monitor
        self.dataset = None if dataset is None else whole_dataset(dataset)
        self.label = label
        self.classes = monitor.classes if label is None else 2
        if class_names is not None and len(class_names) != self.classes:
            raise SettingError(f"{len(class_names)} class names were given for {self.classes} classes")
        self.class_names = [str(n) for n in (class_names if class_names is not None else range(self.classes))]
        split_off = isinstance(monitor.anchors.dataset, Part)
        seen = whole_dataset(monitor.anchors.dataset) if dataset is None and split_off else self.dataset
        evidence = evidence_of(monitor, seen, closing_pass, label)
        self.judgement: Judgement = judge(*evidence, self.classes, checked)
        self._rows = self._collect()

    # --- answers ------------------------------------------------------------------------------------------------

    def table(self, fdr: float = FDR) -> ScoreTable:
        """One row per example: cleanlab's columns, and how far each answer can be trusted.

        `label_score` is 1 − `probability_wrong`, so low = bad. `predicted_label` is the given one unless the label is
        more likely wrong than right or among the issues at this false discovery rate. Examples that were never
        scored have no probability, and without `dataset` their labels are not known either (−1).

        Args:
            fdr: expected share of right labels among those called issues.
        """
        rows = self._rows
        issue = np.isin(rows["index"], self.select(fdr))
        wrong = issue | (np.nan_to_num(rows["probability"]) >= DECIDED)
        return ScoreTable(
            {
                "index": rows["index"],
                "is_label_issue": issue,
                "label_score": 1 - rows["probability"],
                "given_label": rows["given"],
                "predicted_label": np.where(wrong, rows["suggested"], rows["given"]),
                "probability_wrong": rows["probability"],
                **{name: rows[name] for name in ("confidence", "influence", "interval_low", "interval_high")},
                "n_observations": rows["n_observations"],
            }
        )

    def select(self, fdr: float = FDR) -> Labels:
        """Name the labels that are surely wrong.

        Args:
            fdr: share of them that will turn out to be right after all, if no more are wrong than can be proven.

        Returns:
            Indices, the most probably wrong first.
        """
        index, v = self._judged
        found: Labels = index[self.judgement.selected(v, fdr)]
        return found

    def tiers(self, fdr: float = FDR) -> list[Tier]:
        """The ranking in three parts: surely wrong, worth a look, and fine.

        Worth a look is what may be wrong besides, if as many are as the interval of the rate allows. Each part comes
        with the expected share of wrong labels in it, as an interval.

        Args:
            fdr: expected share of right labels among the surely wrong.
        """
        return self.judgement.tiers(self._judged[1], fdr)

    def noise_rate(self) -> NoiseRate:
        """Share of wrong labels: estimate, low, high. Looks tell more (`review_plan`)."""
        return self.judgement.rate

    @property
    def rate_told(self) -> bool:
        """Whether the model has learned enough to tell anything about how many labels are wrong."""
        return self.judgement.knows

    def review_plan(self, count: int = 40, seed: int = 0) -> Labels:
        """Examples to look at, drawn all over the ranking, so that `update` can tell how many labels are wrong in all.

        Args:
            count: how many; more of the same seed begin with these.
            seed: another one draws others.
        """
        return np.asarray(self._review(seed).looks(count), dtype=np.int64)

    def update(self, decisions: Mapping[int, int | None], seed: int = 0) -> ReviewEstimate:
        """What decisions say about all labels, with intervals that hold whatever the model and the ranking are.

        Args:
            decisions: the right class of examples that somebody looked at, by index; None where that cannot be told.
                Those of `review_plan` speak for all that nobody looked at; any others are counted as what they are.
            seed: that of the plan.

        Example:
            ```python
            from sgoif.tasks import LabelErrors
            from sgoif.tasks.review import report

            errors = LabelErrors(monitor)
            drawn = errors.review_plan(40)
            decisions = {int(i): errors.suggested[int(i)] for i in drawn}  # look at each, and say what you see
            print(report(errors.update(decisions)))
            ```
        """
        _check_classes_by_index("decisions", decisions, (Integral, NoneType))
        given = dict(zip(self._rows["index"].tolist(), self._rows["given"].tolist(), strict=True))
        wrong = {int(i): given.get(int(i)) != y for i, y in decisions.items() if y is not None}
        return self._review(seed).update(wrong, [int(i) for i in decisions if i not in wrong])

    def _review(self, seed: int) -> RankedReview:
        """The review of all examples that have a label, the most suspicious first."""
        rows = self._rows
        known = np.flatnonzero(rows["given"] >= 0)
        order = known[np.argsort(-np.nan_to_num(rows["probability"][known]), kind="stable")]
        return RankedReview(rows["index"][order], rows["probability"][order], seed=seed)

    def confusion(self) -> Array:
        """Estimated number of examples by given (row) and true label (column), [C, C]; `confused` is for many."""
        given, true, count = self.confused()
        counts = np.zeros((self.classes, self.classes))
        np.add.at(counts, (given, true), count)
        return counts

    def confused(self) -> tuple[Labels, Labels, Array]:
        """Given labels, true labels and the estimated number of examples; a pair may come more than once."""
        rows = self._rows
        known = np.isfinite(rows["probability"])
        given, other, p = rows["given"][known], rows["suggested"][known], rows["probability"][known]
        return np.r_[given, given], np.r_[other, given], np.r_[p, 1 - p]

    def to_check(self, count: int | None = None, seed: int = 0) -> Labels:
        """Held-out examples to look at and to give back as `checked`, drawn at random; by default four per class."""
        return to_check(self.judgement.anchors.index, 4 * self.classes if count is None else count, seed)

    def notes(self) -> list[str]:
        """What a reader should know before trusting the numbers."""
        rate, held_out, found = self.judgement.rate, self.judgement.anchors, []
        if not self.rate_told:
            found.append(
                f"the model has learned too little to judge labels (it agrees with {held_out.agreement():.0%} of"
                f" {len(held_out):,} held-out ones, a guess would with {1 / self.classes:.0%}): the order of the list"
                f" may still help, and the share of wrong labels may be anything up to {rate.high:.0%}. Train longer,"
                " on more examples, or start from a model that knows such examples (--weights)"
            )
        elif rate.high - rate.low > max(rate.estimate, LEAST_WIDTH):
            found.append(
                f"the share of wrong labels cannot be told better than {rate.low:.1%} to {rate.high:.1%} from labels"
                " and a model alone: the model may be mistaken wherever it disagrees with a label. A few dozen looks"
                " tell more, whatever the model (errors.review_plan, the page of the report, sgoif review)"
            )
        count = np.bincount(held_out.given, minlength=self.classes)
        share = np.bincount(held_out.given, weights=held_out.agrees, minlength=self.classes) / np.maximum(count, 1)
        strange = np.flatnonzero((count >= LEAST_OF_CLASS) & (share < KNOWN)).tolist()
        if self.rate_told and strange:
            named = ", ".join(f"{self.class_names[y]!r} ({share[y]:.0%})" for y in strange[:NAMED])
            more = f" and {len(strange) - NAMED} more classes" if len(strange) > NAMED else ""
            found.append(
                f"the model agrees with few held-out labels of {named}{more}: either most of these are wrong, or it has"
                " not learned to tell the class from others, and then the list names many that are right. Look at some"
                " of them before you believe the figures"
            )
        return found

    def verdict(self) -> str:
        """How many labels look wrong, how many surely are, and how many more are worth a look, in a sentence."""
        rate, (surely, look, _) = self.noise_rate(), self.tiers()
        count, interval = len(self._rows["index"]), f"{100 * rate.low:.1f} to {100 * rate.high:.1f}%"
        stated = f"{100 * rate.estimate:.1f}% of {count:,} labels look wrong ({interval})"
        if not self.rate_told:
            stated = f"it cannot be told how many of {count:,} labels are wrong ({interval})"
        first = f"{surely.size:,} are surely wrong (about {FDR:.0%} of them right)" if surely.size else "none is surely"
        worth = f"{look.size:,} more are worth a look ({100 * look.low:.0f} to {100 * look.high:.0f}% of them wrong)"
        return f"{stated}; {first}; {worth}" if look.size else f"{stated}; {first}"

    def __repr__(self) -> str:
        return f"LabelErrors: {self.verdict()}" + "".join(f"\nNote: {note}." for note in self.notes())

    def _repr_html_(self) -> str:
        rows, names = self._rows, self.class_names
        lines = [("index", "given", "suggested", "P(wrong)", "influence")]
        for row in np.argsort(-np.nan_to_num(rows["probability"]), kind="stable")[:10]:
            given, other, p = (rows[name][row] for name in ("given", "suggested", "probability"))
            lines.append((rows["index"][row], names[given], names[other], f"{p:.3f}", f"{rows['influence'][row]:.3g}"))
        cells = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in line) for line in lines]
        said = html.escape(repr(self)).replace("\n", "<br>")
        return f"<p>{said}</p><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    # --- inside -------------------------------------------------------------------------------------------------

    @cached_property
    def suggested(self) -> dict[int, int]:
        """Suggested label by index."""
        return dict(zip(self._rows["index"].tolist(), self._rows["suggested"].tolist(), strict=True))

    @cached_property
    def _judged(self) -> tuple[Labels, Array]:
        """Index and v of every example that was judged."""
        v = self._rows["suspicion"]
        return self._rows["index"][np.isfinite(v)], v[np.isfinite(v)]

    def _collect(self) -> dict[str, Any]:
        """One row per example of the monitor's table, with what was judged about it."""
        monitor, verdict = self.monitor, self.judgement
        scores, bank = monitor.scores(label=self.label), monitor.anchors
        by_class = list(bank.group_names) == list(range(self.classes)) and torch.equal(bank.groups, bank.labels)
        rows: dict[str, Any] = {name: np.array(scores[name]) for name in scores.columns}
        index = rows["index"]
        rows |= {"given": np.full(len(index), -1), "suggested": np.full(len(index), -1)}
        rows["suspicion"] = np.full(len(index), np.nan)
        judged = [(verdict.training, verdict.suspicion), (verdict.anchors, verdict.anchor_suspicion)]
        for evidence, v in judged[: 1 if monitor.held_out_indices() is None else 2]:
            at = np.searchsorted(index, evidence.index)
            rows["given"][at], rows["suspicion"][at] = evidence.given, v
            rows["suggested"][at] = suggestions(evidence, by_group=by_class)
        rows["probability"] = verdict.curve.probability(rows["suspicion"], verdict.rate.estimate)
        unseen = np.flatnonzero(rows["given"] < 0)
        if self.dataset is not None and len(unseen):
            rows["given"][unseen] = rows["suggested"][unseen] = read_labels(
                self.dataset, index[unseen].tolist(), self.label
            )
        return rows


def _check_classes_by_index(name: str, given: Any, kinds: Any = Integral) -> None:
    """Raise unless this is the class number of some examples, by index."""
    pairs = given.items() if isinstance(given, Mapping) else [(None, None)]
    if not all(isinstance(index, Integral) and isinstance(label, kinds) for index, label in pairs):
        raise SettingError(f"{name}={given!r:.60} is not valid: expected {{index: class number}}")
