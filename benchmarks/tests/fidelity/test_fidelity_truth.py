"""Subset networks: stacked training against one by one, sets that depend on nothing but their number, files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sgoif.core.losses import margin
from sgoif.errors import SettingError
from sgoif_bench.fidelity.recipes import training_for
from sgoif_bench.fidelity.study import Study, balanced, make_study
from sgoif_bench.fidelity.together import can_stack, train_together
from sgoif_bench.fidelity.truth import Wanted, kept, missing, path_of, read_truth, train_all, train_sets
from sgoif_bench.labels.datasets import load

pytest.importorskip("sklearn")
HALF = Wanted("half", 4, 2)


@pytest.fixture(scope="module")
def study() -> Study:
    training = training_for("digits", limit=120, epochs=2, batch_size=16)
    data, test = load("digits", limit=120), load("digits", train=False)
    return make_study(data, test, training, 0.1, 12, torch.device("cpu"), seed=3)


def test_margin_is_the_log_odds():
    logits = torch.randn(5, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0])
    p = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(margin(logits, labels), (p / (1 - p)).log())
    torch.testing.assert_close(margin(logits.expand(3, 5, 4), labels)[2], margin(logits, labels))


def test_margins_and_losses_of_many_networks(study):
    logits = np.random.default_rng(0).normal(size=(3, 12, 10)).astype(np.float32)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits[1]).double(), torch.from_numpy(study.queries.labels), reduction="none"
    )
    np.testing.assert_allclose(study.losses(logits)[1], expected.numpy())
    np.testing.assert_allclose(study.margins(logits)[1], study.margins(logits[1]))


def test_stacked_networks_are_those_trained_one_by_one(study):
    sets = [np.flatnonzero(kept(study, HALF, number)) for number in range(3)]
    together = train_together(study, sets, [1, 2, 9])
    alone = [study.train(rows, number) for rows, number in zip(sets, [1, 2, 9], strict=True)]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(study.answers(a), study.answers(b), rtol=1e-3, atol=1e-4)
    assert not np.allclose(study.answers(alone[0]), study.answers(alone[1]), atol=1e-2)


def test_only_plain_small_networks_are_stacked(study):
    assert can_stack(study)
    training = training_for("digits", limit=120, model="digits-net")
    other = make_study(load("digits", limit=120), load("digits", train=False), training, 0, 4, torch.device("cpu"), 0)
    assert not can_stack(other)


def test_wrong_labels_are_marked_and_queries_are_balanced(study):
    assert study.wrong.sum() == 12
    assert (study.problem.labels[study.wrong] != load("digits", limit=120).labels[study.wrong]).all()
    assert np.bincount(study.queries.labels, minlength=10).min() >= 1
    assert np.bincount(
        np.repeat(np.arange(3), [50, 5, 2])[balanced(np.repeat(np.arange(3), [50, 5, 2]), 6, 0)]
    ).tolist() == [2, 2, 2]


def test_sets_keep_their_share_and_depend_on_number_and_seed_alone(study):
    masks = [kept(study, HALF, number) for number in range(4)]
    assert [int(mask.sum()) for mask in masks] == [60] * 4
    assert len({mask.tobytes() for mask in masks}) == 4
    np.testing.assert_array_equal(kept(study, Wanted("half", 99, 1), 2), masks[2])


def test_groups_left_out_are_of_one_class_and_near(study):
    mask = kept(study, Wanted("out-5", 1, 1), 0)
    left = np.flatnonzero(~mask)
    assert len(left) == 5
    assert len(set(study.problem.labels[left])) == 1
    with pytest.raises(SettingError, match="cannot be left out"):
        kept(study, Wanted("out-119", 1, 1), 0)


def test_what_is_trained_is_kept_and_only_the_rest_is_trained(study, tmp_path: Path):
    train_sets(study, tmp_path, HALF, [0, 2])
    assert missing(tmp_path, HALF) == [1, 3]
    before = path_of(tmp_path, "half", 2).stat().st_mtime_ns
    truth = train_all(study, tmp_path, HALF)
    assert path_of(tmp_path, "half", 2).stat().st_mtime_ns == before
    assert truth.logits.shape == (4, 2, 12, 10)
    assert not list(tmp_path.glob(".*"))
    assert missing(tmp_path, Wanted("half", 4, 3)) == [0, 1, 2, 3]


def test_the_order_of_training_does_not_matter(study, tmp_path: Path):
    train_sets(study, tmp_path / "a", HALF, [0, 1, 2, 3])
    for number in (3, 1, 0, 2):
        train_sets(study, tmp_path / "b", HALF, [number])
    a, b = (read_truth(study, tmp_path / name, HALF) for name in "ab")
    np.testing.assert_allclose(a.logits, b.logits, rtol=1e-3, atol=1e-4)


def test_a_damaged_file_is_trained_again(study, tmp_path: Path):
    train_sets(study, tmp_path, HALF, [0, 1, 2, 3])
    path_of(tmp_path, "half", 1).write_bytes(b"PK\x03\x04 torn")
    assert missing(tmp_path, HALF) == [1]
    with pytest.raises(SettingError, match="1 of 4 sets"):
        read_truth(study, tmp_path, HALF)


def test_too_many_queries_are_refused(study):
    with pytest.raises(SettingError, match="queries = 9999"):
        make_study(
            load("digits", limit=120),
            load("digits", train=False),
            training_for("digits", limit=120),
            0,
            9999,
            torch.device("cpu"),
            0,
        )
