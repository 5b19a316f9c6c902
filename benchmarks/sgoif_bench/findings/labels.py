"""Labels that are made wrong in a folder of their own, and the judgement that finds them, as an audit takes it.

A share of the labels of the training split becomes any of the other classes, each as likely: the folder differs from
its clean twin in nothing else. What an audit does then is done here: labels are judged in the training split alone, by
heads on features of a pretrained network, and classes too small to judge are left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sgoif.audit import small_classes
from sgoif.audit.examined import examined
from sgoif.core.types import Array
from sgoif.findings import Examined, Finding, Severity
from sgoif.findings.kinds.labels import WrongLabels
from sgoif.images import Pixels
from sgoif.tasks.crossfit import CrossFit
from sgoif_bench.findings.pictures import Pictures
from sgoif_bench.findings.planting import LEAST, TRAIN, Plant, Tree, clean

ERRORS, NOTES = WrongLabels.kind, f"{WrongLabels.kind}-notes"
KINDS = (ERRORS, NOTES)
"""Labels that are surely wrong, each a finding; labels worth a look, which are one."""
PART = "symmetric"


def mislabelled(pictures: Pictures, seed: int, share: float) -> Tree:
    """The images of `clean`, a share of those to train on under another class."""
    tree, rng = clean(pictures, seed), np.random.default_rng((seed, len(pictures), 2))
    rows = np.flatnonzero([file.split == TRAIN for file in tree.files])
    chosen = rng.permutation(rows)[: max(LEAST, round(share * len(rows)))]
    for number, row in enumerate(chosen.tolist()):
        file = tree.files[row]
        others = [name for name in pictures.classes if name != file.label]
        label, plant = others[int(rng.integers(len(others)))], Plant(ERRORS, PART, number)
        tree.files[row] = replace(file, label=label, plants=(plant,))
    return tree


def judged(pixels: Pixels, features: Array, seed: int, device: str) -> Examined:
    """What is found of the labels of prepared images."""
    copies = [group.indices for group in (*pixels.duplicates, *pixels.near_duplicates)]
    crossfit = CrossFit(features, pixels.labels, pixels.class_names, seed=seed, copies=copies, device=device)
    found = crossfit.findings()
    unjudged = small_classes.unjudged(pixels.labels, crossfit.held, len(pixels.class_names))
    table = small_classes.without_verdict(found.table(), unjudged, found.noise_rate().estimate)
    return examined(pixels, found, table, features)


def look(kind: str, seen: Examined) -> list[Finding]:
    """The findings of a kind, of the labels that are worth a look one for each image."""
    found = WrongLabels().find(seen)
    if kind == ERRORS:
        return [finding for finding in found if finding.severity is Severity.ERROR]
    notes = (finding for finding in found if finding.severity is Severity.NOTE)
    return [replace(finding, images=(name,)) for finding in notes for name in finding.images]
