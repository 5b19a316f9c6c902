"""Hugging Face data sets on disk: files in their layout, and files their own package wrote."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_cases import picture, same_pixels, save

from sgoif.images import ImagesError, UnreadableImageError, open_images

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["zebra", "ant"]}}


def png(seed: int) -> bytes:
    target = io.BytesIO()
    picture(seed).save(target, "PNG")
    return target.getvalue()


def table(count: int = 6, start: int = 0, **columns: Any) -> Any:
    images = [{"bytes": png(start + i), "path": f"{i}.png"} for i in range(count)]
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    found = {"image": pyarrow.array(images, kind), "label": pyarrow.array([i % 2 for i in range(count)])}
    return pyarrow.table({**found, **columns})


def arrow(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.ipc.new_stream(str(path), content.schema) as writer:
        for batch in content.to_batches(max_chunksize=2):
            writer.write_batch(batch)


def saved(folder: Path, shards: int = 2, **state: Any) -> Path:
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        arrow(folder / name, table(6, start=6 * i))
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train", **state}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


def check_first_twelve(collection: Any) -> None:
    assert collection.layout == "huggingface"
    assert collection.names == [f"train/{i}" for i in range(12)]
    assert collection.class_names == ["zebra", "ant"]
    assert collection.labels.tolist() == [0, 1] * 6
    for i in (0, 5, 6, 11):
        assert same_pixels(collection.image(i), picture(i))
    assert collection.file(0) is None


def test_saved_to_disk(tmp_path: Path) -> None:
    check_first_twelve(open_images(saved(tmp_path)))
    digest = open_images(tmp_path).digest()
    assert open_images(tmp_path).digest() == digest
    arrow(tmp_path / "data-00001-of-00002.arrow", table(6, start=7))
    assert open_images(tmp_path).digest() != digest


def test_a_dictionary_of_splits(tmp_path: Path) -> None:
    saved(tmp_path / "train")
    saved(tmp_path / "test", shards=1)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    collection = open_images(tmp_path)
    check_first_twelve(collection)
    assert any("'test'" in note for note in collection.notes)
    assert open_images(tmp_path, split="test").names[0] == "test/0"
    with pytest.raises(ImagesError, match=r"no split 'dev'"):
        open_images(tmp_path, split="dev")


@pytest.mark.parametrize("place", ["data", "."])
def test_parquet_as_on_the_hub(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    stated = {b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()}
    for i in range(2):
        content = table(6, start=6 * i).replace_schema_metadata(stated)
        parquet.write_table(content, folder / f"train-{i:05d}-of-00002.parquet", row_group_size=2)
    parquet.write_table(table(4), folder / "test-00000-of-00001.parquet")
    check_first_twelve(open_images(tmp_path))
    one = open_images(folder / "test-00000-of-00001.parquet")
    assert one.class_names == ["0", "1"]
    assert len(one) == 4


def test_text_labels_missing_labels_and_plain_bytes(tmp_path: Path) -> None:
    content = pyarrow.table({"img": [png(i) for i in range(4)], "category": ["猫", None, "<b>", "猫"]})
    arrow(tmp_path / "a.arrow", content)
    for path in (tmp_path, tmp_path / "a.arrow"):
        collection = open_images(path)
        assert collection.class_names == ["<b>", "猫"]
        assert collection.names == ["train/0", "train/2", "train/3"]
        assert same_pixels(collection.image(1), picture(2))
        assert [entry.name for entry in collection.skipped] == ["train/1"]


def test_unlabelled_rows_and_two_kinds_of_label(tmp_path: Path) -> None:
    label = {"_type": "ClassLabel", "names": ["a", "b"]}
    saved(tmp_path, shards=1)
    arrow(tmp_path / "data-00000-of-00001.arrow", table(4, fine=pyarrow.array([0, 1, -1, 7])))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": {**FEATURES, "fine": label}}))
    assert len(open_images(tmp_path)) == 4
    collection = open_images(tmp_path, label_column="fine")
    assert collection.names == ["train/0", "train/1"]
    assert [entry.name for entry in collection.skipped] == ["train/2", "train/3"]


def test_rows_that_name_files(tmp_path: Path) -> None:
    outside = save(picture(3), tmp_path / "outside.png")
    folder = tmp_path / "data"
    save(picture(1), folder / "img" / "in.png")
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    paths = ["img/in.png", str(outside), "../outside.png", "none.png", None]
    images = pyarrow.array([{"bytes": None, "path": path} for path in paths], kind)
    arrow(folder / "a.arrow", pyarrow.table({"image": images, "label": [0, 1, 0, 1, 0]}))
    collection = open_images(folder)
    assert same_pixels(collection.image(0), picture(1))
    for i, message in ((1, "outside.*--root"), (2, "outside"), (3, "not there"), (4, "holds no image")):
        with pytest.raises(UnreadableImageError, match=message):
            collection.image(i)
    assert same_pixels(open_images(folder, root=tmp_path).image(1), picture(3))


def test_damage_is_explained(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", shards=1)
    for state, message in (
        ({"_data_files": [{"filename": "../../secret.arrow"}]}, r"lacks 'secret\.arrow'"),
        ({"_indices_data_files": [{"filename": "x"}]}, "index of rows"),
    ):
        (folder / "state.json").write_text(json.dumps(state))
        with pytest.raises(ImagesError, match=message):
            open_images(folder)
    (folder / "state.json").write_text("{")
    with pytest.raises(ImagesError, match="is damaged"):
        open_images(folder)
    saved(folder, shards=1)
    (folder / "data-00000-of-00001.arrow").write_bytes(b"nothing")
    with pytest.raises(ImagesError, match="not a readable Arrow"):
        open_images(folder)
    arrow(tmp_path / "b" / "x.arrow", pyarrow.table({"text": ["a"], "label": [1]}))
    with pytest.raises(ImagesError, match="no column of images; its columns are 'text', 'label'"):
        open_images(tmp_path / "b")


@pytest.mark.filterwarnings("ignore")
def test_what_the_package_itself_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ant"])})
    rows = {"image": [picture(i) for i in range(12)], "label": [0, 1] * 6}
    data = datasets.Dataset.from_dict(rows, features=features, split="train")
    data.save_to_disk(tmp_path / "one", num_shards=3)
    check_first_twelve(open_images(tmp_path / "one"))
    both = datasets.DatasetDict({"train": data, "test": data.select(range(4))})
    both.save_to_disk(tmp_path / "dict")
    check_first_twelve(open_images(tmp_path / "dict"))
    assert len(open_images(tmp_path / "dict", split="test")) == 4
    data.select([3, 1, 0, 2]).save_to_disk(tmp_path / "shuffled")
    shuffled = open_images(tmp_path / "shuffled")
    assert shuffled.labels.tolist() == [1, 1, 0, 0]
    assert same_pixels(shuffled.image(0), picture(3))
    data.to_parquet(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet")
    check_first_twelve(open_images(tmp_path / "hub"))
    assert np.array_equal(np.asarray(data[5]["image"]), np.asarray(open_images(tmp_path / "hub").image(5)))
