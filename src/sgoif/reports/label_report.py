"""From what was found about labels to the page, for an audit as for any training loop."""

import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.core.batches import read_items
from sgoif.core.data import isolated_random_state
from sgoif.core.score_table import ScoreTable
from sgoif.findings import Finding
from sgoif.reports.page import PageData, write_page
from sgoif.reports.page_data import FurtherImage, Pairs
from sgoif.reports.page_findings import names_of
from sgoif.reports.page_json import suspicion_order
from sgoif.tasks.labels.channel import Labels
from sgoif.tasks.labels.errors import LabelErrors
from sgoif.tasks.labels.findings import FDR, LabelFindings
from sgoif.tasks.review import RankedReview

HARMED, EXPLAINED, SIDE = 4, 2000, 96
TOPS = (20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class ReportExtras:
    """What a page shows beside the answers of `LabelFindings`."""

    title: str
    names: Callable[[int], str] = str
    """The name of an example, by its index."""
    picture: Callable[[int], bytes | None] | None = None
    """Its picture, by its index; None: there are none."""
    source: str = ""
    """Where the data lie, for decisions.csv."""
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    copies: Sequence[Sequence[int]] = ()
    """Indices of examples that show the same picture, or nearly the same, group by group."""
    unjudged: Sequence[int] = ()
    """Classes whose labels were not judged, and are taken as they are."""
    history: Sequence[Mapping[str, float]] = ()
    """One entry per refresh, as in `monitor.history`; nothing: the page has no curves."""
    harmed: Callable[[Labels], Labels] | None = None
    """The held-out examples that each of these hurts most, by index, [n, k] (−1: no more); None: not known."""
    review: RankedReview | None = None
    """A review that began with an earlier page, by name; None: the list is as this page shows it."""
    findings: Sequence[Finding] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    """Every kind of finding that there is, in the order of the page, with its title."""
    not_looked: Mapping[str, str] = field(default_factory=dict)
    """Kinds that were not looked for, and why."""
    unlisted: Mapping[str, tuple[int, str | None]] = field(default_factory=dict)
    """Images of the data that the table lacks, such as those of other splits, by name: index for `picture`, or −1, and
    class, or None."""
    splits: Sequence[str] = ()
    """Splits with classes, by any of which the names of images begin; nothing: there are no splits."""


def write_label_report(
    errors: LabelErrors, path: str | os.PathLike[str], *, title: str = "Label errors", fdr: float = FDR
) -> Path:
    """Write a page to look through suspicious labels and decide about them: one HTML file that works offline.

    Args:
        errors: what was found about the labels; made with `dataset`, the page shows pictures.
        path: the file to write.
        title: the heading of the page.
        fdr: expected share of right labels among those that the page selects.

    Returns:
        Where the page is.

    Example:
        ```python
        from sgoif.reports import write_label_report
        from sgoif.tasks import LabelErrors

        write_label_report(LabelErrors(monitor, dataset=dataset), "report.html")
        ```
    """
    path = Path(path)
    extras = ReportExtras(
        title,
        picture=_pictures(errors),
        facts={"steps": f"{errors.monitor.steps:,}"},
        history=errors.monitor.history,
        harmed=partial(harmed_by, errors),
    )
    write_page(path, page_data(errors, errors.table(fdr), fdr, extras))
    return path


def sort_worst_first(table: ScoreTable) -> ScoreTable:
    """The rows in the order in which the page shows them."""
    return table.take(suspicion_order(table))


def page_data(errors: LabelFindings, table: ScoreTable, fdr: float, shown: ReportExtras) -> PageData:
    """Everything on the page; `table` is that of the errors, in any order."""
    table = sort_worst_first(table.take(np.flatnonzero(table["given_label"] >= 0)))  # no label: nothing to decide
    index = table["index"]
    rows = np.full(int(index.max()) + 2, -1, dtype=np.int64)  # the last entry answers for "none"
    rows[index] = np.arange(len(index))
    found, notes = _harmed(shown.harmed, index[:EXPLAINED])
    harmed = np.full((len(index), found.shape[1]), -1, dtype=np.int64)
    harmed[: len(found)] = rows[found]
    picture = shown.picture
    names = [shown.names(i) for i in index.tolist()]
    listed = set(names)
    further = [name for name in names_of(shown.findings) if name not in listed]
    unlisted = [shown.unlisted.get(name, (-1, None)) for name in further]
    places = np.concatenate([index, [place for place, _ in unlisted]]).astype(np.int64)
    return PageData(
        title=shown.title,
        source=shown.source,
        summary=sentence(errors.verdict()),
        class_names=errors.class_names,
        names=names,
        table=table,
        harmed=harmed,
        thumbnail=None if picture is None else lambda row: picture(int(places[row])) if places[row] >= 0 else None,
        noise_rate=errors.noise_rate() if errors.rate_told else (math.nan, *errors.noise_rate()[1:]),
        fdr=fdr,
        precision=precision(errors, table),
        confusion=pairs_of(errors, shown.unjudged),
        history=shown.history,
        facts={"examples": f"{len(index):,}", **shown.facts},
        notes=[*errors.notes(), *notes, *shown.notes],
        copies=_rows_of(shown.copies, rows),
        review=_review(shown, names, table["probability_wrong"]),
        findings=shown.findings,
        titles=shown.titles,
        not_looked=shown.not_looked,
        further=[
            FurtherImage(name, label, decidable=name in shown.unlisted)
            for name, (_, label) in zip(further, unlisted, strict=True)
        ],
        splits=shown.splits,
    )


def _review(shown: ReportExtras, names: Sequence[str], probability: np.ndarray[Any, Any]) -> RankedReview:
    """The rows as they are reviewed: as a review that began with the same examples listed them, or from the top."""
    begun = shown.review
    if begun is None or sorted(begun.index.tolist()) != sorted(names):
        return RankedReview(np.arange(len(names)), probability)
    row = {name: place for place, name in enumerate(names)}
    return RankedReview(np.array([row[name] for name in begun.index.tolist()]), begun.probability, plan=begun.plan)


def sentence(words: str) -> str:
    """The same with a capital and a full stop."""
    return f"{words[0].upper()}{words[1:]}."


def pairs_of(errors: LabelFindings, unjudged: Sequence[int]) -> Pairs:
    """Who is taken for whom, where labels of some classes are what they say."""
    given, true, count = errors.confused()
    return Pairs(given, np.where(np.isin(given, unjudged), given, true), count)


def _rows_of(groups: Sequence[Sequence[int]], rows: np.ndarray[Any, Any]) -> list[list[int]]:
    """The same groups by row, without what is not on the page."""
    known = [[int(rows[i]) for i in group if i < len(rows) and rows[i] >= 0] for group in groups]
    return [group for group in known if len(group) > 1]


def precision(errors: LabelFindings, table: ScoreTable) -> list[tuple[int, float]]:
    """Expected share of wrong labels among the first k of the list; nothing where it cannot be told.

    Nor where probabilities were lowered so far, on purpose, that the first of the list would be right more often than
    the estimated rate has it for all labels: the two would contradict each other.
    """
    p = np.sort(np.nan_to_num(table["probability_wrong"]))[::-1]
    if not errors.rate_told or p[: TOPS[0]].mean() < errors.noise_rate().estimate:
        return []
    return [(k, float(p[:k].mean())) for k in TOPS if k <= len(p)]


def harmed_by(errors: LabelErrors, indices: Sequence[int] | Labels, count: int = HARMED) -> Labels:
    """Indices of the held-out examples that each of these hurts most, [n, count]; −1: no more.

    Needs the data set, and a hold-out that was split off it; otherwise there are no columns.
    """
    monitor, held = errors.monitor, errors.monitor.held_out_indices()
    if errors.dataset is None or held is None:
        return np.zeros((len(indices), 0), dtype=np.int64)
    found = [np.zeros((0, count), dtype=np.int64)]
    for some in torch.as_tensor(np.asarray(indices, dtype=np.int64)).split(monitor.gradients.batch_size):
        with isolated_random_state():
            inputs, labels = read_items(errors.dataset, some, monitor.device, monitor.objective)
        position = monitor.most_harmed(inputs, labels, count).cpu().numpy()
        found.append(np.where(position >= 0, held[np.maximum(position, 0)], -1))
    return np.concatenate(found)


def _harmed(harmed: Callable[[Labels], Labels] | None, index: Labels) -> tuple[Labels, list[str]]:
    """The held-out examples that each of these hurts most, and what to say where that cannot be known."""
    nothing = np.zeros((len(index), 0), dtype=np.int64)
    try:
        return (nothing if harmed is None else harmed(index)), []
    except Exception as error:  # a data set may hold pictures for people that its model cannot take
        reason = f"the held-out examples that each one hurts are not shown: the model cannot take the data ({error})"
        return nothing, [reason]


def _pictures(errors: LabelErrors) -> Callable[[int], bytes | None] | None:
    """A function that gives the picture of an example, where the data set was given and holds images."""
    if errors.dataset is None:
        return None
    try:
        from PIL import Image
    except ImportError:
        return None
    dataset = errors.dataset

    def opened(part: Any) -> Image.Image | None:
        pixels = as_pixels(part) if isinstance(part, Tensor) else None
        if pixels is not None:
            return Image.fromarray(pixels)
        return part if isinstance(part, Image.Image) else None

    def picture(index: int) -> bytes | None:
        item = dataset[index]
        parts = item[:1] if isinstance(item, (tuple, list)) else item.values()
        image = next((found for found in map(opened, parts) if found is not None), None)
        if image is None:
            return None
        image = image.convert("RGB")
        image.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        image.save(buffer, "PNG" if max(image.size) <= 32 else "JPEG")
        return buffer.getvalue()

    return picture


def as_pixels(image: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """Bytes [H, W] or [H, W, 3] of an image tensor, whatever it was normalised with; None for other tensors."""
    values = image.detach().float().cpu()
    if values.dim() == 3 and values.shape[0] in (1, 3):
        values = values.permute(1, 2, 0)
    if values.dim() == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.dim() not in (2, 3) or (values.dim() == 3 and values.shape[2] != 3):
        return None
    low, high = values.min(), values.max()
    scaled = (values - low) / (high - low).clamp_min(1e-12)
    return (255 * scaled).round().byte().numpy()
