"""What is planted is there, nothing else is, and what is found is held against it."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sgoif.errors import SettingError
from sgoif.findings import Finding, Severity
from sgoif_bench.findings import changes
from sgoif_bench.findings.kinds import choose, identity, tally
from sgoif_bench.findings.pictures import chequered, foreign, generated, pictures
from sgoif_bench.findings.planting import COPIED, IN_PLACE, LEAST, RARE, Tree, clean, planted

COUNT = 420
WHOLE = generated(COUNT)


def silent(message: str) -> None:
    del message


@pytest.fixture(scope="module")
def tree() -> Tree:
    return planted(WHOLE, foreign("generated", None, silent), 0, 0.005)


def test_generated_images_are_the_same_whenever_they_are_made() -> None:
    again = pictures("generated", None, COUNT, silent)
    assert np.array_equal(again.labels, WHOLE.labels)
    assert again.file(7) == WHOLE.file(7) != WHOLE.file(8)
    assert np.asarray(chequered(1)).std() > 0
    shares = [np.asarray(WHOLE.image(row)).std() for row in range(12)]
    assert min(shares) > 20


def test_the_clean_folder_holds_every_image_as_it_is(tmp_path: Path) -> None:
    files = clean(WHOLE, 3).write(tmp_path)
    assert sorted(file.row for file in files.values()) == list(range(COUNT))
    for name, file in list(files.items())[:20]:
        split, label, _ = name.split("/")
        assert label == WHOLE.classes[WHOLE.labels[file.row]]
        assert (tmp_path / name).read_bytes() == WHOLE.file(file.row)[0]
        assert split in ("train", "val", "test")
    assert {file.number for file in clean(WHOLE, 4).files} == {file.number for file in files.values()}


def test_every_part_is_planted_in_images_of_its_own(tree: Tree) -> None:
    parts = Counter((plant.kind, plant.part) for file in tree.files for plant in file.plants)
    for kind, part, _ in IN_PLACE:
        assert parts[kind, part] == LEAST
    for kind, part, *_ in COPIED:
        assert parts[kind, part] == 2 * LEAST
    assert parts["bursts", "moved"] == 3 * LEAST
    assert all(len(file.plants) <= 1 for file in tree.files)
    rows = [plant.number for file in tree.files for plant in file.plants if plant.kind == "dark"]
    assert len(set(rows)) == LEAST
    assert sum(file.label == RARE for file in tree.files) == 3
    assert not any(file.plants for file in clean(WHOLE, 0).files)


def test_copies_differ_in_what_they_should(tree: Tree, tmp_path: Path) -> None:
    groups: dict[int, list[str]] = {}
    files = tree.write(tmp_path)
    for name, file in files.items():
        for plant in file.plants:
            if (plant.kind, plant.part) in {("copies", "one label"), ("copies", "two labels"), ("leaks", "exact")}:
                groups.setdefault(plant.number, []).append(name)
    assert len(groups) == 3 * LEAST
    for names in groups.values():
        one, other = (files[name] for name in names)
        assert (tmp_path / names[0]).read_bytes() == (tmp_path / names[1]).read_bytes()
        part = one.plants[0].part
        assert (one.label != other.label) == (part == "two labels")
        assert (one.split != other.split) == (part == "exact")


def test_a_folder_that_is_too_small_is_refused() -> None:
    with pytest.raises(SettingError, match="too few to plant"):
        planted(generated(100), WHOLE, 0, 0.005)


@pytest.mark.parametrize("change", [changes.dark, changes.bright, changes.blurry, changes.empty, changes.grey])
def test_changes_keep_the_size_and_change_the_image(change: changes.Change) -> None:
    before = WHOLE.image(0)
    after = change(before, np.random.default_rng(0))
    assert after.size == before.size
    assert np.asarray(after.convert("RGB")).tolist() != np.asarray(before).tolist()
    again = change(before, np.random.default_rng(0))
    assert again.tobytes() == after.tobytes()


def test_files_are_what_their_endings_say() -> None:
    for suffix, kind in ((".png", "PNG"), (".jpg", "JPEG")):
        assert Image.open(io.BytesIO(changes.encoded(WHOLE.image(0), suffix))).format == kind


def found(kind: str, *names: str) -> Finding:
    return Finding(kind, Severity.WARNING, "Something is wrong.", names)


def test_findings_are_held_against_what_was_planted(tree: Tree) -> None:
    files = {str(number): file for number, file in enumerate(tree.files)}
    planted_in: dict[str, list[str]] = {}
    for name, file in files.items():
        planted_in.setdefault(file.plants[0].kind if file.plants else "", []).append(name)
    plain, dark, empty = planted_in[""], planted_in["dark"], planted_in["empty"]
    known = {identity(found("dark", plain[0]), files)}
    findings = [found("dark", name) for name in (*dark[:5], empty[0], plain[0], plain[1])]
    result = tally("dark", findings, tree, files, known)
    assert result.planted == {"dark": LEAST}
    assert {part: len(numbers) for part, numbers in result.reached.items()} == {"dark": 5}
    assert (result.found, result.right, result.known, len(result.wrong)) == (8, 6, 1, 1)


def test_a_group_is_right_where_it_holds_nothing_else(tree: Tree) -> None:
    files = {str(number): file for number, file in enumerate(tree.files)}
    groups: dict[int, list[str]] = {}
    for name, file in files.items():
        if file.plants and file.plants[0].kind == "leaks":
            groups.setdefault(file.plants[0].number, []).append(name)
    one, other, *_ = groups.values()
    plain = next(name for name, file in files.items() if not file.plants)
    findings = [found("leaks", *one), found("leaks", *other, plain), found("leaks", one[0], plain)]
    result = tally("leaks", findings, tree, files, set())
    assert (result.found, result.right, len(result.wrong)) == (3, 1, 2)
    known = identity(found("leaks", other[0], plain), files)
    result = tally("leaks", findings, tree, files, {known})
    assert (result.right, result.known, len(result.wrong)) == (2, 0, 1)


def test_kinds_that_need_features_are_refused_without_them() -> None:
    assert "off-topic" not in choose("all", features=False)
    assert "off-topic" in choose("all", features=True)
    assert choose("size,dark", features=False) == ["dark", "size"]
    with pytest.raises(SettingError, match="without features"):
        choose("off-topic", features=False)
    with pytest.raises(SettingError, match="no kind 'wet'"):
        choose("wet", features=True)
