"""The answers: `LabelFindings` says what a judgement found, wherever its evidence came from."""

import html
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.errors import SettingError
from sgoif.tasks.argument_checks import check_classes_by_index
from sgoif.tasks.labels.channel import Array, Labels
from sgoif.tasks.labels.checked import to_check
from sgoif.tasks.labels.judgement import Judgement, Tier, suggestions
from sgoif.tasks.labels.noise_rate import NoiseRate
from sgoif.tasks.review import RankedReview, ReviewEstimate

FDR = 0.1
DECIDED = 0.5
NAMED = 5
"""Classes that a note names."""
KNOWN, LEAST_OF_CLASS = 0.4, 5
"""Agreement with the labels of a class below which a note names it, from so many held-out examples on."""
LEAST_WIDTH = 0.05
"""Width of the interval of the rate up to which no note is needed."""


class LabelFindings:
    """What a judgement says of labels: which are wrong, what they should be, and how sure that is.

    Args:
        judgement: the verdict about training and held-out examples.
        scores: one row per example, with the columns of `monitor.scores()`, by rising index.
        class_names: one name for every class.
        labels: gives the labels of examples, by their indices, that were never scored; −1 without it.
        by_group: whether groups of held-out examples are the classes, so that the one that is harmed is suggested.
        apart: whether held-out examples are numbered apart, and have no rows.
    """

    def __init__(
        self,
        judgement: Judgement,
        scores: ScoreTable,
        class_names: Sequence[str],
        *,
        labels: Callable[[list[int]], Any] | None = None,
        by_group: bool = False,
        apart: bool = False,
    ) -> None:
        self.judgement = judgement
        self.class_names = [str(name) for name in class_names]
        self.classes = len(self.class_names)
        rows: dict[str, Any] = {name: np.array(scores[name]) for name in scores.columns}
        index = rows["index"]
        unknown = {"given": -1, "suggested": -1, "suspicion": np.nan}
        rows |= {name: np.full(len(index), value) for name, value in unknown.items()}
        judged = [(judgement.training, judgement.suspicion), (judgement.anchors, judgement.anchor_suspicion)]
        for evidence, v in judged[: 1 if apart else 2]:
            at = np.searchsorted(index, evidence.index)
            if not np.isin(evidence.index, index).all():
                raise SettingError("examples were judged that have no row among the scores: give the scores of all")
            rows["given"][at], rows["suspicion"][at] = evidence.given, v
            rows["suggested"][at] = suggestions(evidence, by_group=by_group)
        rows["probability"] = judgement.curve.probability(rows["suspicion"], judgement.rate.estimate)
        unseen = np.flatnonzero(rows["given"] < 0)
        if labels is not None and len(unseen):
            rows["given"][unseen] = rows["suggested"][unseen] = labels(index[unseen].tolist())
        self._rows, known = rows, np.isfinite(rows["suspicion"])
        self._judged: tuple[Labels, Array] = index[known], rows["suspicion"][known]

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
        return np.asarray(index[self.judgement.selected(v, fdr)])

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
        """
        check_classes_by_index("decisions", decisions, or_none=True)
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
        cells: Array = np.bincount(given * self.classes + true, count, self.classes**2).astype(np.float64)
        return cells.reshape(self.classes, self.classes)

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
        return f"{type(self).__name__}: {self.verdict()}" + "".join(f"\nNote: {note}." for note in self.notes())

    def _repr_html_(self) -> str:
        rows, names = self._rows, self.class_names
        lines = [("index", "given", "suggested", "P(wrong)", "influence")]
        for row in np.argsort(-np.nan_to_num(rows["probability"]), kind="stable")[:10]:
            given, other, p = (rows[name][row] for name in ("given", "suggested", "probability"))
            lines.append((rows["index"][row], names[given], names[other], f"{p:.3f}", f"{rows['influence'][row]:.3g}"))
        cells = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in line) for line in lines]
        said = html.escape(repr(self)).replace("\n", "<br>")
        return f"<p>{said}</p><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    @cached_property
    def suggested(self) -> dict[int, int]:
        """Suggested label by index."""
        return dict(zip(self._rows["index"].tolist(), self._rows["suggested"].tolist(), strict=True))
