"""Findings as pages of continuous integration show them: SARIF 2.1.0 for code scanning, JUnit for lists of tests."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from sgoif.core.provenance import package_version
from sgoif.core.serialization import atomic_write, write_text
from sgoif.findings.checks import TITLES, Report, failing
from sgoif.findings.finding import SEVERITIES, Finding, Severity
from sgoif.images.text import plural, shown

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "sgoifFinding/v1"
MOST_IMAGES = 20
"""Images of one finding that are named; findings.json has all."""


def write_sarif(path: Path, report: Report, *, below: str = "", known: frozenset[str] | None = None) -> None:
    """Write SARIF, one rule for each kind and one result for each finding, the gravest first.

    Args:
        path: the file to write.
        report: what was found.
        below: where the names of images start, relative to the top of the repository.
        known: ids of a baseline; results then say whether they are new.
    """
    kinds = [*report.looked, *report.not_looked]
    rules = [{"id": kind, "shortDescription": {"text": TITLES.get(kind, kind)}} for kind in kinds]
    ordered = sorted(report.findings, key=lambda found: SEVERITIES.index(found.severity))
    driver = {"name": "sgoif", "version": package_version(), "rules": rules}
    results = [_result(found, kinds.index(found.kind), below, known) for found in ordered]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    write_text(path, json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n")


def write_junit(path: Path, report: Report, *, least: Severity, known: frozenset[str] | None = None) -> None:
    """Write JUnit XML: a test for each kind, which fails where a finding of at least this severity is not `known`."""
    bad = failing(report.findings, least, known)
    failed = {kind: [found for found in bad if found.kind == kind] for kind in report.looked}
    counts = {"tests": len(report.looked) + len(report.not_looked), "errors": 0}
    counts |= {"failures": sum(map(bool, failed.values())), "skipped": len(report.not_looked)}
    top = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(top, "testsuite", name="sgoif audit")
    for name, count in counts.items():
        suite.set(name, str(count))
    for kind in (*report.looked, *report.not_looked):
        case = ElementTree.SubElement(suite, "testcase", classname=f"sgoif.{kind}", name=TITLES.get(kind, kind))
        if kind in report.not_looked:
            ElementTree.SubElement(case, "skipped", message=_printable(report.not_looked[kind]))
        elif found := failed[kind]:
            failure = ElementTree.SubElement(case, "failure", type=kind, message=plural(len(found), "finding"))
            failure.text = "\n".join(_line(one) for one in found)
    tree = ElementTree.ElementTree(top)
    atomic_write(path, lambda file: tree.write(file, encoding="utf-8", xml_declaration=True))


def _result(found: Finding, rule: int, below: str, known: frozenset[str] | None) -> dict[str, Any]:
    text = f"{found.message.rstrip('.')}. {found.advice[:1].upper()}{found.advice[1:]}".strip()
    locations = [_location(name, below) for name in found.images[:MOST_IMAGES]] or [_location("", below)]
    result: dict[str, Any] = {
        "ruleId": found.kind,
        "ruleIndex": rule,
        "level": found.severity.value,
        "message": {"text": _printable(text).replace("](", "] (")},  # which would be a link
        "locations": locations[:1],
        "partialFingerprints": {FINGERPRINT: found.id},
    }
    if further := locations[1:]:
        result["relatedLocations"] = [{"id": number, **place} for number, place in enumerate(further, 1)]
    if known is not None:
        result["baselineState"] = "unchanged" if found.id in known else "new"
    return result


def _location(name: str, below: str) -> dict[str, Any]:
    """A file, or the folder of all of them."""
    parts = "/".join(part for part in (below.strip("/"), name) if part)
    uri = quote(parts.encode("utf-8", "surrogatepass")) or "."
    return {"physicalLocation": {"artifactLocation": {"uri": uri}}}


def _line(found: Finding) -> str:
    names = [_printable(name) for name in found.images[:MOST_IMAGES]]
    more = [f"and {len(found.images) - MOST_IMAGES} more"] if len(found.images) > MOST_IMAGES else []
    return f"{found.severity}: {_printable(found.message)} {', '.join([*names, *more])}".rstrip()


def _printable(text: str) -> str:
    return shown(text, width=20 * len(text) + 1)[1:-1]


def relative_to(root: Path | None, top: Path) -> str:
    """Where names of files start, seen from `top`; nothing where that is somewhere else."""
    if root is None or not root.is_relative_to(top):
        return ""
    return "" if root == top else root.relative_to(top).as_posix()
