"""The page as text: what is stored, in which order, within which limits, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_cases import HOSTILE, as_pairs, changed, page_data, page_html, png, stored, thumbnail

from sgoif.errors import SettingError
from sgoif.reports.page import write_page
from sgoif.reports.page_json import natural_order, suspicion_order, to_json
from sgoif.reports.page_pictures import CHUNK, order_by_need


def pictures(html: str) -> list[str]:
    """Lines of all picture elements in their order."""
    blocks = re.findall(r'<script type="text/plain" id="pictures-(\d+)">(.*?)</script>', html, re.S)
    assert [int(number) for number, _ in blocks] == list(range(len(blocks)))
    return [line for _, block in blocks for line in block.split("\n")]


def end_of(html: str) -> dict[str, int]:
    found = re.search(r'id="pictures-end">(.*?)</script>', html)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


def test_columns_are_stored_worst_first_with_their_rows() -> None:
    data = page_data(300, classes=7)
    report = stored(page_html(data))
    order = np.argsort(-data.table.probability_wrong)
    assert report["names"] == [data.names[row] for row in order]
    columns = report["columns"]
    for name, expected in {
        "given": data.table.given_label,
        "suggested": data.table.predicted_label,
        "observations": data.table.n_observations,
        "selected": data.table.is_label_issue,
    }.items():
        np.testing.assert_array_equal(columns[name], expected[order])
    np.testing.assert_allclose(columns["influence"], data.table.influence[order], rtol=1e-6)
    np.testing.assert_allclose(columns["low"], data.table.interval_low[order], rtol=1e-5)
    harmed = columns["harmed"].reshape(300, 3)
    for place, row in enumerate(order):
        expected_names = [data.names[other] for other in data.harmed[row] if other >= 0]
        assert [report["names"][other] for other in harmed[place] if other >= 0] == expected_names


def test_every_picture_is_where_its_row_says() -> None:
    data = page_data(600)
    html = page_html(data)
    report, lines = stored(html), pictures(html)
    for place, row in enumerate(suspicion_order(data.table)):
        assert base64.b64decode(lines[report["columns"]["slot"][place]]) == thumbnail(int(row))
    assert end_of(html) == {"stored": 600, "dropped": 0, "unreadable": 0}


def test_the_limit_keeps_what_the_most_suspicious_show() -> None:
    data = page_data(2000)
    limit = len(page_html(replace(data, thumbnail=None)).encode()) + 60_000
    html = page_html(data, max_bytes=limit)
    lines = pictures(html)
    assert len(html.encode()) <= limit
    assert CHUNK < len(lines) < 2000
    assert end_of(html)["dropped"] == 2000 - len(lines)
    slots = stored(html)["columns"]["slot"]
    harmed = stored(html)["columns"]["harmed"].reshape(2000, 3)
    assert (slots[:100] < len(lines)).all()
    assert all(slots[other] < len(lines) for other in harmed[:100].ravel() if other >= 0)
    # One picture more would not have fitted: the limit is used.
    assert limit - len(html.encode()) < 1000


def test_a_tiny_limit_stores_no_picture_but_the_whole_table() -> None:
    data = page_data(50)
    html = page_html(data, max_bytes=1)
    assert pictures(html) == []
    assert len(stored(html)["names"]) == 50
    assert end_of(html)["dropped"] == 50


def test_damaged_pictures_cost_only_themselves() -> None:
    def damaged(row: int) -> bytes | None:
        if row == 1:
            raise OSError("truncated")
        return {0: None, 2: b"<svg onload=alert(1)>", 3: b"\xff\xd8\xff" + bytes(2**20)}.get(row, thumbnail(row))

    html = page_html(page_data(20, thumbnail=damaged))
    assert end_of(html) == {"stored": 16, "dropped": 1, "unreadable": 3}
    assert base64.b64encode(b"<svg").decode()[:4] not in "".join(pictures(html))


@pytest.mark.parametrize(
    "picture", [b"\xff\xd8\xff\xe0", png(1, 2, 3), b"RIFF\x10\0\0\0WEBPVP8 ", b"GIF89a\x01\0\x01\0"]
)
def test_formats_that_browsers_show_are_stored(picture: bytes) -> None:
    assert base64.b64decode(pictures(page_html(page_data(1, hurt=0, thumbnail=lambda row: picture)))[0]) == picture


def test_by_need_holds_every_row_once_in_the_order_of_need() -> None:
    order = np.array([3, 0, 2, 1, 4])
    harmed = np.array([[1, -1], [2, 2], [0, 4], [4, 3], [-1, -1]])
    assert order_by_need(order, harmed).tolist() == [3, 4, 0, 1, 2]
    assert order_by_need(order, np.zeros((5, 0), dtype=np.int64)).tolist() == order.tolist()


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=80))
def test_any_text_survives_and_cannot_leave_its_element(text: str) -> None:
    written = to_json({"x": text})
    assert json.loads(written) == {"x": text}
    assert written.isascii()
    assert not set(written) & set("<>&")


def test_hostile_texts_change_nothing_outside_the_data() -> None:
    data = page_data(len(HOSTILE), classes=len(HOSTILE), hurt=0, thumbnail=None)
    plain = page_html(data)
    html = page_html(
        replace(
            data,
            names=HOSTILE,
            class_names=HOSTILE[::-1],
            notes=HOSTILE,
            facts=dict.fromkeys(HOSTILE, HOSTILE[1]),
            title=HOSTILE[1],
            source=HOSTILE[0],
        )
    )
    assert stored(html)["classes"] == HOSTILE[::-1]
    assert sorted(stored(html)["names"]) == sorted(HOSTILE)
    assert html.count("<script") == plain.count("<script")
    assert html.count("</script") == plain.count("</script")
    assert html.count("<!--") == plain.count("<!--")
    html.replace("\udcff", "").encode("utf-8")


def test_the_policy_names_the_script_and_the_style_and_nothing_else() -> None:
    html = page_html(page_data())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    rules = dict(rule.split(maxsplit=1) for rule in policy[1].split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data: blob:"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        bodies = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.S)
        assert len(bodies) == 1
        digest = base64.b64encode(hashlib.sha256(bodies[0].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in policy[1]
    assert re.findall(r"""(?:src|href)=["'](?!#)[^"']*""", html) == []


def test_the_digest_depends_on_the_rows_alone() -> None:
    """By it decisions that were taken on a page are found again on one that was written anew."""
    data = page_data()
    first = stored(page_html(data))["digest"]
    assert stored(page_html(replace(data, notes=["other"], facts={}, fdr=0.2)))["digest"] == first
    assert stored(page_html(changed(data, is_label_issue=~data.table.is_label_issue)))["digest"] == first
    assert stored(page_html(changed(data, probability_wrong=data.table.probability_wrong / 2)))["digest"] == first
    assert stored(page_html(changed(data, probability_wrong=1 - data.table.probability_wrong)))["digest"] == first
    assert stored(page_html(changed(data, given_label=data.table.given_label[::-1])))["digest"] != first
    assert stored(page_html(replace(data, source="/elsewhere")))["digest"] != first


def test_unknown_values_are_stored_as_such_and_come_last() -> None:
    data = page_data(10)
    unknown = np.where(np.arange(10) == 3, np.nan, 0.5)
    html = page_html(
        changed(data, probability_wrong=unknown, influence=unknown, noise_rate=(np.nan,) * 3, precision=[(10, np.nan)])
    )
    report = stored(html)
    assert report["names"][-1] == data.names[3]
    assert np.isnan(report["columns"]["influence"][-1])
    assert report["noise"] == [None, None, None]
    assert report["precision"] == [[10, None]]


def test_many_classes_give_the_busiest_part_of_the_matrix() -> None:
    classes = 500
    confusion = np.diag(np.full(classes, 100.0))
    confusion[400, 7] = 33.0
    confusion[7, 400] = 11.0
    report = stored(page_html(page_data(2000, classes, confusion=as_pairs(confusion))))
    assert report["pairs"] == [[400, 7, 33.0], [7, 400, 11.0]]
    shown = report["matrix"]["classes"]
    assert len(shown) == 12
    assert {7, 400} <= set(shown)
    assert report["matrix"]["cells"][shown.index(400)][shown.index(7)] == 33.0


def test_one_row_of_one_class_is_a_page() -> None:
    report = stored(page_html(page_data(1, 1, hurt=0, thumbnail=None, history=[], precision=[])))
    assert report["matrix"]["classes"] == [0]
    assert report["pairs"] == []
    assert "slot" not in report["columns"]


def test_long_histories_are_thinned_to_their_shape() -> None:
    history = [{"step": float(i), "tau": float(i), "unknown_key": 1.0} for i in range(10_000)]
    curves = stored(page_html(page_data(history=history)))["history"]
    assert set(curves) == {"step", "tau"}
    assert len(curves["step"]) == 400
    assert (curves["tau"][0], curves["tau"][-1]) == (0, 9999)


def test_names_sort_like_people_count() -> None:
    names = ["img10", "img2", "IMG1", "9" * 5000, "img2b", "img", "\u0663" * 5000, ""]
    ordered = [names[row] for row in natural_order(names)]
    assert [name for name in ordered if "g" in name.lower()] == ["img", "IMG1", "img2", "img2b", "img10"]
    assert sorted(ordered) == sorted(names)
    assert natural_order(["a", "10", "2", "2a", "A1"]).tolist() == [2, 3, 1, 0, 4]


def test_writing_is_all_or_nothing_and_reports_progress(tmp_path: Path) -> None:
    path = tmp_path / "out" / "report.html"
    seen: list[tuple[int, int]] = []
    write_page(path, page_data(30), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 30) for i in range(1, 31)]
    before = path.read_bytes()
    assert before.decode("utf-8") == page_html(page_data(30))

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_page(path, page_data(40), progress=interrupt)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": []}, "at least one example"),
        ({"class_names": ["a", "b", "a", "c"]}, "'a' stands there more than once"),
        ({"class_names": []}, "at least one class"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        page_data(**changes)


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(SettingError, match="max_bytes"):
        page_html(page_data(), max_bytes=0)
