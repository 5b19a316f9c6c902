"""The page of strange images, as text and in a browser."""

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

from sgoif.core.score_table import ScoreTable, texts
from sgoif.reports.ood_report import OodReport, ood_report_html, write_ood_report

Opened = Callable[..., Any]


def page_of(
    names: list[str], classes: list[str], *, images: int = 1000, strange: int = 80, **changes: Any
) -> OodReport:
    """Of so many images, so many of them strange; those that are named come first and are on the page."""
    rest = images - len(names)
    table = ScoreTable(
        {
            "path": texts([*names, *["further.png"] * rest]),
            "index": np.arange(images),
            "score": 2.0 - np.arange(images),
            "p_value": 0.01 * np.arange(1, images + 1),
            "is_strange": np.arange(images) < strange,
            "predicted_label": texts([*classes, *["cat"] * rest]),
        }
    )
    usual = {"title": "photos", "false_alarms": 0.05, "facts": {"model": "resnet9"}}
    return OodReport(table=table, picture=lambda row: png(row, 90, 90), shown=len(names), **{**usual, **changes})


@pytest.fixture
def hostile() -> OodReport:
    facts = {name: name for name in HOSTILE}
    return page_of(HOSTILE, HOSTILE[::-1], title=HOSTILE[0], facts=facts, notes=HOSTILE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_made_of_markup_are_shown_as_text(
    open_page: Opened, hostile: OodReport, tmp_path: Path, scheme: str
) -> None:
    path = tmp_path / "ood.html"
    write_ood_report(path, hostile)
    page = open_page(path, color_scheme=scheme, viewport=PHONE, has_touch=True, is_mobile=True)
    assert "owned" not in page.evaluate("document.title").replace("title='owned'", "")
    names = page.locator(".name bdi").all_text_contents()
    assert names[:4] == HOSTILE[:4]
    assert names[4] == "two␊lines␍␊and␉tab"
    assert page.locator(".labels bdi").all_text_contents()[-1] == HOSTILE[0]
    assert page.locator("main script, main b, main img[src=x]").count() == 0
    page.wait_for_function("[...document.images].every((i) => i.complete)")
    assert page.evaluate("[...document.images].filter((i) => i.naturalWidth === 8).length") == len(HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.evaluate(LOW_CONTRAST) == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    level = sum(int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(","))
    assert (level > 384) == (scheme == "light")


def test_numbers_are_shown_as_they_are() -> None:
    page = ood_report_html(page_of([], [], images=20, strange=1, false_alarms=0.01))
    assert "&lt;1" in page
    assert "0 of 20 images" in page
    usual = page_of(["x.png"], ["cat"])
    row = {**{name: usual.table[name][:1] for name in usual.table.columns}, "score": [math.inf], "p_value": [1 / 1001]}
    text = ood_report_html(replace(usual, table=ScoreTable(row), picture=lambda row: None))
    assert "p = 0.000999" in text
    assert "score infinite" in text
    assert "picture could not be read" in text
    assert '<span class="badge">strange</span>' in text


@pytest.mark.parametrize(("strange", "advice"), [(0, "No image"), (50, "About as many"), (80, "More images")])
def test_the_advice_knows_what_chance_does(strange: int, advice: str) -> None:
    assert advice in ood_report_html(page_of(["a"], ["b"], strange=strange))


def test_the_page_holds_no_script_and_allows_none(hostile: OodReport) -> None:
    text = ood_report_html(hostile)
    assert text.count("<script") == 0
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://example.invalid", "")
