"""Every reader of files that come from outside, with sound files to damage.

A reader is given a folder in which one file, the target, was damaged. Whatever stands in that file, reading ends soon
with a result or with an error of `sgoif.errors`; nothing in it is executed.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sgoif.audit.settings import AuditSettings

COUNT, SIDE = 6, 8
LABELS = [0, 1, 2, 0, 1, 2]
Write = Callable[[Path], None]


@dataclass(frozen=True)
class Reader:
    """A reader and how to make what it reads."""

    name: str
    target: str
    """The file, below the folder, that is damaged."""
    write: Write
    """Fills a folder."""
    read: Callable[[Path], object]
    """Reads from the folder."""
    shape: str = "bytes"
    """How its files are built, which says what damage gets past the first check: bytes, text, json, zip, table."""


def pictures() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A few small grey images."""
    return np.random.default_rng(0).integers(0, 256, (COUNT, SIDE, SIDE), dtype=np.uint8)


def _png(number: int, kind: str = "PNG") -> bytes:
    from PIL import Image

    target = io.BytesIO()
    Image.fromarray(pictures()[number]).save(target, kind)
    return target.getvalue()


def _images(folder: Path) -> None:
    for number, label in enumerate(LABELS):
        (folder / f"class{label}").mkdir(parents=True, exist_ok=True)
        (folder / f"class{label}" / f"{number}.png").write_bytes(_png(number))


def _opened(folder: Path, name: str = "", layout: str = "auto") -> None:
    """Open, and read every image."""
    from sgoif.errors import SgoifError
    from sgoif.images import open_images

    collection = open_images(folder / name if name else folder, layout=layout)
    collection.digest()
    for number in range(min(len(collection), 2 * COUNT)):
        try:
            collection.store.size(number)
            collection.image(number)
        except SgoifError:
            continue


# --- images -------------------------------------------------------------------------------------------------------


def _encoded(folder: Path, kind: str) -> None:
    _images(folder)
    (folder / "class0" / f"x.{kind.lower()}").write_bytes(_png(0, kind))


def _manifest(folder: Path, name: str = "list.csv") -> None:
    _images(folder)
    rows = [[f"class{label}/{number}.png", f"class{label}", "train"] for number, label in enumerate(LABELS)]
    with (folder / name).open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if name.endswith("tsv") else ",").writerows([["path", "label", "split"], *rows])


def _parquet(folder: Path, *, holds_images: bool = False) -> None:
    import pyarrow
    import pyarrow.parquet

    _images(folder)
    if holds_images:
        columns = {"image": [{"bytes": _png(n), "path": f"{n}.png"} for n in range(COUNT)], "label": LABELS}
    else:
        paths = [f"class{label}/{number}.png" for number, label in enumerate(LABELS)]
        columns = {"path": paths, "label": [f"class{label}" for label in LABELS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "list.parquet")


def _saved_to_disk(folder: Path) -> None:
    import pyarrow
    import pyarrow.ipc

    table = pyarrow.table({"image": [{"bytes": _png(n), "path": None} for n in range(COUNT)], "label": LABELS})
    with (
        pyarrow.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pyarrow.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    files = [{"filename": "data-00000-of-00001.arrow"}]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))
    features = {"label": {"_type": "ClassLabel", "names": ["a", "b", "c"]}, "image": {"_type": "Image"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def _idx(folder: Path, *, packed: bool = False) -> None:
    content = {
        "train-images-idx3-ubyte": struct.pack(">4I", 0x803, COUNT, SIDE, SIDE) + pictures().tobytes(),
        "train-labels-idx1-ubyte": struct.pack(">2I", 0x801, COUNT) + bytes(LABELS),
    }
    for name, data in content.items():
        (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)


def _cifar_records() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (COUNT, 3072), dtype=np.uint8)


def _cifar_binary(folder: Path) -> None:
    labels = np.array(LABELS, dtype=np.uint8)[:, None]
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(np.hstack([labels, _cifar_records()]).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class{n}" for n in range(10)))


def _cifar_python(folder: Path, protocol: int = 2) -> None:
    batch = {b"data": _cifar_records(), b"labels": LABELS, b"filenames": [b"a.png"] * COUNT}
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    meta = {b"label_names": [f"class{n}".encode() for n in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol))


def _npz(folder: Path, *, packed: bool = False) -> None:
    arrays = {"x": pictures(), "y": np.array(LABELS), "class_names": np.array(["a", "b", "c"])}
    (np.savez_compressed if packed else np.savez)(folder / "set.npz", **arrays)  # type: ignore[arg-type]


# --- states -------------------------------------------------------------------------------------------------------


def _prepared(folder: Path) -> None:
    from sgoif.images import open_images, prepare

    _images(folder / "photos")
    prepare(open_images(folder / "photos"), folder / "cache")


def _open_prepared(folder: Path) -> None:
    from sgoif.images import open_pixels

    pixels = open_pixels(folder / "cache")
    pixels.thumbnails(0)


def _state(folder: Path) -> None:
    import torch

    from sgoif.core.serialization import save_state

    save_state(folder / "state.npz", {"step": 3, "stopped": "", "w": torch.arange(6.0), "names": ["a", "b"]})


def _load_state(folder: Path) -> object:
    from sgoif.core.serialization import load_state

    return load_state(folder / "state.npz")


def _checkpoint(folder: Path) -> None:
    _state(folder)
    (folder / "run").mkdir()
    (folder / "state.npz").rename(folder / "run" / "checkpoint.npz")
    settings = _settings(folder).record()
    (folder / "run" / "run.json").write_text(json.dumps({"settings": settings, "digest": "0" * 64, "versions": {}}))


def _settings(folder: Path) -> AuditSettings:
    from sgoif.audit.settings import AuditSettings

    return AuditSettings(folder / "photos", out=folder / "run", epochs=3)


def _resume(folder: Path) -> object:
    from sgoif.audit.run_directory import claim

    with claim(_settings(folder), resume=True) as directory:
        directory.record("0" * 64)
        return directory.load()


def _monitor() -> object:
    import torch
    from torch.utils.data import TensorDataset

    from sgoif import InfluenceMonitor

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    anchors = TensorDataset(torch.randn(6, 4), torch.arange(6) % 3)
    return InfluenceMonitor(model, torch.optim.SGD(model.parameters(), lr=0.1), anchors=anchors, size=8)


def _monitor_state(folder: Path) -> None:
    monitor = _monitor()
    monitor.save(folder / "monitor.npz")  # type: ignore[attr-defined]
    monitor.close()  # type: ignore[attr-defined]


def _load_monitor(folder: Path) -> None:
    monitor = _monitor()
    try:
        monitor.load(folder / "monitor.npz")  # type: ignore[attr-defined]
    finally:
        monitor.close()  # type: ignore[attr-defined]


def _unlearner(folder: Path) -> None:
    import torch

    from sgoif.tasks.unlearning import Unlearner

    torch.manual_seed(0)
    y = torch.arange(30) % 3
    x = torch.randn(30, 4) + y[:, None]
    held = torch.randn(24, 4) + (torch.arange(24) % 3)[:, None], torch.arange(24) % 3
    unlearner = Unlearner.from_features(x, y, None, held_out=held, log=folder / "log.jsonl")
    unlearner.request(["3"], reason="asked")
    unlearner.save(folder / "unlearner.npz")


def _load_unlearner(folder: Path) -> object:
    from sgoif.tasks.unlearning import Unlearner

    return Unlearner.load(folder / "unlearner.npz")


def _read_log(folder: Path) -> object:
    from sgoif.errors import SgoifError
    from sgoif.tasks.unlearning.log import AuditLog, read_log, verify_log

    verify_log(folder / "log.jsonl", "0" * 64)
    with suppress(SgoifError):
        read_log(folder / "log.jsonl")
    return AuditLog(folder / "log.jsonl").entries()


def _decisions(folder: Path) -> None:
    _images(folder / "photos")
    rows = [
        ["class0/0.png", "keep", "class0", "", str(folder / "photos")],
        ["class1/1.png", "relabel", "class1", "class2", ""],
        ["class2/2.png", "drop", "class2", "", ""],
    ]
    with (folder / "decisions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "decision", "given_label", "new_label", "source"], *rows])


def _decide(folder: Path) -> object:
    from sgoif.audit.apply import apply_decisions

    return apply_decisions(folder / "decisions.csv", folder / "to", source=folder / "photos", dry_run=True)


def _features(folder: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    np.savez_compressed(folder / "features.npz", features=rng.normal(size=(30, 4)), labels=y, ids=y.astype(str))


def _read_features(folder: Path) -> object:
    from sgoif.commands.unlearn.feature_source import read_arrays

    return read_arrays(folder / "features.npz")


READERS = [
    *(
        Reader(f"{kind} image", f"class0/x.{kind.lower()}", partial(_encoded, kind=kind), _opened)
        for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP")
    ),
    Reader("CSV manifest", "list.csv", _manifest, partial(_opened, name="list.csv"), "text"),
    Reader("TSV manifest", "list.tsv", partial(_manifest, name="list.tsv"), partial(_opened, name="list.tsv"), "text"),
    Reader("idx images", "train-images-idx3-ubyte", _idx, _opened),
    Reader("idx labels", "train-labels-idx1-ubyte", _idx, _opened),
    Reader("idx images, gzipped", "train-images-idx3-ubyte.gz", partial(_idx, packed=True), _opened, "gzip"),
    Reader("CIFAR binary", "data_batch_2.bin", _cifar_binary, _opened),
    Reader("CIFAR Python", "data_batch_2", _cifar_python, _opened, "pickle"),
    Reader("CIFAR Python, protocol 4", "data_batch_2", partial(_cifar_python, protocol=4), _opened, "pickle"),
    Reader("CIFAR Python, protocol 5", "data_batch_2", partial(_cifar_python, protocol=5), _opened, "pickle"),
    Reader("CIFAR class names", "batches.meta", _cifar_python, _opened, "pickle"),
    Reader("npz images", "set.npz", _npz, partial(_opened, name="set.npz"), "zip"),
    Reader("npz images, compressed", "set.npz", partial(_npz, packed=True), partial(_opened, name="set.npz"), "zip"),
    Reader("prepared images", "cache/images.json", _prepared, _open_prepared, "json"),
    Reader("prepared pixels", "cache/pixels.npy", _prepared, _open_prepared),
    Reader("state", "state.npz", _state, _load_state, "zip"),
    Reader("checkpoint", "run/checkpoint.npz", _checkpoint, _resume, "zip"),
    Reader("run record", "run/run.json", _checkpoint, _resume, "json"),
    Reader("monitor state", "monitor.npz", _monitor_state, _load_monitor, "zip"),
    Reader("unlearner state", "unlearner.npz", _unlearner, _load_unlearner, "zip"),
    Reader("unlearning log", "log.jsonl", _unlearner, _read_log, "lines"),
    Reader("features to unlearn from", "features.npz", _features, _read_features, "zip"),
    Reader("decisions", "decisions.csv", _decisions, _decide, "text"),
]
_listed = partial(_opened, name="list.parquet")
if find_spec("pyarrow") is not None:
    READERS += [
        Reader("Parquet manifest", "list.parquet", _parquet, _listed, "table"),
        Reader("Parquet images", "list.parquet", partial(_parquet, holds_images=True), _listed, "table"),
        Reader("Arrow images", "data-00000-of-00001.arrow", _saved_to_disk, _opened),
        Reader("Hugging Face features", "dataset_info.json", _saved_to_disk, _opened, "json"),
        Reader("Hugging Face state", "state.json", _saved_to_disk, _opened, "json"),
    ]
