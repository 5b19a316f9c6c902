"""Backbones by name. Models of transformers are real and tiny; timm and torchvision are stood in for, call by call."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sgoif.backbones import Backbone, known_backbones, load_backbone
from sgoif.errors import MissingExtraError, ModelError

HALF = (0.5, 0.5, 0.5)


def loaded(name: str) -> Backbone:
    found = load_backbone(name)
    assert found is not None
    return found


def test_none_is_no_backbone_and_unknown_names_list_what_there_is() -> None:
    assert load_backbone("none") is None
    for name in ("lite9", "resnet18", "timm:", "hf:a/b:own.safetensors", "nets:make", ""):
        with pytest.raises(ModelError, match=r"is not known\. There are: lite0 ") as error:
            load_backbone(name)
        assert all(known in str(error.value) for known in known_backbones())


class Classifier(nn.Module):
    """As timm's are: a head that can be taken away."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 5, 3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc: nn.Module = nn.Linear(5, 10)

    def reset_classifier(self, classes: int) -> None:
        assert classes == 0
        self.fc = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.stem(x))
        return out


class Package(ModuleType):
    """Stands in for timm and torchvision; remembers what was asked for."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.asked: list[tuple[str, Any]] = []
        self.error, self.models = error, self
        self.data = SimpleNamespace(
            resolve_model_data_config=lambda model: {"input_size": (3, 112, 112), "mean": HALF, "std": HALF}
        )

    def list_models(self, module: object = None) -> list[str]:
        return ["tiny", "tiny_wide", "bodiless"]

    def is_model(self, name: str) -> bool:
        return name in self.list_models()

    def create_model(self, name: str, pretrained: bool) -> nn.Module:
        return self.get_model(name, pretrained)

    def get_model_weights(self, name: str) -> Any:
        seen = SimpleNamespace(crop_size=[112], mean=list(HALF), std=list(HALF))
        return SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: seen))

    def get_model(self, name: str, weights: Any) -> nn.Module:
        self.asked.append((name, bool(weights)))
        if self.error is not None:
            raise self.error
        torch.manual_seed(1)
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()) if name == "bodiless" else Classifier()


def stand_in(source: str, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> Package:
    package = Package(source, error)
    monkeypatch.setitem(sys.modules, source, package)
    monkeypatch.setitem(sys.modules, f"{source}.models", package)
    return package


@pytest.mark.parametrize("source", ["timm", "torchvision"])
class TestOtherPackages:
    def test_the_model_comes_with_its_weights_and_without_its_head(
        self, source: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = stand_in(source, monkeypatch)
        found = loaded(f"{source}:tiny")
        assert package.asked == [("tiny", True)]
        assert (found.size, found.sizes, found.mean, found.std, found.width) == (112, (96, 112), HALF, HALF, 5)
        assert found.features(torch.rand(2, 3, 30, 30)).shape == (2, 5)

    def test_weights_of_a_file_take_the_place_of_those(
        self, source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        save_file = pytest.importorskip("safetensors.torch").save_file
        package = stand_in(source, monkeypatch)
        torch.manual_seed(2)
        own = Classifier()
        own.fc = nn.Linear(5, 3)
        save_file(own.state_dict(), tmp_path / "own.safetensors")
        found = loaded(f"{source}:tiny:{tmp_path / 'own.safetensors'}")
        assert package.asked == [("tiny", False)]
        assert torch.equal(found.body.state_dict()["stem.0.weight"], own.state_dict()["stem.0.weight"])

    def test_without_a_network_one_sentence_says_what_to_do(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(source, monkeypatch, OSError("Name or service\nnot known"))
        with pytest.raises(ModelError) as error:
            load_backbone(f"{source}:tiny")
        said = str(error.value)
        assert f"'{source}:tiny' cannot be had (Name or service not known)" in said
        assert "run this once with a network" in said
        assert "\n" not in said

    def test_other_names_are_answered_with_close_ones(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(source, monkeypatch)
        with pytest.raises(ModelError, match=f"{source} has no model 'tinny'; did you mean tiny"):
            load_backbone(f"{source}:tinny")
        with pytest.raises(ModelError, match=r"has no model 'hf-hub:a/b'; .* names them all"):
            load_backbone(f"{source}:hf-hub:a/b")

    def test_a_package_that_is_missing_or_broken(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, source, None)
        with pytest.raises(MissingExtraError, match=rf"'{source}:tiny' needs .*'{source}'.*'sgoif\[timm\]'"):
            load_backbone(f"{source}:tiny")

        def broken(_: str) -> Any:
            raise RuntimeError("operator torchvision::nms does not exist")

        monkeypatch.setattr("sgoif.backbones.named.importlib.import_module", broken)
        with pytest.raises(ModelError, match=f"{source} cannot be imported: RuntimeError: operator"):
            load_backbone(f"{source}:tiny")


def test_a_classifier_of_torchvision_without_a_linear_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("torchvision", monkeypatch)
    with pytest.raises(ModelError, match="its head is no linear layer"):
        load_backbone("torchvision:bodiless")


SHAPE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
SEEN = {"do_center_crop": True, "crop_size": {"height": 28, "width": 28}, "size": {"shortest_edge": 32},
        "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}  # fmt: skip


class TestHuggingFace:
    @staticmethod
    def folder(where: Path, kind: str, **seen: Any) -> Path:
        """A tiny model of transformers with random weights, stored as on the hub."""
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(3)
        if kind == "clip":
            vision = {**SHAPE, "image_size": 28, "patch_size": 7, "projection_dim": 8}
            text = {
                **SHAPE,
                "vocab_size": 20,
                "projection_dim": 8,
                "eos_token_id": 1,
                "bos_token_id": 0,
                "pad_token_id": 1,
            }
            config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
            model = transformers.CLIPModel(config)
        elif kind == "dinov2":
            model = transformers.Dinov2Model(transformers.Dinov2Config(**SHAPE, image_size=28, patch_size=7))
        else:
            config = transformers.ViTConfig(**SHAPE, image_size=28, patch_size=7)
            model = transformers.ViTForImageClassification(config) if kind == "vit" else transformers.ViTModel(config)
        model.save_pretrained(where)
        (where / "preprocessor_config.json").write_text(json.dumps({**SEEN, **seen}))
        return where

    @pytest.mark.parametrize("kind", ["vit-pooled", "vit", "dinov2", "clip"])
    def test_features_are_what_the_model_gives_for_the_whole_image(self, kind: str, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        found = loaded(f"hf:{self.folder(tmp_path, kind)}")
        assert (found.size, found.mean, found.std, found.width) == (28, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 16)
        x = torch.randn(2, 3, 28, 28)
        model = transformers.AutoModel.from_pretrained(tmp_path).eval()
        out = getattr(model, "vision_model", model)(pixel_values=x)
        # A classifier was stored without a pooler: the one that transformers makes up instead is not to be used.
        expected = out.last_hidden_state[:, 0] if kind == "vit" else out.pooler_output
        torch.testing.assert_close(found.body(x), expected)
        assert found.digest == loaded(f"hf:{tmp_path}").digest

    def test_sizes_and_colours_where_the_description_is_short(self, tmp_path: Path) -> None:
        seen = {"do_center_crop": False, "size": 28, "image_mean": None, "image_std": None}
        found = loaded(f"hf:{self.folder(tmp_path, 'dinov2', **seen)}")
        assert (found.size, found.mean) == (28, (0.485, 0.456, 0.406))
        (tmp_path / "preprocessor_config.json").write_text("{}")
        assert loaded(f"hf:{tmp_path}").size == 224

    def test_weights_that_lack_a_layer_are_refused(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, "dinov2")
        torch_files = pytest.importorskip("safetensors.torch")
        stored = torch_files.load_file(folder / "model.safetensors")
        gone = next(name for name in stored if name.endswith("layernorm.weight"))
        del stored[gone]
        torch_files.save_file(stored, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match=r"damaged or of another version, layernorm\.weight is missing"):
            load_backbone(f"hf:{folder}")
        (folder / "model.safetensors").write_bytes(b"cut off")
        with pytest.raises(ModelError, match="cannot be had"):
            load_backbone(f"hf:{folder}")

    def test_no_code_that_a_model_brings_is_run(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, "dinov2")
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        with pytest.raises(ModelError, match="cannot be had"):
            load_backbone(f"hf:{folder}")
        assert not (tmp_path / "ran").exists()

    def test_without_a_network_one_sentence_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("transformers")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(ModelError, match=r"'hf:nobody/nothing' cannot be had .* run this once with a network"):
            load_backbone("hf:nobody/nothing")

    def test_without_transformers_the_command_that_installs_it_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(MissingExtraError, match=r"'hf:a/b' needs .* pip install 'sgoif\[transformers\]'"):
            load_backbone("hf:a/b")
