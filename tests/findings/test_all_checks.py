"""All checks at once, and labels in tiers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from examined_cases import labelled_set
from seen_cases import examined

from sgoif.audit.small_classes import without_verdict
from sgoif.core.score_table import ScoreTable
from sgoif.findings import Check, Examined, Finding, Severity
from sgoif.findings.checks import CHECKS, Report, failing, find_all
from sgoif.findings.kinds.labels import WrongLabels
from sgoif.images.collection import Skipped
from sgoif.tasks import LabelFindings
from sgoif.tasks.crossfit import CrossFit


def leaves(kind: type[Check]) -> set[type[Check]]:
    below = kind.__subclasses__()
    return set().union(*map(leaves, below)) if below else {kind}


class Broken(Check):
    """Fails."""

    kind = "broken"
    title = "Broken checks"

    def find(self, seen: Examined) -> list[Finding]:
        raise ZeroDivisionError("one \x1b by nothing")


def test_every_check_is_listed_once_under_a_word_of_its_own() -> None:
    own = {kind for kind in leaves(Check) if kind.__module__.startswith("sgoif.")}
    assert {type(check) for check in CHECKS} == own
    kinds = [check.kind for check in CHECKS]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind) for kind in kinds)


def test_what_is_missing_or_fails_is_told_and_costs_nothing_else() -> None:
    seen = replace(examined(["a.png", "b.png"], [0, 1], content=[1, 1]), unreadable=[Skipped("c.png", "cut off", True)])
    told: list[str] = []
    checks = (Broken(), *CHECKS)
    report = find_all(seen, lambda done, total, kind: told.append(f"{done}/{total} {kind}"), checks=checks)
    assert {finding.kind for finding in report.findings} >= {"copies", "unreadable", "small-class"}
    assert set(report.looked) | set(report.not_looked) == {check.kind for check in checks}
    assert not set(report.looked) & set(report.not_looked)
    assert report.not_looked["broken"] == "it failed: ZeroDivisionError ('one \\x1b by nothing')"
    assert "splits" in report.not_looked["leaks"]
    assert "features" in report.not_looked["off-topic"]
    assert "judged" in report.not_looked["wrong-label"]
    assert told[0] == f"0/{len(checks)} broken"
    assert told[-1] == f"{len(checks)}/{len(checks)} "
    bare = find_all(examined(["a.png"], [-1]), checks=CHECKS)
    assert "labels" in bare.not_looked["small-class"]


def test_what_needs_labels_looks_at_the_judged_part_and_the_rest_at_all() -> None:
    whole = examined(["a.png", "b.png", "c.png"], [0, 1, 1], content=[1, 2, 2], splits=["train", "train", "test"])
    judged = examined(["a.png", "b.png"], [0, 1])
    report = find_all(whole, judged=judged)
    small = [finding.images for finding in report.findings if finding.kind == "small-class"]
    assert small == [("a.png",), ("b.png",)]
    (leak,) = (finding for finding in report.findings if finding.kind == "leaks")
    assert set(leak.images) == {"b.png", "c.png"}


def test_a_summary_has_five_lines_at_most_and_the_gravest_first() -> None:
    def some(kind: str, severity: Severity, count: int) -> list[Finding]:
        return [Finding(kind, severity, "it is bad", (f"{kind}-{k}",), advice="Mend it.") for k in range(count)]

    findings = [
        *some("dark", Severity.WARNING, 4),
        *some("copies", Severity.NOTE, 9),
        *some("copies", Severity.ERROR, 1),
        *some("size", Severity.NOTE, 2),
        *some("blurry", Severity.WARNING, 1),
    ]
    report = Report(findings, ("dark", "copies", "size", "blurry"), {})
    lines = report.summary(1000)
    assert lines == [
        "1 error, 5 warnings, 11 notes in 1,000 images",
        "error, Exact copies: 1 finding about 1 image: it is bad",
        "warning, Dark images: 4 findings about 4 images",
        "warning, Blurry images: 1 finding about 1 image: it is bad",
        "to do first (Exact copies, 'copies-0'): mend it; 1 more kind in findings.json",
    ]
    assert Report([], ("dark",), {}).summary(2) == ["nothing wrong was found in 2 images, looking for 1 kind of it"]
    assert len(failing(findings, Severity.ERROR)) == 1
    assert len(failing(findings, Severity.WARNING)) == 6
    known = frozenset(finding.id for finding in findings if finding.kind == "dark")
    assert {finding.kind for finding in failing(findings, Severity.WARNING, known)} == {"copies", "blurry"}


@pytest.fixture(scope="module")
def judged() -> Examined:
    """300 images of three classes that are far apart; every tenth label is the next class."""
    rng = np.random.default_rng(0)
    right = np.arange(300) % 3
    features = rng.normal(size=(300, 16)) + 4 * np.eye(3, 16)[right]
    given = np.where(np.arange(300) % 10 == 0, (right + 1) % 3, right)
    found = CrossFit(features, given, ["cat", "dog", "owl"]).findings()
    return labelled_set(given, ["cat", "dog", "owl"], labels_found=found, judged=np.arange(300))


def test_labels_that_are_surely_wrong_are_errors_and_the_others_one_note(judged: Examined) -> None:
    found = WrongLabels().find(judged)
    sure = [finding for finding in found if finding.severity == "error"]
    assert judged.labels_found is not None
    assert [judged.names.index(finding.images[0]) for finding in sure] == judged.labels_found.select().tolist()
    assert len(sure) >= 10
    for finding in sure:
        row = judged.names.index(finding.images[0])
        assert row % 10 == 0
        given, right = (judged.class_names[number] for number in (judged.labels[row], row % 3))
        assert finding.classes == (given, right)
        assert finding.advice == f"Relabel it to {right!r}."
        assert finding.evidence["suggested_label"] == right
        assert float(finding.evidence["probability_wrong"] or 0) > 0.5
    look = judged.labels_found.tiers()[1]
    notes = [finding for finding in found if finding.severity == "note"]
    assert [len(note.images) for note in notes] == ([look.size] if look.size else [])
    assert not {name for note in notes for name in note.images} & {finding.images[0] for finding in sure}


def test_a_class_without_verdict_has_no_wrong_labels(judged: Examined) -> None:
    assert judged.labels_found is not None
    table = without_verdict(judged.labels_found.table(), np.array([1]), 0.1)
    found = WrongLabels().find(replace(judged, verdicts=table.take(np.arange(300)[::-1])))
    sure = [finding for finding in found if finding.severity == "error"]
    assert sure
    assert not [finding for finding in sure if finding.classes[0] == "dog"]


@pytest.mark.parametrize(
    ("looks", "agrees", "disagreement", "proven"),
    [
        (40, True, 0.2, True),
        (2, True, 0.2, True),
        (40, True, 0.3, False),
        (2, False, 0.2, False),
        (40, False, 0.2, True),
    ],
)
def test_what_may_be_a_mistake_of_the_model_is_no_error(
    judged: Examined, looks: int, agrees: bool, disagreement: float, proven: bool
) -> None:
    """At least 6% of the labels look wrong where the model is surest: more than 0.2², less than 0.3²."""
    found = judged.labels_found
    assert found is not None
    was, table = found.judgement, found.table()
    other = (was.anchors.given + 1) % 3
    given = was.anchors.given if agrees else np.where(np.arange(len(other)) % 2 == 0, other, was.anchors.given)
    judgement = replace(
        was,
        anchors=replace(was.anchors, given=given),
        rate=was.rate._replace(low=0.06),
        estimates={**was.estimates, "disagreement": disagreement},
    )
    columns = {name: table[name] for name in ("index", "confidence", "influence", "interval_low", "interval_high")}
    scores = ScoreTable({**columns, "n_observations": np.full(len(was.training), looks)})
    findings = LabelFindings(judgement, scores, found.class_names)
    named = WrongLabels().find(replace(judged, labels_found=findings))
    surely, look, _ = findings.tiers()
    errors = [finding for finding in named if finding.severity == "error"]
    (note,) = [finding for finding in named if finding.severity == "note"]
    assert len(errors) == (surely.size if proven else 0)
    assert surely.size > 0
    assert len(note.images) == look.size + surely.size - len(errors)
    assert look.low <= float(note.evidence["least share wrong"] or 0) <= surely.low
