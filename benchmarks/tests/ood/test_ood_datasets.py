"""Out-of-distribution sets in every layout, and images brought to what a network takes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from ood_roots import SIDE, Bytes, noise, picture, write, write_cifar100, write_idx, write_npz
from PIL import Image

from sgoif.errors import SettingError
from sgoif_bench.ood.datasets import SETS, Found, expected, find, outliers_identity, read_outliers
from sgoif_bench.ood.pictures import Files, Look, Stack, fitted, spread, with_channels
from sgoif_bench.ood.trained import procedural
from sgoif_bench.ood.trained.perlin import patterns
from sgoif_bench.ood.trained.pixmix import fractals

COUNT = 5


def there(name: str, root: Path, in_distribution: str = "cifar10") -> Found:
    found = find(name, root, in_distribution)
    assert found is not None
    return found


def images_of(found: Found, look: Look = Look(3, 32)) -> Bytes:  # noqa: B008
    batches = list(found.pictures.batches(look, 2))
    assert max(map(len, batches)) <= 2
    return torch.cat(batches).numpy().transpose(0, 2, 3, 1)


# layouts


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_the_test_part_of_cifar100_is_enough(tmp_path: Path, kind: str) -> None:
    images = noise(1, COUNT, 32, 32, 3)
    write_cifar100(tmp_path, images, kind)
    found = there("cifar100", tmp_path)
    assert found.source == {"binary": "cifar-100-binary/test.bin", "python": "cifar-100-python/test"}[kind]
    assert np.array_equal(images_of(found), images)


def test_cifar10(tmp_path: Path) -> None:
    images = noise(1, COUNT, 32, 32, 3)
    rows = images.transpose(0, 3, 1, 2).reshape(COUNT, -1)
    labels = np.full((COUNT, 1), 3, dtype=np.uint8)
    write(tmp_path / "cifar-10-batches-bin/test_batch.bin", np.concatenate([labels, rows], axis=1).tobytes())
    assert np.array_equal(images_of(there("cifar10", tmp_path, "mnist")), images)


def test_mnist_is_never_taken_for_fashion_mnist(tmp_path: Path) -> None:
    digits, clothes, labels = noise(1, COUNT, 28, 28), noise(2, COUNT, 28, 28), np.zeros(COUNT, dtype=np.uint8)
    write_idx(tmp_path, "t10k", digits, labels)
    assert find("fashion-mnist", tmp_path, "mnist") is None, "the same names of files, but whose?"
    write_idx(tmp_path / "FashionMNIST/raw", "t10k", clothes, labels)
    packed = tmp_path / "FashionMNIST/raw/t10k-images-idx3-ubyte"
    packed.with_name(packed.name + ".gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    found = there("fashion-mnist", tmp_path, "mnist")
    assert found.source == "FashionMNIST/raw/t10k-images-idx3-ubyte.gz"
    assert np.array_equal(images_of(found, Look(1, 28))[..., 0], clothes)


def test_svhn_from_the_publishers_file_comes_before_an_array(tmp_path: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    images = noise(1, COUNT, 32, 32, 3)
    scipy_io.savemat(tmp_path / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": np.ones((COUNT, 1))})
    write_npz(tmp_path / "ood/svhn.npz", noise(2, COUNT, 32, 32, 3))
    assert np.array_equal(images_of(there("svhn", tmp_path)), images)
    (tmp_path / "test_32x32.mat").write_bytes(b"nonsense" * 100)
    with pytest.raises(SettingError, match="not SVHN's file"):
        find("svhn", tmp_path, "cifar10")


def test_arrays_under_their_own_or_another_name(tmp_path: Path) -> None:
    images = noise(1, COUNT, 32, 32, 3)
    write_npz(tmp_path / "ood/dtd.npz", images)
    write_npz(tmp_path / "ood/notmnist.npz", images[..., 0])
    assert np.array_equal(images_of(there("texture", tmp_path)), images)
    assert np.array_equal(images_of(there("notmnist", tmp_path), Look(1, 32))[..., 0], images[..., 0])


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("texture", "dtd/images/banded"),
        ("texture", "texture"),
        ("tin", "tiny-imagenet-200/val/images"),
        ("tin", "tin"),
        ("places365", "val_256"),
        ("places365", "places365/a/airfield"),
        ("ninco", "NINCO/NINCO_OOD_classes/x"),
        ("ssb-hard", "ssb_hard/n01/x"),
        ("openimage-o", "openimage-o"),
    ],
)
def test_any_images_in_a_folder(tmp_path: Path, name: str, folder: str) -> None:
    images = noise(1, COUNT, 32, 32, 3)
    for number, image in enumerate(images):
        picture(tmp_path / folder / f"{number}.{'png' if number % 2 else 'JPEG'}", image)
    write(tmp_path / folder / "readme.txt", "no image")
    write(tmp_path / folder / ".hidden.png", "no image")
    assert np.array_equal(images_of(there(name, tmp_path)), images), "in the order of their names"


def test_openoods_lists_come_first_and_only_with_their_images(tmp_path: Path) -> None:
    images = noise(1, COUNT, 32, 32, 3)
    write_npz(tmp_path / "ood/tin.npz", images)
    listing = "tin/val/a b.JPEG 7\ntin/val/c.JPEG -1\n"
    write(tmp_path / "benchmark_imglist/cifar10/test_tin.txt", listing)
    assert there("tin", tmp_path).source == "ood/tin.npz", "a list without images is none"
    picture(tmp_path / "images_classic/tin/val/a b.JPEG", images[3])
    picture(tmp_path / "images_classic/tin/val/c.JPEG", images[1])
    found = there("tin", tmp_path)
    assert found.source == "benchmark_imglist/cifar10/test_tin.txt"
    assert np.array_equal(images_of(found), images[[3, 1]])
    assert there("tin", tmp_path, "cifar100").source == "ood/tin.npz", "every in-distribution set has its own"
    write(tmp_path / "benchmark_imglist/cifar10/test_tin.txt", "../secret.png 0\n")
    with pytest.raises(SettingError, match=r"line 1: '\.\./secret\.png' leads out"):
        find("tin", tmp_path, "cifar10")


@pytest.mark.parametrize("name", SETS)
def test_what_is_not_there_is_none_and_its_places_are_told(tmp_path: Path, name: str) -> None:
    for folder in (name, *SETS[name].folders):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    assert find(name, tmp_path, "cifar10") is None, "an empty folder is nothing"
    places = expected(name, "cifar10")
    assert f"ood/{name}.npz" in places
    assert "benchmark_imglist/cifar10/test_" in places


def test_what_is_there_but_damaged_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "cifar-100-binary/test.bin", b"x" * 3000)
    with pytest.raises(SettingError, match="3,000 bytes, not a whole number of records"):
        find("cifar100", tmp_path, "cifar10")
    write_npz(tmp_path / "ood/svhn.npz", noise(1, 2, 32, 32, 3).astype(np.float32))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"svhn\.npz holds float32 of shape \[2, 32, 32, 3\]; expected are bytes"):
        find("svhn", tmp_path, "cifar10")
    write(tmp_path / "ood/texture.npz", "nonsense")
    with pytest.raises(SettingError, match=r"texture\.npz is not an \.npz archive with images `x`"):
        find("texture", tmp_path, "cifar10")


# sizes and channels


def test_grey_is_pillows_grey() -> None:
    images = noise(1, 4, 16, 16, 3)
    grey = with_channels(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), 1)
    wanted = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in images])
    assert np.array_equal(grey[:, 0].numpy(), wanted)
    assert torch.equal(with_channels(grey, 3), grey.repeat(1, 3, 1, 1))


@pytest.mark.parametrize(("before", "side"), [((32, 32), 28), ((28, 28), 32), ((20, 31), 12), ((40, 17), 12)])
def test_the_centre_at_the_size_of_the_shorter_side(before: tuple[int, int], side: int, tmp_path: Path) -> None:
    image = noise(1, *before, 3)
    height, width = before
    wide, high = int(side * width / min(before)), int(side * height / min(before))
    whole = np.asarray(Image.fromarray(image).resize((wide, high), Image.Resampling.BILINEAR))
    top, left = round((high - side) / 2), round((wide - side) / 2)
    wanted = whole[top : top + side, left : left + side]
    array = fitted(torch.from_numpy(image.transpose(2, 0, 1).copy())[None], side)[0].permute(1, 2, 0).numpy()
    assert array.shape == (side, side, 3)
    assert np.abs(array.astype(int) - wanted).max() <= 1, "torch rounds as Pillow does, but for the last bit"
    picture(tmp_path / "a.png", image)
    (file,) = Files([tmp_path / "a.png"]).batches(Look(3, side), 1)
    assert np.array_equal(file[0].permute(1, 2, 0).numpy(), wanted)


def test_files_of_large_photos_are_cut_as_the_training_images_are(tmp_path: Path) -> None:
    from sgoif.images.reading import centre_square

    image = noise(1, 40, 60, 3)
    picture(tmp_path / "a.png", image)
    (file,) = Files([tmp_path / "a.png"]).batches(Look(3, SIDE, "bicubic"), 1)
    wanted = np.asarray(centre_square(Image.fromarray(image), SIDE))
    assert np.array_equal(file[0].permute(1, 2, 0).numpy(), wanted)


def test_unreadable_files_are_left_out_and_remembered(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", noise(1, SIDE, SIDE))
    write(tmp_path / "b.png", "broken")
    files = Files([tmp_path / "a.png", tmp_path / "b.png"])
    (only,) = files.batches(Look(1, SIDE), 8)
    assert np.array_equal(only[0, 0].numpy(), noise(1, SIDE, SIDE))
    assert list(files.unreadable) == [str(tmp_path / "b.png")]
    assert list(Files([tmp_path / "b.png"]).batches(Look(1, SIDE), 8)) == []


def test_some_are_spread_over_all() -> None:
    stack = Stack(torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1))
    some = spread(stack, 4)
    assert isinstance(some, Stack)
    assert some.images.flatten().tolist() == [0, 3, 6, 9]
    assert spread(stack, 10) is stack
    assert spread(stack, None) is stack
    with pytest.raises(SettingError, match="expected are bytes"):
        Stack(torch.zeros(2, 3, 4, 4))


# outliers to train with


def test_outliers_from_a_folder_or_an_array(tmp_path: Path) -> None:
    images = noise(1, COUNT, 32, 32, 3)
    write_npz(tmp_path / "o.npz", images)
    for number, image in enumerate(images):
        picture(tmp_path / f"folder/{number}.png", image)
    look = Look(3, 32)
    arrays, files = (torch.cat(list(read_outliers(tmp_path / name).batches(look, 9))) for name in ("o.npz", "folder"))
    assert torch.equal(arrays, files)
    assert arrays.dtype == torch.uint8
    before = outliers_identity(tmp_path / "folder"), outliers_identity(tmp_path / "o.npz")
    assert len(set(before)) == 2
    (tmp_path / "folder/0.png").rename(tmp_path / "folder/9.png")
    write_npz(tmp_path / "o.npz", noise(2, COUNT, 32, 32, 3))
    assert outliers_identity(tmp_path / "folder") != before[0]
    assert outliers_identity(tmp_path / "o.npz") != before[1]


def test_outliers_that_are_generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = procedural.pictures(6)
    assert torch.equal(few, procedural.pictures.__wrapped__(6)), "the same for everybody"
    generator = torch.Generator().manual_seed(procedural.SEED)
    assert torch.equal(few[::2], fractals(3, 32, generator))
    assert torch.equal(few[1::2], (patterns(3, 3, 32, generator) * 255).round().to(torch.uint8))

    drawn: list[int] = []
    monkeypatch.setattr(procedural, "pictures", lambda: drawn.append(1) or few)
    place = Path("procedural")
    set_of_them = read_outliers(place)
    assert (len(set_of_them), outliers_identity(place), drawn) == (10_000, "procedural-10000", [])
    some = set_of_them.pick(np.array([4, 1]))
    assert len(some) == 2
    assert torch.equal(torch.cat(list(some.batches(Look(3, 32), 1))), few[[4, 1]])

    picture(tmp_path / "procedural/0.png", noise(3, 32, 32, 3))
    assert len(read_outliers(place)) == 1, "a folder of that name comes first"
    assert outliers_identity(place) != "procedural-10000"


def test_outliers_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no image files"):
        read_outliers(tmp_path)
    with pytest.raises(SettingError, match="neither a folder of images nor"):
        read_outliers(tmp_path / "nowhere")
