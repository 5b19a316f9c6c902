"""Labels that are wrong, by what was found about them while a network or heads on features were trained."""

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import Finding, Severity
from sgoif.images.text import plural, shown


class WrongLabels(Check):
    """Labels that are judged wrong, in the tiers of `LabelFindings.tiers`.

    Each that is surely wrong is an error. The list ends where its false discovery rate (a tenth, unless another is
    asked for) would be exceeded, and is empty where no more labels look wrong than the mistakes of the model explain:
    so one of ten may be right where many are wrong, and hardly any is named where none is. What is worth a look
    besides is one note with all of these images, the most suspicious first. Where the model has learned too little to
    judge, nothing is surely wrong, and there is no note.
    """

    kind = "wrong-label"
    title = "Wrong labels"
    severity = Severity.ERROR
    needs = ("labels", "labels_found")

    def find(self, seen: Examined) -> list[Finding]:
        """One finding for each label that is surely wrong, the likeliest first; one for all that are worth a look."""
        if seen.labels_found is None:
            return []
        table = seen.labels_found.table() if seen.verdicts is None else seen.verdicts
        place = dict(zip(seen.labels_found.table()["index"].tolist(), seen.judged.tolist(), strict=True))
        rows = np.asarray([place[index] for index in table["index"].tolist()], dtype=np.int64)
        order = np.argsort(-np.nan_to_num(table["probability_wrong"]), kind="stable")
        sure = order[table["is_label_issue"][order]]
        found = [self._wrong(seen, table, int(at), int(rows[at])) for at in sure]
        surely, look, _ = seen.labels_found.tiers()
        rest = order[~table["is_label_issue"][order]][: max(0, surely.size + look.size - len(sure))]
        if len(rest) and seen.labels_found.rate_told:
            found.append(
                self.finding(
                    seen,
                    rows[rest],
                    f"{plural(len(rest), 'more label')} may be wrong: {look.low:.0%} to {look.high:.0%} of them are",
                    "Look through them in this order for as long as wrong ones turn up.",
                    evidence={"labels": len(rest), "least share wrong": look.low, "greatest share wrong": look.high},
                    severity=Severity.NOTE,
                    about="worth a look",
                )
            )
        return found

    def _wrong(self, seen: Examined, table: ScoreTable, at: int, row: int) -> Finding:
        given, better = int(table["given_label"][at]), int(table["predicted_label"][at])
        names = [seen.class_names[number] for number in (given, better)]
        other = f", and {shown(names[1])} is likelier" if better != given else ""
        return self.finding(
            seen,
            [row],
            f"the label {shown(names[0])} is surely wrong{other}",
            f"Relabel it to {shown(names[1])}." if better != given else "Find out what it shows, or drop it.",
            evidence={
                "probability_wrong": float(table["probability_wrong"][at]),
                "given_label": names[0],
                "suggested_label": names[1] if better != given else None,
            },
            classes=[given] if better == given else [given, better],
        )
