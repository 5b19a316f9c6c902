"""Findings on the page, in a real browser: what to do first, tabs, groups, decisions about images from several tabs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from findings_page_cases import TITLES, found_page, names_of
from page_cases import HOSTILE, page_data, page_html, stored

from sgoif.core.score_table import from_cell
from sgoif.errors import SettingError
from sgoif.findings import Finding, Severity
from sgoif.reports.page_data import FurtherImage

Opened = Callable[..., Any]
HEADER = ["path", "decision", "given_label", "new_label", "source", "new_split", "finding"]


def exported(page: Any, path: Path) -> list[list[str]]:
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(path)
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return [[from_cell(cell) for cell in row] for row in csv.reader(file, strict=True)]


def open_tab(page: Any, title: str) -> None:
    page.get_by_role("tab", name=title).click()


def image(page: Any, name: str) -> Any:
    return page.locator(".found-image").filter(has_text=name)


def decided(page: Any, path: Path) -> dict[str, list[str]]:
    """Decision, new label, new split and finding of every row of decisions.csv."""
    rows = exported(page, path)
    assert rows[0] == HEADER
    return {row[0]: [row[1], row[3], *row[5:]] for row in rows[1:]}


def test_without_findings_the_page_is_as_before(open_page: Opened, tmp_path: Path) -> None:
    page = open_page(page_data(30))
    for part in ("#tabs", "#first", "#found", "#not-looked", "#nothing-found"):
        assert not page.locator(part).is_visible()
    page.keyboard.press("n")
    page.keyboard.press("1")
    assert exported(page, tmp_path / "d.csv")[0] == HEADER[:5]
    assert stored(page_html(page_data(30)))["found"] is None


def test_the_first_screen_says_what_is_wrong_and_what_to_do_first(open_page: Opened) -> None:
    data = found_page()
    page = open_page(data)
    lines = page.locator("#first li").all_inner_texts()
    selected = int(data.table.is_label_issue.sum())
    assert [" ".join(line.split()) for line in lines] == [
        f"error Wrong labels: {selected} Look through the selected labels; keep, relabel or drop each.",
        "error Unreadable files: 1 Fetch it again.",
        "error Pictures in several splits: 1 Keep the copy that models are tested with.",
        "warning Dark images: 2",
        "warning Exact copies: 1 Keep one.",
    ]
    box = page.locator("#first").bounding_box()
    assert box["y"] + box["height"] < 900
    assert "Not looked for: 1 kind" in page.locator("#not-looked").inner_text()
    page.locator("#not-looked summary").click()
    assert "Images that do not belong: there are no pretrained features" in page.locator("#not-looked").inner_text()
    assert page.locator("#nothing-found").inner_text() == "Looked for, and not found: Blurry images."
    page.locator("#first button", has_text="Exact copies").click()
    assert page.locator("#found-heading").inner_text() == "Exact copies"


def test_wrong_labels_are_among_the_first_five_however_many_errors_there_are(open_page: Opened) -> None:
    names = names_of()
    many = [Finding(f"kind-{i}", Severity.ERROR, "bad", (names[i],)) for i in range(8)]
    page = open_page(found_page(findings=many, titles={}, not_looked={}, further=()))
    lines = page.locator("#first li").all_inner_texts()
    assert len(lines) == 5
    assert "Wrong labels" in lines[0]
    quiet = found_page(findings=(), further=(), is_label_issue=np.zeros(60, dtype=bool))
    assert "Nothing was found" in open_page(quiet).locator("#first").inner_text()


def test_tabs_come_in_the_order_of_the_kinds_and_are_walked_by_key(open_page: Opened) -> None:
    data = found_page()
    page = open_page(data)
    tabs = page.locator("#tabs [role=tab]")
    wanted = ["Wrong labels", "Unreadable files", "Dark images", "Exact copies", "Pictures in several splits"]
    assert [text.rstrip("0123456789") for text in tabs.all_text_contents()] == [*wanted, TITLES["imbalance"]]
    assert page.locator("#cards .card").count() == 24
    tabs.first.focus()
    for key, heading in (("ArrowRight", wanted[1]), ("ArrowRight", wanted[2]), ("End", TITLES["imbalance"])):
        page.keyboard.press(key)
        assert page.locator("#found-heading").inner_text() == heading
        assert page.locator("#tabs [aria-selected=true]").inner_text().startswith(heading)
        assert not page.locator("#review").is_visible()
        assert not page.locator("#pairs").is_visible()
    page.keyboard.press("ArrowRight")
    assert page.locator("#review").is_visible()
    assert not page.locator("#found").is_visible()
    page.keyboard.press("t")
    assert page.locator("#found-heading").inner_text() == wanted[1]
    page.keyboard.press("Shift+T")
    assert page.locator("#review").is_visible()
    tabs.last.click()
    page.locator("nav a[href='#pairs']").click()
    assert page.locator("#pairs").is_visible()


def test_each_form_shows_images_evidence_and_what_to_do(open_page: Opened) -> None:
    page = open_page(found_page())
    open_tab(page, "Dark images")
    assert page.locator("#found-list > li").count() == 2
    text = page.locator("#found-list > li").first.inner_text()
    assert "The image is almost black." in text
    assert "brightest: 0.0312" in text
    assert page.locator("#found-list img").count() == 2
    open_tab(page, "Exact copies")
    group = page.locator("#found-list > li")
    assert group.count() == 1
    assert "hash bits apart: 0" in group.inner_text()
    shown = group.locator(".found-image")
    assert shown.count() == 3
    assert len({shown.nth(i).bounding_box()["y"] for i in range(3)}) == 1  # side by side
    assert [shown.nth(i).locator(".badge").count() for i in range(3)] == [1, 0, 0]
    assert "best to keep" in shown.first.inner_text()
    open_tab(page, TITLES["imbalance"])
    text = page.locator("#found-list").inner_text()
    assert "One class is small." in text
    assert "Collect more." in text
    assert page.locator("#found-list .strip li").count() == 6
    open_tab(page, "Unreadable files")
    assert page.locator("#found-list button").count() == 0
    assert "nothing to decide here" in page.locator("#found-list").inner_text()


def test_keeping_one_of_a_group_drops_the_others(open_page: Opened, tmp_path: Path) -> None:
    names = names_of()
    page = open_page(found_page())
    open_tab(page, "Exact copies")
    image(page, names[7]).get_by_role("button", name="Keep only this one").click()
    marks = page.locator(".found-image .mark").all_text_contents()
    assert marks == ["✕ drop", "✓ keep", "✕ drop"]
    expected = {name: [kind, "", "", "copies"] for name, kind in zip(names[6:9], ("drop", "keep", "drop"), strict=True)}
    assert decided(page, tmp_path / "d.csv") == expected
    page.click("#undo")
    assert set(page.locator(".found-image .mark").all_text_contents()) == {""}
    page.click("#found-all")
    marks = page.locator(".found-image .mark").all_text_contents()
    assert marks == ["✓ keep", "✕ drop", "✕ drop"]
    open_tab(page, "Pictures in several splits")
    page.click("#found-all")
    rows = decided(page, tmp_path / "e.csv")
    assert rows["test/t.png"] == ["keep", "", "", "leaks"]
    assert rows[names[9]] == ["drop", "", "", "leaks"]


def test_keys_decide_on_every_tab(open_page: Opened, tmp_path: Path) -> None:
    data, names = found_page(), names_of()
    page = open_page(data)
    open_tab(page, "Exact copies")
    for key in ("n", "n", "g", "n", "2"):
        page.keyboard.press(key)
    rows = decided(page, tmp_path / "d.csv")
    suggested = data.class_names[data.table.predicted_label[8]]
    assert rows == {
        names[6]: ["drop", "", "", "copies"],
        names[7]: ["keep", "", "", "copies"],
        names[8]: ["relabel", suggested, "", ""],
    }
    page.keyboard.press("u")
    page.keyboard.press("3")
    page.keyboard.press("m")
    assert page.evaluate("document.activeElement.className") == "split"
    assert decided(page, tmp_path / "e.csv")[names[8]] == ["drop", "", "", "copies"]


def test_the_last_decision_about_an_image_holds_on_every_tab(open_page: Opened, tmp_path: Path) -> None:
    names = names_of()
    both = [
        Finding("dark", Severity.WARNING, "dark", (names[7],)),
        Finding("copies", Severity.WARNING, "copies", (names[6], names[7]), keep=names[6]),
    ]
    data = found_page(findings=both, further=(), is_label_issue=np.ones(60, dtype=bool))
    page = open_page(data)
    page.fill("#search", names[7])
    page.locator("#count", has_text="1 of 60").wait_for()
    page.locator(".card [data-kind=relabel]").click()
    label = data.class_names[data.table.predicted_label[7]]
    open_tab(page, "Dark images")
    assert image(page, names[7]).locator(".mark").inner_text() == f"→ relabel as {label}"
    image(page, names[7]).get_by_role("button", name="Drop").click()
    open_tab(page, "Wrong labels")
    assert page.locator("#cards .mark").inner_text() == "✕ drop"
    assert decided(page, tmp_path / "d.csv") == {names[7]: ["drop", "", "", "dark"]}
    open_tab(page, "Exact copies")
    image(page, names[7]).locator("select.split").select_option(label="val")
    open_tab(page, "Dark images")
    assert image(page, names[7]).locator(".mark").inner_text() == "⇢ move to val"
    assert decided(page, tmp_path / "d.csv") == {names[7]: ["move", "", "val", "copies"]}
    # What stays in a group stays with the label or split that it was to get.
    open_tab(page, "Exact copies")
    image(page, names[7]).get_by_role("button", name="Keep only this one").click()
    rows = decided(page, tmp_path / "d.csv")
    assert rows == {names[6]: ["drop", "", "", "copies"], names[7]: ["move", "", "val", "copies"]}


def test_decisions_survive_a_reload_and_come_back_from_the_file(open_page: Opened, tmp_path: Path) -> None:
    names = names_of()
    page = open_page(found_page())
    open_tab(page, "Pictures in several splits")
    image(page, "test/t.png").get_by_role("button", name="Drop").click()
    image(page, names[9]).locator("select.split").select_option(label="val")
    rows = exported(page, tmp_path / "d.csv")
    page.wait_for_timeout(1000)
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    assert exported(page, tmp_path / "e.csv") == rows
    other = open_page(tmp_path / "report.html")
    other.set_input_files("#import", tmp_path / "d.csv")
    other.locator("#message", has_text="2 decisions imported.").wait_for()
    assert exported(other, tmp_path / "f.csv") == rows
    old = tmp_path / "old.csv"
    given = found_page().class_names[found_page().table.given_label[0]]
    old.write_text(f"path,decision,given_label,new_label\n{names[0]},drop,{given},\n")
    other.set_input_files("#import", old)
    other.locator("#message", has_text="1 decision imported.").wait_for()
    assert decided(other, tmp_path / "g.csv")[names[0]] == ["drop", "", "", ""]


def test_a_dropped_copy_is_no_wrong_label(open_page: Opened) -> None:
    names = names_of()
    group = Finding("copies", Severity.WARNING, "the same", tuple(names[:50]), keep=names[0])
    page = open_page(found_page(findings=[group], further=()))
    before = page.locator("#looks-sentence").inner_text()
    open_tab(page, "Exact copies")
    page.click("#found-all")
    assert "drop 49" in page.locator("#tally").inner_text()
    open_tab(page, "Wrong labels")
    page.wait_for_timeout(700)
    assert page.locator("#looks-sentence").inner_text() == before


def test_an_image_of_another_split_may_have_a_class_of_its_own(open_page: Opened, tmp_path: Path) -> None:
    names = names_of()
    pair = Finding("leaks", Severity.ERROR, "the same", ("images/val/owl/x.png", names[9]), keep=names[9])
    other = FurtherImage("images/val/owl/x.png", "owl", decidable=True)
    page = open_page(found_page(findings=[pair], further=[other]))
    open_tab(page, "Pictures in several splits")
    card = image(page, "images/val/owl/x.png")
    assert card.locator(".labels").inner_text() == "owl"
    assert card.locator("select.split option").all_inner_texts() == ["move to …", "train"]
    card.locator("select.split").select_option(label="train")
    assert exported(page, tmp_path / "d.csv")[1] == [
        "images/val/owl/x.png",
        "move",
        "owl",
        "",
        "/data/photos",
        "train",
        "leaks",
    ]
    card.locator("select:not(.split)").focus()
    card.locator("select:not(.split)").select_option(label="class 0")
    rows = exported(page, tmp_path / "d.csv")
    assert rows[1] == ["images/val/owl/x.png", "relabel", "owl", "class 0", "/data/photos", "", ""]


def test_hostile_texts_of_findings_are_text(open_page: Opened, tmp_path: Path) -> None:
    count = len(HOSTILE)
    found = [
        Finding("dark", Severity.WARNING, text, (text,), (), {text: text}, text, about=str(i))
        for i, text in enumerate(HOSTILE)
    ] + [
        Finding("copies", Severity.ERROR, HOSTILE[1], (HOSTILE[0], f"{HOSTILE[0]}2"), (HOSTILE[3],), keep=HOSTILE[0]),
        Finding("imbalance", Severity.NOTE, HOSTILE[0], (), tuple(HOSTILE), {HOSTILE[1]: HOSTILE[0]}, HOSTILE[2]),
    ]  # fmt: skip
    data = page_data(
        count, count, class_names=HOSTILE[::-1], names=HOSTILE, findings=found, source=HOSTILE[6],
        titles=dict.fromkeys(HOSTILE, HOSTILE[1]) | {"dark": HOSTILE[0]}, not_looked={HOSTILE[4]: HOSTILE[1]},
        further=[FurtherImage(f"{HOSTILE[0]}2", HOSTILE[0], decidable=True)], splits=[HOSTILE[0], HOSTILE[1]],
    )  # fmt: skip
    html = page_html(data)
    assert html.count("<script") == page_html(page_data(count, count)).count("<script")
    page = open_page(data)
    for tab in page.locator("#tabs [role=tab]").all():
        tab.click()
        assert page.title() != "owned"
        bad = "#tabs b, #first b, #found b, #found script, #not-looked script, img[src=x], #found-heading > *"
        assert page.locator(bad).count() == 0
    page.locator("#tabs [role=tab]").nth(1).click()
    assert page.locator("#found-heading").inner_text() == HOSTILE[0]
    page.click("#found-all")
    rows = exported(page, tmp_path / "d.csv")
    assert sorted(row[0] for row in rows[1:]) == sorted(HOSTILE)


def test_a_finding_about_an_unknown_image_is_refused() -> None:
    with pytest.raises(SettingError, match=r"about 'no\.png'"):
        found_page(findings=[Finding("dark", Severity.NOTE, "dark", ("no.png",))])


def test_pictures_of_findings_come_before_those_of_unsuspicious_rows() -> None:
    data = page_data(4000, hurt=0)
    last = int(np.argmin(data.table.probability_wrong))
    shown = page_data(4000, hurt=0, findings=[Finding("dark", Severity.NOTE, "dark", (data.names[last],))])
    assert stored(page_html(data))["columns"]["slot"][-1] == 3999
    slots = stored(page_html(shown))["columns"]["slot"]
    assert slots[-1] == 2000
    assert sorted(slots.tolist()) == list(range(4000))


def test_a_hundred_thousand_images_with_findings_stay_fluid(
    open_page: Opened, record_property: Callable[[str, object], None]
) -> None:
    """Well under a second on a quiet machine; the limit leaves room for a busy one."""
    rows = 100_000
    names = [f"train/img{i}.png" for i in range(rows)]
    found = [
        Finding("dark", Severity.WARNING, "dark", (name,), evidence={"mean": 0.01, "limit": 0.02}) for name in names
    ]
    found += [
        Finding("copies", Severity.WARNING, "the same", tuple(names[i : i + 2]), keep=names[i])
        for i in range(0, 40_000, 2)
    ]
    found.append(Finding("leaks", Severity.ERROR, "the same", tuple(names[50_000:]), keep=names[50_000]))
    page = open_page(page_data(rows, names=names, findings=found, titles=TITLES, thumbnail=None))
    taken = {}
    for name, action in {
        "dark": "document.getElementById('tab-0').click()",
        "next page": "document.getElementById('found-next').click()",
        "copies": "document.getElementById('tab-1').click()",
        "a group of 50,000": "document.getElementById('tab-2').click()",
        "keep one of 50,000": "document.querySelector('.only').click()",
        "undo": "document.getElementById('undo').click()",
        "labels": "document.getElementById('tab-').click()",
    }.items():
        taken[name] = page.evaluate(
            f"async () => {{ const start = performance.now(); {action};"
            " await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));"
            " return performance.now() - start; }"
        )
        assert page.locator("#found-list .found-image").count() <= 48
    record_property("milliseconds", json.dumps(taken))
    assert max(taken.values()) < 3000, taken
