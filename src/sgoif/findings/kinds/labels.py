"""Labels that are wrong, by what was found about them while a network or heads on features were trained."""

import numpy as np

from sgoif.core.score_table import ScoreTable
from sgoif.engine.closing_pass import LOOKS
from sgoif.findings.check import Check, Examined
from sgoif.findings.finding import Finding, Severity
from sgoif.images.text import plural, shown
from sgoif.tasks.labels.findings import LabelFindings

AGREEMENT = 2 / 3
"""Of the way from chance to always: how often a network that was trained briefly has to agree with held-out labels."""


class WrongLabels(Check):
    """Labels that are judged wrong, in the tiers of `LabelFindings.tiers`.

    Each that is surely wrong is an error where some labels must be wrong, and not only the model
    (`_proven`). The list ends where its false discovery rate (a tenth, unless another is asked for) would be
    exceeded. A network that has seen each image less than ten times may still learn what it gets wrong: it has to
    agree with two thirds of the held-out labels that chance leaves. What is worth a look besides is one note with all
    of these images, the most suspicious first; so is the list where nothing is proven. Where the model has learned too
    little to judge, there is neither.

    None of 18 audits of clean labels (digits, MNIST, CIFAR-10, house numbers, textures, photos; 1 to 8 epochs of a
    small network, or heads on pretrained features) has an error; before this was asked for, eight had 9 to 261. With
    10 to 30% of the labels made wrong, five lists are kept, of which 0 to 16% are right; six became notes, of five of
    these 28 to 60% are right.
    """

    kind = "wrong-label"
    title = "Wrong labels"
    severity = Severity.ERROR
    needs = ("labels", "labels_found")

    def find(self, seen: Examined) -> list[Finding]:
        """One finding for each label that is surely wrong, the likeliest first; one for all that are worth a look."""
        if seen.labels_found is None:
            return []
        whole = seen.labels_found.table()
        table = whole if seen.verdicts is None else seen.verdicts
        place = dict(zip(whole["index"].tolist(), seen.judged.tolist(), strict=True))
        rows = np.asarray([place[index] for index in table["index"].tolist()], dtype=np.int64)
        order = np.argsort(-np.nan_to_num(table["probability_wrong"]), kind="stable")
        listed = order[table["is_label_issue"][order]]
        looks = float(whole["n_observations"].mean())
        sure = listed if _proven(seen.labels_found, looks) else listed[:0]
        found = [self._wrong(seen, table, int(at), int(rows[at])) for at in sure]
        surely, look, _ = seen.labels_found.tiers()
        rest = order[~np.isin(order, sure)][: max(0, surely.size + look.size - len(sure))]
        if len(rest) and seen.labels_found.rate_told:
            parts = [look] if len(sure) else [surely, look]
            low, high = (np.average([part[end] for part in parts], weights=[p.size for p in parts]) for end in (2, 3))
            found.append(
                self.finding(
                    seen,
                    rows[rest],
                    f"{plural(len(rest), 'more label' if len(sure) else 'label')} may be wrong:"
                    f" {low:.0%} to {high:.0%} of them are",
                    "Look through them in this order for as long as wrong ones turn up.",
                    evidence={
                        "labels": len(rest),
                        "least share wrong": float(low),
                        "greatest share wrong": float(high),
                        "listed": len(listed),
                    },
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


def _proven(found: LabelFindings, looks: float) -> bool:
    """Whether labels that look wrong are wrong even if the model makes as many mistakes as it can; `looks` is how often
    it saw each image.

    Of m mistakes in all, at most m² are left among the examples of which it is surest: no more than if a second model,
    as good and independent, had to make them too. With a share D of disagreement in all and D′ there, no label has to
    be wrong unless D′ > D².
    """
    judged, chance = found.judgement, 1 / found.classes
    agrees = judged.anchors.agreement() >= chance + AGREEMENT * (1 - chance)
    proven = judged.knows and judged.rate.low > judged.estimates["disagreement"] ** 2
    return proven and (agrees or looks >= LOOKS)
