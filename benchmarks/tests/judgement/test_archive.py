"""What a run knew comes back from its file, nearly as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from judgement_runs import about, known

from sgoif.errors import SettingError
from sgoif.tasks.labels.evidence import Rows
from sgoif_bench.errors import COLUMNS, TRUTH
from sgoif_bench.judgement import archive
from sgoif_bench.judgement.corpus import corpus, out_of_fold


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    before, path = known(), tmp_path / "run.npz"
    archive.save(path, before, about("run", "digits"))
    after = archive.load(path)
    assert after["about"] == about("run", "digits")
    for name in (*TRUTH, "rows"):
        assert np.array_equal(after[name], before[name])
    for part in ("training", "anchors"):
        assert np.array_equal(after[part].index, before[part].index)
        assert np.array_equal(after[part].given, before[part].given)
        for column in COLUMNS:
            assert getattr(after[part], column) == pytest.approx(getattr(before[part], column), rel=0.01, abs=1e-3)
        assert after[part].classes.mean == pytest.approx(before[part].classes.mean, rel=0.03, abs=0.01)
        assert after[part].classes.mean.sum(1) == pytest.approx(1)
        largest, value = after[part].groups.largest(after[part].given)
        expected = before[part].groups.largest(before[part].given)
        assert (largest == expected[0]).mean() > 0.97  # those that round to the same number are alike
        assert value == pytest.approx(expected[1], rel=0.03, abs=1e-3)
    assert after["halves"] == pytest.approx(before["halves"], rel=0.01, abs=1e-3)


def test_of_many_columns_the_largest_are_kept_under_their_names() -> None:
    dense = Rows(np.array([[0.1, 0.5, 0.4, 0.0]]))
    kept = archive.largest(dense, 2)
    assert kept.slots is not None
    assert dict(zip(kept.slots[0].tolist(), kept.mean[0].tolist(), strict=True)) == {1: 0.5, 2: 0.4}
    again = archive.largest(kept, 1)
    assert again.slots is not None
    assert again.slots.tolist() == [[1]]
    assert archive.largest(dense, 4) is dense


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.25, 65504.0, 6e-8, np.nan, np.inf, -np.inf])
def test_planes_hold_every_kind_of_number(value: float) -> None:
    assert archive.numbers(archive.planes(np.array([value]), 9))[0] == pytest.approx(
        value, rel=0.002, abs=1e-6, nan_ok=True
    )


def test_another_file_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, true=np.arange(3))
    with pytest.raises(SettingError, match="has no array 'given'"):
        archive.load(path)
    with pytest.raises(SettingError, match="was not kept by"):
        corpus(tmp_path)
    path.unlink()
    with pytest.raises(SettingError, match="holds no run"):
        corpus(tmp_path)
    with pytest.raises(SettingError, match="is not a folder"):
        corpus(path)


def test_published_cases_become_runs_without_influence(tmp_path: Path) -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05]] * 100)
    given, wrong = np.array([0, 2] * 100), np.array([False, True] * 100)
    path = tmp_path / "others.npz"
    arrays = {"a_net|logp": np.rint(-16 * np.log(p)).astype(np.uint8), "a_net|given": given.astype(np.uint8)}
    np.savez(path, **arrays, **{"a_net|wrong": wrong})
    case = archive.published(path)["a_net"]
    assert case["probabilities"] == pytest.approx(p, abs=0.03)
    run = out_of_fold(case)
    assert ((run["true"] != run["given"]) == wrong).all()
    assert len(run["training"]) + len(run["anchors"]) == 200
    assert run["training"].margin[0] == pytest.approx(0.5, abs=0.05)
    (kept,) = corpus(_empty(tmp_path), path)
    assert (kept.name, kept.set, kept.about["agreement"]) == ("published-a_net", "cifar10", 0.5)
    assert np.array_equal(kept.load()["given"], given)
    np.savez(path, **arrays)
    with pytest.raises(SettingError, match=r"no array 'a_net\|wrong'"):
        archive.published(path)


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"
