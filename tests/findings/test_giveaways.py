"""Properties that give the label away: planted ones are found and named, shuffled labels give none."""

import numpy as np
import pytest
from examined_cases import labelled_set

from sgoif.findings import Finding, Severity
from sgoif.findings.kinds.giveaways import GivesLabelAway, in_parts, one_rule

COUNT, CLASSES = 1200, 6


def labels_of(rng, count=COUNT, classes=CLASSES):
    return rng.permutation(np.arange(count) % classes)


def about(findings):
    return {finding.about: finding for finding in findings}


def find(labels, **columns):
    return about(GivesLabelAway().find(labelled_set(labels, **columns)))


def test_a_rule_reaches_what_the_best_guess_of_each_part_does():
    rng = np.random.default_rng(0)
    labels, parts = rng.integers(0, 2, 40_000), rng.integers(0, 4, 40_000)
    swap = rng.random(40_000) < 0.2
    parts = np.where(parts < 2, np.where(swap, 1 - labels, labels), parts)  # half of the images are given away to 80%
    rule = one_rule(parts, labels, 2)
    assert rule.accuracy == pytest.approx(0.5 * 0.8 + 0.5 * 0.5, abs=0.01)
    assert rule.share == pytest.approx(0.3, abs=0.02)
    assert rule.class_share == pytest.approx([0.3, 0.3], abs=0.02)


def test_accuracy_does_not_gain_by_the_largest_class():
    rng = np.random.default_rng(1)
    labels = (rng.random(5000) < 0.05).astype(int)
    rule = one_rule(rng.integers(0, 8, 5000), labels, 2)
    assert rule.accuracy == pytest.approx(0.5, abs=0.06)


def test_standard_deviations_are_those_of_shuffled_labels():
    rng = np.random.default_rng(2)
    parts, labels = rng.integers(0, 12, COUNT), labels_of(rng)
    rules = [one_rule(parts, rng.permutation(labels), CLASSES) for _ in range(200)]
    assert np.std([rule.deviations for rule in rules]) == pytest.approx(1, abs=0.2)
    assert np.std([rule.class_deviations for rule in rules]) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("name", "column", "values"),
    [
        ("brightness", "brightness", lambda y, rng: y / 10 + 0.02 * rng.normal(size=len(y))),
        ("being grey", "grey", lambda y, rng: y < 3),
        ("the colour of the border", "border", lambda y, rng: (y[:, None] >> np.arange(3)) % 2 + 0.1 * rng.random(3)),
        ("the size of the file", "file_bytes", lambda y, rng: 1000 + 300 * y + rng.integers(0, 200, len(y))),
        ("the aspect", "height", lambda y, rng: np.where(y == 4, 75, 100)),
        ("the date taken", "taken", lambda y, rng: np.where(rng.random(len(y)) < 0.1, np.nan, 1e9 + 86400.0 * y)),
    ],
)  # fmt: skip
def test_a_planted_property_is_found(name, column, values):
    rng = np.random.default_rng(3)
    labels = labels_of(rng)
    noise = {"contrast": rng.random(COUNT), "saturation": rng.random(COUNT), "width": np.full(COUNT, 100)}
    found = find(labels, **noise, **{column: values(labels, rng)})
    assert set(found) - {"the number of pixels"} == {name}
    assert found[name].evidence["accuracy"] > found[name].evidence["accuracy of guessing"] == 1 / CLASSES
    assert found[name].images == ()


def test_one_class_that_is_given_away_is_named_with_its_mean():
    rng = np.random.default_rng(4)
    labels = labels_of(rng)
    finding = find(labels, brightness=np.where(labels == 2, 0.2, 0.6) + 0.05 * rng.normal(size=COUNT))["brightness"]
    assert finding.classes == ("class 2",)
    assert finding.severity is Severity.WARNING
    assert finding.evidence["mean of 'class 2'"] == pytest.approx(0.2, abs=0.02)
    assert finding.evidence["mean without 'class 2'"] == pytest.approx(0.6, abs=0.02)
    assert finding.evidence["accuracy for 'class 2' against the others"] > 0.95


def test_a_slight_difference_is_not_worth_a_finding():
    rng = np.random.default_rng(5)
    labels = labels_of(rng, 6000)
    assert find(labels, brightness=0.2 * labels + rng.normal(size=6000)) == {}


def test_shuffled_labels_give_nothing():
    rng = np.random.default_rng(6)
    for count, classes in ((24, 2), (60, 2), (90, 6), (1000, 10)):
        for _ in range(20):
            columns = {name: rng.random(count) for name in ("brightness", "contrast", "saturation", "sharpness")}
            assert find(labels_of(rng, count, classes), **columns, border=rng.random((count, 3))) == {}


def test_class_names_in_file_names_do_not_count():
    rng = np.random.default_rng(7)
    classes, labels = ["cats", "polar_bear"], labels_of(rng, 200, 2)
    number = rng.permutation(200)
    names = [f"{classes[y]}/{('cat', 'Polar bear')[y]}.{n}.jpg" for y, n in zip(labels, number, strict=True)]
    assert about(GivesLabelAway().find(labelled_set(labels, classes, names))) == {}


def test_other_words_number_ranges_and_endings_of_file_names_do():
    rng = np.random.default_rng(8)
    classes, labels = ["cat", "dog"], labels_of(rng, 200, 2)
    names = [f"{classes[y]}/{'ab'[y]}{y * 1000 + n}.{('jpg', 'PNG')[y]}" for n, y in enumerate(labels)]
    found = about(GivesLabelAway().find(labelled_set(labels, classes, names)))
    assert {name: finding.severity for name, finding in found.items()} == {
        "the name of the file": "note",
        "the number in its name": "note",
        "the ending of its name": "warning",
    }
    assert len({finding.id for finding in found.values()}) == 3


def test_small_classes_are_left_out():
    labels = np.r_[np.zeros(100, int), np.ones(9, int)]
    assert find(labels, brightness=labels / 2) == {}


def test_values_that_many_images_share_are_parts_of_their_own():
    values = np.r_[np.full(900, 640.0), np.full(30, 641.0), np.full(30, 639.0), [np.nan] * 10]
    parts = in_parts(values, 8)
    assert len({int(parts[0]), int(parts[900]), int(parts[930]), int(parts[-1])}) == 4
    assert np.ptp(in_parts(np.full(5, np.nan), 8)) == 0


def test_a_finding_about_a_property_stays_the_same_one_where_its_classes_change() -> None:
    one, other = (
        Finding("gives-label-away", Severity.NOTE, "m", images=images, classes=classes, about="size")
        for images, classes in ((("a",), ("cat", "dog")), (("b",), ("dog",)))
    )
    assert one.id == other.id != Finding("gives-label-away", Severity.NOTE, "m", about="border").id
