"""`sgoif-bench ood`: what it writes, what it refuses, and that nothing finished is ever computed again."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ood_stand_ins import STAND_IN, bench, calls, results
from torch import Tensor

from sgoif.settings import Settings
from sgoif_bench.labels.problem import Problem
from sgoif_bench.methods import resolve
from sgoif_bench.ood import online, runner
from sgoif_bench.ood.detector import Detector
from sgoif_bench.ood.detectors.odin import ODIN
from sgoif_bench.ood.grid import KIND
from sgoif_bench.ood.registry import ABLATIONS, METHODS, choose, in_order, new_detector, title_of
from sgoif_bench.ood.run import main
from sgoif_bench.ood.settings import OodSettings
from sgoif_bench.ood.trained.method import Scorer

pytestmark = pytest.mark.long


def figures() -> dict[str, Any]:
    """What does not depend on the pace of the machine."""
    return {name: (line["ood"], line["metrics"]["accuracy"]) for name, line in results().items()}


# the registry


@pytest.mark.parametrize("name", METHODS)
def test_every_registered_method_can_be_made(name: str) -> None:
    method = METHODS[name]
    if method.family == ABLATIONS:
        whole = Settings.make(dict(online.engine_of("online")))
        assert Settings.make(dict(online.engine_of(name))) != whole or name in ("online", "online-weighted")
        return
    found = resolve(method.run)
    if method.trains:
        assert callable(found)
        assert found.__name__ == name.replace("-", "_")
    else:
        detector = new_detector(name, 3)
        assert isinstance(detector, Detector)
        if method.percentile is None:
            assert (detector.name, detector.title) == (name, method.title)
        else:
            assert f"{detector.name}-{vars(detector)['_percentile']}" == name
        assert getattr(detector, "seed", 3) == 3


def test_a_detector_that_steps_in_pixels_is_given_their_spread() -> None:
    assert vars(new_detector("odin", 3, (0.25, 0.5)))["spread"] == (0.25, 0.5)


def test_groups_and_names_can_be_mixed() -> None:
    assert set(choose("all")) == set(choose("post-hoc")) | set(choose("trained"))
    assert not set(choose("post-hoc")) & set(choose("trained"))
    assert set(choose("ablations")) | set(choose("sweeps")) == set(METHODS) - set(choose("all"))
    assert choose("sweeps")[::13] == ["ash-65", "scale-95"]
    assert choose("ablations")[0] == "online"
    assert choose("udg, msp,trained")[0] == "msp"
    assert {"sentinel", "sentinel-ungated", "msp", "opengan"} <= set(choose("post-hoc"))
    assert [name for name in METHODS if METHODS[name].needs_outliers] == ["udg"]
    assert in_order(["knn", "unknown", "msp", "sentinel"]) == ["sentinel", "msp", "knn", "unknown"]
    assert title_of("mine") == "mine"
    assert all(method.title and method.paper for method in METHODS.values())


def test_help_names_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"or names: {', '.join(METHODS)}".replace(" ", "") in "".join(capsys.readouterr().out.split())


# from end to end


def test_odin_steps_in_pixels_when_it_is_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    divisors = []

    def divisor(self: ODIN, images: Tensor) -> Tensor:
        divisors.append(self.spread)
        return images.new_ones(())

    monkeypatch.setattr(ODIN, "_divisor", divisor)
    assert bench("--epochs", "1", methods="odin") == 0
    (spread,) = set(divisors)
    assert spread is not None
    assert 0.1 < spread[0] < 0.5


def test_two_detectors_on_a_network_that_learned(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--epochs", "4", methods="msp,knn") == 0
    streams = capsys.readouterr()
    found = results()
    assert set(found) == {"msp-0", "knn-0"}
    line = found["knn-0"]
    assert line["command"].startswith("sgoif-bench ood --data DATA --methods msp,knn")
    assert str(place) not in json.dumps(line)
    assert {"torch", "sgoif"} <= set(line["versions"])
    assert line["machine"]["device_type"] == "cpu"
    assert (line["set"], line["noise"], line["protocol"], line["seed"]) == ("mnist", "none", "house", 0)
    assert {"model": "small-cnn", "epochs": 4, "batch_size": 40}.items() <= line["recipe"].items()
    assert (line["classes"], line["examples"], line["wrong"], line["tested"]) == (10, 240, 0, 60)
    assert (line["family"], line["shared"], line["trainings"]) == ("post-hoc", True, 1.0)
    assert line["missing"] == ["cifar10"]
    assert line["fpr95_positive"] == "ood"
    assert line["memory"]["peak_bytes"] > 2**20
    assert 0 < line["fit_seconds"] < line["seconds"]
    about = {name: (facts["group"], facts["images"], facts["source"]) for name, facts in line["ood"].items()}
    assert about == {
        "fashion-mnist": ("near", 40, "FashionMNIST/raw/t10k-images-idx3-ubyte"),
        "texture": ("far", 30, "dtd/images/"),
        "svhn": ("far", 50, "ood/svhn.npz"),
    }
    metrics = line["metrics"]
    assert metrics["near_auroc"] == line["ood"]["fashion-mnist"]["auroc"]
    assert metrics["far_auroc"] == pytest.approx((line["ood"]["texture"]["auroc"] + line["ood"]["svhn"]["auroc"]) / 2)
    assert metrics["accuracy"] > 0.5, "four epochs are far better than chance"
    assert line["metrics"]["accuracy"] == found["msp-0"]["metrics"]["accuracy"]
    assert metrics["far_auroc"] > 0.75, "noise is far away"
    assert metrics["time_ratio"] > 0.5
    assert metrics["ms_per_image"] > 0
    assert "**mnist, house protocol, AUROC**" in streams.out
    assert "| KNN |" in streams.out
    assert "left out: CIFAR-10 (cifar-10-batches-bin/test_batch.bin, ood/cifar10.npz" in streams.err
    assert "mean AUROC msp" in streams.err


def test_what_is_finished_is_not_computed_again(stand_ins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(methods="guessing") == 0
    assert calls() == ["guessing 0"]
    assert bench("--seeds", "0,1") == 0
    assert calls() == ["brightness 0 240", "brightness 1 240", "guessing 1"]
    before = Path("r.jsonl").read_bytes()
    capsys.readouterr()
    assert bench("--seeds", "1,0", "--json") == 0
    assert calls() == []
    assert Path("r.jsonl").read_bytes() == before
    streams = capsys.readouterr()
    assert "4 results asked for, 4 already" in streams.err
    printed = json.loads(streams.out)
    assert len(printed["results"]) == 4
    assert printed["failed"] == []
    assert bench("--learning-rate", "0.3", methods="guessing") == 0
    assert bench("--noise", "symmetric-20", methods="guessing") == 0
    assert bench("--protocol", "v1", methods="guessing") == 0
    assert calls() == ["guessing 0"] * 3, "another recipe, noise or protocol is another cell"


def test_an_interrupted_run_goes_on_where_it_stopped(
    stand_ins: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(problem: Problem, outliers: Tensor | None, tell: Any) -> Scorer:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[STAND_IN], "guessing", interrupted)
        assert bench("--seeds", "0,1") == 130
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "1 of 4 trainings are kept; the same command goes on from there" in streams.err
    assert calls() == ["brightness 0 240"]
    assert bench("--seeds", "0,1") == 0
    assert calls() == ["guessing 0", "brightness 1 240", "guessing 1"]


def test_a_set_that_comes_later_is_made_up_for(stand_ins: Path, whole_root: Path) -> None:
    (stand_ins / "data").unlink()
    shutil.copytree(whole_root, "data")
    shutil.move("data/ood/svhn.npz", "svhn.npz")
    assert bench(methods="guessing") == 0
    before = results()["guessing-0"]
    assert before["missing"] == ["cifar10", "svhn"]
    shutil.move("svhn.npz", "data/ood/svhn.npz")
    assert bench(methods="guessing") == 0
    assert calls() == ["guessing 0"] * 2
    after = results()["guessing-0"]
    assert after["missing"] == ["cifar10"]
    assert {name: after["ood"][name] for name in before["ood"]} == before["ood"]
    Path("data/ood/svhn.npz").unlink()
    assert bench(methods="guessing") == 0
    assert calls() == [], "what was measured stays"


def test_a_runner_in_another_process_finds_the_same(stand_ins: Path) -> None:
    assert bench(methods="brightness") == 0
    settings = OodSettings(
        data="data", sets="mnist", protocol="house", methods="brightness", model="small-cnn", epochs=2, batch_size=40
    )
    (job,) = settings.jobs()
    ours = runner.Runner(settings, "a command", torch.device("cpu"))
    ours.there(settings.trainings())
    sent, work = pickle.loads(pickle.dumps((ours.moved(torch.device("cpu")), job)))
    (line,) = sent.do(work).lines
    assert KIND.key_of(line) == KIND.key_of(results()["brightness-0"])
    assert line["ood"] == results()["brightness-0"]["ood"]


@pytest.mark.slow
def test_processes_find_the_same(place: Path) -> None:
    assert bench("--seeds", "0,1", methods="msp") == 0
    alone = figures()
    Path("r.jsonl").unlink()
    assert bench("--seeds", "0,1", "--workers", "2", methods="msp") == 0
    assert figures() == alone
