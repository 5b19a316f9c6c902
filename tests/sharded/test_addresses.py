"""Addresses of shards: ranges, local files, and what fsspec opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgoif.sharded.addresses import addresses_of, opened


def test_ranges_of_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert addresses_of(["a-{008..010}.tar", "a-009.tar"]) == [
        str(tmp_path / f"a-{n}.tar") for n in ("008", "009", "010")
    ]
    assert addresses_of(["s3://b/{0..1}/{0..1}.tar"]) == [f"s3://b/{i}/{j}.tar" for i in (0, 1) for j in (0, 1)]
    for wrong in (["a-{3..1}.tar"], ["{0..9999999}-{0..9999999}.tar"], []):
        with pytest.raises(ValueError, match="expected"):
            addresses_of(wrong)


@pytest.mark.parametrize("address", ["{here}", "{here}/none.tar", "memory://none.tar", "nonsense://bucket/a.tar"])
def test_an_address_that_leads_nowhere_is_one_sentence(address: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be opened: "), opened(address.format(here=tmp_path)):
        pass


def test_fsspec_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"s3://a/b.tar.*'sgoif\[remote\]'"), opened("s3://a/b.tar"):
        pass
