"""Label noise: the asked-for number of wrong labels, in the asked-for places."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from bench_paths import RESULTS
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.errors import SettingError
from sgoif_bench.noise import (
    CIFAR10_CLASSES,
    CIFAR10_FLIPS,
    DIGIT_FLIPS,
    by_matrix,
    by_matrix_as_cleanlab,
    class_dependent,
    human,
    instance_dependent,
    next_class,
    next_in_superclass,
    noise_matrix_from_trace,
    read_human,
    symmetric,
    within_superclass,
)

LABELS = np.repeat(np.arange(10), 100)


@given(st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_symmetric_changes_the_asked_for_number_and_never_to_the_same_class(rate: float, seed: int) -> None:
    noisy, is_wrong = symmetric(LABELS, 10, rate, seed)
    assert is_wrong.sum() == round(rate * len(LABELS))
    assert np.array_equal(noisy != LABELS, is_wrong)
    assert noisy.min() >= 0
    assert noisy.max() < 10


def test_symmetric_spreads_over_all_other_classes() -> None:
    labels = np.zeros(20_000, dtype=np.int64)
    noisy, _ = symmetric(labels, 5, 1.0, seed=1)
    share = np.bincount(noisy, minlength=5) / len(noisy)
    assert share[0] == 0
    assert share[1:] == pytest.approx([0.25] * 4, abs=0.02)


def test_cifar_mapping_by_name() -> None:
    named = {CIFAR10_CLASSES[true]: CIFAR10_CLASSES[given] for true, given in CIFAR10_FLIPS.items()}
    assert named == {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"}


@pytest.mark.parametrize("mapping", [CIFAR10_FLIPS, DIGIT_FLIPS, next_class(10)])
def test_overall_is_a_share_of_all_labels(mapping: Mapping[int, int]) -> None:
    noisy, is_wrong = class_dependent(LABELS, mapping, overall=0.2, seed=3)
    assert is_wrong.mean() == pytest.approx(0.2)
    assert set(LABELS[is_wrong]) == set(mapping)
    assert all(mapping[true] == given for true, given in zip(LABELS[is_wrong], noisy[is_wrong], strict=True))


def test_rate_is_a_share_of_the_mapped_classes() -> None:
    _, is_wrong = class_dependent(LABELS, CIFAR10_FLIPS, 0.4, 0)
    assert is_wrong.sum() == 200


def test_same_seed_same_noise_and_the_input_is_left_alone() -> None:
    before = LABELS.copy()
    first, second, third = (class_dependent(LABELS, next_class(10), overall=0.2, seed=s) for s in (5, 5, 6))
    assert np.array_equal(first.labels, second.labels)
    assert not np.array_equal(first.labels, third.labels)
    assert np.array_equal(before, LABELS)


@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_a_matrix_is_followed_to_the_nearest_example(classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.dirichlet(np.full(classes, 0.5), classes).T
    labels = random.integers(classes, size=300)
    noisy, is_wrong = by_matrix(labels, matrix, seed)
    assert np.array_equal(noisy != labels, is_wrong)
    for true in range(classes):
        members = labels == true
        counts = np.bincount(noisy[members], minlength=classes)
        assert counts.sum() == members.sum()
        assert np.abs(counts - matrix[:, true] * members.sum()).max() <= 1 + 1e-6


def test_columns_of_a_matrix_are_true_classes() -> None:
    matrix = np.eye(10)
    matrix[[3, 5], 3] = 0.6, 0.4  # four cats in ten are called dogs; no dog is called a cat
    noisy, is_wrong = by_matrix(LABELS, matrix, seed=2)
    assert is_wrong.sum() == 40
    assert set(LABELS[is_wrong]) == {3}
    assert set(noisy[is_wrong]) == {5}
    assert np.array_equal(by_matrix(LABELS, matrix, seed=2).labels, noisy)
    assert not np.array_equal(by_matrix(LABELS, matrix, seed=3).labels, noisy)
    assert not by_matrix(LABELS, np.eye(10)).is_wrong.any()


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.eye(9), "go up to 9"),
        (np.ones((10, 9)) / 10, "shape"),
        ([], "shape"),
        (np.eye(10) * 0.9, "sum to one"),
        (2 * np.eye(10) - 0.1, "sum to one"),
        (np.full((10, 10), np.nan), "sum to one"),
        (np.tile([[1.5], [-0.5], *[[0.0]] * 8], (1, 10)), "sum to one"),
    ],
)
def test_what_is_not_a_noise_matrix_is_refused(matrix: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        by_matrix(LABELS, matrix)  # type: ignore[arg-type]


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingError, match="either rate"):
        class_dependent(LABELS, CIFAR10_FLIPS)
    with pytest.raises(SettingError, match="either rate"):
        class_dependent(LABELS, CIFAR10_FLIPS, 0.1, overall=0.2)
    with pytest.raises(SettingError, match="only 500 examples"):
        class_dependent(LABELS, CIFAR10_FLIPS, overall=0.6)
    with pytest.raises(SettingError, match="to itself"):
        class_dependent(LABELS, {1: 1}, 0.5)
    with pytest.raises(SettingError, match=r"\[0, 1\]"):
        symmetric(LABELS, 10, 1.5)
    with pytest.raises(SettingError, match="does not fit"):
        symmetric(LABELS, 5, 0.5)
    with pytest.raises(SettingError, match="class numbers"):
        symmetric(LABELS / 2, 10, 0.5)


# matrices from a trace

THREE = [
    [0.8732532158208339, 0.04742899146070648, 0.27442483439855553],
    [0.10539178908590585, 0.6684074575619932, 0.16723583898427144],
    [0.02135499509326021, 0.28416355097730034, 0.558339326617173],
]
FOUR = [
    [0.5957398664015178, 0.0, 0.5061477930678178, 0.21085940965209704],
    [0.0, 0.9129438229255188, 0.0, 0.0],
    [0.40426013359848223, 0.022145912150265446, 0.49385220693218224, 0.3916764866071215],
    [0.0, 0.06491026492421575, 0.0, 0.3974641037407814],
]
TWO = [[0.5514325854582577, 0.15143258545825777], [0.4485674145417423, 0.8485674145417422]]


def test_a_few_matrices_number_for_number() -> None:
    """What cleanlab 2.9.0 gives for these numbers."""
    assert noise_matrix_from_trace(3, 2.1, 0.0, seed=7).tolist() == THREE
    assert noise_matrix_from_trace(4, 2.4, 0.5, seed=1).tolist() == FOUR
    assert noise_matrix_from_trace(2, 1.4, 0.0, seed=3).tolist() == TWO
    assert noise_matrix_from_trace(2, 1.5, 0.6, seed=0).tolist() == [[1.0, 0.5], [0.0, 0.5]]
    assert noise_matrix_from_trace(2, 1.5, 0.6, seed=2).tolist() == [[0.5, 0.0], [0.5, 1.0]]


@pytest.mark.parametrize(("percent", "sparsity"), [(20, "0"), (20, "0.6"), (40, "0"), (40, "0.6")])
def test_the_matrices_of_the_committed_results(percent: int, sparsity: str) -> None:
    record = json.loads((RESULTS / f"noise-matrix-{percent}-sparsity-{sparsity}.json").read_text())
    assert np.array_equal(noise_matrix_from_trace(10, (100 - percent) / 10, float(sparsity)), record["matrix"])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 20),
    st.floats(0.02, 0.98),
    st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.9, 1.0]),
    st.integers(0, 2**32 - 1),
)
def test_cleanlab_gives_the_same_matrix_and_the_same_labels(
    classes: int, share: float, sparsity: float, seed: int
) -> None:
    theirs = pytest.importorskip("cleanlab.benchmarking.noise_generation")
    trace = max(1.0, 0.25 * classes) * (1 - share) + classes * share  # far from 1, where matrices are rare
    matrix = noise_matrix_from_trace(classes, trace, sparsity, seed)
    expected = theirs.generate_noise_matrix_from_trace(
        classes, trace, py=[1 / classes] * classes, frac_zero_noise_rates=sparsity, seed=seed
    )
    assert np.array_equal(matrix, expected)
    labels = np.concatenate([np.arange(classes), np.random.default_rng(seed).integers(classes, size=400)])
    np.random.seed(seed)  # noqa: NPY002
    drawn = theirs.generate_noisy_labels(labels, expected)
    noisy, is_wrong = by_matrix_as_cleanlab(labels, matrix, seed)
    assert np.array_equal(noisy, drawn)
    assert np.array_equal(is_wrong, drawn != labels)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 15), st.floats(0.1, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_a_matrix_has_the_trace_and_can_be_learned_from(classes: int, share: float, sparsity: float, seed: int) -> None:
    trace = max(1.0, 0.25 * classes) * (1 - share) + classes * share
    matrix = noise_matrix_from_trace(classes, trace, sparsity, seed)
    assert np.trace(matrix) == pytest.approx(trace)
    assert matrix.sum(axis=0) == pytest.approx(np.ones(classes))
    assert matrix.min() > -1e-6
    assert (np.diagonal(matrix) > matrix.mean(axis=1) - 1e-12).all() or classes == 2
    off_diagonal = matrix[~np.eye(classes, dtype=bool)]
    most = classes * (classes - 2) if classes > 2 else 1
    assert (off_diagonal == 0).sum() >= min(int(classes * (classes - 1) * sparsity), most) or classes == 2
    is_wrong = by_matrix(np.repeat(np.arange(classes), 200), matrix, seed).is_wrong
    assert is_wrong.mean() == pytest.approx(1 - trace / classes, abs=0.02)


def test_cleanlabs_way_keeps_a_few_labels_more() -> None:
    matrix = noise_matrix_from_trace(10, 8, 0.0)
    small = np.repeat(np.arange(10), 30)
    assert by_matrix(small, matrix).is_wrong.mean() == pytest.approx(0.2, abs=0.02)
    assert by_matrix_as_cleanlab(small, matrix).is_wrong.mean() < 0.18
    large = np.repeat(np.arange(10), 5000)
    assert by_matrix_as_cleanlab(large, matrix).is_wrong.mean() == pytest.approx(0.2, abs=0.002)


def test_making_a_matrix_leaves_the_global_random_numbers_alone() -> None:
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    matrix = noise_matrix_from_trace(10, 6, 0.6, seed=1)
    by_matrix_as_cleanlab(LABELS, matrix, seed=1)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize(
    ("classes", "trace", "sparsity", "message"),
    [
        (1, 1.0, 0.0, "two classes"),
        (10, 1.0, 0.0, "trace = 1.0"),
        (10, 10.5, 0.0, "trace = 10.5"),
        (10, 8.0, 1.5, "sparsity = 1.5"),
        (10, 8.0, -0.1, "sparsity = -0.1"),
    ],
)
def test_matrices_that_cannot_be(classes: int, trace: float, sparsity: float, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        noise_matrix_from_trace(classes, trace, sparsity)


def test_a_diagonal_that_is_one_but_for_rounding_is_no_reason_to_refuse_a_matrix() -> None:
    matrix = noise_matrix_from_trace(10, 10, 0.0, seed=0)
    assert matrix.min() < 0
    assert not by_matrix(LABELS, matrix).is_wrong.any()


# within superclasses


def test_the_next_class_of_the_same_superclass() -> None:
    assert next_in_superclass([0, 1, 0, 1, 2, 0]) == {0: 2, 2: 5, 5: 0, 1: 3, 3: 1}


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=4, max_size=12), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_flips_stay_within_the_superclass(superclasses: list[int], rate: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(superclasses)), 20)
    family = np.array(superclasses)
    alone = np.isin(family, [number for number in set(superclasses) if superclasses.count(number) == 1])
    if round(rate * len(labels)) > (~alone[labels]).sum():
        with pytest.raises(SettingError, match="only"):
            within_superclass(labels, superclasses, rate, seed)
        return
    noisy, is_wrong = within_superclass(labels, superclasses, rate, seed)
    assert is_wrong.sum() == round(rate * len(labels))
    assert np.array_equal(noisy != labels, is_wrong)
    assert np.array_equal(family[noisy], family[labels])
    assert not is_wrong[alone[labels]].any()


def test_superclasses_must_cover_the_labels() -> None:
    with pytest.raises(SettingError, match="5 superclass entries"):
        within_superclass(LABELS, [0] * 5, 0.2)


# by the image

FEATURES = np.random.default_rng(0).standard_normal((1000, 4, 2))


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_instance_noise_flips_about_the_asked_for_share(rate: float, seed: int) -> None:
    noisy, is_wrong = instance_dependent(LABELS, FEATURES, 10, rate, seed)
    assert np.array_equal(noisy != LABELS, is_wrong)
    assert noisy.min() >= 0
    assert noisy.max() < 10
    if rate == 0:
        assert not is_wrong.any()
    elif 0.2 <= rate <= 0.8:  # elsewhere the normal distribution is cut off
        assert is_wrong.mean() == pytest.approx(rate, abs=0.09)


def test_the_mean_of_the_flip_rates() -> None:
    labels, features = np.zeros(40_000, dtype=np.int64), np.zeros((40_000, 1))
    for rate, expected in ((0.1, 0.1288), (0.2, 0.2055), (0.4, 0.4)):
        assert instance_dependent(labels, features, 3, rate).is_wrong.mean() == pytest.approx(expected, abs=0.008)


def test_equal_images_of_a_class_are_mistaken_for_the_same_class() -> None:
    """Two images and their negatives, in two classes; of as many pixels as this the softmax is a hard choice."""
    labels = np.tile([0, 0, 1, 1], 100)
    features = np.tile([[1.0], [-1.0], [1.0], [-1.0]], (100, 1)) * np.linspace(-1, 1, 3000)
    noisy, is_wrong = instance_dependent(labels, features, 8, 0.4, seed=3)
    targets = [set(noisy[kind::4][is_wrong[kind::4]].tolist()) for kind in range(4)]
    assert all(len(target) == 1 for target in targets)
    assert targets[0] != targets[1]
    assert targets[2] != targets[3]
    assert targets[:2] != targets[2:], "every class has its own projection"


def test_targets_are_drawn_from_a_softmax_of_the_projected_image() -> None:
    labels = np.full(40_000, 2)
    features = np.tile([[1.0], [-1.0]], (20_000, 1))
    noisy, is_wrong = instance_dependent(labels, features, 5, 0.9, seed=11)
    projection = np.random.default_rng([11, 2]).standard_normal(5, dtype=np.float32).astype(float)
    for first, sign in ((0, 1), (1, -1)):
        weights = np.exp(sign * projection)
        weights[2] = 0
        share = np.bincount(noisy[first::2][is_wrong[first::2]], minlength=5) / is_wrong[first::2].sum()
        assert share == pytest.approx(weights / weights.sum(), abs=0.012)


def test_instance_noise_takes_tensors_and_a_seed() -> None:
    first = instance_dependent(LABELS, FEATURES, 10, 0.3, seed=1)
    again = instance_dependent(LABELS, torch.from_numpy(FEATURES), 10, 0.3, seed=1)
    other = instance_dependent(LABELS, FEATURES, 10, 0.3, seed=2)
    assert np.array_equal(first.labels, again.labels)
    assert not np.array_equal(first.labels, other.labels)
    with pytest.raises(SettingError, match="999 rows of features"):
        instance_dependent(LABELS, FEATURES[:999], 10, 0.3)


# people

TRUE = np.arange(20) % 10
SAID = np.where(np.arange(20) % 4 == 0, (TRUE + 1) % 10, TRUE)


def _saved(folder: Path, kind: str) -> Path:
    """The same labels in every format."""
    path = folder / f"labels.{kind}"
    both = {"clean_label": TRUE, "worse_label": SAID}
    if kind == "npz":
        np.savez(path, **both)
    elif kind == "npy":
        np.save(path, np.array(list(zip(TRUE, SAID, strict=True)), dtype=[(name, "i8") for name in both]))
    elif kind == "pt":
        torch.save(both, path)
    elif kind == "csv":
        rows = [",".join(both), *(f"{true},{said}" for true, said in zip(TRUE, SAID, strict=True))]
        path.write_text("\n".join(rows))
    else:
        path.write_text("\n".join(map(str, SAID)) + "\n")
    return path


@pytest.mark.parametrize("kind", ["npz", "npy", "pt", "csv", "txt"])
def test_human_labels_from_every_format(tmp_path: Path, kind: str) -> None:
    path = _saved(tmp_path, kind)
    assert np.array_equal(read_human(path, "worse_label"), SAID)
    noisy, is_wrong = human(TRUE, path, "worse_label", 10)
    assert np.array_equal(noisy, SAID)
    assert np.array_equal(is_wrong, SAID != TRUE)
    rows = np.array([0, 3, 8])
    some = human(TRUE[rows], path, "worse_label", 10, rows)
    assert some.labels.tolist() == SAID[rows].tolist()
    if kind != "txt":
        with pytest.raises(SettingError, match="has no labels 'aggre_label'; it has clean_label, worse_label"):
            human(TRUE, path, "aggre_label", 10)
        with pytest.raises(SettingError, match="in another order"):
            human(TRUE[::-1], path, "worse_label", 10)


def test_human_labels_that_do_not_fit(tmp_path: Path) -> None:
    path = _saved(tmp_path, "txt")
    with pytest.raises(SettingError, match="20 labels under 'worse_label' for 19 images"):
        human(TRUE[:19], path, "worse_label", 10)
    with pytest.raises(SettingError, match="none for image 20"):
        human(TRUE[:2], path, "worse_label", 10, np.array([1, 20]))
    with pytest.raises(SettingError, match="from 0 to 4"):
        human(TRUE % 5, path, "worse_label", 5)
    np.savez(tmp_path / "odd.npz", worse_label=np.zeros((20, 2)))
    with pytest.raises(SettingError, match="one class number per image"):
        human(TRUE, tmp_path / "odd.npz", "worse_label", 10)
    (tmp_path / "two.txt").write_text("1 2\n3 4\n")
    with pytest.raises(SettingError, match="no line that names them"):
        read_human(tmp_path / "two.txt", "x")
    with pytest.raises(SettingError, match="does not exist"):
        read_human(tmp_path / "none.npz", "x")
    with pytest.raises(SettingError, match=r"\.npz, \.npy, \.pt.*not from"):
        read_human(tmp_path / "labels.pkl", "x")


def test_the_published_file_was_written_by_an_older_numpy(tmp_path: Path) -> None:
    target = io.BytesIO()
    torch.save({"clean_label": TRUE, "aggre_label": SAID}, target, _use_new_zipfile_serialization=False)
    content = target.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in content
    (tmp_path / "CIFAR-10_human.pt").write_bytes(content)
    assert np.array_equal(read_human(tmp_path / "CIFAR-10_human.pt", "aggre_label"), SAID)


class Trap:
    """Runs a program when it is unpickled by somebody who trusts it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("kind", ["npz", "npy", "pt"])
def test_no_file_of_labels_can_run_code(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / f"trap.{kind}", tmp_path / "sprung"
    trap = np.array([Trap(target)], dtype=object)
    if kind == "npz":
        np.savez(path, worse_label=trap)
    elif kind == "npy":
        np.save(path, trap)
    else:
        torch.save({"worse_label": [Trap(target)]}, path)
    with pytest.raises(SettingError, match="cannot be read as human labels without running code"):
        read_human(path, "worse_label")
    assert not target.exists()
    (tmp_path / f"cut.{kind}").write_bytes(b"nothing")
    with pytest.raises(SettingError, match="cannot be read"):
        read_human(tmp_path / f"cut.{kind}", "worse_label")


@pytest.mark.parametrize("sparsity", [0.0, 0.2, 0.4, 0.6])
def test_labels_name_their_classes_at_forty_percent_noise_but_not_at_seventy(sparsity: float) -> None:
    """Among all ways to pair what is learned with names, the true one agrees best with the labels, or it does not."""
    from scipy.optimize import linear_sum_assignment

    for rate, told in ((0.4, True), (0.7, False)):
        matrix = noise_matrix_from_trace(10, 10 * (1 - rate), sparsity, seed=0)
        given, true = linear_sum_assignment(-matrix)
        assert bool((given == true).all()) == told
        assert (matrix[given, true].sum() > np.trace(matrix) + 0.1) != told
