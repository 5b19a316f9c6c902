"""Signatures averaged over the passes of a training run.

A trigger is seen best while it is being learned and sometimes only then. The monitor's steps bring the inputs of the
head along, so this costs no forward pass: they are kept until every example has come once, or memory is full, and
then each class is given its signature (`signature`) and each example what the pass says about it,

    Σ over passes of T p_i        T: strength of the class, p_i: cross-fitted projection

A pass in which a class shows nothing has a small T, so no pass needs to be chosen.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.errors import SettingError, StateError
from sgoif.monitor import InfluenceMonitor
from sgoif.scoring.influence import StepScores
from sgoif.scoring.step_batch import Observation
from sgoif.tasks.argument_checks import as_numbers, check_classes
from sgoif.tasks.poisoning.geometry import fit_geometry, project
from sgoif.tasks.poisoning.mixture import Values
from sgoif.tasks.poisoning.signature import LEAST_EXAMPLES, signature

MEMORY = 256 * 2**20
"""Bytes of features that may be kept."""
EVERY = ((4, 1), (12, 2))
"""Below a number of passes, one in so many is analysed; later on, one in `LATER`."""
LATER = 4
FOLDS = 3
"""Parts of a class in the cross-fitting; fewer than for the finished network, since passes are averaged."""


class PoisonWatch:
    """Watches a monitor's run for poison; give it to `PoisonTrace.fit(..., watch=watch)` afterwards.

    Args:
        monitor: the monitor of the run that is about to begin.
        memory: bytes that may be kept of a pass. With less than a pass needs, parts of it are analysed one after the
            other, and classes with few examples in a part are left out of it.
        seed: of everything that is drawn.

    Example:
        ```python
        from sgoif.tasks import PoisonTrace, PoisonWatch

        watch = PoisonWatch(monitor)
        train()                                             # the loop, as it is
        print(PoisonTrace.fit(model, train_set, watch=watch).suspects().selected)
        ```
    """

    def __init__(self, monitor: InfluenceMonitor, *, memory: int = MEMORY, seed: int = 0) -> None:
        if memory < 1:
            raise SettingError(f"memory={memory!r} is not valid: expected a number of bytes")
        check_classes(monitor, "a poison watch")
        self.monitor, self.memory, self.seed = monitor, memory, seed
        self.passes = 0
        """Passes so far, parts of passes counted as such; the first are all analysed, later some."""
        self._signature, self._counts = np.zeros(0), np.zeros(0, dtype=np.int64)
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._indices: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._pending = np.zeros(0, dtype=bool)
        self._bytes = 0
        monitor.observers.append(self._observe)

    def close(self) -> None:
        """Stop watching; what was seen stays."""
        if self._observe in self.monitor.observers:
            self.monitor.observers.remove(self._observe)

    # --- while the model trains ---------------------------------------------------------------------------------

    def _observe(self, steps: Observation, scores: StepScores) -> None:
        indices = np.asarray(steps.indices, dtype=np.int64)
        self._reserve(int(indices.max()) + 1)
        if self._pending[indices].any():
            self._analyse_pass()
        features = steps.inputs.detach()
        if is_due(self.passes):
            self._kept.append((features, scores.label.detach()))
            self._indices.append(indices)
        self._pending[indices] = True
        self._bytes += features.numel() * features.element_size()
        if self._bytes > self.memory:
            self._analyse_pass()

    def _reserve(self, size: int) -> None:
        if size > len(self._pending):
            room = max(size, 2 * len(self._pending))
            for name in ("_signature", "_counts", "_pending"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros(room - len(old), dtype=old.dtype)]))

    @torch.no_grad()
    def _analyse_pass(self) -> None:
        """Work out what the examples kept so far say, and forget them."""
        number, self.passes = self.passes, self.passes + 1
        self._pending[:] = False
        self._bytes = 0
        if not self._kept:
            return
        index = np.concatenate(self._indices)
        features = project(torch.cat([f for f, _ in self._kept]), self.seed).float()
        labels = torch.cat([label for _, label in self._kept]).long()
        self._kept, self._indices = [], []
        if not bool(torch.isfinite(features).all()):
            return  # a step that blew up says nothing about poison
        classes = self.monitor.classes
        geometry = fit_geometry(features, labels, classes)
        given = labels.cpu().numpy()
        order = np.argsort(given, kind="stable")
        bounds = np.searchsorted(given[order], np.arange(classes + 1))
        for label in range(classes):
            rows = order[bounds[label] : bounds[label + 1]]
            if len(rows) < LEAST_EXAMPLES:
                continue
            whitened = geometry.whiten(features[torch.from_numpy(rows).to(features.device)], label)
            self._signature[index[rows]] += signature(whitened, self.seed + number, FOLDS).values
            self._counts[index[rows]] += 1

    # --- afterwards ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Analyse what has come since the last analysis, if it is a good part of a pass."""
        self.monitor.flush()
        seen = int(self._pending.sum())
        if seen and 2 * seen >= int((self._counts > 0).sum()):
            self._analyse_pass()

    def signatures(self, index: np.ndarray[Any, Any]) -> Values | None:
        """Mean signature of these examples along the run; 0 for those never seen, None where nothing was seen."""
        if not self._counts.any():
            return None
        found = np.zeros(len(index))
        known = np.flatnonzero(index < len(self._counts))
        found[known] = self._signature[index[known]] / np.maximum(self._counts[index[known]], 1)
        return found

    def state_dict(self) -> dict[str, Any]:
        """What was seen so far; examples of a pass that is not complete are not part of it.

        Nor are those of the first before the second begins: until then nobody knows how many there are.
        """
        self.monitor.flush()
        known = self._counts > 0
        if known.any() and self._pending[known].all():
            self._analyse_pass()
        return {
            "signature": torch.from_numpy(self._signature.copy()),
            "counts": torch.from_numpy(self._counts.copy()),
            "passes": self.passes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        parts = ("signature", "counts")
        try:
            arrays = {name: state[name].numpy().copy() for name in parts}
            passes = int(state["passes"])
        except (KeyError, AttributeError, TypeError) as error:
            raise StateError(f"this is not the state of a PoisonWatch ({error!r})") from error
        if len({len(array) for array in arrays.values()}) > 1:
            raise StateError("the saved state of the watch is damaged: its parts differ in length")
        self._signature, self._counts = (arrays[name] for name in parts)
        self._pending = np.zeros(len(self._counts), dtype=bool)
        self._kept, self._indices, self._bytes, self.passes = [], [], 0, passes


def is_due(number: int) -> bool:
    """Whether a pass of this number is analysed."""
    return number % next((every for below, every in EVERY if number < below), LATER) == 0


def wrong_labels(labels: Any, count: int, classes: int) -> Tensor:
    """The label that each victim gets, [V] on the CPU, from one number or one for each."""
    if count == 0:
        raise SettingError("there are no victims; give at least one input that gets a wrong label")
    found = as_numbers(labels, "the labels of victims must be class numbers").detach().cpu()
    if found.is_floating_point() or found.dtype == torch.bool:
        raise SettingError(f"the labels of victims must be class numbers, not {found.dtype}")
    found = found.long().expand(count) if found.dim() == 0 else found.long()
    if found.shape != (count,):
        raise SettingError(f"{count} victims need one label, or one each; got labels of shape {tuple(found.shape)}")
    if int(found.min()) < 0 or int(found.max()) >= classes:
        raise SettingError(
            f"the labels of victims run from {int(found.min())} to {int(found.max())}, but the model has {classes}"
            f" classes (0 to {classes - 1})"
        )
    return found
