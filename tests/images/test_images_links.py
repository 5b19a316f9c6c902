"""Links in image folders: none leads a reader out of the folder or gives an image a second label unasked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from image_cases import class_folder, picture, save

from sgoif.cli import main
from sgoif.images import Collection, ImagesError, open_images, open_unlabelled

DIRECT = ["cat/0.png", "dog/0.png"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(50):
        save(picture(500 + number, 4, 4), tmp_path / "system" / "icons" / f"{number}.png")
    return class_folder(tmp_path / "data", each=1)


def link(path: Path, target: Path | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, path)


def said(collection: Collection) -> str:
    """The one note about links."""
    (note,) = (note for note in collection.notes if "not followed" in note)
    return note


def reasons(collection: Collection) -> dict[str, str]:
    return {entry.name: entry.reason for entry in collection.skipped}


@pytest.mark.parametrize("place", ["cat/more", "bird", "cat/deep/er/x"])
def test_a_link_to_a_folder_elsewhere_adds_nothing(root: Path, tmp_path: Path, place: str) -> None:
    link(root / place, tmp_path / "system")
    for found in (open_images(root), open_unlabelled(root)):
        assert found.names == DIRECT
        assert said(found).startswith(f"1 link not followed: each leads out of the folder ('{place}')")
        assert "--follow-links" in said(found)
        assert "not followed" in reasons(found)[place]
    assert open_images(root).class_names == ["cat", "dog"]
    followed = open_images(root, follow_links=True)
    assert len(followed) == 52
    assert f"{place}/icons/7.png" in followed.names
    assert followed.notes == []
    assert len(open_unlabelled(root, follow_links=True)) == 52


def test_links_to_files_elsewhere_are_counted(root: Path, tmp_path: Path) -> None:
    for number in range(8):
        link(root / "cat" / f"l{number}.png", tmp_path / "system" / "icons" / f"{number}.png")
    found = open_images(root)
    assert found.names == DIRECT
    assert said(found).startswith("8 links not followed: each leads out of the folder ('cat/l0.png'")
    assert "and 3 more" in said(found)
    assert len(open_images(root, follow_links=True)) == 10


@pytest.mark.parametrize(
    ("place", "target"),
    [("cat/x.png", "../dog/0.png"), ("cat/x", "../dog"), ("bird", "dog"), ("cat/x.png", ".store/../../dog/0.png")],
)
def test_a_link_into_another_class_gives_no_second_label(root: Path, place: str, target: str) -> None:
    (root / "cat" / ".store").mkdir()
    link(root / place, target)
    found = open_images(root)
    assert (found.names, found.class_names) == (DIRECT, ["cat", "dog"])
    assert "leads into another class" in said(found)
    followed = open_images(root, follow_links=True)
    assert len(followed) == 3
    assert open_unlabelled(root).names in (DIRECT, [*DIRECT[:1], place, *DIRECT[1:]], [place + "/0.png", *DIRECT])


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("target", ["/", "..", ".", "../..", "../../..", "self"])
def test_a_link_back_up_ends(root: Path, target: str, follow: bool) -> None:
    link(root / "cat" / "self", target)
    (root / "cat" / "deep").mkdir()
    link(root / "cat" / "deep" / "back.png", "..")
    found = open_images(root, follow_links=follow)
    assert found.names == DIRECT
    assert "leads back to a folder that holds it" in said(found)
    assert open_unlabelled(root, follow_links=follow).names == DIRECT


@pytest.mark.parametrize("name", ["all", "train", "val"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_class_or_split_that_is_a_link_back_up_ends(root: Path, name: str, follow: bool) -> None:
    link(root / name, "/")
    assert open_images(root, follow_links=follow).names == DIRECT


def test_a_split_elsewhere_is_no_split(root: Path, tmp_path: Path) -> None:
    class_folder(tmp_path / "other", ("a", "b"))
    link(tmp_path / "set" / "train", tmp_path / "other")
    class_folder(tmp_path / "set" / "val", each=1)
    assert open_images(tmp_path / "set").split == "val"
    for opened in (open_images, open_unlabelled):
        with pytest.raises(ImagesError, match=r"split 'train' .* leads out of the folder; .*--follow-links"):
            opened(tmp_path / "set", split="train")
        assert len(opened(tmp_path / "set", split="train", follow_links=True)) == 6
    with pytest.raises(ImagesError, match="is not read: it leads"):
        open_unlabelled(root, split="..")


def test_a_link_into_the_split_that_is_not_read(tmp_path: Path) -> None:
    class_folder(tmp_path / "train", each=1)
    class_folder(tmp_path / "val", each=2)
    link(tmp_path / "train" / "cat" / "x.png", "../../val/dog/1.png")
    found = open_images(tmp_path)
    assert found.names == [f"train/{name}" for name in DIRECT]
    assert "leads into another class" in said(found)


def test_links_to_a_hidden_store_of_the_folder_are_followed_once(root: Path) -> None:
    for number in range(3):
        save(picture(number), root / ".store" / "owl" / f"{number}.png")
    link(root / "cat" / "first.png", "../.store/owl/0.png")
    link(root / "owl", ".store/owl")
    link(root / "owls", ".store/owl")
    found = open_images(root)
    assert found.names == ["cat/0.png", "cat/first.png", "dog/0.png", "owl/1.png", "owl/2.png"]
    assert reasons(found)["owls"] == "a link that leads to what is read anyway is not followed"
    followed = open_images(root, follow_links=True)
    assert len(followed) == 3 + 3 + 3, "each class has the store once"


@pytest.mark.parametrize("follow", [False, True])
def test_nothing_is_read_twice_in_a_class(root: Path, tmp_path: Path, follow: bool) -> None:
    save(picture(3), root / "cat" / "deep" / "1.png")
    link(root / "cat" / "again", "deep")
    link(root / "cat" / "again.png", "0.png")
    link(root / "cat" / "one", tmp_path / "system")
    link(root / "cat" / "two", tmp_path / "system" / "icons")
    link(root / "cat" / "two.png", tmp_path / "system" / "icons" / "2.png")
    link(tmp_path / "system" / "icons" / "round", tmp_path / "system")
    link(tmp_path / "system" / "home", root)
    found = open_images(root, follow_links=follow)
    assert len(found) == 3 + 50 * follow
    real = [os.path.realpath(str(found.file(number))) for number in range(len(found))]
    assert len(set(real)) == len(real)
    assert any("leads to what is read anyway" in note for note in found.notes)


def test_a_root_behind_a_link_and_links_that_lead_nowhere(root: Path, tmp_path: Path) -> None:
    link(tmp_path / "alias", root)
    link(root / "dog" / "x.png", "x.png")
    link(root / "cat" / "y.png", "../nothing.png")
    link(root / "z", "z")
    found = open_images(tmp_path / "alias")
    assert found.names == DIRECT
    assert all("leads nowhere" in reasons(found)[name] for name in ("dog/x.png", "cat/y.png"))
    assert open_unlabelled(tmp_path / "alias").names == DIRECT


def test_the_option_means_something_for_folders_alone(root: Path) -> None:
    (root / "list.csv").write_text("path,label\ncat/0.png,a\ndog/0.png,b\n")
    with pytest.raises(ImagesError, match="follow_links means nothing"):
        open_images(root / "list.csv", follow_links=True)


def test_audit_says_what_was_skipped_and_follows_on_demand(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link(tmp_path / "set" / "cat", root / "cat")
    link(tmp_path / "set" / "dog", root / "dog")
    words = ["audit", str(tmp_path / "set"), "--out", str(tmp_path / "run")]
    assert main(words) == 2
    refused = " ".join(capsys.readouterr().err.split())
    assert "2 links not followed: each leads out of the folder ('cat', 'dog')" in refused
    assert "--follow-links" in refused
    assert main([*words, "--follow-links"]) == 2
    assert "2 images in 2 classes are too few to audit" in " ".join(capsys.readouterr().err.split())
