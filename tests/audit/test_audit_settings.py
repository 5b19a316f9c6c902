"""Settings: ranges, the command that repeats them, names of run directories."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from sgoif.audit.settings import AuditSettings, folder_name
from sgoif.errors import SettingError

PHOTOS = Path("photos")


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
        {"model": "lite0@160"},
        {"backbone": ""},
    ],
)
def test_a_value_out_of_range_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        AuditSettings(Path("photos"), **wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"finetune": True, "from_scratch": True}, "--finetune .* --from-scratch does without"),
        ({"finetune": True, "backbone": "none"}, "--finetune .* --backbone none does without"),
        ({"finetune": True, "model": "nets:make"}, "--finetune .* --model does without"),
        ({"finetune": True, "weights": "w.safetensors"}, "--finetune .* --weights does without"),
        ({"backbone": "lite1", "from_scratch": True}, "--backbone lite1 .* --from-scratch does without"),
        ({"backbone": "lite1", "model": "resnet9"}, "--backbone lite1 .* --model does without"),
    ],
)
def test_two_networks_at_once_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        AuditSettings(PHOTOS, **given)


def test_from_scratch_may_be_asked_for_in_four_ways() -> None:
    for given in ({"from_scratch": True}, {"backbone": "none"}, {"model": "nets:make"}, {"weights": "w.safetensors"}):
        assert AuditSettings(PHOTOS, **given).from_scratch_asked  # type: ignore[arg-type]
    for given in ({}, {"finetune": True}, {"backbone": "lite1"}, {"backbone": "lite1", "finetune": True}):
        assert not AuditSettings(PHOTOS, **given).from_scratch_asked  # type: ignore[arg-type]


def test_a_record_of_an_earlier_release_is_of_a_run_from_scratch() -> None:
    record = AuditSettings(PHOTOS, seed=7).record()
    for name in ("backbone", "finetune", "from_scratch"):
        del record[name]
    found = AuditSettings.from_record(record)
    assert found == AuditSettings(PHOTOS, seed=7, from_scratch=True)
    assert found.differences(record) == []
    assert AuditSettings(PHOTOS, seed=7, finetune=True).differences(record) == [
        "finetune was False, now True",
        "from_scratch was True, now False",
    ]


def test_settings_survive_their_record_and_only_free_ones_may_differ() -> None:
    settings = AuditSettings("photos", from_scratch=True, epochs=7, root="elsewhere", early_stop=False)  # type: ignore[arg-type]
    record = settings.record()
    assert AuditSettings.from_record(record) == settings
    assert settings.differences(record) == []
    moved = AuditSettings(
        "moved/photos", out="there", fdr=0.2, from_scratch=True, epochs=7, root="elsewhere", early_stop=False
    )  # type: ignore[arg-type]
    assert moved.differences(record) == []
    other = AuditSettings("photos", from_scratch=True, epochs=8, root="elsewhere")  # type: ignore[arg-type]
    assert other.differences(record) == ["epochs was 7, now 8", "early_stop was False, now True"]


def test_following_links_is_repeated() -> None:
    settings = AuditSettings(Path("photos"), follow_links=True)
    assert settings.command() == "sgoif audit photos --follow-links"
    plain = AuditSettings(Path("photos"))
    assert "follow" not in plain.command()
    assert settings.differences(plain.record()) == ["follow_links was False, now True"]


def test_the_command_repeats_what_was_given_and_nothing_else() -> None:
    settings = AuditSettings(Path("my photos"), fdr=0.2, early_stop=False, model="pack.nets:make", learning_rate=0.1)
    tuned = AuditSettings(PHOTOS, finetune=True, backbone="lite1")
    assert tuned.command() == "sgoif audit photos --backbone lite1 --finetune"
    assert AuditSettings(PHOTOS, from_scratch=True).command() == "sgoif audit photos --from-scratch"
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
