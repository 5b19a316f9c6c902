"""SARIF and JUnit: what the programs that read them insist on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from sgoif.findings import Finding, Severity
from sgoif.findings.checks import Report
from sgoif.findings.sarif import MOST_IMAGES, relative_to, write_junit, write_sarif

NAME = "a b/ü:#%?<&>\x1b\udc80.png"
FINDINGS = [
    Finding("imbalance", Severity.NOTE, "ten times as many images of '[x](http://y)'"),
    Finding("copies", Severity.ERROR, "2 images <alike>", (NAME, "c.png"), ("cat",), advice="keep one"),
    Finding("dark", Severity.WARNING, "The image is \x00 dark.", tuple(f"{k}.png" for k in range(50))),
]
REPORT = Report(FINDINGS, ("copies", "dark", "imbalance", "blurry"), {"leaks": "one <split>"})


def sarif(path: Path, **options: Any) -> Any:
    write_sarif(path, REPORT, **options)
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_log_has_what_the_schema_asks_for(tmp_path: Path) -> None:
    log = sarif(tmp_path / "new" / "f.sarif", below="data/photos")
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "sgoif"
    assert [rule["id"] for rule in driver["rules"]] == ["copies", "dark", "imbalance", "blurry", "leaks"]
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note"]
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"].isprintable()
        assert len(result["locations"]) == 1
        for place in (*result["locations"], *result.get("relatedLocations", ())):
            uri = place["physicalLocation"]["artifactLocation"]["uri"]
            assert uri.isascii()
            assert uri.startswith("data/photos")
            assert not set(uri) & set(' :#?<>"\\\x1b')
        assert len(result["partialFingerprints"]) == 1
        assert "baselineState" not in result
    copies, dark, imbalance = run["results"]
    assert copies["message"]["text"] == "2 images <alike>. Keep one"
    uri = copies["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote(uri, errors="surrogatepass") == f"data/photos/{NAME}"
    assert copies["partialFingerprints"] == {"sgoifFinding/v1": FINDINGS[1].id}
    assert [place["id"] for place in dark["relatedLocations"]] == list(range(1, MOST_IMAGES))
    assert "](" not in imbalance["message"]["text"]


def test_results_say_whether_they_are_new(tmp_path: Path) -> None:
    log = sarif(tmp_path / "f.sarif", known=frozenset([FINDINGS[1].id]))
    assert [result["baselineState"] for result in log["runs"][0]["results"]] == ["unchanged", "new", "new"]


def test_names_start_at_the_top_of_the_repository() -> None:
    assert relative_to(Path("/home/ci/repo/data/photos"), Path("/home/ci/repo")) == "data/photos"
    assert relative_to(Path("/home/ci/repo"), Path("/home/ci/repo")) == ""
    assert relative_to(Path("/elsewhere"), Path("/home/ci/repo")) == ""
    assert relative_to(None, Path("/home/ci/repo")) == ""


def junit_in(path: Path) -> tuple[dict[str, str], dict[str, ElementTree.Element]]:
    (suite,) = ElementTree.parse(path).getroot()
    return suite.attrib, {case.attrib["classname"].removeprefix("sgoif."): case for case in suite}


def test_a_kind_is_a_test_that_fails_at_grave_findings(tmp_path: Path) -> None:
    write_junit(tmp_path / "f.xml", REPORT, least=Severity.ERROR)
    counts, cases = junit_in(tmp_path / "f.xml")
    assert {name: counts[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    failure = cases["copies"].find("failure")
    assert failure is not None
    assert "a b/ü:#%?<&>\\x1b\\udc80.png, c.png" in (failure.text or "")
    skipped = cases["leaks"].find("skipped")
    assert skipped is not None
    assert skipped.attrib["message"] == "one <split>"
    assert not list(cases["dark"])
    assert not list(cases["blurry"])


def test_warnings_fail_where_they_are_asked_for_and_new(tmp_path: Path) -> None:
    write_junit(tmp_path / "f.xml", REPORT, least=Severity.WARNING)
    _, cases = junit_in(tmp_path / "f.xml")
    failure = cases["dark"].find("failure")
    assert failure is not None
    assert (failure.text or "").endswith("and 30 more")
    assert not list(cases["imbalance"])
    write_junit(tmp_path / "f.xml", REPORT, least=Severity.WARNING, known=frozenset([FINDINGS[2].id]))
    counts, cases = junit_in(tmp_path / "f.xml")
    assert counts["failures"] == "1"
    assert not list(cases["dark"])
