"""Models: any image size, the user's own factory, weights from a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sgoif.audit.models import BUILT_IN, make_model, resolve
from sgoif.backbones.weights import head_entries, load_weights
from sgoif.errors import MissingExtraError, ModelError

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 9), (3, 31), (1, 32), (3, 50), (3, 64), (3, 130)])
def test_built_in_models_take_any_image(name: str, channels: int, size: int) -> None:
    model = make_model(name, channels, 5, size)
    logits = model(torch.randn(2, channels, size, size))
    assert logits.shape == (2, 5)
    logits.square().sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("name", BUILT_IN)
def test_large_images_do_not_cost_in_proportion(name: str) -> None:
    sizes: dict[int, int] = {}
    for image in (32, 128):
        model = make_model(name, 3, 4, image)
        layer = model.layer1
        assert isinstance(layer, nn.Module)
        layer.register_forward_hook(lambda _m, given, _o, image=image: sizes.update({image: given[0].shape[-1]}))
        model(torch.randn(1, 3, image, image))
    assert sizes[32] == sizes[128]


def test_auto_depends_on_the_device_and_unknown_names_are_refused() -> None:
    assert resolve("auto", CPU) == "resnet7-whitened"
    assert resolve("auto", torch.device("cuda")) == "resnet9"
    assert resolve("nets:make", CPU) == "nets:make"
    with pytest.raises(ModelError, match="resnet9-small"):
        resolve("resnet99", CPU)


@pytest.mark.parametrize("factory", ["tiny", "classes_only", "unnamed", "like_torchvision"])
def test_factories_are_called_the_way_they_are_written(factory: str) -> None:
    model = make_model(f"tiny_nets:{factory}", 3, 6, 12)
    assert model(torch.zeros(2, 3, 12, 12)).shape == (2, 6)


def test_a_module_in_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_me.py").write_text(
        "from torch import nn\n"
        "class Nets:\n"
        "    @staticmethod\n"
        "    def make(channels, classes):\n"
        "        return nn.Sequential(nn.Flatten(), nn.Linear(channels * 64, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert make_model("beside_me:Nets.make", 1, 3, 8)(torch.zeros(1, 1, 8, 8)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_anywhere:make", "cannot be imported"),
        ("tiny_nets:missing", "has no 'missing'"),
        ("tiny_nets:NUMBER", "not a function"),
        ("tiny_nets:broken", "no such thing"),
        ("tiny_nets:no_model", "returned a str"),
        ("tiny_nets:wrong_head", r"expected logits of shape \(2, 4\)"),
        ("tiny_nets:Tuple", "returns tuple"),
        ("tiny_nets:classes_only", "cannot run on images of shape"),
    ],
)
def test_a_factory_that_cannot_be_used_is_explained(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make_model(name, 1 if name.endswith("classes_only") else 3, 4, 12)


class TestWeights:
    save_file = staticmethod(lambda tensors, path: pytest.importorskip("safetensors.torch").save_file(tensors, path))

    def test_all_weights_are_loaded(self, tmp_path: Path) -> None:
        source = make_model("tiny_nets:tiny", 3, 4, 12)
        self.save_file({f"module.{k}": v for k, v in source.state_dict().items()}, tmp_path / "w.safetensors")
        target = make_model("tiny_nets:tiny", 3, 4, 12)
        assert load_weights(target, tmp_path / "w.safetensors") == []
        for name, value in source.state_dict().items():
            assert torch.equal(value, target.state_dict()[name])

    def test_another_number_of_classes_leaves_the_head_fresh_and_names_it(self, tmp_path: Path) -> None:
        source = make_model("tiny_nets:tiny", 3, 10, 12)
        self.save_file(source.state_dict(), tmp_path / "w.safetensors")
        target = make_model("tiny_nets:tiny", 3, 4, 12)
        before = target[-1].weight.clone()  # type: ignore[index, union-attr, operator]
        assert load_weights(target, tmp_path / "w.safetensors") == ["4.weight", "4.bias"] == head_entries(target)
        assert torch.equal(before, target[-1].weight)  # type: ignore[index, union-attr, arg-type]
        assert torch.equal(target.state_dict()["0.0.0.weight"], source.state_dict()["0.0.0.weight"])

    def test_anything_else_that_does_not_fit_is_listed_and_nothing_is_loaded(self, tmp_path: Path) -> None:
        state = dict(make_model("tiny_nets:tiny", 3, 4, 12).state_dict())
        state["0.0.0.weight"] = torch.zeros(9, 3, 3, 3)
        del state["0.1.0.weight"]
        state["stem.weight"] = torch.zeros(2)
        self.save_file(state, tmp_path / "w.safetensors")
        target = make_model("tiny_nets:tiny", 3, 4, 12)
        before = {k: v.clone() for k, v in target.state_dict().items()}
        with pytest.raises(ModelError) as error:
            load_weights(target, tmp_path / "w.safetensors")
        for part in ("0.0.0.weight has shape (9, 3, 3, 3)", "0.1.0.weight is missing", "stem.weight is not in the"):
            assert part in str(error.value)
        assert all(torch.equal(v, target.state_dict()[k]) for k, v in before.items())

    def test_a_file_of_another_kind_is_refused(self, tmp_path: Path) -> None:
        pytest.importorskip("safetensors")
        torch.save({"a": torch.zeros(2)}, tmp_path / "w.safetensors")
        with pytest.raises(ModelError, match="not a safetensors file"):
            load_weights(make_model("tiny_nets:tiny", 3, 4, 12), tmp_path / "w.safetensors")
        with pytest.raises(ModelError, match="no such file"):
            load_weights(make_model("tiny_nets:tiny", 3, 4, 12), tmp_path / "nothing")


class Timm:
    """Answers to the three calls of timm that are used."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def list_models(self) -> list[str]:
        return ["resnet18", "resnet18d", "resnet34", "vit_tiny_patch16_224", "convnext_tiny"]

    def is_model(self, name: str) -> bool:
        return name in self.list_models()

    def create_model(self, name: str, **options: Any) -> nn.Module:
        self.asked.append((name, options))
        if name.startswith("vit"):
            raise AssertionError("Input height (32) doesn't match model (224)")
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(pool, nn.Linear(options["in_chans"], options["num_classes"]))


def test_models_of_timm_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = Timm()
    monkeypatch.setitem(sys.modules, "timm", timm)  # type: ignore[arg-type]
    assert resolve("timm:resnet18", CPU) == "timm:resnet18"
    assert make_model("timm:resnet18", 1, 5, 16)(torch.randn(2, 1, 16, 16)).shape == (2, 5)
    assert timm.asked == [("resnet18", {"pretrained": False, "num_classes": 5, "in_chans": 1})]
    with pytest.raises(ModelError, match=r"timm has no model 'resnet81'; did you mean resnet18, "):
        resolve("timm:resnet81", CPU)
    with pytest.raises(ModelError, match=r"no model 'zzz'; timm.list_models\(\) names them all"):
        resolve("timm:zzz", CPU)
    with pytest.raises(
        ModelError, match="timm cannot make it for 3 channels and 4 classes: AssertionError: Input height"
    ):
        make_model("timm:vit_tiny_patch16_224", 3, 4, 32)


def test_without_timm_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"--model timm:resnet18 needs .* pip install 'sgoif\[timm\]'"):
        resolve("timm:resnet18", CPU)
