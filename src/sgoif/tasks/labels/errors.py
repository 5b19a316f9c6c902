"""`LabelErrors` judges what a finished or running monitor has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from sgoif.core.data import Part, read_labels, whole_dataset
from sgoif.errors import SettingError
from sgoif.tasks.argument_checks import check_classes_by_index, check_labels
from sgoif.tasks.labels.channel import Array
from sgoif.tasks.labels.evidence import evidence_of
from sgoif.tasks.labels.findings import LabelFindings
from sgoif.tasks.labels.judgement import judge
from sgoif.tasks.neighbours import against_by_index

if TYPE_CHECKING:
    from sgoif.monitor import InfluenceMonitor


class LabelErrors(LabelFindings):
    """Which labels are wrong, what they should be, and how sure that is; taken from a monitor at this moment.

    Args:
        monitor: the monitor of a finished or running training.
        dataset: indexed like the loop; explanations and reports read the examples from it. Without it, examples are
            found by way of a hold-out that was made with `split_holdout`.
        class_names: one name for every class.
        checked: the right labels of some held-out examples, by index. Where most labels of a class are wrong, a couple
            of them per class decide which class is which (`to_check` names some to look at).
        closing_pass: whether the trained model looks at every training example once more. None: where the run was so
            short that this counts (less than ten looks at an example) and the examples are at hand, at most 50,000
            of them. The run is unchanged.
        features: of all examples by one network or several, [n, width] each, a row per index; what the neighbours'
            labels say counts too then. Those of the trained network and of the one it began as say more than either.
        label: with several labels per example, the one to ask about: whether it is rightly there (1) or not (0), a
            question of two classes for every example.

    Of mixed labels (mixup, cutmix) the class of an example is that of its index. Values and tokens are no labels:
    `monitor.scores()` ranks such examples by influence.

    Example:
        ```python
        from sgoif.tasks import LabelErrors

        errors = LabelErrors(monitor, dataset=dataset)
        print(errors)                                       # how many look wrong, and how many surely are
        print(errors.select(fdr=0.1))                       # indices of the surely wrong, most probable first
        print(errors.review_plan(40))                       # indices to look at, to know how many are wrong in all
        errors.table(fdr=0.1).to_csv("labels.csv")          # one row per example
        ```
    """

    def __init__(
        self,
        monitor: InfluenceMonitor,
        *,
        dataset: Dataset[Any] | None = None,
        class_names: Sequence[str] | None = None,
        checked: Mapping[int, int] | None = None,
        closing_pass: bool | None = None,
        features: Sequence[Array] = (),
        label: int | None = None,
    ) -> None:
        check_labels(monitor, label, "LabelErrors")
        check_classes_by_index("checked", checked or {})
        self.monitor = monitor
        self.dataset = None if dataset is None else whole_dataset(dataset)
        self.label = label
        classes, bank = monitor.classes if label is None else 2, monitor.anchors
        names = range(classes) if class_names is None else class_names
        if len(names) != classes:
            raise SettingError(f"{len(names)} class names were given for {classes} classes")
        seen = whole_dataset(bank.dataset) if dataset is None and isinstance(bank.dataset, Part) else self.dataset
        training, held_out = evidence_of(monitor, seen, closing_pass, label)
        beside = None
        if len(features):
            if label is not None or monitor.held_out_indices() is None:
                raise SettingError(
                    "features need one label per example and a hold-out by split_holdout; leave them out"
                )
            index, given = (
                np.concatenate([getattr(e, name) for e in (training, held_out)]) for name in ("index", "given")
            )
            beside = against_by_index(features, index, given, classes, held_out.agreement(), monitor.device)
        super().__init__(
            judge(training, held_out, classes, checked, beside),
            monitor.scores(label=label),
            [str(name) for name in names],
            labels=None if self.dataset is None else partial(read_labels, self.dataset, label=label),
            by_group=list(bank.group_names) == list(range(classes)) and torch.equal(bank.groups, bank.labels),
            apart=monitor.held_out_indices() is None,
        )
