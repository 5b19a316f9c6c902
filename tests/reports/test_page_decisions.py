"""Decisions in a real browser: by key and mouse, kept over a reload, written to and read from decisions.csv."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from page_cases import HOSTILE, changed, page_data

from sgoif.core.score_table import from_cell, to_cell
from sgoif.reports.page import write_page

Opened = Callable[..., Any]
HEADER = ["path", "decision", "given_label", "new_label", "source"]


def marks(page: Any, count: int) -> list[str]:
    """What the first cards say was decided."""
    return page.locator(".card .mark").all_text_contents()[:count]  # type: ignore[no-any-return]


def exported(page: Any, path: Path) -> list[list[str]]:
    """Rows of the downloaded file as a reader gets them back."""
    with page.expect_download() as download:
        page.click("#export")
    assert download.value.suggested_filename == "decisions.csv"
    download.value.save_as(path)
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return [[from_cell(cell) for cell in row] for row in csv.reader(file, strict=True)]


def press(page: Any, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)


def test_keys_move_decide_and_undo_and_a_reload_keeps_it(open_page: Opened) -> None:
    data = page_data(60)
    page = open_page(data)
    best = np.argsort(-data.table.probability_wrong)
    suggestion = [data.class_names[data.table.predicted_label[row]] for row in best]
    press(page, "j 1 2 3 k r d")
    done = [
        "✓ keep",
        f"→ relabel as {suggestion[1]}",
        "✕ drop",
        "✓ keep",
        f"→ relabel as {suggestion[4]}",
        "✕ drop",
        "",
    ]
    assert marks(page, 7) == done
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Number 7:")
    press(page, "p u u")
    assert marks(page, 7) == [*done[:4], "", "", ""]
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Number 5:")
    press(page, "ArrowRight ArrowUp ArrowLeft")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Number 2:")
    page.wait_for_timeout(1000)  # a browser writes what pages store with a delay, and a busy machine is slow
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    assert marks(page, 7) == [*done[:4], "", "", ""]
    assert "4 of 30 selected decided · keep 2 · relabel 1 · drop 1" in page.locator("#tally").inner_text()
    page.select_option("#state", "keep")
    assert page.locator(".card").count() == 2
    page.select_option("#state", "open")
    assert page.locator("#count").inner_text().startswith("26 of 60")


def test_moving_past_the_end_turns_the_page(open_page: Opened) -> None:
    page = open_page(page_data(60))
    press(page, "n " * 25)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Number 25:")
    press(page, "p")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Number 24:")


def test_mouse_decides_takes_back_and_chooses_any_class(open_page: Opened, tmp_path: Path) -> None:
    data = page_data(60, classes=5)
    page = open_page(data)
    card = page.locator(".card").first
    row = int(np.argmax(data.table.probability_wrong))
    card.get_by_role("button", name="Drop").click()
    assert card.get_by_role("button", name="Drop").get_attribute("aria-pressed") == "true"
    card.get_by_role("button", name="Drop").click()
    assert marks(page, 1) == [""]
    select = card.locator("select")
    assert select.input_value() == str(data.table.predicted_label[row])
    other = next(i for i in range(5) if i not in (data.table.given_label[row], data.table.predicted_label[row]))
    select.select_option(str(other))
    assert exported(page, tmp_path / "d.csv") == [
        HEADER,
        [
            data.names[row],
            "relabel",
            data.class_names[data.table.given_label[row]],
            data.class_names[other],
            data.source,
        ],
    ]


def test_relabel_without_a_suggestion_asks_for_a_class(open_page: Opened) -> None:
    data = page_data(5)
    page = open_page(changed(data, predicted_label=data.table.given_label))
    press(page, "n 2")
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    assert marks(page, 1) == [""]
    assert "choose one" in page.locator("#message").inner_text()
    press(page, "1")
    assert marks(page, 1) == [""]
    press(page, "Escape 1")
    assert marks(page, 1) == ["✓ keep"]


def test_keys_can_be_turned_off_and_never_act_while_typing(open_page: Opened) -> None:
    page = open_page(page_data(30))
    press(page, "n /")
    page.keyboard.type("3d1")
    assert page.locator("#search").input_value() == "3d1"
    assert page.locator("#tally").inner_text().startswith("0 of 15 selected decided")
    page.click("#reset-filters")
    press(page, "n ?")
    assert page.locator("#help").is_visible()
    page.uncheck("#shortcuts")
    press(page, "Escape")
    assert not page.locator("#help").is_visible()
    page.locator(".card").first.focus()
    press(page, "3")
    assert set(marks(page, 30)) == {""}


def test_many_at_once_is_one_step_back(open_page: Opened, tmp_path: Path) -> None:
    data = page_data(60)
    page = open_page(data)
    press(page, "n 3")
    page.click("#bulk summary")
    page.locator("#bulk-text:not(:empty)").wait_for()  # filled a moment later, once the browser tells that it is open
    assert "29 examples" in page.locator("#bulk-text").inner_text()
    page.click("[data-bulk=relabel]")
    rows = exported(page, tmp_path / "d.csv")[1:]
    assert [row[1] for row in rows] == ["drop"] + ["relabel"] * 29
    best = [row for row in np.argsort(-data.table.probability_wrong) if data.table.is_label_issue[row]]
    assert [row[3] for row in rows[1:]] == [data.class_names[data.table.predicted_label[i]] for i in best[1:]]
    page.click("#undo")
    assert len(exported(page, tmp_path / "e.csv")) == 2


def test_hostile_names_are_text_and_come_back_from_the_file(open_page: Opened, tmp_path: Path) -> None:
    count = len(HOSTILE)
    data = page_data(
        count, count, class_names=HOSTILE[::-1], names=HOSTILE, title=HOSTILE[1], source=HOSTILE[6], notes=HOSTILE,
        facts=dict.fromkeys(HOSTILE, HOSTILE[0]), is_label_issue=np.zeros(count, dtype=bool),
    )  # fmt: skip
    page = open_page(data)
    assert page.title() != "owned"
    assert page.locator("#cards b, #cards script, #notes b, #facts img").count() == 0
    assert HOSTILE[1] in page.locator("h1").inner_text()
    shown = page.locator(".card .name").all_text_contents()
    for name in (HOSTILE[0], HOSTILE[2], HOSTILE[3], HOSTILE[13], "long" * 50):
        assert name in shown
    assert "two␊lines␍␊and␉tab" in shown
    press(page, "n " + "2 " * count)
    rows = exported(page, tmp_path / "d.csv")
    best = np.argsort(-data.table.probability_wrong)
    assert rows[0] == HEADER
    assert rows[1:] == [
        [
            HOSTILE[i],
            "relabel",
            data.class_names[data.table.given_label[i]],
            data.class_names[data.table.predicted_label[i]],
            HOSTILE[6],
        ]
        for i in best
    ]
    # The file marks formulas exactly as the tables do.
    with (tmp_path / "d.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        assert [row[0] for row in csv.reader(file)][1:] == [to_cell(HOSTILE[i]) for i in best]
    # Elsewhere: another browser profile, the same report.
    other = open_page(tmp_path / "report.html")
    assert set(marks(other, count)) == {""}
    other.set_input_files("#import", tmp_path / "d.csv")
    other.locator("#message", has_text=f"{count} decisions imported.").wait_for()
    assert exported(other, tmp_path / "e.csv") == rows
    other.click("#undo")
    assert set(marks(other, count)) == {""}


def test_import_says_what_it_left_out_and_refuses_other_files(open_page: Opened, tmp_path: Path) -> None:
    data = page_data(6)
    page = open_page(data)
    given = [data.class_names[number] for number in data.table.given_label]
    other = [data.class_names[(number + 1) % 4] for number in data.table.given_label]
    path = tmp_path / "in.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [
                ["decision", "path", "new_label", "given_label"],
                ["keep", data.names[0], "", given[0]],
                ["relabel", data.names[1], other[1], given[1]],
                ["relabel", data.names[2], "no such class", given[2]],
                ["shred", data.names[3], "", given[3]],
                ["drop", data.names[4], "", other[4]],
                ["drop", "no/such/file.png", "", given[0]],
            ]
        )
    page.set_input_files("#import", path)
    page.locator("#message", has_text="2 decisions imported").wait_for()
    message = page.locator("#message").inner_text()
    for part in ("1 not in this report", "1 with another given label", "2 with an unknown decision or class"):
        assert part in message
    before = exported(page, tmp_path / "out.csv")
    assert sorted(row[:4] for row in before[1:]) == sorted(
        [[data.names[0], "keep", given[0], ""], [data.names[1], "relabel", given[1], other[1]]]
    )
    for text in ("a,b\n1,2\n", "", 'path,decision,given_label,new_label\n"open,keep', "\x89PNG\r\n\x1a\n\0\0"):
        path.write_bytes(text.encode("latin-1"))
        page.locator("#message").evaluate("element => { element.textContent = ''; }")
        page.set_input_files("#import", path)
        page.locator("#message", has_text="in.csv was not imported").wait_for()
    assert exported(page, tmp_path / "out.csv") == before


def test_without_storage_the_page_says_so_and_still_works(open_page: Opened, tmp_path: Path) -> None:
    refuse = (
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } });"
    )
    page = open_page(page_data(30), script=refuse)
    assert "not saved" in page.locator("#tally").inner_text()
    press(page, "n 1")
    assert len(exported(page, tmp_path / "d.csv")) == 2


def test_two_windows_of_one_report_agree_and_another_report_is_untouched(open_page: Opened, tmp_path: Path) -> None:
    first = open_page(page_data(30))
    second = open_page(tmp_path / "report.html", context=first.context)
    press(first, "n 3")
    second.locator(".card .mark", has_text="drop").wait_for()
    second.keyboard.press("n")
    press(second, "n 1")
    first.locator(".card .mark", has_text="keep").wait_for()
    assert marks(first, 2) == ["✕ drop", "✓ keep"]
    write_page(tmp_path / "other" / "report.html", page_data(31))
    third = open_page(tmp_path / "other" / "report.html", context=first.context)
    assert set(marks(third, 31)) == {""}
