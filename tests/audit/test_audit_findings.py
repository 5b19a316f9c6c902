"""What `sgoif audit` finds beside wrong labels, in all splits, and what it tells machines."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from audit_cases import make_folder, read_issues
from backbone_cases import NAME, offer
from PIL import Image
from shard_cases import pairs, tar

from sgoif.audit import audit as auditing
from sgoif.audit.audit import audit
from sgoif.audit.examined import other_splits, with_others
from sgoif.audit.progress import Progress
from sgoif.audit.results import AuditResult
from sgoif.audit.settings import AuditSettings
from sgoif.cli import main
from sgoif.findings import Check, Examined, Finding
from sgoif.findings.kinds.leaks import Leaks
from sgoif.findings.kinds.quality import Dark
from sgoif.findings.record import read_findings
from sgoif.images import open_images, prepare

QUICK: dict[str, Any] = {"model": "tiny_nets:tiny", "device": "cpu", "epochs": 2}
OPTIONS = ["--model", "tiny_nets:tiny", "--device", "cpu", "--epochs", "2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three splits; the test has no class folders and one of the pictures to train on, brighter, train has faults."""
    folder = tmp_path_factory.mktemp("findings") / "data"
    make_folder(folder / "train", per_class=24, wrong=0)
    make_folder(folder / "val", classes=("bars", "columns"), per_class=10, wrong=0, seed=1)
    make_folder(folder / "later", classes=("bars",), per_class=6, wrong=0, seed=2)
    (folder / "later" / "bars").rename(folder / "test")
    (folder / "later").rmdir()
    train = folder / "train"
    shutil.copy(train / "bars" / "0-003.png", folder / "val" / "columns" / "leaked.png")
    with Image.open(train / "dots" / "2-004.png") as picture:
        picture.point(lambda value: min(255, value + 3)).save(folder / "test" / "brighter.png")
    shutil.copy(train / "bars" / "0-005.png", train / "dots" / "twice.png")
    generator = np.random.default_rng(0)
    Image.fromarray(generator.integers(0, 9, (12, 12, 3), dtype=np.uint8)).save(train / "bars" / "night.png")
    (train / "bars" / "broken.png").write_bytes(b"no image")
    (folder / "test" / "cut.png").write_bytes((train / "bars" / "0-000.png").read_bytes()[:60])
    return folder


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    return audit(AuditSettings(data, out=tmp_path_factory.mktemp("finished") / "run", **QUICK))


def by_kind(result: AuditResult) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in read_findings(result.out / "findings.json"):
        found.setdefault(finding.kind, []).append(finding)
    return found


def test_everything_that_was_planted_is_found_in_all_splits(finished: AuditResult) -> None:
    found = by_kind(finished)
    assert [finding.images for finding in found["dark"]] == [("train/bars/night.png",)]
    assert {finding.images[0] for finding in found["unreadable"]} == {"train/bars/broken.png", "test/cut.png"}
    assert {frozenset(finding.images) for finding in found["leaks"]} == {
        frozenset({"train/bars/0-003.png", "val/columns/leaked.png"}),
        frozenset({"train/dots/2-004.png", "test/brighter.png"}),
    }
    conflicts = {frozenset(finding.images) for finding in found["copies"]}
    assert frozenset({"train/bars/0-005.png", "train/dots/twice.png"}) in conflicts
    assert frozenset({"train/bars/0-003.png", "val/columns/leaked.png"}) in conflicts
    assert {finding.severity for finding in found["leaks"] + found["unreadable"]} == {"error"}


def test_labels_are_judged_as_they_are_without_the_other_splits(
    finished: AuditResult, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(data / "train", tmp_path / "alone" / "train")
    alone = audit(AuditSettings(tmp_path / "alone", out=tmp_path / "run", **QUICK))
    assert read_issues(alone.out) == read_issues(finished.out)
    assert finished.summary["images"] == alone.summary["images"] == 74
    assert "leaks" in alone.summary["findings"]["not_looked"]
    record = json.loads((finished.out / "findings.json").read_text())
    assert record["images"] == 74 + 21 + 7
    assert record["classes"] == ["bars", "columns", "dots"]
    assert "leaks" in record["looked"]
    assert "features" in record["not_looked"]["off-topic"]


def test_the_summary_says_what_is_wrong_in_five_lines(finished: AuditResult) -> None:
    told = finished.summary["findings"]
    found = read_findings(finished.out / "findings.json")
    assert told["kinds"] == {kind: len(some) for kind, some in by_kind(finished).items()}
    assert told["error"] + told["warning"] + told["note"] == len(found)
    assert told["new"] is None
    assert len(told["summary"]) == 5
    assert told["summary"][-1].startswith("to do first (")
    assert any("of 'test', 'val'" in note for note in finished.summary["notes"])
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(finished.out / "findings.parquet")
    assert table.num_rows == sum(max(1, len(finding.images)) for finding in found)


def test_the_page_has_all_kinds_and_images_of_all_splits(finished: AuditResult) -> None:
    page = finished.report.read_text(encoding="utf-8")
    block = re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.S)
    assert block is not None
    shown = json.loads(block[1])["found"]
    assert {kind["kind"]: len(kind["findings"]) for kind in shown["kinds"]} == {
        kind: len(found) for kind, found in by_kind(finished).items() if kind != "wrong-label"
    }
    assert shown["splits"] == ["train", "val"]
    further = {image[0]: image[1:] for image in shown["further"]}
    assert further["val/columns/leaked.png"] == ["columns", True]
    assert further["test/brighter.png"] == [None, True]
    assert further["train/bars/broken.png"] == ["bars", True]
    lines = re.findall(r'<script type="text/plain" id="pictures-\d+">(.*?)</script>', page, re.S)
    pictures = [line for block in lines for line in block.split("\n")]
    assert sum(bool(line) for line in pictures) == 74 + sum(
        name not in {"train/bars/broken.png", "test/cut.png"} for name in further
    )


def test_a_resumed_run_writes_the_same_findings(finished: AuditResult, data: Path) -> None:
    before = (finished.out / "findings.json").read_bytes()
    (finished.out / "findings.json").unlink()
    shutil.rmtree(finished.out / "cache-splits")
    audit(AuditSettings(data, out=finished.out, **QUICK), resume=True)
    assert (finished.out / "findings.json").read_bytes() == before


def test_exit_codes_baselines_and_files_for_a_ci_page(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    files = ["--sarif", "out/f.sarif", "--junit", "f.xml"]
    assert main(["audit", "data", *OPTIONS, "--fail-on", "error", *files]) == 4
    streams = capfd.readouterr()
    assert "to do first (" in streams.out
    assert "to do first (" not in streams.err
    for name in ("findings.json", "issues.csv", "report.html", "summary.json"):
        assert (tmp_path / "sgoif-audit-data" / name).is_file(), name
    results = json.loads((tmp_path / "out" / "f.sarif").read_text())["runs"][0]["results"]
    uris = {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in results}
    assert "data/train/bars/broken.png" in uris
    (suite,) = ElementTree.parse("f.xml").getroot()
    failed = {case.attrib["classname"] for case in suite if case.find("failure") is not None}
    assert failed >= {"sgoif.leaks", "sgoif.unreadable"}
    shutil.copy("sgoif-audit-data/findings.json", "baseline.json")
    again = ["audit", "data", *OPTIONS, "--resume", "--fail-on", "error", "--baseline", "baseline.json"]
    assert main([*again, "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["findings"]["new"] == 0
    assert printed["findings"]["error"] > 0
    assert main(["audit", "data", *OPTIONS, "--resume"]) == 0
    (tmp_path / "data" / "val" / "bars" / "new.png").write_bytes(b"no image")
    capfd.readouterr()
    assert main([*again, "--json"]) == 4
    assert json.loads(capfd.readouterr().out)["findings"]["new"] == 1
    entries = json.loads((tmp_path / "sgoif-audit-data" / "findings.json").read_text())["findings"]
    assert [entry["images"] for entry in entries if entry["new"]] == [["val/bars/new.png"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fail-on", "note"], "fail_on"),
        (["--baseline", "none.json"], "'none.json' does not exist"),
        (["--sarif", "."], "choose another place with --sarif"),
        (["--junit", "."], "choose another place with --junit"),
    ],
)
def test_mistakes_are_told_before_any_work(
    options: list[str], message: str, data: Path, tmp_path: Path, monkeypatch: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["audit", str(data), *OPTIONS, *options]) == 2
    assert message in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_check_that_fails_and_splits_that_cannot_be_read_cost_nothing_else(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data / "train", tmp_path / "data" / "train")
    (tmp_path / "data" / "test").mkdir()
    (tmp_path / "data" / "test" / "broken.png").write_bytes(b"no image")

    def fail(*_: Any) -> Any:
        raise MemoryError("too much")

    monkeypatch.setattr(Dark, "find", fail)
    result = audit(AuditSettings(tmp_path / "data", out=tmp_path / "run", **QUICK))
    told = result.summary["findings"]
    assert told["not_looked"]["dark"] == "it failed: MemoryError ('too much')"
    assert told["kinds"]["unreadable"] == 1
    assert any("the other splits could not be looked at" in note for note in result.summary["notes"])
    assert len(read_issues(tmp_path / "run")) == 74


def test_leaks_between_tar_files_are_looked_for(tmp_path: Path) -> None:
    """A shard to test with has one of the pictures to train on, under its own name."""
    data = tmp_path / "data"
    data.mkdir()
    for name, samples in (("train-0.tar", pairs(0, 20)), ("test-0.tar", [*pairs(30, 12), *pairs(3, 1)])):
        (data / name).write_bytes(tar(samples))
    collection = open_images(data)
    pixels = prepare(collection, tmp_path / "cache")
    settings = AuditSettings(data)
    others, notes = other_splits(settings, collection, pixels.size, tmp_path / "others", Progress())
    assert others is not None
    assert (others.splits, notes) == (["test"] * 13, ["of 'test' files and pictures are looked at, labels are not"])
    judged = Examined(pixels.names, pixels.labels, pixels.class_names, pixels.measurements())
    (leak,) = Leaks().find(with_others(judged, pixels, "train", others))
    assert leak.images == ("test-0.tar/train/00003.png", "train-0.tar/train/00003.png")
    assert other_splits(settings, open_images(data / "train-0.tar"), 24, tmp_path / "none", Progress()) == (
        None,
        [],
    )


@pytest.mark.parametrize("method", ["frozen", "scratch"])
def test_features_are_looked_at_whatever_was_chosen(
    method: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch)
    monkeypatch.setenv("SGOIF_CACHE", str(tmp_path / "features"))
    monkeypatch.setattr(auditing, "short_look", lambda *_: 0.0 if method == "frozen" else 1.0)
    if method == "scratch":
        chosen = auditing.asking

        def quick(settings: AuditSettings, way: Any) -> AuditSettings:
            return AuditSettings.from_record({**chosen(settings, way).record(), "epochs": 1})

        monkeypatch.setattr(auditing, "asking", quick)
    seen: dict[str, tuple[int, ...]] = {}

    class Features(Check):
        """Notes what it sees."""

        kind, title, needs = "features", "Features", ("features",)

        def find(self, examined: Any) -> list[Finding]:
            seen[method] = (len(examined.names), *examined.features.shape)
            return []

    monkeypatch.setattr("sgoif.findings.checks.find_all.__kwdefaults__", {"judged": None, "checks": (Features(),)})
    result = audit(AuditSettings(data, out=tmp_path / "run", backbone=NAME, device="cpu"))
    assert seen[method] == (74, 74, 144)
    assert result.summary["plan"]["model"].startswith(NAME) == (method == "frozen")
