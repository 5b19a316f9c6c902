"""The page of `write_label_report`: its stored table, pictures and hurt examples, read back from the file."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from page_cases import stored
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sgoif import InfluenceMonitor, indexed, split_holdout
from sgoif.core.score_table import ScoreTable
from sgoif.findings import Finding, Severity
from sgoif.reports import write_label_report
from sgoif.reports.label_report import ReportExtras, as_pixels, harmed_by, page_data, precision
from sgoif.reports.page_data import FurtherImage
from sgoif.tasks import LabelErrors
from sgoif.tasks.labels.noise_rate import NoiseRate
from sgoif.tasks.review import RankedReview, ReviewPlan

COUNT, CLASSES, SIDE = 240, 3, 8
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "=1+1"]


class Images(Dataset[Any]):
    """Images by index, made from tensors on the way out."""

    def __init__(self, source: TensorDataset, form: str) -> None:
        self.source, self.form = source, form

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, position: int) -> Any:
        x, y = self.source[position]
        if self.form == "dict":
            return {"label": int(y), "x": x}
        if self.form == "PIL":
            return Image.fromarray(np.full((40, 200, 4), 10 * int(y), dtype=np.uint8), "RGBA"), int(y)
        return "no picture", int(y)


class Network(nn.Module):
    """Takes images as `x`, in a call or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3 * SIDE * SIDE, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x.flatten(1))))


def problem() -> TensorDataset:
    """Images of one colour per class; every sixth label is wrong."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(COUNT) % CLASSES
    colour = nn.functional.one_hot(true, 3).float()[:, :, None, None]
    x = colour + 0.5 * torch.randn(COUNT, 3, SIDE, SIDE, generator=generator)
    return TensorDataset(x, torch.where(torch.arange(COUNT) % 6 == 5, (true + 1) % CLASSES, true))


def trained(size: int | None = None, batches: int = 10**6, learning_rate: float = 0.02) -> InfluenceMonitor:
    training, held_out = split_holdout(problem(), share=0.25)
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    monitor = InfluenceMonitor(model, optimizer, anchors=held_out, size=size)
    for _ in range(6 if batches > 100 else 1):
        for number, (x, y, index) in enumerate(DataLoader(indexed(training), 30, shuffle=True)):
            if number == batches:
                break
            with monitor.step(index):
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor


@pytest.fixture(scope="module")
def monitor() -> InfluenceMonitor:
    return trained()


def pictures(text: str) -> list[bytes]:
    blocks = re.findall(r'<script type="text/plain" id="pictures-\d+">(.*?)</script>', text, re.S)
    return [base64.b64decode(line) for block in blocks for line in block.split("\n") if len(line) > 1]


def test_the_page_holds_the_table(monitor: InfluenceMonitor, tmp_path: Path) -> None:
    errors = LabelErrors(monitor)
    path = write_label_report(errors, tmp_path / "report.html", title="My <data>")
    assert path == tmp_path / "report.html"
    text = path.read_text(encoding="utf-8")
    assert "My &lt;data&gt;" in text
    assert "My <data>" not in text
    report, table = stored(text), errors.table()
    names = np.array(report["names"], dtype=np.int64)
    assert sorted(names.tolist()) == list(range(COUNT))
    columns = report["columns"]
    np.testing.assert_allclose(columns["probability"], table["probability_wrong"][names], atol=1e-6)
    assert (np.diff(columns["probability"]) <= 0).all()
    for column, name in {
        "given": "given_label",
        "suggested": "predicted_label",
        "selected": "is_label_issue",
        "observations": "n_observations",
    }.items():
        np.testing.assert_array_equal(columns[column], table[name][names])
    np.testing.assert_allclose(columns["influence"], table["influence"][names], rtol=1e-5)
    assert pictures(text) == []
    rate = errors.noise_rate()
    assert any(
        value == pytest.approx([rate.estimate, rate.low, rate.high])
        for value in report.values()
        if isinstance(value, list) and len(value) == 3 and all(isinstance(entry, float) for entry in value)
    )


def test_looks_are_drawn_from_the_page_or_go_on_with_the_list_they_began_with(monitor: InfluenceMonitor) -> None:
    errors = LabelErrors(monitor, dataset=problem())
    page = page_data(errors, errors.table(), 0.1, ReportExtras("first"))
    assert page.review is not None
    assert page.review.plan == ReviewPlan.of(COUNT, page.table.probability_wrong)
    assert page.review.index.tolist() == list(range(COUNT))
    begun = RankedReview(np.array(page.names)[::-1], page.table.probability_wrong[::-1], seed=7)
    again = page_data(errors, errors.table(), 0.1, ReportExtras("again", review=begun)).review
    assert again is not None
    assert [page.names[row] for row in again.looks(9)] == begun.looks(9).tolist()
    assert again.probability is begun.probability
    others = RankedReview(np.array([*page.names[1:], "another"]))
    fresh = page_data(errors, errors.table(), 0.1, ReportExtras("of others", review=others)).review
    assert fresh is not None
    assert fresh.plan == page.review.plan


def test_findings_may_be_about_images_that_the_table_lacks(monitor: InfluenceMonitor) -> None:
    errors = LabelErrors(monitor)
    found = [Finding("leaks", Severity.ERROR, "the same", ("val/a.png", "5", "lost.png", "val/b.png"))]
    extras = ReportExtras(
        "found",
        picture=lambda index: str(index).encode(),
        findings=found,
        titles={"leaks": "Leaks"},
        unlisted={"val/a.png": (1001, "owl"), "val/b.png": (-1, None), "val/unused.png": (1003, "owl")},
        splits=("val",),
    )
    data = page_data(errors, errors.table(), 0.1, extras)
    further = [FurtherImage("val/a.png", "owl", True), FurtherImage("lost.png"), FurtherImage("val/b.png", None, True)]
    assert (data.further, data.findings, data.splits) == (further, found, ("val",))
    assert data.thumbnail is not None
    rows = len(data.names)
    assert [data.thumbnail(row) for row in range(rows, rows + 3)] == [b"1001", None, None]
    assert [data.thumbnail(row) for row in range(rows)] == [name.encode() for name in data.names]


def test_a_page_of_a_model_that_learned_nothing_states_no_shares(tmp_path: Path) -> None:
    errors = LabelErrors(trained(learning_rate=0.0))
    report = stored(write_label_report(errors, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert report["noise"][:2] == [None, 0]
    assert report["noise"][2] == pytest.approx(errors.noise_rate().high, rel=1e-6)
    assert report["precision"] == []
    assert any("too little" in note for note in report["notes"])


def test_another_false_discovery_rate_selects_others(monitor: InfluenceMonitor, tmp_path: Path) -> None:
    errors = LabelErrors(monitor)
    errors.judgement = replace(errors.judgement, rate=NoiseRate(0.15, 0.1, 0.28))  # so few images prove next to nothing
    for fdr in (0.01, 0.8):
        report = stored(write_label_report(errors, str(tmp_path / "report.html"), fdr=fdr).read_text(encoding="utf-8"))
        assert report["columns"]["selected"].sum() == len(errors.select(fdr))
    assert len(errors.select(0.01)) < len(errors.select(0.8))


def test_pictures_and_the_examples_that_are_hurt(monitor: InfluenceMonitor, tmp_path: Path) -> None:
    errors = LabelErrors(monitor, dataset=problem())
    text = write_label_report(errors, tmp_path / "report.html").read_text(encoding="utf-8")
    report, shown = stored(text), pictures(text)
    assert len(shown) == COUNT
    image = Image.open(io.BytesIO(shown[0]))
    assert (image.format, image.size) == ("PNG", (SIDE, SIDE))
    names = [int(name) for name in report["names"]]
    harmed = report["columns"]["harmed"].reshape(COUNT, -1)
    expected = harmed_by(errors, names)
    found = np.where(harmed >= 0, np.array(names)[np.maximum(harmed, 0)], -1)
    np.testing.assert_array_equal(found, expected)
    assert set(found.ravel().tolist()) - {-1} <= set(monitor.held_out_indices().tolist())  # type: ignore[union-attr]
    assert (found >= 0).any()


def test_items_that_are_dictionaries_show_their_image_wherever_it_stands(
    monitor: InfluenceMonitor, tmp_path: Path
) -> None:
    errors = LabelErrors(monitor, dataset=Images(problem(), "dict"))
    assert len(pictures(write_label_report(errors, tmp_path / "report.html").read_text(encoding="utf-8"))) == COUNT


def test_images_that_the_model_cannot_take_are_still_shown(monitor: InfluenceMonitor, tmp_path: Path) -> None:
    """A data set without transforms: pictures to look at, but no held-out examples that are hurt."""
    errors = LabelErrors(monitor, dataset=Images(problem(), "PIL"))
    text = write_label_report(errors, tmp_path / "report.html").read_text(encoding="utf-8")
    shown = pictures(text)
    assert len(shown) == COUNT
    image = Image.open(io.BytesIO(shown[0]))
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (96, 19))
    assert len(stored(text)["names"]) == COUNT


def test_items_without_a_picture_give_a_page_without_one(monitor: InfluenceMonitor, tmp_path: Path) -> None:
    errors = LabelErrors(monitor, dataset=Images(problem(), "text"))
    text = write_label_report(errors, tmp_path / "report.html").read_text(encoding="utf-8")
    assert pictures(text) == []
    assert len(stored(text)["names"]) == COUNT


def test_hostile_class_names_stay_data(monitor: InfluenceMonitor, tmp_path: Path) -> None:
    errors = LabelErrors(monitor, class_names=HOSTILE)
    text = write_label_report(errors, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert any(value == HOSTILE for value in stored(text).values())


def test_examples_that_were_never_drawn_are_left_out_or_read_from_the_data(tmp_path: Path) -> None:
    monitor = trained(size=COUNT, batches=2)
    assert (monitor.scores()["n_observations"] == 0).sum() == COUNT - 60 - 60
    without = write_label_report(LabelErrors(monitor), tmp_path / "report.html")
    assert len(stored(without.read_text(encoding="utf-8"))["names"]) == 120
    whole = write_label_report(LabelErrors(monitor, dataset=problem()), tmp_path / "report.html")
    assert len(stored(whole.read_text(encoding="utf-8"))["names"]) == COUNT


def test_a_page_that_cannot_be_written_is_an_error_of_the_system(monitor: InfluenceMonitor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_label_report(LabelErrors(monitor), tmp_path / "file" / "report.html")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 5, 7), (5, 7, 3)), ((1, 5, 7), (5, 7)), ((5, 7), (5, 7)), ((5, 7, 3), (5, 7, 3)), ((5, 7, 1), (5, 7)),
        ((16,), None), ((4, 5, 7), None), ((2, 3, 5, 7), None), ((), None),
    ],
)  # fmt: skip
def test_tensors_that_are_images(shape: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    image = torch.randn(shape) * 3 - 1
    found = as_pixels(image)
    assert (None if found is None else found.shape) == expected
    if found is not None:
        assert found.dtype == np.uint8
        assert (found.min(), found.max()) == (0, 255)
        layout = image.permute(1, 2, 0) if shape[0] in (1, 3) and len(shape) == 3 else image
        order = np.argsort(layout.numpy().ravel(), kind="stable")
        assert (np.diff(found.ravel()[order].astype(int)) >= 0).all()


def test_flat_images_and_bytes_are_images_too() -> None:
    assert as_pixels(torch.zeros(3, 4, 4)).max() == 0  # type: ignore[union-attr]
    assert as_pixels(torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)).shape == (4, 4, 3)  # type: ignore[union-attr]


class Told:
    """As much of `LabelErrors` as the expected precision asks for."""

    def __init__(self, estimate: float, told: bool = True) -> None:
        self.rate_told, self.estimate = told, estimate

    def noise_rate(self) -> NoiseRate:
        return NoiseRate(self.estimate, 0.0, 1.0)


def test_a_precision_below_the_noise_rate_is_not_stated() -> None:
    table = ScoreTable({"probability_wrong": np.r_[np.full(10, 0.2), np.full(39, 0.0), np.nan]})
    errors: Any = Told(0.09)
    assert precision(errors, table) == [(20, pytest.approx(0.1)), (50, pytest.approx(0.04))]
    for errors in (Told(0.11), Told(0.0, told=False)):
        assert precision(errors, table) == []
