"""The forms of other tools, as each of them describes it. Everything here is plain JSON or rows of a table.

- FiftyOne: `FiftyOneImageClassificationDataset`, one label with attributes for each file, by its path without suffix.
- Label Studio: tasks in its JSON format, each with a prediction for a labelling interface with `Choices` called "label"
  and an `Image` called "image"; `Choices` hold classes.
- Datalab: the columns of cleanlab's `Datalab.get_issues`; names of issues are cleanlab's where it has one.
- COCO: one annotation for each labelled image, whose box is the whole image, and `attributes` as CVAT writes them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from sgoif.commands.export.audited import Audited, AuditedImage
from sgoif.core.provenance import package_version
from sgoif.findings import SEVERITIES, Finding

SERVED = "/data/local-files/?d="
"""Where Label Studio serves files below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
LABEL = "label"
"""cleanlab's name for wrong labels, and what the labelling interface of Label Studio calls the class."""
DATALAB = {
    "bright": "light",
    "empty": "low_information",
    "aspect": "odd_aspect_ratio",
    "size": "odd_size",
    "grey": "grayscale",
    "copies": "near_duplicate",
    "near-copies": "near_duplicate",
    "class-outlier": "outlier",
    "wrong-label": LABEL,
}
"""cleanlab's names for kinds of findings, where they differ; its near duplicates include exact ones."""


@dataclass(frozen=True)
class Form:
    """How one tool wants it."""

    make: Callable[[Audited], Any]
    """What is written: as JSON, or rows of a CSV table, its header first."""
    suffix: str
    next_step: str
    """How it is imported; {out} and {root} are filled in."""
    needs_files: bool = True
    """Images without a file of their own are left out."""
    holds_rest: bool = False
    """It has a place for findings that are about no readable image."""


def fiftyone(audited: Audited) -> dict[str, Any]:
    """Labels by path."""
    number = {name: position for position, name in enumerate(audited.class_names)}
    labels = {}
    for image, path in _with_files(audited):
        # FiftyOne has no label without a class; an image that has none is listed as unlabelled.
        entry = None if image.label is None else {"label": number[image.label], "attributes": _attributes(image)}
        labels[str(PurePosixPath(path).with_suffix(""))] = entry
    return {"classes": list(audited.class_names), "labels": labels}


def label_studio(audited: Audited) -> list[dict[str, Any]]:
    """Tasks, the gravest findings first."""
    ranked = sorted(_with_files(audited), key=lambda pair: _gravest(pair[0].findings))
    return [_task(image, path) for image, path in ranked]


def _task(image: AuditedImage, path: str) -> dict[str, Any]:
    data = {
        "image": SERVED + quote(os.fsencode(path)),
        "name": image.name,
        "given_label": image.label or "",
        **_attributes(image),
    }
    task: dict[str, Any] = {"data": data}
    label, score = image.label, None
    if (suggestion := image.suggestion) is not None and not isnan(suggestion.probability_wrong):
        label, wrong = suggestion.label, suggestion.probability_wrong
        score = 1 - wrong if label == image.label else wrong
    if label is not None:
        result = {"from_name": LABEL, "to_name": "image", "type": "choices", "value": {"choices": [label]}}
        prediction: dict[str, Any] = {"model_version": f"sgoif {package_version()}", "result": [result]}
        task["predictions"] = [prediction if score is None else {**prediction, "score": score}]
    return task


def datalab(audited: Audited) -> Iterator[Sequence[Any]]:
    """A row for each image: `is_X_issue` and `X_score` for every kind that was found, 0 being the worst score."""
    named = [{DATALAB.get(one.kind, one.kind.replace("-", "_")) for one in image.findings} for image in audited.images]
    issues = sorted(set().union(*named) - {LABEL})
    yield (
        *("path", "given_label", "predicted_label", "is_label_issue", "label_score"),
        *(column for issue in issues for column in (f"is_{issue}_issue", f"{issue}_score")),
    )
    for image, found in zip(audited.images, named, strict=True):
        suggestion, given = image.suggestion, image.label or ""
        if suggestion is not None:
            label = (suggestion.label, suggestion.is_issue, 1.0 if isnan(suggestion.score) else suggestion.score)
        else:
            label = (given, LABEL in found, 0.0 if LABEL in found else 1.0)
        pairs = ((issue in found, 0.0 if issue in found else 1.0) for issue in issues)
        yield (image.name, given, *label, *(cell for pair in pairs for cell in pair))


def coco(audited: Audited) -> dict[str, Any]:
    """Images, categories, and an annotation for each label."""
    number = {name: position for position, name in enumerate(audited.class_names, start=1)}
    images, annotations = [], []
    for key, image in enumerate(audited.images, start=1):
        name = image.path or image.name
        images.append({"id": key, "file_name": name, "width": image.width, "height": image.height})
        if image.label is not None:
            annotations.append(
                {
                    "id": key,
                    "image_id": key,
                    "category_id": number[image.label],
                    "bbox": [0, 0, image.width, image.height],
                    "area": image.width * image.height,
                    "segmentation": [],
                    "iscrowd": 0,
                    "attributes": _attributes(image),
                }
            )
    return {
        "info": {
            "description": f"written by sgoif {package_version()}",
            "findings": [_told(one) for one in audited.rest],
        },
        "licenses": [],
        "images": images,
        "categories": [{"id": key, "name": name, "supercategory": ""} for name, key in number.items()],
        "annotations": annotations,
    }


def _with_files(audited: Audited) -> Iterator[tuple[AuditedImage, str]]:
    for image in audited.images:
        if image.path is not None:
            yield image, image.path


def _attributes(image: AuditedImage) -> dict[str, Any]:
    """What was found about an image, in plain texts and numbers."""
    found = sorted(image.findings, key=lambda one: _gravest([one]))
    attributes: dict[str, Any] = {
        "findings": ", ".join(dict.fromkeys(one.kind for one in found)),
        "severity": found[0].severity.value if found else "",
        "messages": "; ".join(one.message for one in found),
        "finding_ids": ", ".join(one.id for one in found),
    }
    if (suggestion := image.suggestion) is not None:
        wrong = suggestion.probability_wrong
        attributes["suggested_label"] = suggestion.label
        attributes |= {} if isnan(wrong) else {"probability_wrong": wrong}
    return attributes


def _gravest(findings: Sequence[Finding]) -> int:
    return min((SEVERITIES.index(one.severity) for one in findings), default=len(SEVERITIES))


def _told(found: Finding) -> dict[str, Any]:
    return {
        "id": found.id,
        "kind": found.kind,
        "severity": found.severity.value,
        "message": found.message,
        "images": found.images,
        "classes": found.classes,
    }


FORMS = {
    "fiftyone": Form(
        fiftyone,
        ".json",
        "in Python: fiftyone.Dataset.from_dir(dataset_type=fiftyone.types.FiftyOneImageClassificationDataset,"
        " data_path={root!r}, labels_path={out!r})",
    ),
    "label-studio": Form(
        label_studio,
        ".json",
        "start Label Studio with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and"
        " LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={root!r}, then import {out!r}",
    ),
    "datalab": Form(datalab, ".csv", "in Python: pandas.read_csv({out!r})", needs_files=False),
    "coco": Form(coco, ".json", "paths in {out!r} start from {root!r}", needs_files=False, holds_rest=True),
}
