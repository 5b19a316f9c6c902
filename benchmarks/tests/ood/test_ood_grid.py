"""`sgoif-bench ood`: what it writes, what it refuses, and that nothing finished is ever computed again."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ood_roots import noise, picture, write, write_npz, write_root
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.settings import Settings
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.journal import Journal
from sgoif_bench.labels import watching
from sgoif_bench.labels.problem import Problem
from sgoif_bench.methods import resolve
from sgoif_bench.ood import online, runner
from sgoif_bench.ood.detector import Bank, Detector
from sgoif_bench.ood.evaluation import MOST_ROUNDS, WARM, Panel, exactly
from sgoif_bench.ood.grid import KIND, read_results
from sgoif_bench.ood.measures import auroc
from sgoif_bench.ood.registry import ABLATIONS, METHODS, Method, choose, in_order, new_detector, title_of
from sgoif_bench.ood.run import main
from sgoif_bench.ood.settings import OodSettings
from sgoif_bench.ood.trained import procedural
from sgoif_bench.ood.trained.method import Scorer

SMALL = ("--sets", "mnist", "--protocol", "house", "--model", "small-cnn", "--epochs", "2", "--batch-size", "40")
CALLS: list[str] = []
OUTLIERS: list[Tensor | None] = []
STAND_IN = "test_ood_grid"


class Brightness(Detector):
    """Bright images are out of distribution. Draws once, so that its seed can be seen."""

    name, title, paper = "brightness", "Brightness", "a paper"

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, bank: Bank) -> Brightness:
        CALLS.append(f"brightness {self.seed} {len(bank)}")
        self.drawn = float(torch.rand(()))
        return self

    def score(self, seen: Seen) -> Tensor:
        return seen.images.flatten(1).mean(dim=1) + 1e-6 * self.drawn


class Lazy(Detector):
    """Draws while it is fitted, and needs no data."""

    name, title, paper = "lazy", "Lazy", "a paper"

    def fit(self, bank: Bank) -> Lazy:
        CALLS.append("lazy")
        torch.rand(17)
        return self

    def score(self, seen: Seen) -> Tensor:
        return torch.zeros(len(seen))


class Broken(Detector):
    """Cannot score noise."""

    name, title, paper = "broken", "Broken", "a paper"

    def score(self, seen: Seen) -> Tensor:
        scores = -seen.logits.max(dim=1).values
        return scores * float("nan") if seen.images.mean() > 1 else scores


def darkness(problem: Problem, outliers: Tensor | None, tell: Any) -> Scorer:
    """Trains nothing and classifies nothing."""
    CALLS.append(f"darkness {problem.seed}")
    OUTLIERS.append(outliers)
    return Scorer(lambda x: -x.flatten(1).mean(dim=1), trainings=2.5, details={"note": 1})


def guessing(problem: Problem, outliers: Tensor | None, tell: Any) -> Scorer:
    """Always answers the first class."""
    CALLS.append(f"guessing {problem.seed}")
    model = nn.Sequential(nn.Flatten(), nn.Linear(problem.images[0].numel(), problem.classes))
    nn.init.zeros_(model[1].weight)
    return Scorer(lambda x: x.flatten(1).std(dim=1), classifier=model)


STAND_INS = [
    Method("brightness", f"{STAND_IN}:Brightness", "Brightness", "a paper"),
    Method("lazy", f"{STAND_IN}:Lazy", "Lazy", "a paper"),
    Method("broken", f"{STAND_IN}:Broken", "Broken", "a paper"),
    Method("darkness", f"{STAND_IN}:darkness", "Darkness", "a paper", trains=True, needs_outliers=True),
    Method("guessing", f"{STAND_IN}:guessing", "Guessing", "a paper", trains=True),
]


@pytest.fixture(scope="session")
def whole_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("data"))


@pytest.fixture
def place(tmp_path: Path, whole_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the data in `data`."""
    (tmp_path / "data").symlink_to(whole_root)
    monkeypatch.chdir(tmp_path)
    CALLS.clear()
    OUTLIERS.clear()
    return tmp_path


@pytest.fixture
def stand_ins(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same with the stand-ins in place of the real methods, and small batches, which are timed sooner."""
    monkeypatch.setattr(runner, "BATCH", 30)
    methods = dict(METHODS)
    METHODS.clear()
    METHODS.update({method.name: method for method in STAND_INS})
    yield place
    METHODS.clear()
    METHODS.update(methods)


def bench(*arguments: str, methods: str = "brightness,guessing", data: str = "data") -> int:
    """The command with few epochs; what is given again counts."""
    given = ["--data", data, "--methods", methods, "--out", "r.jsonl", *SMALL, *arguments]
    return main(given, program="sgoif-bench ood")


def calls() -> list[str]:
    """What was run since this was last asked."""
    found = list(CALLS)
    CALLS.clear()
    return found


def results() -> dict[str, Any]:
    return {f"{line['method']}-{line['seed']}": line for line in read_results([Path("r.jsonl")])}


def figures() -> dict[str, Any]:
    """What does not depend on the pace of the machine."""
    return {name: (line["ood"], line["metrics"]["accuracy"]) for name, line in results().items()}


# the registry


@pytest.mark.parametrize("name", METHODS)
def test_every_registered_method_can_be_made(name: str) -> None:
    method = METHODS[name]
    if method.family == ABLATIONS:
        assert Settings.make(dict(online.engine_of(name))) != Settings() or name in ("online", "online-weighted")
        return
    found = resolve(method.run)
    if method.trains:
        assert callable(found)
        assert found.__name__ == name
    else:
        detector = new_detector(name, 3)
        assert isinstance(detector, Detector)
        assert (detector.name, detector.title) == (name, method.title)
        assert getattr(detector, "seed", 3) == 3


def test_groups_and_names_can_be_mixed() -> None:
    assert set(choose("all")) == set(choose("post-hoc")) | set(choose("trained"))
    assert not set(choose("post-hoc")) & set(choose("trained"))
    assert set(choose("ablations")) == set(METHODS) - set(choose("all"))
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


# one network for all


def test_every_batch_is_seen_once_whatever_the_number_of_detectors(
    stand_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    see = Network.see
    monkeypatch.setattr(Network, "see", lambda self, x, **more: seen.append(len(x)) or see(self, x, **more))
    monkeypatch.setattr(runner, "BATCH", 25)
    nothing = {"ms_per_image": 1.0, "time_ratio": 1.0}  # the stopwatch looks at a batch of its own for every detector
    monkeypatch.setattr(Panel, "cost", lambda self, *given: dict.fromkeys(self.score, nothing))
    trained: list[int] = []
    fit = Problem.fit
    monkeypatch.setattr(Problem, "fit", lambda self, *given, **more: trained.append(1) or fit(self, *given, **more))
    counts = []
    for methods in ("brightness", "brightness,lazy"):
        assert bench("--seeds", str(len(counts)), methods=methods) == 0
        counts.append(len(seen))
        seen.clear()
    assert counts[0] == counts[1]
    assert len(trained) == 2


def test_scores_are_of_images_with_the_in_distribution_statistics(stand_ins: Path) -> None:
    assert bench(methods="brightness") == 0
    line = results()["brightness-0"]
    from sgoif_bench.labels.datasets import load

    train, test = load("mnist", "data").images, load("mnist", "data", train=False).images
    mean, spread = train.float().mean() / 255, train.float().std() / 255
    inside = ((test.float() / 255 - mean) / spread).flatten(1).mean(dim=1)
    with np.load("data/ood/svhn.npz") as archive:
        from PIL import Image

        grey = [
            Image.fromarray(image).convert("L").resize((12, 12), Image.Resampling.BILINEAR) for image in archive["x"]
        ]
    outside = ((torch.from_numpy(np.stack([np.asarray(image) for image in grey])) / 255 - mean) / spread).mean(
        dim=(1, 2)
    )
    assert line["ood"]["svhn"]["auroc"] == pytest.approx(auroc(inside, outside), abs=1e-3)


def test_what_a_detector_draws_does_not_depend_on_the_others(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []
    fit = Brightness.fit

    def remembered(self: Brightness, bank: Bank) -> Brightness:
        drawn.append(fit(self, bank).drawn)
        return self

    monkeypatch.setattr(Brightness, "fit", remembered)
    listed = dict(METHODS)
    METHODS.clear()
    METHODS.update({name: listed[name] for name in ("lazy", "brightness")})
    assert bench(methods="brightness") == bench("--learning-rate", "0.3", methods="brightness,lazy") == 0
    assert calls().index("lazy") == 1
    assert drawn[0] == drawn[1]


def test_a_detector_that_fails_is_told_and_does_not_stop_the_others(
    stand_ins: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench("--json", methods="broken,lazy,brightness") == 1
    streams = capsys.readouterr()
    assert "FAILED mnist broken seed 0: 30 of 30 scores of texture are not numbers" in streams.err
    (failure,) = json.loads(streams.out)["failed"]
    assert (failure["method"], failure["protocol"]) == ("broken", "house")
    assert set(results()) == {"lazy-0", "brightness-0"}
    assert results()["lazy-0"]["ood"]["svhn"]["auroc"] == 0.5
    calls()
    monkeypatch.setattr(Broken, "score", Brightness.score)
    monkeypatch.setattr(Broken, "drawn", 0.0, raising=False)
    assert bench(methods="broken,lazy,brightness") == 0
    assert calls() == []
    assert set(results()) == {"lazy-0", "brightness-0", "broken-0"}


def test_networks_are_kept_for_further_detectors(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench("--networks", "nets", methods="brightness") == 0
    (file,) = Path("nets").iterdir()
    assert re.fullmatch(r"mnist-none-\w{12}-seed0\.pt", file.name)
    before = results()["brightness-0"]

    def never(*given: Any, **more: Any) -> None:
        raise AssertionError("it was trained already")

    monkeypatch.setattr(Problem, "fit", never)
    assert bench("--networks", "nets", "--test-limit", "50", methods="brightness,lazy") == 0
    lines = [line for line in read_results([Path("r.jsonl")]) if line["recipe"].get("test_limit") == 50]
    assert {line["method"] for line in lines} == {"brightness", "lazy"}
    assert all(line["tested"] == 50 and line["ood"]["fashion-mnist"]["images"] == 40 for line in lines)
    assert lines[0]["seconds"] - lines[0]["fit_seconds"] >= before["seconds"] - before["fit_seconds"] - 1


def test_weights_take_the_place_of_training(stand_ins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--networks", "nets", methods="brightness") == 0
    (file,) = Path("nets").iterdir()
    torch.save(torch.load(file, weights_only=True)["state"], "w.pt")
    assert bench("--weights", "w.pt", methods="brightness") == 0
    given = next(line for line in read_results([Path("r.jsonl")]) if line["inputs"])
    assert given["inputs"].startswith("weights ")
    assert given["trainings"] == 0
    assert given["metrics"]["accuracy"] == results()["brightness-0"]["metrics"]["accuracy"]
    capsys.readouterr()
    assert bench("--weights", "w.pt", "--model", "resnet9", methods="brightness") == 2
    assert "do not fit the network" in capsys.readouterr().err


# methods that train


def test_a_method_that_trains_and_one_that_does_not_classify(stand_ins: Path) -> None:
    write_npz(Path("o.npz"), noise(9, 7, 32, 32, 3))
    assert bench("--outliers", "o.npz", methods="darkness,guessing") == 0
    dark, guess = results()["darkness-0"], results()["guessing-0"]
    assert dark["metrics"]["accuracy"] is None
    assert guess["metrics"]["accuracy"] == pytest.approx(0.1)
    assert (dark["trainings"], dark["details"], dark["shared"]) == (2.5, {"note": 1}, False)
    assert dark["ood"]["svhn"]["auroc"] < 0.1
    assert dark["inputs"].startswith("outliers ")
    assert guess["inputs"] == ""
    assert dark["recipe_id"] == guess["recipe_id"], "they can stand in one table"
    (outliers,) = OUTLIERS
    assert outliers is not None
    assert (outliers.dtype, outliers.shape) == (torch.uint8, (7, 1, 12, 12))
    calls()
    write_npz(Path("o.npz"), noise(10, 7, 32, 32, 3))
    assert bench("--outliers", "o.npz", methods="darkness,guessing") == 0
    assert calls() == ["darkness 0"], "other outliers, another result"


def test_without_outliers_a_method_that_needs_them_is_left_out(
    stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(methods="darkness,guessing") == 0
    assert "darkness is left out" in capsys.readouterr().err
    assert set(results()) == {"guessing-0"}
    assert bench(methods="darkness") == 2
    assert "--outliers" in capsys.readouterr().err


def test_pictures_are_generated_for_who_has_no_outliers(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = procedural.pictures(4)
    monkeypatch.setattr(procedural, "pictures", lambda: few.repeat(procedural.COUNT // 4, 1, 1, 1))
    assert bench("--outliers", "procedural", methods="darkness") == 0
    assert results()["darkness-0"]["inputs"] == "outliers procedural-10000"
    (outliers,) = OUTLIERS
    assert outliers is not None
    assert (outliers.dtype, outliers.shape) == (torch.uint8, (10_000, 1, 12, 12))


# a training that monitors watch


def test_ablations_look_at_one_network_and_differ_in_the_engine(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "BATCH", 30)
    gates: list[str] = []

    class Spied(watching.InfluenceMonitor):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            gates.append(self.settings.gate)

    made, weighted = online.Sentinel.from_monitor, []
    monkeypatch.setattr(watching, "InfluenceMonitor", Spied)
    monkeypatch.setattr(
        online.Sentinel, "from_monitor", lambda *given, **how: weighted.append(how["weighted"]) or made(*given, **how)
    )
    alike, whole = "online", "online-weighted"
    ungated, averaged = "online-without-gate", "online-moving-average-gate"
    noisy = ("--noise", "symmetric-40", "--epochs", "12")
    assert bench(*noisy, methods=",".join((alike, whole, ungated, averaged))) == 0
    lines = {name: results()[f"{name}-0"] for name in (alike, whole, ungated, averaged)}
    assert {(line["family"], line["shared"], line["inputs"]) for line in lines.values()} == {("ablations", True, "")}
    assert len({line["metrics"]["accuracy"] for line in lines.values()}) == 1
    assert lines[whole]["trainings"] == pytest.approx(0.8)
    assert lines[ungated]["details"]["trust"] == 1
    assert 0 < lines[whole]["details"]["trust"] == lines[averaged]["details"]["trust"] < 1
    assert lines[alike]["details"]["trust"] == lines[whole]["details"]["trust"]
    assert weighted == [False, True, True, True]
    assert gates == ["stability", "stability", "none", "moving-average"]


def test_a_watched_network_is_scored_in_evaluation_mode(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[tuple[nn.Module, dict[str, Tensor]]] = []
    real = online.watched_sentinels

    def remembered(problem: Problem, names: Sequence[str], tell: Any) -> dict[str, online.Sentinel]:
        sentinels = real(problem, names, tell)
        model = sentinels["online"].network.model
        watched.append((model, {name: value.clone() for name, value in model.state_dict().items()}))
        return sentinels

    monkeypatch.setattr(online, "watched_sentinels", remembered)
    assert bench(methods="online") == 0
    ((model, before),) = watched
    assert any(name.endswith("running_mean") for name in before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_wrong_labels_to_train_with(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[np.ndarray] = []
    real = guessing

    def remembered(problem: Problem, outliers: Tensor | None, tell: Any) -> Scorer:
        given.append(problem.labels)
        return real(problem, outliers, tell)

    monkeypatch.setattr(sys.modules[STAND_IN], "guessing", remembered)
    assert bench("--noise", "symmetric-20", methods="guessing") == 0
    line = results()["guessing-0"]
    assert line["noise"] == "symmetric-20"
    assert line["wrong"] == 48
    assert int((given[0] != np.arange(240) % 10).sum()) == 48


# mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sets", "cifar11"], "no in-distribution set 'cifar11'; choose from mnist, cifar10"),
        (["--sets", "imagenet"], "house has no in-distribution set 'imagenet'; choose from mnist, cifar10"),
        (["--sets", ","], "--sets is empty"),
        (["--methods", "brightness,odn"], "odn; choose from brightness, lazy.*groups all, post-hoc, trained"),
        (["--protocol", "v2"], r"no protocol 'v2'; choose from v1\.5, v1, house"),
        (["--noise", "symetric-20"], "symetric-20.*class-dependent-RATE"),
        (["--noise", "human-worst"], "--human FILE"),
        (["--seeds", "a"], "--seeds.*'a'"),
        (["--model", "resnet1"], "resnet1.*resnet18.*lenet, resnet50"),
        (["--model", "lenet"], "LeNet is for images of 28×28 or 32×32 pixels, not 12×12"),
        (["--epochs", "0"], "epochs = 0"),
        (["--limit", "5"], "limit = 5"),
        (["--test-limit", "1"], "test_limit = 1"),
        (["--workers", "0"], "workers"),
        (["--data", "nowhere"], "nowhere.*not a folder"),
        (["--data", "empty"], r"mnist \(train\) was not found.*ROOT/MNIST/raw"),
        (["--data", "lonely"], r"no out-of-distribution set for mnist.*Fashion-MNIST \(FashionMNIST/raw.*SVHN"),
        (["--sets", "cifar10"], r"cifar10 \(train\) was not found.*cifar-10-batches-bin"),
        (["--outliers", "nowhere"], "nowhere is neither a folder"),
        (["--outliers", "data/ood/svhn.npz"], r"is a test set \(svhn\).*must not train with it"),
        (["--outliers", "copy.npz"], r"is a test set \(svhn\).*must not train with it"),
        (["--outliers", "data/dtd/images/a"], r"is a test set \(texture\) or holds images of it"),
        (["--weights", "none.pt"], "none.pt: no such file"),
        (["--out", "empty"], "cannot be written"),
        (["--out", "foreign.jsonl"], "line 1 of foreign.jsonl is not a result of `sgoif-bench ood`"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(
    arguments: list[str], message: str, stand_ins: Path, whole_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    Path("empty").mkdir()
    Path("lonely").mkdir()
    Path("lonely/MNIST").symlink_to(whole_root / "MNIST")
    write(Path("foreign.jsonl"), '{"set": "mnist", "metrics": {}, "recipe": {}}\n')
    write(Path("copy.npz"), Path("data/ood/svhn.npz").read_bytes())
    assert bench(*arguments, methods="all" if "--outliers" in arguments else "brightness,guessing") == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "Traceback" not in streams.err
    assert re.search(message, streams.err), streams.err
    assert calls() == []


def test_no_data_at_all(stand_ins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--methods", "lazy", "--out", "r.jsonl", "--sets", "mnist"]) == 2
    assert "--data ROOT is needed" in capsys.readouterr().err


def test_images_that_cannot_be_read_are_counted(stand_ins: Path, whole_root: Path) -> None:
    (stand_ins / "data").unlink()
    Path("data").mkdir()
    Path("data/MNIST").symlink_to(whole_root / "MNIST")
    picture(Path("data/texture/a.png"), noise(1, 20, 20))
    write(Path("data/texture/b.png"), "broken")
    assert bench(methods="lazy") == 0
    facts = results()["lazy-0"]["ood"]["texture"]
    assert (facts["images"], facts["unreadable"]) == (1, 1)


def test_a_second_writer_is_kept_out(stand_ins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(Path("r.jsonl"), KIND):
        assert bench(methods="lazy") == 2
    assert "another run is writing" in capsys.readouterr().err


# what a score costs


def test_cost_is_that_of_looking_and_scoring_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    order: list[str] = []

    def spending(name: str, seconds: float, result: Any) -> Callable[[Any], Any]:
        def work(x: Any) -> Any:
            clock[0] += seconds
            order.append(name)
            return result

        return work

    monkeypatch.setattr("sgoif_bench.ood.evaluation.time.perf_counter", lambda: clock[0])
    plain = nn.Identity()
    monkeypatch.setattr(plain, "forward", spending("plain", 2.0, torch.zeros(10)))
    scores = {"quick": spending("quick", 1.0, None), "slow": spending("slow", 7.0, None)}
    panel: Panel[str] = Panel(spending("see", 3.0, "seen"), scores)
    found = panel.cost(plain, torch.zeros(10, 1), rounds=3)
    assert found["quick"] == pytest.approx({"ms_per_image": 400.0, "time_ratio": 2.0})
    assert found["slow"] == pytest.approx({"ms_per_image": 1000.0, "time_ratio": 5.0})
    assert order == ["plain", "see", "quick", "see", "slow"] * (WARM + 3), "the first rounds warm up"


def test_every_score_pays_for_its_own_pooling() -> None:
    looks: list[bool] = []

    def look(seen: Seen) -> Tensor:
        looks.append("pooled" in vars(seen))
        return seen.pooled[0].sum(dim=1)

    def see(x: Tensor) -> Seen:
        return Seen(x, torch.zeros(4, 2), torch.zeros(4, 3), (torch.zeros(4, 2, 5, 5),))

    Panel(see, {"one": look, "other": look}).cost(nn.Identity(), torch.zeros(4, 1))
    assert looks == [False] * 2 * (WARM + MOST_ROUNDS), "rounds that are soon over are many"


def test_images_are_repeated_to_fill_a_batch() -> None:
    assert exactly(torch.arange(3), 7).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_scores_of_the_wrong_shape_are_a_failure() -> None:
    panel: Panel[Tensor] = Panel(lambda x: x, {"bad": lambda x: x, "good": lambda x: x[:, 0]})
    found = panel.scores([torch.zeros(4, 2), torch.ones(3, 2)], "svhn")
    assert found["good"].tolist() == [0] * 4 + [1] * 3
    assert set(found) == {"good"}
    assert panel.failures["bad"] == "scores of shape (4, 2) came back for 4 images of svhn"
    with pytest.raises(SettingError, match="no image of svhn can be read"):
        panel.scores([], "svhn")
