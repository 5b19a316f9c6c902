"""Changes trained in pairs: training against a slow loop, which examples are changed, how answers are judged."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sgoif.core.losses import margin
from sgoif.errors import SettingError
from sgoif_bench.fidelity import paired
from sgoif_bench.fidelity.answer import Answer
from sgoif_bench.fidelity.grid import Judging
from sgoif_bench.fidelity.judge import Judge
from sgoif_bench.fidelity.lds import mean_ceiling, rank_correlations
from sgoif_bench.fidelity.paired import (
    asked_about,
    candidates,
    changed,
    changes,
    counted,
    read_responses,
    standing_out,
    train_changes,
)
from sgoif_bench.fidelity.recipes import training_for
from sgoif_bench.fidelity.study import Study, make_study
from sgoif_bench.fidelity.together import can_stack, train_together
from sgoif_bench.fidelity.truth import Wanted, kept, missing, path_of, write_logits
from sgoif_bench.labels.datasets import load

pytest.importorskip("sklearn")
ALONE, LABELS = Wanted("alone", 5, 2), Wanted("label-3", 5, 2)


def made(model: str = "linear", **options: object) -> Study:
    training = training_for("digits", limit=120, epochs=2, batch_size=16, model=model, **options)
    return make_study(load("digits", limit=120), load("digits", train=False), training, 0.1, 12, torch.device("cpu"), 3)


@pytest.fixture(scope="module")
def study() -> Study:
    return made()


def slowly(study: Study, number: int, leave: int | None = None, labels: np.ndarray | None = None) -> np.ndarray:
    """Logits after a plain loop that adds up the losses of single examples and skips the one that is left out."""
    problem = study.problem
    model, batches = problem.new_model(number), problem.batches(number=number)
    optimizer, schedule = problem.optimizer(model, problem.recipe.epochs * len(batches))
    given = problem.labels if labels is None else labels
    for _ in range(problem.recipe.epochs):
        for x, _, index in batches:
            losses = [
                F.cross_entropy(model(image[None]), torch.tensor([int(given[row])]))
                for image, row in zip(x, index.tolist(), strict=True)
                if row != leave
            ]
            (torch.stack(losses).sum() / len(x)).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return study.answers(model)


def test_pairs_differ_in_the_change_and_in_nothing_else(study, tmp_path: Path):
    train_changes(study, tmp_path, ALONE, [0, 1, 4])
    train_changes(study, tmp_path, LABELS, [0, 2])
    alone, labels = changes(study, ALONE), changes(study, LABELS)

    def logits(kind: str, number: int) -> np.ndarray:
        with np.load(path_of(tmp_path, kind, number)) as archive:
            return archive["logits"]

    close = {"rtol": 1e-3, "atol": 1e-4}
    np.testing.assert_allclose(logits("alone", 0)[1], slowly(study, 2), **close)
    np.testing.assert_array_equal(logits("alone", 0), logits("label-3", 0))
    np.testing.assert_allclose(logits("alone", 4)[0], slowly(study, 1, leave=int(alone[3].rows[0])), **close)
    relabelled = changed(study, labels[1])[1]
    assert (relabelled != study.problem.labels).sum() == 3
    np.testing.assert_allclose(logits("label-3", 2)[1], slowly(study, 2, labels=relabelled), **close)
    assert np.abs(logits("alone", 4) - logits("alone", 0)).max() > 1e-3
    assert missing(tmp_path, ALONE) == [2, 3]
    with pytest.raises(SettingError, match="2 of 5 sets of kind alone"):
        read_responses(study, tmp_path, ALONE)
    train_changes(study, tmp_path, ALONE, [2, 3])
    found = read_responses(study, tmp_path, ALONE)
    assert found.margins.shape == (4, 2, 12)
    expected = study.margins(logits("alone", 2)) - study.margins(logits("alone", 0))
    np.testing.assert_allclose(found.margins[1], expected)


def exact_influence(study: Study, damping: float) -> np.ndarray:
    """s(q, i) of softmax regression with its dense Hessian, [Q, N]."""
    layer = study.train()[1]
    weights = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double()
    (x, y), (asked, labels) = study.train_tensors(), study.query_tensors()
    a, b = (torch.cat([images.flatten(1), torch.ones(len(images), 1)], 1).double() for images in (x, asked))
    p = (a @ weights.T).softmax(1)
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    hessian = torch.einsum("ncd,ni,nj->cidj", curvature, a, a).reshape(weights.numel(), -1) / len(a)
    logits = (b @ weights.T).requires_grad_()
    (slope,) = torch.autograd.grad(margin(logits, labels).sum(), logits)
    queries = torch.einsum("qc,qi->qci", slope, b).flatten(1)
    examples = torch.einsum("nc,ni->nci", p - F.one_hot(y, 10), a).flatten(1)
    damped = hessian + damping * torch.eye(len(hessian), dtype=torch.float64)
    return -(torch.linalg.solve(damped, queries.T).T @ examples.T).numpy()


def test_the_truth_of_a_convex_model_is_what_the_exact_inverse_predicts(tmp_path: Path):
    training = training_for("digits", model="linear")
    data, test = load("digits"), load("digits", train=False)
    study = make_study(data, test, training, 0.1, 12, torch.device("cpu"), 3)
    wanted = Wanted("alone", 17, 2)
    train_changes(study, tmp_path, wanted, range(17))
    found = read_responses(study, tmp_path, wanted)
    limit = mean_ceiling(found.margins)
    assert limit is not None
    assert limit > 0.95
    reached = []
    for damping in (3e-3, 1e3):  # what stopping early amounts to here, and so much that gradients alone are left
        scores = exact_influence(study, damping)
        predicted = -np.stack([scores[:, change.rows].sum(1) for change in found.changes])
        reached.append(rank_correlations(predicted, found.margins.mean(1)).mean())
    assert reached[0] > 0.9
    assert reached[1] < 0.5


def test_networks_that_cannot_be_stacked_are_trained_alike(study):
    other = made("digits-net")
    assert not can_stack(other)
    counts, labels = changed(study, changes(study, ALONE)[0])
    (together,) = train_together(study, [study.problem.rows()], [1], [counts], [labels])
    problem = study.problem
    alone = problem.fit(problem.new_model(1), problem.batches(labels=labels, number=1), loss=counted(counts, study))
    np.testing.assert_allclose(study.answers(together), study.answers(alone), rtol=1e-3, atol=1e-4)


def test_one_by_one_where_networks_are_not_stacked(tmp_path: Path):
    other = made("digits-net")
    few = Wanted("alone", 5, 1)
    train_changes(other, tmp_path, few, [0, 1])
    before, after = (np.load(path_of(tmp_path, "alone", number))["logits"] for number in (0, 1))
    torch.manual_seed(5)
    train_changes(other, tmp_path / "again", few, [0])
    assert before.shape == (1, 12, 10)
    assert not np.array_equal(before, after)


def test_examples_that_stand_out_take_turns_with_random_ones(study):
    far = standing_out(study)
    chosen = candidates(study, 20)
    assert len(set(chosen.tolist())) == 20
    np.testing.assert_array_equal(candidates(study, 7), chosen[:7])
    out = np.argsort(-far, kind="stable")
    assert chosen[0] == out[0]
    assert set(chosen[0::2]) <= set(out[:20])
    assert far[chosen[0::2]].min() > np.median(far[chosen[1::2]])
    with pytest.raises(SettingError, match="121 examples"):
        candidates(study, 121)


def test_standing_out_is_a_ratio_of_distances(monkeypatch: pytest.MonkeyPatch):
    study = made()
    study.problem.images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    study.problem.images[:, 0, 0, 0] = torch.tensor([0, 1, 4, 10])
    study.problem.labels = np.array([0, 0, 1, 0])
    # Nearest of the own class over nearest of another; the only one of its class has nobody to be near to.
    np.testing.assert_allclose(standing_out(study), [1 / 4, 1 / 3, 0, 9 / 6])
    monkeypatch.setattr(paired, "CHUNK", 3)
    np.testing.assert_allclose(standing_out(study), [1 / 4, 1 / 3, 0, 9 / 6])


def test_new_labels_are_of_another_class_and_asked_about_once(study):
    found = changes(study, LABELS)
    for change in found:
        (given,) = set(study.problem.labels[change.rows].tolist())
        assert change.label is not None
        assert change.label != given
        assert len(change.rows) == 3
    asked = asked_about(study, [ALONE, LABELS, Wanted("label-1", 5, 2)])
    assert asked is not None
    pairs = list(zip(asked.rows.tolist(), asked.labels.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert {(int(row), change.label) for change in found for row in change.rows} <= set(pairs)
    assert asked_about(study, [ALONE]) is None


@pytest.fixture
def judge(study, tmp_path: Path) -> tuple[Judge, np.ndarray, np.ndarray]:
    """A truth that is additive: example i adds `effects[q, i]`, and `new[q, j]` with the label that is asked about."""
    judging = Judging(queries=12, subsets=6, trainings=1, alone=10, relabelled=(3,), changes=10, pairs=2)
    generator = np.random.default_rng(0)
    asked = asked_about(study, judging.wanted())
    assert asked is not None
    effects, new = generator.normal(size=(12, 120)), generator.normal(size=(12, len(asked)))
    column = {pair: j for j, pair in enumerate(zip(asked.rows.tolist(), asked.labels.tolist(), strict=True))}

    def write(wanted: Wanted, number: int, margins: np.ndarray) -> None:
        logits = np.zeros((wanted.trainings, 12, 10), np.float32)
        logits[:, np.arange(12), study.queries.labels] = margins + np.log(9)
        write_logits(path_of(tmp_path, wanted.kind, number), logits)

    for wanted in judging.wanted():
        if not wanted.is_paired:
            for number in range(wanted.sets):
                write(wanted, number, effects @ kept(study, wanted, number))
            continue
        write(wanted, 0, effects.sum(1))
        for number, change in enumerate(changes(study, wanted), start=1):
            margins = effects.sum(1) - effects[:, change.rows].sum(1)
            if change.label is not None:
                margins += new[:, [column[int(row), change.label] for row in change.rows]].sum(1)
            write(wanted, number, margins)
    base = np.zeros((12, 10), np.float32)
    return Judge(study, tmp_path, judging, base, asked), effects, new - effects[:, asked.rows]


def test_a_perfect_answer_is_perfect_and_the_new_label_matters(judge):
    held, effects, change = judge
    memory = {"peak_bytes": 1}
    knows = held.metrics(Answer(effects.astype(np.float32), 0.0, memory, relabelled=change.astype(np.float32)))
    assert knows["alone"]["spearman"] == pytest.approx(1.0)
    assert knows["alone"]["ceiling"] == pytest.approx(1.0)
    assert knows["alone"]["changes"] == 10
    both = knows["relabelled"]["3"]
    assert both["spearman"] == pytest.approx(1.0)
    assert both["predicted_from"] == "both labels"
    lacks = held.metrics(Answer(effects.astype(np.float32), 0.0, memory))["relabelled"]["3"]
    assert lacks["predicted_from"] == "given label"
    assert lacks["spearman"] == pytest.approx(both["given_label_spearman"])
    assert 0.2 < lacks["spearman"] < 0.95
    wrong = held.metrics(Answer(-effects.astype(np.float32), 0.0, memory, relabelled=-change.astype(np.float32)))
    assert wrong["alone"]["spearman"] == wrong["relabelled"]["3"]["spearman"] == pytest.approx(-1.0)


def test_changes_that_are_no_numbers_are_refused(judge):
    held, effects, change = judge
    broken = np.full(change.shape, np.nan, np.float32)
    with pytest.raises(SettingError, match="predicted changes are not finite"):
        held.metrics(Answer(effects.astype(np.float32), 0.0, {}, relabelled=broken))


def test_the_ceiling_of_the_mean_is_what_a_perfect_prediction_reaches():
    generator = np.random.default_rng(3)
    signal = generator.normal(size=(400, 1, 30))
    for noise, trainings in ((0.5, 2), (3.0, 5), (3.0, 8)):
        seen = signal + noise * generator.normal(size=(400, trainings, 30))
        correlations = [np.corrcoef(signal[:, 0, q], seen[:, :, q].mean(1))[0, 1] for q in range(30)]
        assert mean_ceiling(seen) == pytest.approx(np.mean(correlations), abs=0.04)
    pure = generator.normal(size=(16, 4, 100))
    assert mean_ceiling(pure) < 0.3
    assert mean_ceiling(pure[:, :1]) is None
