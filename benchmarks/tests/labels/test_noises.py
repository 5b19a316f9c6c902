"""Noise by name: every name means what it says, for every data set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from bench_paths import RESULTS
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.errors import SettingError
from sgoif_bench.labels.datasets import LabelledData
from sgoif_bench.labels.datasets.cifar import CIFAR100_CLASSES, CIFAR100_SUPERCLASSES
from sgoif_bench.labels.noises import CHOICES, Setting, make_noise, parse
from sgoif_bench.noise import CIFAR10_FLIPS, DIGIT_FLIPS, by_matrix, next_class, next_in_superclass


def data_set(name: str, classes: int = 10, each: int = 40, **further: object) -> LabelledData:
    labels = np.repeat(np.arange(classes), each)
    images = torch.randint(0, 256, (len(labels), 1, 4, 4), generator=torch.Generator().manual_seed(0))
    names = tuple(str(number) for number in range(classes))
    return LabelledData(name, images.to(torch.uint8), labels, names, np.arange(len(labels)), **further)  # type: ignore[arg-type]


CIFAR100 = data_set("cifar100", 100, 20, superclasses=CIFAR100_SUPERCLASSES)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("none", Setting("none")),
        ("symmetric-20", Setting("symmetric", 20.0)),
        ("class-dependent-2.5", Setting("class-dependent", 2.5)),
        ("matrix-40-sparsity-0.6", Setting("matrix", 40.0, 0.6)),
        ("matrix-70-sparsity-0", Setting("matrix", 70.0, 0.0)),
        ("instance-45", Setting("instance", 45.0)),
        ("human-aggregate", Setting("human", key="aggre_label")),
        ("human-random1", Setting("human", key="random_label1")),
        ("human-worst", Setting("human", key="worse_label")),
        ("human-noisy", Setting("human", key="noisy_label")),
    ],
)
def test_names_and_what_they_stand_for(setting: str, expected: Setting) -> None:
    assert parse(setting) == expected


UNKNOWN = ("", "None", "none-0", "asymmetric-20", "symmetric", "symmetric-", "symmetric-20 ", "symmetric--20")
HALF_KNOWN = (
    "symmetric-20-30",
    "symmetric-1e1",
    "matrix-20",
    "matrix-20-sparsity",
    "instance-x",
    "human",
    "human-aggre",
)


@pytest.mark.parametrize("setting", [*UNKNOWN, *HALF_KNOWN])
def test_an_unknown_name_is_answered_with_the_choices(setting: str) -> None:
    with pytest.raises(SettingError, match="is unknown; choose from none, symmetric-RATE") as caught:
        make_noise(setting, data_set("mnist"), 0)
    assert all(choice in str(caught.value) for choice in CHOICES)


@pytest.mark.parametrize("setting", ["symmetric-101", "matrix-20-sparsity-1.1", "instance-1000"])
def test_rates_out_of_range(setting: str) -> None:
    with pytest.raises(SettingError, match="at most 100 percent and a sparsity at most 1"):
        parse(setting)


def test_none_changes_nothing_and_gives_a_copy() -> None:
    data = data_set("mnist")
    noisy, is_wrong = make_noise("none", data, 0)
    assert np.array_equal(noisy, data.labels)
    assert not is_wrong.any()
    noisy[0] = 9
    assert data.labels[0] == 0


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 2**32 - 1), st.sampled_from(["symmetric", "class-dependent"]))
def test_a_rate_is_a_share_of_all_labels(percent: int, seed: int, kind: str) -> None:
    data = data_set("cifar10")
    noisy, is_wrong = make_noise(f"{kind}-{percent}", data, seed)
    assert is_wrong.sum() == round(percent / 100 * len(data))
    assert np.array_equal(is_wrong, noisy != data.labels)


@pytest.mark.parametrize(
    ("data", "flips"),
    [
        (data_set("cifar10"), CIFAR10_FLIPS),
        (data_set("mnist"), DIGIT_FLIPS),
        (data_set("digits"), DIGIT_FLIPS),
        (data_set("fashion-mnist"), next_class(10)),
        (data_set("clothing1m", 14), next_class(14)),
        (CIFAR100, next_in_superclass(CIFAR100_SUPERCLASSES)),
    ],
    ids=lambda value: value.name if isinstance(value, LabelledData) else "",
)
def test_the_confusions_of_every_data_set(data: LabelledData, flips: dict[int, int]) -> None:
    noisy, is_wrong = make_noise("class-dependent-20", data, 1)
    assert is_wrong.mean() == pytest.approx(0.2)
    assert set(data.labels[is_wrong]) <= set(flips)
    assert all(flips[true] == new for true, new in zip(data.labels[is_wrong], noisy[is_wrong], strict=True))


def test_cifar100_is_confused_within_superclasses_by_name() -> None:
    noisy, is_wrong = make_noise("class-dependent-40", CIFAR100, 0)
    pairs = {
        (CIFAR100_CLASSES[true], CIFAR100_CLASSES[new])
        for true, new in zip(CIFAR100.labels[is_wrong], noisy[is_wrong], strict=True)
    }
    assert {("beaver", "dolphin"), ("whale", "beaver"), ("man", "woman"), ("woman", "baby")} <= pairs
    assert len(pairs) == 100


@pytest.mark.parametrize(("percent", "sparsity"), [(20, "0"), (20, "0.6"), (40, "0"), (40, "0.6")])
def test_matrices_are_those_of_the_committed_results(percent: int, sparsity: str) -> None:
    data = data_set("cifar10", each=500)
    matrix = json.loads((RESULTS / f"noise-matrix-{percent}-sparsity-{sparsity}.json").read_text())["matrix"]
    for seed in (0, 3):
        noisy, is_wrong = make_noise(f"matrix-{percent}-sparsity-{sparsity}", data, seed)
        assert np.array_equal(noisy, by_matrix(data.labels, matrix, seed).labels)
        assert is_wrong.mean() == pytest.approx(percent / 100, abs=0.002)
    assert not np.array_equal(noisy, make_noise(f"matrix-{percent}-sparsity-{sparsity}", data, 0).labels)


def test_a_matrix_of_seventy_percent_has_the_trace_three() -> None:
    theirs = pytest.importorskip("cleanlab.benchmarking.noise_generation")
    matrix = theirs.generate_noise_matrix_from_trace(10, 3, py=[0.1] * 10, frac_zero_noise_rates=0.2, seed=0)
    data = data_set("cifar10", each=500)
    noisy, is_wrong = make_noise("matrix-70-sparsity-0.2", data, 4)
    assert np.array_equal(noisy, by_matrix(data.labels, matrix, 4).labels)
    assert is_wrong.mean() == pytest.approx(0.7, abs=0.002)


def test_instance_noise_looks_at_the_images() -> None:
    data = data_set("mnist", each=200)
    noisy, is_wrong = make_noise("instance-30", data, 0)
    assert is_wrong.mean() == pytest.approx(0.3, abs=0.04)
    assert np.array_equal(is_wrong, noisy != data.labels)
    other = LabelledData("mnist", 255 - data.images, data.labels, data.classes, data.rows)
    assert not np.array_equal(make_noise("instance-30", other, 0).labels, noisy)


def test_human_labels_follow_the_rows_of_the_data(tmp_path: Path) -> None:
    data = data_set("cifar10")
    said = np.where(np.arange(len(data)) % 3 == 0, (data.labels + 1) % 10, data.labels)
    file = tmp_path / "cifar10n.npz"
    np.savez(file, clean_label=data.labels, worse_label=said.astype(np.uint8))
    noisy, is_wrong = make_noise("human-worst", data, 0, str(file))
    assert np.array_equal(noisy, said)
    assert np.array_equal(is_wrong, said != data.labels)
    rows = np.array([3, 7, 200, 399])
    some = LabelledData("cifar10", data.images[rows], data.labels[rows], data.classes, rows)
    assert np.array_equal(make_noise("human-worst", some, 0, file).labels, said[rows])
    with pytest.raises(SettingError, match="no labels 'aggre_label'; it has clean_label, worse_label"):
        make_noise("human-aggregate", data, 0, file)
    with pytest.raises(SettingError, match=r"give --human FILE with labels 'worse_label', as published"):
        make_noise("human-worst", data, 0)
    test = data_set("cifar10", train=False)
    with pytest.raises(SettingError, match="not for the test set"):
        make_noise("human-worst", test, 0, file)


def test_labels_that_were_wrong_from_the_start_stay_wrong() -> None:
    labels = np.tile([0, 1, 2, 3], 50)
    clean = np.where(np.arange(200) < 100, labels, -1)
    clean[:10] = (labels[:10] + 1) % 4
    images = torch.zeros(200, 3, 4, 4, dtype=torch.uint8)
    data = LabelledData("clothing1m", images, labels, tuple("abcd"), np.arange(200), clean_labels=clean)
    noisy, is_wrong = make_noise("none", data, 0)
    assert np.array_equal(noisy, labels)
    assert np.flatnonzero(is_wrong).tolist() == list(range(10))
    noisy, is_wrong = make_noise("symmetric-40", data, 0)
    assert np.array_equal(is_wrong[:100], noisy[:100] != clean[:100])
    assert np.array_equal(is_wrong[100:], noisy[100:] != labels[100:])
    mended = (noisy[:10] == clean[:10]).sum()
    assert mended > 0, "a flip can also put a label right, and then it is not wrong"
    assert is_wrong[:10].sum() == 10 - mended
