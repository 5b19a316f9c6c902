"""`LabelErrors` from end to end: small networks on separable blobs, a known share of wrong labels."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from label_cases import COUNT, Problem, blobs, loop, network, trained, watch
from sklearn.metrics import average_precision_score
from torch import nn
from torch.utils.data import DataLoader

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.errors import SettingError
from sgoif.reports.label_report import harmed_by
from sgoif.tasks import LabelErrors

COLUMNS = [
    "index", "is_label_issue", "label_score", "given_label", "predicted_label", "probability_wrong", "confidence",
    "influence", "interval_low", "interval_high", "n_observations",
]  # fmt: skip


def precision(errors: LabelErrors, problem: Problem) -> float:
    table = errors.table()
    return float(average_precision_score(problem.wrong[table["index"]], table["probability_wrong"]))


def likely_wrong(errors: LabelErrors) -> list[int]:
    """Examples whose label is more likely wrong than right."""
    table = errors.table()
    found: list[int] = table["index"][np.nan_to_num(table["probability_wrong"]) > 0.5].tolist()
    return found


def right_suggestions(errors: LabelErrors, problem: Problem) -> float:
    found = [i for i in likely_wrong(errors) if problem.wrong[i]]
    assert len(found) > 10
    return float(np.mean([errors.suggested[i] == problem.true[i] for i in found]))


# --- the answers ------------------------------------------------------------------------------------------------------


def test_wrong_labels_are_found_and_named(plain: LabelErrors, problem: Problem) -> None:
    assert precision(plain, problem) > 0.97
    assert right_suggestions(plain, problem) > 0.9
    chosen = plain.select(0.1)
    assert problem.wrong[chosen].mean() > 0.85
    likely = problem.wrong[likely_wrong(plain)]
    assert likely.mean() > 0.8
    assert likely.sum() > 0.7 * problem.wrong.sum()
    assert plain.noise_rate().estimate == pytest.approx(problem.wrong.mean(), abs=0.06)


def test_the_table_has_cleanlabs_columns_and_one_row_per_example(plain: LabelErrors, problem: Problem) -> None:
    table = plain.table()
    assert table.columns == COLUMNS
    assert table["index"].tolist() == list(range(COUNT))
    np.testing.assert_array_equal(table["given_label"], problem.given)
    p = table["probability_wrong"]
    assert ((p >= 0) & (p <= 1)).all()
    np.testing.assert_array_equal(table["label_score"], 1 - p)
    assert set(table["index"][table["is_label_issue"]]) == set(plain.select(0.1).tolist())
    changed = table["predicted_label"] != table["given_label"]
    assert (changed == (table["is_label_issue"] | (p >= 0.5))).all()
    frame = table.to_pandas()
    assert list(frame.columns) == COLUMNS
    assert frame["is_label_issue"].dtype == bool
    strict = plain.table(fdr=0.01)
    assert strict["is_label_issue"].sum() == len(plain.select(0.01)) < len(plain.select(0.5))


def test_selections_are_sorted_and_a_looser_rate_only_adds(plain: LabelErrors) -> None:
    p = plain.table()["probability_wrong"]
    before: list[int] = []
    for fdr in (0.001, 0.01, 0.05, 0.1, 0.3, 0.7, 0.99):
        chosen = plain.select(fdr)
        assert (np.diff(p[chosen]) <= 0).all()
        assert chosen[: len(before)].tolist() == before
        if len(chosen):
            assert (1 - p[chosen]).mean() <= fdr
        before = chosen.tolist()


def test_the_confusion_counts_every_example_once(plain: LabelErrors, problem: Problem) -> None:
    counts = plain.confusion()
    assert counts.sum() == pytest.approx(COUNT)
    np.testing.assert_allclose(counts.sum(1), np.bincount(problem.given, minlength=4))
    real = np.zeros((4, 4))
    np.add.at(real, (problem.given, problem.true), 1)
    assert np.abs(counts - real).sum() / COUNT < 0.12


@pytest.mark.parametrize("fdr", [0, 1, -0.1, 1.5, float("nan")])
def test_a_false_discovery_rate_is_a_share(plain: LabelErrors, fdr: float) -> None:
    for call in (plain.select, plain.table):
        with pytest.raises(SettingError, match="strictly between 0 and 1"):
            call(fdr)


def test_held_out_examples_that_are_hurt_most(plain: LabelErrors, problem: Problem) -> None:
    held = set(plain.monitor.held_out_indices().tolist())  # type: ignore[union-attr]
    chosen = [i for i in likely_wrong(plain) if problem.wrong[i]][:40]
    found = harmed_by(plain, chosen, count=3)
    assert found.shape == (40, 3)
    assert set(found.ravel().tolist()) <= held | {-1}
    # Who calls a cat a dog hurts cats.
    assert (problem.true[found[:, 0]] == problem.true[chosen]).mean() > 0.7
    assert harmed_by(LabelErrors(plain.monitor), chosen).shape == (40, 0)


def test_a_part_of_the_data_with_indices_can_stand_for_it(problem: Problem) -> None:
    training, held_out = split_holdout(problem.dataset, share=0.2)
    monitor = watch(held_out)
    loop(monitor, training, 2)
    whole = LabelErrors(monitor, dataset=problem.dataset)
    for stand_in in (training, indexed(training)):
        some = LabelErrors(monitor, dataset=stand_in)
        np.testing.assert_array_equal(harmed_by(some, [5, 900]), harmed_by(whole, [5, 900]))


# --- every kind of loop -----------------------------------------------------------------------------------------------


def test_no_noise_no_issues() -> None:
    found = LabelErrors(trained(blobs(rate=0.0)))
    assert len(found.select(0.1)) <= 3
    assert found.noise_rate().estimate < 0.01
    assert found.noise_rate().low == 0
    assert found.noise_rate().high < 0.1


def test_neighbours_by_features_have_their_say(problem: Problem) -> None:
    """A network whose inputs tell little is helped by features that another one gives."""
    noise = 2 * torch.randn(problem.x.shape, generator=torch.Generator().manual_seed(0))
    monitor = trained(Problem(problem.x + noise, problem.true, problem.given))
    clean = np.eye(4)[problem.true] + np.random.default_rng(0).normal(0, 0.2, (len(problem.x), 4))
    alone, joined = LabelErrors(monitor), LabelErrors(monitor, features=[problem.x.numpy(), clean])
    assert precision(joined, problem) > precision(alone, problem) + 0.02
    held = monitor.held_out_indices()
    assert held is not None
    assert problem.wrong[held][joined.judgement.anchor_probability > 0.5].mean() > 0.9
    apart = watch((problem.x[:100], torch.from_numpy(problem.given[:100])))
    loop(apart, problem.dataset, 1)
    with pytest.raises(SettingError, match="a hold-out by split_holdout"):
        LabelErrors(apart, features=[clean])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"checked": [3]}, "index: class number"),
        ({"checked": {3: "cat"}}, "index: class number"),
        ({"features": [np.zeros((7, 4))]}, r"\(7, 4\) do not fit"),
    ],
)
def test_what_it_is_given_is_looked_at(options: dict[str, Any], said: str, plain: LabelErrors) -> None:
    with pytest.raises(SettingError, match=said):
        LabelErrors(plain.monitor, **options)
    for other in (plain.monitor.model, None):
        with pytest.raises(SettingError, match="InfluenceMonitor"):
            LabelErrors(other)  # type: ignore[arg-type]
    for fdr in ("0.1", None, 0, 1.5):
        with pytest.raises(SettingError, match="fdr="):
            plain.select(fdr)  # type: ignore[arg-type]


def test_a_running_monitor_is_read_without_disturbing_it(problem: Problem) -> None:
    training, held_out = split_holdout(problem.dataset, share=0.2)

    def run(look: bool) -> tuple[InfluenceMonitor, list[float]]:
        monitor, found = watch(held_out), []
        for _ in range(4):
            loop(monitor, training, 1)
            if look:
                found.append(precision(LabelErrors(monitor), problem))
        return monitor, found

    (looked, qualities), (alone, _) = run(True), run(False)
    assert qualities[-1] > 0.95
    mine, theirs = (nn.utils.parameters_to_vector(m.model.parameters()) for m in (looked, alone))
    assert torch.equal(mine, theirs)
    for name in ("influence", "margin", "confidence"):
        np.testing.assert_allclose(looked.scores()[name], alone.scores()[name], rtol=1e-4, atol=1e-5)


def test_a_restored_monitor_gives_the_same_answers(plain: LabelErrors, problem: Problem, tmp_path: Path) -> None:
    plain.monitor.save(tmp_path / "state")
    _, held_out = split_holdout(problem.dataset, share=0.2)
    fresh = watch(held_out)
    fresh.model.load_state_dict(plain.monitor.model.state_dict())
    fresh.load(tmp_path / "state")
    again, before = LabelErrors(fresh).table(), plain.table()
    for name in COLUMNS:
        np.testing.assert_array_equal(again[name], before[name])


def test_a_hold_out_that_is_numbered_apart(problem: Problem) -> None:
    apart = blobs(seed=0, count=1200)
    monitor = watch((apart.x[COUNT:], torch.from_numpy(apart.given[COUNT:])))
    own = Problem(apart.x[:COUNT], apart.true[:COUNT], apart.given[:COUNT])
    loop(monitor, own.dataset, 8)
    errors = LabelErrors(monitor, dataset=own.dataset)
    assert errors.table()["index"].tolist() == list(range(COUNT))
    assert precision(errors, own) > 0.97
    assert right_suggestions(errors, own) > 0.9
    assert harmed_by(errors, [0, 1]).shape == (2, 0)


def test_two_classes_told_apart_by_one_logit() -> None:
    problem = blobs(600, classes=2)
    training, held_out = split_holdout(problem.dataset, share=0.2)
    model = network(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    monitor = InfluenceMonitor(model, optimizer, anchors=held_out, loss=nn.BCEWithLogitsLoss())
    for _ in range(8):
        for x, y, index in DataLoader(indexed(training), 50, shuffle=True):
            with monitor.step(index):
                F.binary_cross_entropy_with_logits(model(x).squeeze(1), y.float()).backward()
            optimizer.step()
            optimizer.zero_grad()
    errors = LabelErrors(monitor)
    assert errors.classes == 2
    assert errors.confusion().shape == (2, 2)
    assert precision(errors, problem) > 0.97
    assert right_suggestions(errors, problem) == 1


@pytest.mark.parametrize("classes", [45, 105])
def test_many_classes(classes: int) -> None:
    problem = blobs((26 if classes < 100 else 20) * classes, classes)
    errors = LabelErrors(trained(problem, classes, epochs=12))
    assert errors.judgement.training.classes.slots is not None
    assert (errors.judgement.joint is None) == (classes > 100)
    assert errors.confusion().sum() == pytest.approx(len(problem.x))
    assert precision(errors, problem) > 0.8
    assert right_suggestions(errors, problem) > 0.8


@pytest.mark.parametrize(
    "groups",
    [lambda y: "even" if y % 2 == 0 else "odd", "one", lambda y: (y + 1) % 4],
    ids=["names", "one", "numbers that are not the classes"],
)
def test_groups_of_ones_own(groups: str | Callable[[int], Any], problem: Problem) -> None:
    errors = LabelErrors(trained(problem, groups=groups))
    assert errors.table().columns == COLUMNS
    assert precision(errors, problem) > 0.9
    assert right_suggestions(errors, problem) > 0.8


def test_examples_that_were_never_drawn_have_no_probability(problem: Problem) -> None:
    training, held_out = split_holdout(problem.dataset, share=0.2)
    monitor = watch(held_out, size=COUNT)
    loop(monitor, training, 1, batches=4)
    unknown, known = LabelErrors(monitor), LabelErrors(monitor, dataset=problem.dataset)
    for errors in (unknown, known):
        table = errors.table()
        assert len(table) == COUNT
        unseen = table["n_observations"] == 0
        assert unseen.sum() == len(training) - 200
        np.testing.assert_array_equal(np.isnan(table["probability_wrong"]), unseen)
        assert not np.isin(table["index"][unseen], errors.select(0.99)).any()
        assert errors.confusion().sum() == pytest.approx(COUNT - unseen.sum())
        assert (table["predicted_label"] == table["given_label"])[unseen].all()
    np.testing.assert_array_equal(known.table()["given_label"], problem.given)
    assert (unknown.table()["given_label"][unseen] == -1).all()


# --- for a look -------------------------------------------------------------------------------------------------------


def test_a_verdict_in_words(plain: LabelErrors) -> None:
    surely, look, _ = plain.tiers()
    rate = plain.noise_rate()
    assert surely.size == len(plain.select())
    assert f"{surely.size} are surely wrong" in repr(plain)
    assert f"{look.size} more are worth a look" in repr(plain)
    said = f"{100 * rate.estimate:.1f}% of {COUNT:,} labels look wrong ({100 * rate.low:.1f} to {100 * rate.high:.1f}%)"
    assert said in plain.verdict()
    assert repr(plain).count("\n") == len(plain.notes())


def test_hostile_class_names_are_shown_as_text(plain: LabelErrors) -> None:
    names = ["<script>alert(1)</script>", '" onload="x', "a & b", "猫"]
    errors = LabelErrors(plain.monitor, class_names=names)
    shown = errors._repr_html_()
    assert "<script" not in shown
    assert "onload=" not in shown.replace(html.escape(names[1]), "")
    assert any(html.escape(name) in shown for name in names)
    assert shown.count("<tr>") == 11
    worst = int(errors.select(0.5)[0])
    assert f"<tr><td>{worst}</td>" in shown
    with pytest.raises(SettingError, match="3 class names were given for 4 classes"):
        LabelErrors(plain.monitor, class_names=names[:3])


def test_the_code_of_the_documentation_runs_as_written(
    plain: LabelErrors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = """
from sgoif.reports import write_label_report
from sgoif.tasks import LabelErrors
errors = LabelErrors(monitor)
errors.table().to_pandas()        # the columns of issues.csv, index instead of path
errors.select(fdr=0.1); errors.noise_rate(); errors.confusion()
write_label_report(errors, "report.html")
"""
    exec(code, {"monitor": plain.monitor})
    assert (tmp_path / "report.html").stat().st_size > 10_000
