"""Settings: ranges, the command that repeats them, names of run directories."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from sgoif.audit.settings import AuditSettings, folder_name
from sgoif.errors import SettingError


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": 1.5},
        {"batch_size": 1},
        {"image_size": 7},
        {"image_size": 1025},
        {"limit": 1},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"holdout": 0.0},
        {"holdout": 0.5},
        {"budget": 1.0},
        {"fdr": 0.0},
        {"fdr": 1.0},
        {"seed": -1},
        {"device": "tpu"},
        {"model": ""},
    ],
)
def test_a_value_out_of_range_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        AuditSettings(Path("photos"), **wrong)


def test_settings_survive_their_record_and_only_free_ones_may_differ() -> None:
    settings = AuditSettings("photos", epochs=7, root="elsewhere", early_stop=False)  # type: ignore[arg-type]
    record = settings.record()
    assert AuditSettings.from_record(record) == settings
    assert settings.differences(record) == []
    moved = AuditSettings("moved/photos", out="there", fdr=0.2, epochs=7, root="elsewhere", early_stop=False)  # type: ignore[arg-type]
    assert moved.differences(record) == []
    other = AuditSettings("photos", epochs=8, root="elsewhere")  # type: ignore[arg-type]
    assert other.differences(record) == ["epochs was 7, now 8", "early_stop was False, now True"]


def test_following_links_is_repeated() -> None:
    settings = AuditSettings(Path("photos"), follow_links=True)
    assert settings.command() == "sgoif audit photos --follow-links"
    plain = AuditSettings(Path("photos"))
    assert "follow" not in plain.command()
    assert settings.differences(plain.record()) == ["follow_links was False, now True"]


def test_the_command_repeats_what_was_given_and_nothing_else() -> None:
    settings = AuditSettings(Path("my photos"), fdr=0.2, early_stop=False, model="pack.nets:make", learning_rate=0.1)
    words = shlex.split(settings.command("--resume"))
    assert words[:3] == ["sgoif", "audit", "my photos"]
    assert words[-1] == "--resume"
    assert " ".join(words[3:-1]) == "--model pack.nets:make --learning-rate 0.1 --no-early-stop --fdr 0.2"
    assert shlex.split(AuditSettings(Path("a;rm -rf b")).command()) == ["sgoif", "audit", "a;rm -rf b"]


@pytest.mark.parametrize("name", ["photos", "my photos", "..", "<b>x</b>", "снимки", "a" * 300, "-rf", "a\nb"])
def test_a_run_directory_has_a_harmless_name(name: str) -> None:
    found = folder_name(Path("/data") / name)
    assert 0 < len(found) <= 60
    assert not set(found) & set("/\n<>; ")
    assert not found.startswith(("-", "."))
    assert AuditSettings(Path("/data") / name).directory.name == f"sgoif-audit-{found}"
