"""The list of the page in a real browser: order, filters, pages, pairs, pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from page_cases import as_matrix, page_data, thumbnail

from sgoif.reports.page import PageData

Opened = Callable[..., Any]


def names_shown(page: Any) -> list[str]:
    return page.locator("#cards .card .name").all_text_contents()  # type: ignore[no-any-return]


def count_shown(page: Any) -> int:
    return int(page.locator("#count").inner_text().split(" of ")[0].replace(",", ""))


def expected(data: PageData, keep: Any, by: Any = None) -> list[str]:
    """Names that pass a filter, by falling `by` (the probability, if not told), ties by probability."""
    order = np.lexsort((-data.table.probability_wrong, -(data.table.probability_wrong if by is None else by)))
    return [data.names[row] for row in order if keep[row]]


def test_the_list_starts_with_the_selected_worst_first(open_page: Opened) -> None:
    data = page_data(60)
    page = open_page(data)
    assert names_shown(page) == expected(data, data.table.is_label_issue)[:24]
    assert count_shown(page) == data.table.is_label_issue.sum()
    card = page.locator(".card").first
    row = int(np.argmax(data.table.probability_wrong))
    assert card.locator(".given").inner_text() == data.class_names[data.table.given_label[row]]
    assert card.locator(".suggested").inner_text() == data.class_names[data.table.predicted_label[row]]
    text = card.inner_text()
    low, high = data.table.interval_low[row], data.table.interval_high[row]
    signed = [f"{'−' if value < 0 else '+'}{abs(value):.2f}" for value in (data.table.influence[row], low, high)]
    assert f"influence {signed[0]} ({signed[1]} to {signed[2]})" in text
    assert f"confidence {data.table.confidence[row]:.2f}" in text
    assert "99.9% likely wrong" in text


def test_the_summary_says_how_many_and_what_to_do(open_page: Opened) -> None:
    data = page_data(60, noise_rate=(0.2, 0.15, 0.25), fdr=0.1)
    text = open_page(data).locator("#summary").inner_text()
    assert "about 12" in text
    assert "between 9 and 15, that is 20% of 60 labels" in text
    assert f"look through the {data.table.is_label_issue.sum()} selected" in text
    assert "1 in 10" in text
    assert "99.3%" in text
    assert "2 files could not be read" in text


def test_every_filter_shows_what_it_says(open_page: Opened) -> None:
    data = page_data(200)
    page = open_page(data)
    everything = np.ones(200, dtype=bool)
    page.uncheck("#only-selected")
    page.select_option("#size", "96")
    assert names_shown(page) == expected(data, everything)[:96]
    page.select_option("#given", "2")
    assert names_shown(page) == expected(data, data.table.given_label == 2)
    page.select_option("#suggested", "1")
    assert names_shown(page) == expected(data, (data.table.given_label == 2) & (data.table.predicted_label == 1))
    page.click("#reset-filters")
    page.select_option("#least", "0.75")
    assert names_shown(page) == expected(data, data.table.probability_wrong >= 0.75)
    page.click("#reset-filters")
    page.fill("#search", "IMG19")
    page.locator("#count", has_text="11 of 200").wait_for()
    assert names_shown(page) == expected(data, np.array(["img19" in name for name in data.names]))
    page.fill("#search", "no such name")
    page.locator("#nothing").wait_for()
    assert names_shown(page) == []
    page.click("#reset-empty")
    assert count_shown(page) == 200


def test_copies_are_marked_shown_and_found(open_page: Opened) -> None:
    data = page_data(60)
    worst = np.argsort(-data.table.probability_wrong)
    first, same = (
        int(worst[0]),
        next(int(row) for row in worst[1:] if data.table.given_label[row] == data.table.given_label[worst[0]]),
    )
    other = next(int(row) for row in worst[::-1] if data.table.given_label[row] != data.table.given_label[first])
    pair = [int(row) for row in worst[30:] if row not in (first, same, other) and data.table.given_label[row] == 2][:2]
    page = open_page(page_data(60, copies=[[first, same, other], pair]))
    card = page.locator(".card").first
    assert "a copy has another label" in card.locator(".card-top").inner_text()
    strip = card.locator("ul[aria-label='Pictures that are the same or nearly so'] li")
    titles = [strip.nth(i).get_attribute("title") for i in range(strip.count())]
    expected_titles = {
        f"{data.names[row]}, labelled {data.class_names[data.table.given_label[row]]}" for row in (same, other)
    }
    assert set(titles) == expected_titles
    card.locator("summary", has_text="More").click()
    card.locator(".more dl").wait_for()
    assert data.names[other] in card.locator(".more").inner_text()
    page.check("#only-copies")
    assert names_shown(page) == expected(data, np.isin(np.arange(60), [first, same, other]))
    assert not page.locator("#only-selected").is_checked()
    page.click("#reset-filters")
    page.fill("#search", data.names[pair[0]])
    page.locator("#count", has_text="1 of 60").wait_for()
    assert "has copies" in page.locator(".card").first.locator(".card-top").inner_text()


def test_thousands_of_copies_are_no_burden(open_page: Opened) -> None:
    data = page_data(20_000, copies=[list(range(15_000))])
    page = open_page(data)
    card = page.locator(".card").first
    assert card.locator("ul[aria-label='Pictures that are the same or nearly so'] li").count() <= 4
    page.check("#only-copies")
    assert count_shown(page) == 15_000
    card.locator("summary", has_text="More").click()
    card.locator(".more dl").wait_for()
    assert "and 14,979 more" in card.locator(".more").inner_text()


def test_without_copies_nothing_is_said_of_them(open_page: Opened) -> None:
    page = open_page(page_data(60))
    assert not page.locator("#only-copies-label").is_visible()
    assert page.locator(".twice").count() == 0


def test_every_order_is_the_one_it_names(open_page: Opened) -> None:
    data = page_data(90)
    data.table.influence[5] = data.table.confidence[5] = np.nan
    page = open_page(data)
    page.uncheck("#only-selected")
    page.select_option("#size", "96")
    everything = np.ones(90, dtype=bool)
    for key in ("influence", "confidence"):
        page.select_option("#sort", key)
        assert names_shown(page) == expected(data, everything, np.nan_to_num(data.table[key], nan=-np.inf))
        assert names_shown(page)[-1] == data.names[5]
    page.select_option("#sort", "name")
    order = sorted(range(90), key=lambda row: (data.table.given_label[row], row))
    assert names_shown(page) == [data.names[row] for row in order]


def test_pages_hold_all_rows_once(open_page: Opened) -> None:
    data = page_data(60)
    page = open_page(data)
    page.uncheck("#only-selected")
    seen = names_shown(page)
    assert page.locator("#previous").is_disabled()
    for _ in range(2):
        page.click("#next")
        seen += names_shown(page)
    assert page.locator("#next").is_disabled()
    assert seen == expected(data, np.ones(60, dtype=bool))


def test_a_cell_of_the_matrix_filters_the_list(open_page: Opened) -> None:
    data = page_data(200)
    page = open_page(data)
    cell = page.locator(".matrix button[aria-label^='given class 3, truly class 1']")
    assert cell.inner_text() == f"{as_matrix(data.confusion, 4)[3, 1]:.1f}".removesuffix(".0")
    cell.click()
    assert names_shown(page) == expected(data, (data.table.given_label == 3) & (data.table.predicted_label == 1))[:24]
    assert page.locator("#given").input_value() == "3"
    first = page.locator(".pair").first
    matrix = as_matrix(data.confusion, 4)
    errors = matrix - np.diag(np.diag(matrix))
    given, truth = np.unravel_index(np.argmax(errors), errors.shape)
    assert f"class {given} → class {truth}" in first.inner_text()
    first.click()
    assert count_shown(page) == ((data.table.given_label == given) & (data.table.predicted_label == truth)).sum()


def test_arrows_move_in_the_matrix(open_page: Opened) -> None:
    page = open_page(page_data(60))
    page.locator(".matrix button[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.place") == "1,2"
    page.keyboard.press("Enter")
    assert (page.locator("#given").input_value(), page.locator("#suggested").input_value()) == ("1", "2")


def test_pictures_belong_to_their_rows_even_far_down(open_page: Opened) -> None:
    data = page_data(1500)
    page = open_page(data)
    page.uncheck("#only-selected")
    page.fill("#search", "img1234.png")
    page.locator("#count", has_text="1 of 1,500").wait_for()
    colours = page.evaluate(
        """async () => Promise.all([...document.querySelectorAll('#cards img')].map(async (image) => {
            await image.decode();
            const canvas = document.createElement('canvas');
            const pen = canvas.getContext('2d');
            pen.drawImage(image, 0, 0);
            return [...pen.getImageData(1, 1, 1, 1).data].slice(0, 2);
        }))"""
    )
    rows = [1234, *(row for row in data.harmed[1234] if row >= 0)]
    assert colours == [[row % 256, row // 256] for row in rows]
    page.locator(".card summary").click()
    page.locator(".card .more dl").wait_for()  # made when the browser tells that it was opened, a moment later
    more = page.locator(".card .more").inner_text()
    assert all(data.names[row] in more for row in rows)


def test_pictures_beyond_the_limit_are_named_as_missing(open_page: Opened) -> None:
    data = page_data(900, hurt=0)
    page = open_page(data, max_bytes=200_000)
    assert "not stored in this file" in page.locator("#notes").text_content()
    assert page.locator("#cards .picture").first.locator("img").count() == 1
    page.uncheck("#only-selected")
    page.fill("#search", data.names[int(np.argmin(data.table.probability_wrong))])
    page.locator("#count", has_text="1 of 900").wait_for()
    assert page.locator("#cards .picture").inner_text() == "picture not stored in this file"


def test_a_picture_that_cannot_be_read_is_named(open_page: Opened) -> None:
    page = open_page(page_data(3, hurt=0, thumbnail=lambda row: None if row == 0 else thumbnail(row)))
    page.click("#reset-filters")
    assert page.locator(".picture", has_text="picture could not be read").count() == 1


@pytest.mark.parametrize("classes", [2, 500])
def test_small_and_large_tables_without_pictures(open_page: Opened, classes: int) -> None:
    rows = 1 if classes < 500 else 1200
    page = open_page(page_data(rows, classes, hurt=0, thumbnail=None, history=[], precision=[]))
    page.click("#reset-filters")
    assert count_shown(page) == rows
    assert page.locator("#cards img, #cards .picture").count() == 0
    assert page.locator("#training").is_hidden()
    assert page.locator("header nav a:visible").all_inner_texts() == ["Review", "Class pairs", "Details"]
    assert page.locator(".matrix tbody tr").count() == min(classes, 12)
    if classes == 500:
        assert "12 of 500 classes" in page.locator("#pairs-text").inner_text()
        select = page.locator(".card select").first
        assert select.locator("option").count() == 1
        select.focus()
        assert select.locator("option").count() == 500


def test_nothing_observed_and_nothing_selected_are_shown_as_such(open_page: Opened) -> None:
    nothing = np.full(2, np.nan)
    data = page_data(
        2, 3, probability_wrong=nothing, confidence=nothing, influence=nothing, interval_low=nothing,
        interval_high=nothing, n_observations=np.zeros(2, dtype=int), is_label_issue=np.zeros(2, dtype=bool),
        noise_rate=(np.nan,) * 3,
    )  # fmt: skip
    page = open_page(data)
    text = page.locator("#cards").inner_text()
    assert text.count("never observed in training") == 2
    assert text.count("unknown likely wrong") == 0
    assert "NaN" not in page.locator("body").inner_text()
    assert page.locator("#only-selected").is_disabled()
    assert "learned too little" in page.locator("#advice").inner_text()
    assert "could not be estimated" in page.locator("#summary").inner_text()
    assert page.locator("#pairs-body button").count() == 0
    assert "could not be estimated" in page.locator("#pairs-text").inner_text()


@pytest.mark.parametrize(
    ("rate", "advice"), [(0.002, "nothing needs your attention"), (0.2, "about 12 may be wrong, but")]
)
def test_nothing_selected_is_not_the_same_as_nothing_wrong(open_page: Opened, rate: float, advice: str) -> None:
    page = open_page(page_data(60, is_label_issue=np.zeros(60, dtype=bool), noise_rate=(rate, 0.0, 0.25)))
    assert advice in page.locator("#advice").inner_text()
