"""From a method's scores to figures: how well they predict what retraining does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SettingError
from sgoif_bench.fidelity.answer import Answer, Relabelled
from sgoif_bench.fidelity.grid import Judging
from sgoif_bench.fidelity.lds import (
    agreement,
    bootstrap,
    ceiling,
    errors,
    mean_ceiling,
    rank_correlations,
    reliability,
    share_of_seen,
    split_agreement,
)
from sgoif_bench.fidelity.paired import Responses, read_responses
from sgoif_bench.fidelity.study import Study
from sgoif_bench.fidelity.together import can_stack, train_together
from sgoif_bench.fidelity.truth import ALL, ALONE, HALF, LABEL, OUT, Truth, read_truth
from sgoif_bench.metrics import auroc, average_precision
from sgoif_bench.result_texts import rounded
from sgoif_bench.unlearning.measures import spearman

DIGITS = 4
"""Significant ones, of what is written for every query."""
BRITTLE_SHARES = (0.01, 0.05)
"""Shares of the training examples that are removed."""
BRITTLE_NUMBER = 900_000


class Judge:
    """Holds scores against the truth of one study."""

    def __init__(
        self,
        study: Study,
        folder: Path,
        judging: Judging,
        base: NDArray[np.float32],
        relabelled: Relabelled | None = None,
        plain: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> None:
        self.study, self.judging, self.relabelled = study, judging, relabelled
        self.plain = plain or {}
        """What anybody could look at instead of an expected error, by name, for every query."""
        self.base = base
        """Logits [Q, C] of the network that the methods look at."""
        everything = judging.wanted()
        self.truth = {w.kind: read_truth(study, folder, w) for w in everything if not w.is_paired}
        self.responses = {w.kind: read_responses(study, folder, w) for w in everything if w.is_paired}
        half = study.margins(self.truth[HALF].logits)
        self.measured = half.mean(1)
        self.losses = study.losses(_flat(self.truth[HALF].logits)).reshape(half.shape).mean(1)
        self.ceiling = ceiling(half)
        self.at_random = self._brittle(_any_scores(study)) if judging.brittle else []

    def about(self) -> dict[str, Any]:
        """Figures of the truth itself."""
        right = self.base.argmax(1) == self.study.queries.labels
        return {
            "examples": len(self.study),
            "queries": len(right),
            "query_accuracy": float(right.mean()),
            "ceiling": float(self.ceiling.mean()) if self.judging.trainings > 1 else None,
            "brittle_at_random": self.at_random,
        }

    def metrics(self, answer: Answer) -> dict[str, Any]:
        """Everything about one method."""
        scores = answer.scores
        wanted = (len(self.study.queries), len(self.study))
        if scores.shape != wanted:
            raise SettingError(f"scores have shape {scores.shape}, expected {wanted}")
        if not np.isfinite(scores).all():
            raise SettingError(f"{int((~np.isfinite(scores)).sum())} of {scores.size} scores are not finite numbers")
        changes = answer.relabelled
        if changes is not None and not np.isfinite(changes).all():
            raise SettingError(f"{int((~np.isfinite(changes)).sum())} predicted changes are not finite numbers")
        half = self.truth[HALF]
        found = agreement(scores, half.kept, self.measured)
        by_loss = agreement(scores, half.kept, -self.losses)
        figures: dict[str, Any] = {
            "lds": found.mean,
            "lds_low": found.low,
            "lds_high": found.high,
            "lds_loss": by_loss.mean,
            "lds_by_query": [round(float(value), 4) for value in found.by_query],
            **self._wrong_labels(scores),
        }
        if answer.confidence is not None:
            figures["confidence_spearman"] = spearman(answer.confidence, found.by_query)
            figures["confidence_by_query"] = [round(float(value), 4) for value in answer.confidence]
            split = split_agreement(scores, half.kept, self.measured)
            figures["lds_reliability"] = reliability(split)
            names = ("confidence_of_seen", "confidence_of_seen_low", "confidence_of_seen_high")
            figures |= zip(names, share_of_seen(answer.confidence, found.by_query, split), strict=True)
            figures["trust_by_query"] = {}
            for name, values in answer.details.get("trust", {}).items():
                figures[f"{name}_spearman"] = spearman(values, found.by_query)
                figures["trust_by_query"][name] = rounded(values.tolist(), DIGITS)
        if answer.error is not None:
            off = errors(scores, half.kept, self.measured)
            figures["error_spearman"] = spearman(answer.error, off)
            figures["error_margin_spearman"] = spearman(self.study.margins(self.base), off)
            figures["error_plain_spearman"] = {name: spearman(values, off) for name, values in self.plain.items()}
            figures["error_by_query"] = rounded(off.tolist(), DIGITS)
            figures["expected_error_by_query"] = rounded(answer.error.tolist(), DIGITS)
        figures["left_out"] = {kind.removeprefix(OUT): self._left_out(scores, kind) for kind in self._groups()}
        figures["brittle"] = self._brittle(scores) if self.judging.brittle else []
        for kind, responses in self.responses.items():
            if kind == ALONE:
                figures[ALONE] = self._changed(responses, self._removal(scores, responses))
            else:
                sizes = figures.setdefault("relabelled", {})
                sizes[kind.removeprefix(LABEL)] = self._new_labels(answer, responses)
        return figures

    def _groups(self) -> list[str]:
        return [kind for kind in self.truth if kind.startswith(OUT)]

    def _wrong_labels(self, scores: NDArray[np.float32]) -> dict[str, Any]:
        """How well harm to the queries finds the wrong labels."""
        wrong = self.study.wrong
        if not wrong.any():
            return {"wrong_aupr": None, "wrong_auroc": None}
        harm = -scores.mean(0, dtype=np.float64)
        return {"wrong_aupr": average_precision(wrong, harm), "wrong_auroc": auroc(wrong, harm)}

    def _left_out(self, scores: NDArray[np.float32], kind: str) -> dict[str, Any]:
        """Correlation, per query over groups, of predicted and real changes of the margin."""
        truth: Truth = self.truth[kind]
        margins = self.study.margins(truth.logits)
        base = self.study.margins(self.truth[ALL].logits).mean((0, 1))
        changes = margins.mean(1) - base
        predicted = -np.asarray((~truth.kept).astype(np.float64) @ scores.T.astype(np.float64))
        by_query = rank_correlations(predicted, changes)
        low, high = bootstrap(by_query)
        limit = float(ceiling(margins).mean())
        return {"spearman": float(by_query.mean()), "low": low, "high": high, "ceiling": limit}

    def _changed(self, responses: Responses, predicted: NDArray[np.float64]) -> dict[str, Any]:
        """Correlation, per query over changes, of predicted [M, Q] and real changes of the margin."""
        by_query = rank_correlations(predicted, responses.margins.mean(1))
        low, high = bootstrap(by_query)
        return {
            "spearman": float(by_query.mean()),
            "low": low,
            "high": high,
            "ceiling": mean_ceiling(responses.margins),
            "changes": len(responses.changes),
        }

    def _removal(self, scores: NDArray[np.float32], responses: Responses) -> NDArray[np.float64]:
        """−Σ s(q, i) over the examples of a change, [M, Q]: what their absence does."""
        return -np.stack([scores[:, change.rows].sum(1, dtype=np.float64) for change in responses.changes])

    def _new_labels(self, answer: Answer, responses: Responses) -> dict[str, Any]:
        """New labels, predicted from the scores of both labels where the method can be asked for them.

        Otherwise all that a method says about a label which is taken away is what the absence of the example does.
        """
        removal = self._removal(answer.scores, responses)
        if answer.relabelled is None or self.relabelled is None:
            return {**self._changed(responses, removal), "predicted_from": "given label"}
        known = zip(self.relabelled.rows.tolist(), self.relabelled.labels.tolist(), strict=True)
        place = {pair: number for number, pair in enumerate(known)}
        columns = [[place[int(row), change.label] for row in change.rows] for change in responses.changes]
        predicted = np.stack([answer.relabelled[:, some].sum(1, dtype=np.float64) for some in columns])
        given = float(rank_correlations(removal, responses.margins.mean(1)).mean())
        both = {"predicted_from": "both labels", "given_label_spearman": given}
        return {**self._changed(responses, predicted), **both}

    def _brittle(self, scores: NDArray[np.float32]) -> list[dict[str, Any]]:
        """Remove what helps a query most and train again: does the prediction flip, how far does the margin fall?"""
        study = self.study
        right = np.flatnonzero(self.base.argmax(1) == study.queries.labels)[: self.judging.brittle]
        before = study.margins(self.base)
        found = []
        for share in BRITTLE_SHARES:
            count = max(1, round(share * len(study)))
            sets = [np.sort(np.argsort(scores[query], kind="stable")[: len(study) - count]) for query in right]
            numbers = [BRITTLE_NUMBER + int(query) for query in right]
            if can_stack(study):
                models = train_together(study, sets, numbers)
            else:
                models = [study.train(rows, number) for rows, number in zip(sets, numbers, strict=True)]
            logits = np.stack([study.answers(model)[query] for model, query in zip(models, right, strict=True)])
            flipped = logits.argmax(1) != study.queries.labels[right]
            after = np.array(
                [study.margins(np.tile(row, (len(before), 1)))[q] for row, q in zip(logits, right, strict=True)]
            )
            found.append(
                {
                    "removed": count,
                    "queries": len(right),
                    "flipped": float(flipped.mean()),
                    "margin_change": float((after - before[right]).mean()),
                }
            )
        return found


def _any_scores(study: Study) -> NDArray[np.float32]:
    """Scores that know nothing: what retraining and the smaller number of examples do by themselves."""
    generator = np.random.default_rng(study.problem.seed)
    return generator.random((len(study.queries), len(study)), dtype=np.float32)


def _flat(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return logits.reshape(-1, *logits.shape[-2:])
