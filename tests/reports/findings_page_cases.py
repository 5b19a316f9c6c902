"""A page with findings of several kinds, made by hand."""

from __future__ import annotations

from typing import Any

from page_cases import page_data

from sgoif.findings import Finding, Severity
from sgoif.reports.page import PageData
from sgoif.reports.page_data import FurtherImage

TITLES = {
    "wrong-label": "Wrong labels",
    "unreadable": "Unreadable files",
    "dark": "Dark images",
    "copies": "Exact copies",
    "leaks": "Pictures in several splits",
    "imbalance": "Classes of very different size",
    "off-topic": "Images that do not belong",
    "blurry": "Blurry images",
}


def names_of(rows: int = 60) -> list[str]:
    return [f"{'val' if i % 5 == 0 else 'train'}/img{i}.png" for i in range(rows)]


def findings(names: list[str]) -> list[Finding]:
    """Two dark images, a group of three copies, a leak into a split without labels, a class, a lost file."""
    return [
        Finding("wrong-label", Severity.WARNING, "the label looks wrong", (names[1],)),
        *(
            Finding("dark", Severity.WARNING, "the image is almost black", (name,), evidence={"brightest": 0.0312345})
            for name in names[2:4]
        ),
        Finding(
            "copies",
            Severity.WARNING,
            "3 images have the same pixels",
            (names[6], names[7], names[8]),
            evidence={"hash_bits_apart": 0},
            advice="keep one",
            keep=names[6],
        ),
        Finding(
            "leaks",
            Severity.ERROR,
            "2 images are in several splits",
            ("test/t.png", names[9]),
            advice="keep the copy that models are tested with",
            keep="test/t.png",
        ),
        Finding("imbalance", Severity.NOTE, "one class is small", (), ("class 0", "class 1"), {}, "collect more"),
        Finding("unreadable", Severity.ERROR, "the image is lost", ("train/lost.png",), advice="fetch it again"),
    ]  # fmt: skip


def found_page(**changes: Any) -> PageData:
    names = names_of()
    given: dict[str, Any] = {
        "names": names,
        "findings": findings(names),
        "titles": TITLES,
        "not_looked": {"off-topic": "there are no pretrained features"},
        "further": [FurtherImage("test/t.png", decidable=True), FurtherImage("train/lost.png")],
        "splits": ("train", "val"),
    }
    return page_data(60, **{**given, **changes})
