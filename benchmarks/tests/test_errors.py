"""The protocol that judges `LabelErrors`, from end to end on a data set small enough for a test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cifar_files import write_learnable
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SettingError
from sgoif.tasks.labels.evidence import Evidence, Rows
from sgoif_bench.errors import TRUTH, ErrorsSettings, evaluate, load_evidence, main, make_noise, save_evidence
from sgoif_bench.metrics import BINS, expected_calibration_error

LABELS = np.repeat(np.arange(10), 50)
IMAGES = torch.randint(0, 256, (500, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_learnable(tmp_path_factory.mktemp("cifar"))


def arguments(root: Path, *more: str) -> list[str]:
    small = ["--model", "small-cnn", "--epochs", "2", "--batch-size", "32", "--anchors", "60", "--device", "cpu"]
    return ["--data", str(root), *small, "--no-augment", *more]


def test_a_run_is_judged_and_can_be_judged_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, evidence = root / "result.json", root / "evidence.npz"
    assert main(arguments(root, "--json", "--out", str(out), "--evidence", str(evidence))) == 0
    streams = capsys.readouterr()
    result = json.loads(streams.out)
    assert result == json.loads(out.read_text())
    assert streams.err.count("epoch ") == 2
    assert set(result["methods"]) == {"loss", "margin", "prob_margin", "influence", "label_errors"}
    assert result["wrong_share"] == pytest.approx(0.2, abs=0.05)
    single = {name: found["aupr"] for name, found in result["methods"].items() if name != "label_errors"}
    assert result["best_single"]["aupr"] == max(single.values())
    calibration = result["calibration"]
    assert calibration["noise_rate_low"] <= calibration["noise_rate"] <= calibration["noise_rate_high"]
    assert calibration["noise_rate_true"] == pytest.approx(0.2, abs=0.03)
    assert 0 <= calibration["expected_calibration_error"] <= 1
    assert str(root) not in result["command"]

    assert main(["--again", str(evidence), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["wrong_share"] == result["wrong_share"]
    for name, found in result["methods"].items():
        assert again["methods"][name]["aupr"] == pytest.approx(found["aupr"], abs=0.02)
    for name in ("noise_rate", "expected_calibration_error"):
        assert again["calibration"][name] == pytest.approx(calibration[name], abs=0.02)


def test_without_noise_there_is_nothing_to_find(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(root, "--noise", "none")) == 0
    shown = capsys.readouterr().out
    assert "really 0.0%" in shown
    assert "AUPR" not in shown


def test_what_a_run_knew_cannot_be_kept_is_said_before_training(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "file").write_text("")
    assert main(arguments(root, "--evidence", str(root / "file" / "evidence.npz"))) == 2
    message = capsys.readouterr().err
    assert "cannot be written" in message
    assert "epoch" not in message


def test_a_missing_data_set_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--data", str(tmp_path)], [], ["--again", str(tmp_path / "none.npz")]):
        assert main([*wrong, "--device", "cpu"]) == 2
        message = capsys.readouterr().err
        assert "Traceback" not in message
        assert len(message.splitlines()) == 1


def test_what_another_command_kept_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = known_run(seed=0)
    save_evidence(tmp_path / "audit.npz", {name: known[name] for name in ("training", "anchors", *TRUTH)})
    save_evidence(tmp_path / "half.npz", {name: known[name] for name in known if name != "anchors"})
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "half.npz").read_bytes()[:1000])
    wanted = {"audit.npz": "no array 'rows'", "half.npz": "no array 'anchors.index'"}
    wanted |= dict.fromkeys(("text.npz", "empty.npz", "cut.npz"), "not an .npz archive")
    for name, message in wanted.items():
        assert main(["--again", str(tmp_path / name), "--device", "cpu"]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 1


# --- noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["class-dependent", "symmetric"])
def test_noise_is_a_share_of_all_labels(noise: Any) -> None:
    assert make_noise(IMAGES, LABELS, ErrorsSettings(data="", noise=noise, rate=0.2)).is_wrong.sum() == 100


def test_no_noise_leaves_labels_alone() -> None:
    found = make_noise(IMAGES, LABELS, ErrorsSettings(data="", noise="none"))
    assert np.array_equal(found.labels, LABELS)
    assert found.labels is not LABELS
    assert not found.is_wrong.any()


def test_noise_by_a_matrix_in_a_file(tmp_path: Path) -> None:
    matrix = np.eye(10)
    matrix[[3, 5], 3] = 0.5
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps({"matrix": matrix.tolist()}))
    found = make_noise(IMAGES, LABELS, ErrorsSettings(data="", noise="matrix", matrix=str(path)))
    assert found.is_wrong.sum() == 25
    for text in ("{}", "[]", "not json", '{"matrix": "x"}', '{"matrix": [[1], [1, 2]]}'):
        path.write_text(text)
        with pytest.raises(SettingError, match=r"matrix\.json"):
            make_noise(IMAGES, LABELS, ErrorsSettings(data="", noise="matrix", matrix=str(path)))


def test_a_matrix_that_is_drawn_has_the_rate_and_the_zeros() -> None:
    def made(seed: int) -> Any:
        settings = ErrorsSettings(data="", noise="matrix", rate=0.7, sparsity=0.6, seed=seed)
        return make_noise(IMAGES, LABELS, settings)

    assert made(0).is_wrong.mean() == pytest.approx(0.7, abs=0.05)
    pairs = [{*zip(LABELS[w], given[w], strict=True)} for given, w in (made(0), made(1))]
    assert not np.array_equal(made(0).labels, made(1).labels)
    assert len(pairs[0] | pairs[1]) <= 0.4 * 90  # the matrix is that of any other seed


def test_noise_that_depends_on_the_image() -> None:
    settings = ErrorsSettings(data="", noise="instance", rate=0.3)
    found = make_noise(IMAGES, LABELS, settings)
    assert found.is_wrong.mean() == pytest.approx(0.3, abs=0.06)
    assert not np.array_equal(make_noise(IMAGES.flip(0), LABELS, settings).labels, found.labels)


def test_some_wrong_labels_are_put_right_again() -> None:
    all_of_them = make_noise(IMAGES, LABELS, ErrorsSettings(data="", noise="symmetric", rate=0.4))
    some = make_noise(IMAGES, LABELS, ErrorsSettings(data="", noise="symmetric", rate=0.4, spared=0.5))
    assert some.is_wrong.sum() == pytest.approx(100, abs=25)
    assert np.array_equal(some.labels, np.where(some.is_wrong, all_of_them.labels, LABELS))


def test_human_labels_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "human.npz"
    human = LABELS.copy()
    human[::7] = (human[::7] + 1) % 10
    np.savez(path, worse=np.concatenate([human, human]), short=human[:10], high=human + 5)

    def made(key: str) -> Any:
        return make_noise(IMAGES, LABELS, ErrorsSettings(data="", noise="human", human=f"{path}:{key}"))

    assert np.array_equal(made("worse").labels, human)
    assert np.array_equal(np.flatnonzero(made("worse").is_wrong), np.arange(0, 500, 7))
    with pytest.raises(SettingError, match="worse, short"):
        made("other")
    with pytest.raises(SettingError, match="10 labels for 500"):
        made("short")
    with pytest.raises(SettingError, match="0 to 9"):
        made("high")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "--data"),
        ({"data": "", "spared": 1.5}, "spared"),
        ({"data": "", "noise": "human"}, "--human"),
        ({"data": "", "noise": "human", "human": "labels.npz"}, "FILE.npz:KEY"),
        ({"data": "", "opinion": "labels.npz"}, "FILE.npz:KEY"),
    ],
)
def test_settings_are_checked_when_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ErrorsSettings(**changes)


# --- the figures ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 200))
def test_the_calibration_error_by_its_definition(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    p, outcome = random.random(count), random.random(count) < 0.3
    p[0] = 1.0
    expected = 0.0
    for low in range(BINS):
        inside = (p >= low / BINS) & ((p < (low + 1) / BINS) | (low == BINS - 1))
        if inside.any():
            expected += inside.mean() * abs(p[inside].mean() - outcome[inside].mean())
    assert expected_calibration_error(p, outcome) == pytest.approx(expected, abs=1e-9)


def made_up(count: int, first: int, wrong: np.ndarray[Any, Any], true: np.ndarray[Any, Any]) -> Evidence:
    """Examples whose signals know the truth."""
    random = np.random.default_rng(first)
    suspicious = np.where(wrong, 1.0, -1.0) + 0.3 * random.normal(size=count)
    p = np.full((count, 10), 0.01)
    p[np.arange(count), true] = 0.91
    given = np.where(wrong, (true + 1) % 10, true)
    groups = np.where(np.eye(10)[true] > 0, suspicious[:, None], -1.0)
    signals = (suspicious, -suspicious, -suspicious, suspicious)
    return Evidence(first + np.arange(count), given, *signals, Rows(groups), Rows(p))


def known_run(seed: int) -> dict[str, Any]:
    """What a run of 2,000 training and 400 held-out examples knew."""
    random = np.random.default_rng(seed)
    true, wrong = np.arange(2400) % 10, random.random(2400) < 0.2
    return {
        "training": made_up(2000, 0, wrong[:2000], true[:2000]),
        "anchors": made_up(400, 2000, wrong[2000:], true[2000:]),
        "structure": 0.5,
        "true": true,
        "given": np.where(wrong, (true + 1) % 10, true),
        "rows": np.arange(2000),
        "epochs": 4,
        "first_percent": np.array([0.3, 0.96]),
        **{f"signal_{name}": random.random(2000) for name in ("loss", "margin", "prob_margin")},
    }


def test_figures_of_a_run_whose_truth_is_known() -> None:
    known = known_run(seed=0)
    wrong = known["given"] != known["true"]
    found = evaluate(known)
    assert found["wrong_share"] == pytest.approx(wrong[:2000].mean())
    assert found["methods"]["label_errors"]["aupr"] > 0.99
    assert found["methods"]["loss"]["aupr"] < 0.3
    assert found["best_single"]["name"] == "influence"
    assert found["found_at_share"] == 0.5
    calibration = found["calibration"]
    assert calibration["noise_rate_true"] == pytest.approx(wrong.mean())
    assert calibration["suggested_right"] == 1
    assert calibration["top_100_real"] == 1
    assert calibration["recall"] > 0.8
    never = evaluate({**known, "first_percent": np.array([0.3, 0.4])})
    assert never["found_at_share"] is None


def test_people_contest_right_labels_of_the_list() -> None:
    known = known_run(seed=0)
    true, given, training = known["true"], known["given"], known["training"]
    right = np.flatnonzero(given[:2000] == true[:2000])[:40]
    strange = {name: getattr(training, name).copy() for name in ("influence", "margin", "logit_margin")}
    for name, values in strange.items():
        values[right] = 3.0 if name == "influence" else -1.5
    p, groups = training.classes.mean.copy(), training.groups.mean.copy()
    p[right], groups[right] = 0.01, -1.0
    suggested = (true[right] + 3) % 10
    p[right, suggested], groups[right, suggested] = 0.91, 1.5
    run = {**known, "training": replace(training, **strange, classes=Rows(p), groups=Rows(groups))}
    people = true.copy()
    people[right[:10]] = suggested[:10]
    people[right[10:30]] = (true[right[10:30]] + 5) % 10
    found = evaluate(run, people=people)
    opinion, calibration = found["opinion"], found["calibration"]
    assert opinion["selected"] == calibration["selected"]
    assert opinion["right"] == round(calibration["false_discovery_rate"] * calibration["selected"]) >= 40
    assert (opinion["contested"], opinion["agreed"]) == (30, 10)
    assert opinion["share"] == pytest.approx(30 / (given == true).sum())
    assert "opinion" not in evaluate(run)


def test_labels_that_earlier_releases_made_wrong_on_purpose_are_not_judged(tmp_path: Path) -> None:
    known = known_run(seed=1)
    planted = np.flatnonzero(known["given"][:2000] == known["true"][:2000])[::20]
    save_evidence(tmp_path / "run.npz", {**known, "decoys": planted})
    found = load_evidence(tmp_path / "run.npz", "rows")
    np.testing.assert_array_equal(found["training"].index, np.setdiff1d(np.arange(2000), planted))
    assert "decoys" not in found


def test_a_run_that_learned_nothing_leaves_the_rate_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = known_run(seed=2)
    guessed = np.random.default_rng(2).dirichlet(np.ones(10), 400)
    for anchors, told in ((known["anchors"], True), (replace(known["anchors"], classes=Rows(guessed)), False)):
        save_evidence(tmp_path / "known.npz", {**known, "anchors": anchors})
        assert main(["--again", str(tmp_path / "known.npz"), "--out", str(tmp_path / "out.json")]) == 0
        assert ("too little" in capsys.readouterr().out) is not told
        stated = json.loads((tmp_path / "out.json").read_text())["calibration"]
        assert stated["noise_rate_low"] <= stated["noise_rate_true"] <= stated["noise_rate_high"]
        assert stated["known"] == told
        assert (stated["noise_rate_low"] == 0) is (stated["selected"] == 0) is not told
