"""The page of culprits, as text and in a browser."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_cases import HOSTILE, png
from test_page_looks import LOW_CONTRAST, PHONE

from sgoif.reports.trace_report import TraceReport, trace_report_html, write_trace_report
from sgoif.tasks.poisoning import Family, RemovalEstimate, TraceResult
from sgoif.tasks.poisoning.trace_result import VictimCauses

Opened = Callable[..., Any]
RESTORE = RemovalEstimate(7, 0.94, 0.11, 0.93, "stage<2>", [(0, 0.94), (3, 0.8), (7, 0.11), (50, 0.02)])


def page_of(names: list[str], *, victims: bool = True, selected: bool = True, **changes: Any) -> TraceReport:
    """Every name stands for a victim, for the image behind it and, backwards, for their label; 1,000 images in all."""
    some, every = np.arange(len(names)), np.arange(1000)
    given = np.r_[some[::-1], np.zeros(len(every) - len(some), np.int64)]
    family = Family(some, 0, 0.91, some[:2], {0: 3})
    found = TraceResult(
        score=4.0 - every,
        probability=np.where(every < len(some), 0.9, 0.0),
        selected=some if selected else some[:0],
        families=[family] if victims else [],
        index=every,
        given=given,
        evidence=[],
        responsible=[VictimCauses(number, some[number : number + 1], np.ones(1)) for number in some] if victims else [],
        estimating=(lambda: RESTORE) if victims else None,
    )
    usual: dict[str, Any] = {
        "title": "photos",
        "found": found,
        "class_names": names,
        "name": [*names, *["further.png"] * (len(every) - len(names))].__getitem__,
        "picture": lambda index: png(index, 90, 90),
        "facts": {"model": "resnet9"},
        "victims": len(names) + 5 if victims else None,
        "victim": (lambda number: (names[number], png(9, 9, number))) if victims else None,
        "shown": len(names),
    }
    return TraceReport(**{**usual, **changes})


@pytest.fixture
def hostile() -> TraceReport:
    facts = {name: name for name in HOSTILE}
    return page_of(HOSTILE, title=HOSTILE[1], facts=facts, notes=HOSTILE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_made_of_markup_are_shown_as_text(
    open_page: Opened, hostile: TraceReport, tmp_path: Path, scheme: str
) -> None:
    path = tmp_path / "trace.html"
    write_trace_report(path, hostile)
    page = open_page(path, color_scheme=scheme, viewport=PHONE, has_touch=True, is_mobile=True)
    assert page.locator("h1").inner_text() == HOSTILE[1]
    victims = page.locator("#victims .link > div .name bdi").all_text_contents()
    assert victims[:4] == HOSTILE[:4]
    assert victims[4] == "two␊lines␍␊and␉tab"
    assert page.locator("#victims .answer bdi").all_text_contents()[1] == HOSTILE[1]
    assert page.locator("#found .labels bdi").all_text_contents()[-2] == HOSTILE[1]
    assert page.locator("#families .answer bdi").all_text_contents() == [HOSTILE[0]]
    assert "output of stage<2>" in page.locator("#restore").inner_text()
    assert page.locator("script, main b, main img[src=x]").count() == 0
    page.wait_for_function("[...document.images].every((i) => i.complete)")
    shown = page.evaluate("[...document.images].filter((i) => i.naturalWidth === 8).length")
    assert shown == 3 * len(HOSTILE) + 2
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.evaluate(LOW_CONTRAST) == []


def test_a_victim_stands_beside_the_images_behind_it(open_page: Opened, tmp_path: Path) -> None:
    write_trace_report(tmp_path / "trace.html", page_of(["a.png", "b.png", "c.png"]))
    page = open_page(tmp_path / "trace.html")
    assert page.locator("#victims .listhead").inner_text().startswith("3 of 8 victims")
    second = page.get_by_role("article", name="Victim 2", exact=True)
    assert second.get_by_role("img", name="Picture of victim b.png").is_visible()
    behind = second.get_by_role("list", name="Training images behind victim 2").get_by_role("img")
    assert behind.count() == 1
    assert behind.get_attribute("alt") == "Picture of b.png"
    left, right = (one.bounding_box() for one in (second.get_by_role("img").first, behind))
    assert left["x"] + left["width"] <= right["x"]
    assert page.locator("#restore .picked meter").get_attribute("value") == "0.110"
    assert page.locator("#restore meter").count() == 4
    for link in page.locator("nav a").all():
        link.click()
        assert page.locator(page.evaluate("location.hash")).count() == 1


def test_nothing_known_and_nothing_found() -> None:
    unknown = trace_report_html(page_of(["a.png"], victims=False))
    assert "look before you remove them" in unknown
    assert 'id="victims"' not in unknown
    none = trace_report_html(page_of(["a.png"], victims=False, selected=False))
    assert "may well be ordinary" in none
    assert "Images of highest score" in none
    assert "decisions.csv" not in none


def test_numbers_and_missing_pictures_are_said() -> None:
    page = page_of(["x.png"], picture=lambda index: None, victim=lambda number: ("v.png", b"no image"))
    odd = replace(
        page.found,
        score=np.full(1000, -math.inf),
        probability=np.full(1000, 1e-5),
        families=[],
        responsible=[VictimCauses(0, page.found.selected[:0], np.zeros(0))],
    )
    text = trace_report_html(replace(page, found=odd))
    assert "<strong>1e−05</strong> probability" in text
    assert "p = " not in text, "a probability of being behind it must not look like a p-value"
    assert "score unknown" in text
    assert text.count("picture could not be read") == 2
    assert "none could be compared" in text
    assert 'class="badge"' not in text


def test_the_page_holds_no_script_and_allows_none(hostile: TraceReport) -> None:
    text = trace_report_html(hostile)
    assert text.count("<script") == 0
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://example.invalid", "")
