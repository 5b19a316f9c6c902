"""Audits with planted noise, from end to end on images small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgoif.audit.settings import AuditSettings
from sgoif.errors import SettingError
from sgoif_bench import audit_errors
from sgoif_bench.audit_errors import AuditErrorsSettings, draw, main


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of four classes that differ in brightness, and the labels of careless people."""
    random = np.random.default_rng(0)
    labels = np.arange(480) % 4
    images = np.clip(60 * labels[:, None, None] + random.integers(0, 40, (480, 12, 12)), 0, 255).astype(np.uint8)
    path = tmp_path_factory.mktemp("audits") / "images.npz"
    people = np.where(random.random(480) < 0.1, (labels + 2) % 4, labels)
    np.savez(path, images=images, labels=labels, people=people)
    return path


def test_a_run_is_judged_and_can_be_judged_again(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = str(data.parent / "evidence.npz")
    small = ["--size", "400", "--rate", "0.2", "--epochs", "1", "--device", "cpu", "--model", "resnet7"]
    assert main(["--data", str(data), *small, "--evidence", kept, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["--again", kept, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert first["calibration"]["noise_rate_true"] == again["calibration"]["noise_rate_true"]
    assert first["calibration"]["noise_rate_true"] == pytest.approx(0.2, abs=0.02)
    assert again["agreement"] == pytest.approx(first["agreement"], abs=0.02)
    assert again["aupr"] == pytest.approx(first["aupr"], abs=0.05)
    assert str(data.parent) not in first["command"]


def test_a_model_of_one_s_own_may_memorise(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def training(images: Any, settings: AuditSettings, *rest: Any) -> Any:
        seen.update(settings.record())
        raise SettingError("seen enough")

    monkeypatch.setattr(audit_errors, "Training", training)
    own = ["--model", "sgoif_bench.models:small_cnn", "--no-augment", "--no-early-stop"]
    assert main(["--data", str(data), "--size", "400", "--device", "cpu", *own]) == 2
    assert (seen["model"], seen["augment"], seen["early_stop"]) == ("sgoif_bench.models:small_cnn", False, False)


@pytest.mark.parametrize(
    ("noise", "share"),
    [
        ("none", 0.0),
        ("symmetric", 0.2),
        ("class-dependent", 0.2),
        ("matrix", 0.2),
        ("instance", 0.2),
        ("human", 0.1),
    ],
)
def test_every_noise_plants_its_share(data: Path, noise: str, share: float) -> None:
    drawn = draw(AuditErrorsSettings(str(data), size=400, noise=noise, rate=0.2, human="people"))  # type: ignore[arg-type]
    assert drawn.array.shape == (400, 1, 12, 12)
    assert (drawn.labels != drawn.true).mean() == pytest.approx(share, abs=0.03)
    if noise == "class-dependent":
        flipped = drawn.labels != drawn.true
        assert (drawn.labels[flipped] == (drawn.true[flipped] + 1) % 4).all()


def test_flips_stay_within_superclasses(data: Path, tmp_path: Path) -> None:
    with np.load(data) as archive:
        arrays = {name: archive[name] for name in archive}
    np.savez(tmp_path / "families.npz", **arrays, superclasses=np.array([0, 1, 0, 1]))
    drawn = draw(AuditErrorsSettings(str(tmp_path / "families.npz"), size=400, noise="class-dependent", rate=0.2))
    assert (drawn.labels != drawn.true).any()
    assert (drawn.labels % 2 == drawn.true % 2).all()


def test_what_is_missing_is_said(data: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--data FILE\.npz is needed"):
        AuditErrorsSettings()
    with pytest.raises(SettingError, match="needs --human"):
        AuditErrorsSettings(str(data), noise="human")
    with pytest.raises(SettingError, match="no array 'nobody'"):
        draw(AuditErrorsSettings(str(data), noise="human", human="nobody"))
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(SettingError, match="expected are images and labels"):
        draw(AuditErrorsSettings(str(tmp_path / "other.npz")))


def test_a_file_of_something_else_is_answered_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = np.arange(30) % 3
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "one.npy", labels)
    np.savez(tmp_path / "real.npz", images=np.zeros((30, 8, 8)), labels=labels)
    np.savez(tmp_path / "fewer.npz", images=np.zeros((20, 8, 8), dtype=np.uint8), labels=labels)
    wanted = {"text.npz": "not an .npz archive", "one.npy": "not an .npz archive"}
    wanted |= {"real.npz": "images of float64", "fewer.npz": "as many images"}
    for name, message in wanted.items():
        assert main(["--data", str(tmp_path / name), "--device", "cpu"]) == 2
        assert message in capsys.readouterr().err
    for name, message in {"text.npz": "not an .npz archive", "real.npz": "it has no array"}.items():
        assert main(["--again", str(tmp_path / name), "--device", "cpu"]) == 2
        assert message in capsys.readouterr().err


def test_labels_of_people_have_to_be_classes(data: Path, tmp_path: Path) -> None:
    with np.load(data) as archive:
        np.savez(
            tmp_path / "more.npz", images=archive["images"], labels=archive["labels"], people=archive["people"] + 1
        )
    with pytest.raises(SettingError, match="0 to 3"):
        draw(AuditErrorsSettings(str(tmp_path / "more.npz"), size=400, noise="human", human="people"))
