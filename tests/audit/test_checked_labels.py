"""Labels of held-out images that somebody checked, given back to a finished audit."""

from __future__ import annotations

import base64
import csv
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_cases import FLIPPED, make_folder, read_issues
from sklearn.metrics import average_precision_score

from sgoif.audit.audit import AuditResult, audit
from sgoif.audit.decisions import DecisionsError
from sgoif.audit.errors import AuditError
from sgoif.audit.review_plan import read_review_plan
from sgoif.audit.settings import AuditSettings

CLASSES = ("bars", "columns", "dots")
Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def astray(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuditSettings, AuditResult]:
    """Most images of every class lie in the folder of the next one."""
    base = tmp_path_factory.mktemp("astray")
    photos = make_folder(base / "photos", CLASSES, per_class=150, wrong=0.7)
    options: dict[str, Any] = {"model": "tiny_nets:tiny", "device": "cpu", "epochs": 30, "early_stop": False}
    settings = AuditSettings(photos, out=base / "run", holdout=0.3, **options)
    return settings, audit(settings)


def quality(result: AuditResult) -> float:
    rows = read_issues(result.out)
    wrong = [FLIPPED in row["path"] for row in rows]
    return float(average_precision_score(wrong, [float(row["probability_wrong"]) for row in rows]))


def to_check(result: AuditResult) -> Rows:
    with open(result.out / "to_check.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def filled_in(rows: Rows, path: Path) -> Path:
    """Somebody has looked at the images; the first number of a file name is its class."""
    for row in rows:
        right = CLASSES[int(Path(row["path"]).name[0])]
        row["decision"] = "keep" if right == row["given_label"] else "relabel"
        row["new_label"] = "" if right == row["given_label"] else right
    return write(rows, path)


def write(rows: Rows, path: Path) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["path", "decision", "given_label", "new_label"])
        writer.writeheader()
        writer.writerows(rows)
    return path


def plan_of_page(run: Path) -> tuple[dict[str, Any], list[str]]:
    """The plan of the page, and the names in the order that looks are drawn from."""
    found = re.search(r'id="report">(.*?)</script>', (run / "report.html").read_text(encoding="utf-8"))
    assert found is not None
    report = json.loads(found[1])
    planned = report["columns"]["planned"]
    rows = np.frombuffer(base64.b64decode(planned["data"]), {"u8": "<u1", "u16": "<u2"}[planned["type"]])
    return report["review"], np.array(report["names"])[rows].tolist()


def again(settings: AuditSettings, checked: Path) -> AuditResult:
    return audit(AuditSettings(**{**vars(settings), "checked": checked}), resume=True)


def test_a_dozen_checked_images_turn_the_list_round(astray: tuple[AuditSettings, AuditResult], tmp_path: Path) -> None:
    settings, first = astray
    before, rows = quality(first), to_check(first)
    assert len(rows) == 4 * len(CLASSES)
    assert not any(row["decision"] or row["new_label"] for row in rows)
    after = quality(again(settings, filled_in(rows, tmp_path / "checked.csv")))
    assert after > 0.95 > before


def test_a_review_that_has_begun_goes_on_with_its_list(
    astray: tuple[AuditSettings, AuditResult], tmp_path: Path
) -> None:
    settings, first = astray
    begun = read_review_plan(first.out)
    again(settings, filled_in(to_check(first), tmp_path / "checked.csv"))
    plan, planned = plan_of_page(first.out)
    assert plan == json.loads(json.dumps(dataclasses.asdict(begun.plan)))
    assert planned == begun.index.tolist()
    assert planned != [row["path"] for row in read_issues(first.out)]


def test_rows_left_open_do_not_count_and_dropped_images_are_no_label(
    astray: tuple[AuditSettings, AuditResult], tmp_path: Path
) -> None:
    settings, first = astray
    rows = to_check(first)
    nothing = write(rows, tmp_path / "open.csv")
    with pytest.raises(DecisionsError, match=r"no row of .* has a decision yet"):
        again(settings, nothing)
    rows[0]["decision"] = "skip"
    with pytest.raises(DecisionsError, match=r"no row of .* has a decision yet"):
        again(settings, write(rows, tmp_path / "skipped.csv"))
    rows[0]["decision"] = "drop"
    with pytest.raises(DecisionsError, match="none of 1 decision in"):
        again(settings, write(rows, tmp_path / "dropped.csv"))


def test_mistakes_in_the_file_are_named(astray: tuple[AuditSettings, AuditResult], tmp_path: Path) -> None:
    settings, first = astray
    rows = to_check(first)
    rows[0]["decision"], rows[0]["new_label"] = "relabel", "dotz"
    with pytest.raises(DecisionsError, match="did you mean 'dots'"):
        again(settings, write(rows, tmp_path / "typo.csv"))
    with pytest.raises(AuditError, match="there is no such file"):
        again(settings, tmp_path / "nowhere.csv")
    rows[0]["path"] = "bars/none.png"
    with pytest.raises(DecisionsError, match="is not in the data"):
        again(settings, write(rows, tmp_path / "missing.csv"))


def test_what_somebody_has_written_into_the_list_stays(
    astray: tuple[AuditSettings, AuditResult], tmp_path: Path
) -> None:
    """Though the run writes the list anew; a list that it cannot read is left as it is."""
    settings, first = astray
    listed = first.out / "to_check.csv"
    rows = to_check(first)
    filled_in(rows[:3], listed)
    decided = to_check(first)
    for _ in range(2):
        again(settings, listed)
        found = to_check(first)
        assert found[:3] == decided
        assert len(found) >= len(CLASSES)
        assert not any(row["decision"] for row in found[3:])
    text = "path;notes\nbars/a.png;looks wrong\n"
    listed.write_text(text)
    audit(settings, resume=True)
    assert listed.read_text() == text
    listed.unlink()
    audit(settings, resume=True)
    assert not any(row["decision"] for row in to_check(first))
