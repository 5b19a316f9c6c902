"""A Hugging Face data set on disk, read with pyarrow alone.

Three layouts: what `save_to_disk` writes for a Dataset (Arrow files, state.json, dataset_info.json), the same per split
for a DatasetDict, and the Parquet files of a repository on the hub (data/train-00000-of-00003.parquet).
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from sgoif.images.collection import Skipped
from sgoif.images.errors import ImagesError
from sgoif.images.sources.arrow_rows import Cells, Table
from sgoif.images.sources.base import TRAIN, Found, Request, choose_split, listing, refuse_split, split_note
from sgoif.images.sources.manifest import LABEL_COLUMNS, find_column
from sgoif.images.text import few, shown

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
SHARD = re.compile(r"^(?P<split>.+?)(-\d{5}-of-\d{5}.*)?\.parquet$")
LABELS = (*LABEL_COLUMNS, "labels", "fine_label")


def matches(path: Path) -> bool:
    """A folder with the data set's own files, or one Arrow or Parquet file that holds images."""
    if path.is_file():
        return path.suffix == ".arrow" or (path.suffix == ".parquet" and _holds_images(path))
    if not path.is_dir():
        return False
    if any((path / name).is_file() for name in (STATE, SPLITS)):
        return True
    return bool(_arrow_files(path)) or any(
        _holds_images(file) for files in _shards(path).values() for file in files[:1]
    )


def read(request: Request) -> Found:
    """Images of one split, named by split and row."""
    try:
        return _read(request)
    except UnicodeDecodeError as error:
        raise ImagesError(f"{shown(request.path)} is damaged: names in it are no text ({error})") from error


def _read(request: Request) -> Found:
    files, split, notes = _files(request)
    table = Table(files)
    features = _features(files[0].parent, table)
    image = _image_column(table, features, request)
    label = _label_column(table, features, request, image)
    root = request.root or (request.path if request.path.is_dir() else request.path.parent)
    values = table.column(label)
    known = features.get(label, {}).get("names") if features.get(label, {}).get("_type") == "ClassLabel" else None
    found = Found([], [], Cells(table, image, root, []), split=split, notes=notes)
    rows: list[int] = []
    labels: list[Any] = []
    for row, value in enumerate(values):
        if value is None or (known is not None and value == -1):
            found.skipped.append(Skipped(f"{split}/{row}", "the row has no label"))
        elif isinstance(value, (list, dict)):
            raise ImagesError(f"the column {shown(label)} of {shown(request.path)} holds more than one label per image")
        else:
            rows.append(row)
            labels.append(value)
    found.names = [f"{split}/{row}" for row in rows]
    found.labels, found.store, found.known_classes = labels, Cells(table, image, root, rows), known
    return found


def _files(request: Request) -> tuple[list[Path], str, list[str]]:
    path = request.path
    if path.is_file():
        refuse_split(request)
        return [path], TRAIN, []
    if (path / SPLITS).is_file():
        splits = _json(path / SPLITS).get("splits")
        listed = splits if isinstance(splits, list) else []
        # A split is a folder right here: a list must not lead elsewhere.
        inside = [name for name in listed if isinstance(name, str) and name != ".." and Path(name).name == name]
        names = [name for name in inside if (path / name).is_dir()]
        if not names:
            raise ImagesError(f"{shown(path / SPLITS)} lists no split that is there; it lists {splits!r}")
        split = choose_split(path, request.split, names)
        return _saved(path / split), split, split_note(split, names)
    if (path / STATE).is_file() or _arrow_files(path):
        stated = _json(path / STATE).get("_split") if (path / STATE).is_file() else None
        here = stated if isinstance(stated, str) and stated else TRAIN
        return _saved(path), choose_split(path, request.split, [here]), []
    shards = _shards(path)
    split = choose_split(path, request.split, list(shards))
    return shards[split], split, split_note(split, list(shards))


def _saved(folder: Path) -> list[Path]:
    """The Arrow files of one saved data set, in the order its state gives."""
    state = _json(folder / STATE) if (folder / STATE).is_file() else {}
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise ImagesError(
            f"{shown(folder)} was saved with an index of rows, as old versions did; load and save it again with a"
            " current version of datasets"
        )
    stated = state.get("_data_files")
    listed = stated if isinstance(stated, list) else []
    # Only the last part of a name counts: a file list must not lead out of its folder.
    files = [folder / Path(str(entry.get("filename", ""))).name for entry in listed if isinstance(entry, dict)]
    files = files or _arrow_files(folder)
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise ImagesError(f"{shown(folder)} lacks {few(missing) if missing else 'its .arrow files'}: copy it again")
    return files


def _arrow_files(folder: Path) -> list[Path]:
    return [folder / e.name for e in listing(folder) if e.name.endswith(".arrow") and not e.name.startswith("cache-")]


def _shards(folder: Path) -> dict[str, list[Path]]:
    """Parquet files per split, in `data` below the folder or in the folder itself."""
    found: dict[str, list[Path]] = {}
    for place in (folder / "data", folder):
        if place.is_dir() and not found:
            for entry in listing(place):
                match = SHARD.match(entry.name)
                if match and os.path.isfile(entry.path):
                    found.setdefault(match["split"], []).append(place / entry.name)
    return found


def _holds_images(path: Path) -> bool:
    """Whether a Parquet file has a column of image bytes. Without pyarrow the manifest reader asks for it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    try:
        return bool(_candidates(pyarrow.parquet.read_schema(path)))
    except (pyarrow.ArrowException, OSError, ValueError):  # the last for names that are no text
        return False


def _candidates(schema: Any) -> list[str]:
    """Columns of bytes, or of {bytes, path}."""
    import pyarrow.types as types

    def holds_bytes(kind: Any) -> bool:
        if types.is_struct(kind):
            return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    return [field.name for field in schema if holds_bytes(field.type)]


def _image_column(table: Table, features: dict[str, dict[str, Any]], request: Request) -> str:
    candidates = _candidates(table.schema)
    if request.image_column is None:
        declared = [name for name, kind in features.items() if kind.get("_type") == "Image" and name in candidates]
        usable = declared or candidates
        if len(usable) == 1 or "image" in usable:
            return "image" if "image" in usable else usable[0]
        if len(usable) > 1:
            raise ImagesError(f"{shown(request.path)} has several columns of images: {few(usable)}; use --image-column")
    elif request.image_column in candidates:
        return request.image_column
    raise ImagesError(
        f"{shown(request.path)} has no column of images{'' if request.image_column is None else ' of that name'}; its"
        f" columns are {few(table.schema.names, 20)}"
    )


def _label_column(table: Table, features: dict[str, dict[str, Any]], request: Request, image: str) -> str:
    header: list[str] = [name for name in table.schema.names if name != image]
    declared = [name for name in header if features.get(name, {}).get("_type") == "ClassLabel"]
    if request.label_column is None and len(declared) == 1:
        return declared[0]
    return find_column(header, request.label_column, LABELS, "labels", "--label-column", request.path)


def _features(folder: Path, table: Table) -> dict[str, dict[str, Any]]:
    """What the columns mean, from dataset_info.json or from the schema; empty where neither says."""
    stated: Any = _json(folder / INFO).get("features") if (folder / INFO).is_file() else None
    if not isinstance(stated, dict):
        raw = (table.schema.metadata or {}).get(b"huggingface", b"{}")
        try:
            stated = json.loads(raw).get("info", {}).get("features")
        except (ValueError, AttributeError, RecursionError):
            stated = None
    if not isinstance(stated, dict):
        return {}
    features = {str(name): kind for name, kind in stated.items() if isinstance(kind, dict)}
    for kind in features.values():
        if kind.get("_type") == "ClassLabel":
            names = kind.get("names")
            kind["names"] = [str(name) for name in names] if isinstance(names, list) and names else None
    return features


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ImagesError(f"{shown(path)} is damaged ({error}); copy or save the data set again") from error
    if not isinstance(content, dict):
        raise ImagesError(f"{shown(path)} is damaged (not an object); copy or save the data set again")
    return content
