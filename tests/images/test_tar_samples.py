"""Samples in tar files: what WebDataset writes is read, and what somebody wrote to do harm does none."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from shard_cases import pairs, picture, tar

from sgoif.images.sources import tar_samples
from sgoif.images.sources.tar_samples import ConnectionLost, Sample, samples

IMAGE = picture(0, 0)


def read(content: bytes) -> list[Sample]:
    return list(samples(io.BytesIO(content)))


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    """A header that says what it likes of a size, with a right checksum."""
    block = bytearray(special(name, kind).tobuf())
    block[124:136] = size.ljust(12, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_labels_come_from_cls_and_json_files_and_keys_are_kept() -> None:
    found = read(tar(pairs(0, 8)))
    assert [sample.key for sample in found] == [f"train/{number:05}" for number in range(8)]
    assert [sample.label for sample in found] == ["0", "1", "2", "0", "1", "0", "0", "1"]
    assert [sample.image for sample in found] == [picture(number, number % 3) for number in range(8)]
    assert not any(sample.problem for sample in found)


def test_other_files_of_a_sample_do_no_harm() -> None:
    files = [
        ("a.txt", b"a caption"),
        ("a.seg.PNG", IMAGE),
        ("a.cls", b" owl \n"),
        ("a.npy", b"\x93"),
        ("b.d/c.jpg", IMAGE),
    ]
    first, second = read(tar(files))
    assert (first.key, first.label, first.image, first.problem) == ("a", "owl", IMAGE, None)
    assert (second.key, second.label) == ("b.d/c", None)
    assert second.problem is not None
    assert ".cls" in second.problem


@pytest.mark.parametrize("content", [b"[1]", b"{", b'{"label": [0]}', b'{"label": null}', b"[" * 60_000, b"\xff"])
def test_a_json_file_without_a_label_is_told(content: bytes) -> None:
    assert "no label" in str(read(tar([("a.png", IMAGE), ("a.json", content)]))[0].problem)


def test_names_links_and_devices_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("../../out", "/etc/passwd", "a\nb\x1b[31m", "C:\\x", "é" * 300):
            for suffix, content in ((".png", IMAGE), (".cls", b"1")):
                entry = tarfile.TarInfo(name + suffix)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            archive.addfile(special("link.png", kind, "/etc/passwd"))
    found = read(whole.getvalue())
    assert [sample.key for sample in found] == ["../../out", "/etc/passwd", "a\nb\x1b[31m", "C:\\x", "é" * 300]
    assert {sample.label for sample in found} == {"1"}
    assert list(tmp_path.iterdir()) == []


def test_no_more_is_read_than_the_limits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_samples, "MOST_IMAGE", 1000)
    monkeypatch.setattr(tar_samples, "MOST_TEXT", 1024)
    files = [("a.png", b"x" * 1001), ("a.cls", b"1"), ("b.png", b"x" * 1000), ("b.cls", b"1"), ("c.png", b"x"),
             ("c.json", b" " * 1025)]  # fmt: skip
    large, fits, text = read(tar(files))
    assert "1,001 bytes" in str(large.problem)
    assert fits.problem is None
    assert "no label" in str(text.problem)


@pytest.mark.parametrize(
    "block",
    [
        header("long", b"77777777777", b"L"),
        header("long", b"77777777777", b"x"),
        header("long", b"\x80" + b"\xff" * 11, b"L"),
        header("back.png", b"\xff" * 11 + b"\x00"),
        header("back.png", b"\xff" * 10 + b"\xfc\x00"),
        header("big.png", b"77777777777"),
        header("name.png", b"00000000001\0")[:300],
        b"\x01" * 512,
    ],
)
def test_headers_that_lie_end_the_shard_with_a_reason(block: bytes) -> None:
    good = tar([("a.png", IMAGE), ("a.cls", b"1")]).rstrip(b"\0")
    good += bytes(-len(good) % 512)
    found = read(good + block + bytes(1024))
    assert (found[0].key, found[0].label, found[0].problem) == ("a", "1", None)
    assert found[-1].key == ""
    assert "damaged" in str(found[-1].problem)


def test_nested_headers_do_not_exhaust_the_stack() -> None:
    found = read(header("x", b"00000000000\0", b"x") * 5000)
    assert [sample.key for sample in found] == [""]


@pytest.mark.parametrize("cut", [100, 512, 1500, 3000, 9000])
def test_what_comes_before_a_cut_is_kept(cut: int) -> None:
    content = tar(pairs(0, 8))
    whole, found = read(content), read(content[:cut])
    assert "damaged" in str(found[-1].problem)
    known = [sample for sample in found if sample.problem is None]
    assert known == whole[: len(known)]
    assert len(known) == [sample.problem for sample in found].index(next(s.problem for s in found if s.problem))


def test_a_connection_that_is_lost_is_no_damage() -> None:
    class Lost(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 4000:
                raise TimeoutError("the store does not answer")
            return super().read(size)

    with pytest.raises(ConnectionLost, match="does not answer"):
        list(samples(Lost(tar(pairs(0, 8)))))
