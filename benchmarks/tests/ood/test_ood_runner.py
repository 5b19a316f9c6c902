"""Runs of `sgoif-bench ood`: shared batches, kept networks, failures, wrong settings, and what time is paid for."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ood_roots import noise, picture, write, write_npz
from ood_stand_ins import OUTLIERS, STAND_IN, Brightness, Broken, bench, calls, guessing, results
from torch import Tensor, nn

from sgoif.errors import SettingError
from sgoif.tasks.ood.network import Network, Seen
from sgoif_bench.journal import Journal
from sgoif_bench.labels import watching
from sgoif_bench.labels.problem import Problem
from sgoif_bench.ood import online, runner
from sgoif_bench.ood.detector import Bank
from sgoif_bench.ood.evaluation import MOST_ROUNDS, WARM, Panel, exactly
from sgoif_bench.ood.grid import KIND
from sgoif_bench.ood.measures import auroc
from sgoif_bench.ood.registry import METHODS
from sgoif_bench.ood.run import main
from sgoif_bench.ood.trained import procedural
from sgoif_bench.ood.trained.method import Scorer

pytestmark = pytest.mark.long

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
    lines = [line for line in KIND.read([Path("r.jsonl")]) if line["recipe"].get("test_limit") == 50]
    assert {line["method"] for line in lines} == {"brightness", "lazy"}
    assert all(line["tested"] == 50 and line["ood"]["fashion-mnist"]["images"] == 40 for line in lines)
    assert lines[0]["seconds"] - lines[0]["fit_seconds"] >= before["seconds"] - before["fit_seconds"] - 1


def test_weights_take_the_place_of_training(stand_ins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--networks", "nets", methods="brightness") == 0
    (file,) = Path("nets").iterdir()
    torch.save(torch.load(file, weights_only=True)["state"], "w.pt")
    assert bench("--weights", "w.pt", methods="brightness") == 0
    given = next(line for line in KIND.read([Path("r.jsonl")]) if line["inputs"])
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
