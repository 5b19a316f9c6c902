"""Data sets of the comparison are read from the files of their publishers, at the right size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgoif.errors import SettingError
from sgoif.tasks.crossfit.head import make_head
from sgoif_bench.labels.noises import parse
from sgoif_bench.labels.recipes import identity
from sgoif_bench.pretrained.recipes import Recipe
from sgoif_bench.pretrained.sets import SETS, noisy, read

RNG = np.random.default_rng(0)


def ask(name: str, root: Path | None, limit: int | None = None) -> object:
    return read(name, None if root is None else str(root), 16, limit, lambda message: None)


def pixels(count: int, side: int = 32) -> np.ndarray:
    return RNG.integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def test_photos_are_a_folder_of_classes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in ("glass", "metal"):
        for number, size in enumerate(((20, 30), (40, 10), (16, 16))):
            file = tmp_path / "photos" / label / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            image.fromarray(np.full((*size, 3), 200 if label == "metal" else 90, dtype=np.uint8)).save(file)
    found = read("photos", str(tmp_path), 16, None, lambda message: None)
    assert found.images.shape == (6, 3, 16, 16)
    assert found.classes == ("glass", "metal")
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.images[3:].unique().tolist() == [200]


def test_svhn_and_textures_are_archives_or_the_publishers_files(tmp_path: Path) -> None:
    images, labels = pixels(12), np.arange(12) % 4
    (tmp_path / "ood").mkdir()
    np.savez(tmp_path / "ood" / "svhn.npz", x=images, y=labels)
    np.savez(tmp_path / "ood" / "dtd.npz", x=images, y=labels)
    for name in ("svhn", "textures"):
        found = read(name, str(tmp_path), 16, None, lambda message: None)
        assert np.array_equal(found.images.permute(0, 2, 3, 1), images)
        assert np.array_equal(found.labels, labels)
    some = read("svhn", str(tmp_path), 16, 4, lambda message: None)
    assert some.labels.tolist() == [0, 0, 3, 3]
    assert some.rows.tolist() == [0, 4, 7, 11]
    scipy = pytest.importorskip("scipy.io")
    scipy.savemat(tmp_path / "train_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": np.array([[10], [1]] * 6)})
    published = read("svhn", str(tmp_path), 16, None, lambda message: None)
    assert published.labels[:2].tolist() == [0, 1]
    assert np.array_equal(published.images.permute(0, 2, 3, 1), images)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for name in ("photos", "svhn", "textures"):
        with pytest.raises(SettingError, match="expected is"):
            ask(name, tmp_path)
        with pytest.raises(SettingError, match="--data ROOT"):
            ask(name, None)
    (tmp_path / "ood").mkdir()
    np.savez(tmp_path / "ood" / "svhn.npz", x=pixels(3))
    with pytest.raises(SettingError, match="labels `y`"):
        ask("svhn", tmp_path)


def test_digits_come_whole_and_what_people_said_is_found(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    data = read("digits", None, 96, None, lambda message: None)
    assert len(data) == 1797
    labels = (data.labels + 1) % 10
    np.savez(tmp_path / "cifar10n.npz", worse_label=labels, clean_label=data.labels)
    found = noisy("cifar10", "human-worst", data, 0, str(tmp_path))
    assert found.is_wrong.all()
    with pytest.raises(SettingError, match="--human FILE"):
        noisy("cifar100", "human-noisy", data, 0, str(tmp_path))


def test_every_set_has_noises() -> None:
    assert all(parse(noise).kind != "none" for known in SETS.values() for noise in known.noises)


@pytest.mark.parametrize("change", [{"limit": 3}, {"epochs": 0}, {"rate": 0}, {"folds": 1}])
def test_a_recipe_refuses_what_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(change))):
        Recipe(backbone="tiny", digest="0", size=12, **change)


def test_a_recipe_says_how_wide_the_head_is() -> None:
    described = Recipe(backbone="tiny", digest="0", size=12).described
    assert described["head_units"] == make_head(4, 2)[0].out_features
    assert identity({**described, "head_units": described["head_units"] + 1}) != identity(described)
