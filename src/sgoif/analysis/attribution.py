"""Tables of scores, and what single examples do to held-out ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.analysis.intervals import interval_width
from sgoif.anchors.bank import AnchorBank
from sgoif.anchors.gradients import ExampleGradients
from sgoif.core.data import Part
from sgoif.core.losses import negative_margin
from sgoif.core.precision import full_precision
from sgoif.core.score_table import ScoreTable
from sgoif.curvature.base import Curvature
from sgoif.errors import SettingError, SgoifError
from sgoif.scoring.ledger import Ledger


@dataclass(frozen=True)
class LedgerView:
    """What a table of scores is made from."""

    ledger: Ledger
    """Of the training examples."""
    held_out: Callable[[], Ledger]
    """The ledger of the hold-out, a score for every example."""
    dataset: Dataset[Any]
    """The hold-out."""
    group_names: Sequence[Any]
    level: float
    bound: float
    """The largest score there is."""
    dependence: float
    """How much more the halves of the run differ than independent observations would."""

    def scores(self, anchors: bool | None) -> ScoreTable:
        """The table over training examples, and over the anchors where their original indices are known."""
        ledger, dataset = self.ledger, self.dataset
        if anchors and not isinstance(dataset, Part):
            raise SgoifError(
                "anchors can only join the table when training set and hold-out share one numbering: make them with"
                " split_holdout(dataset), or read monitor.anchor_scores()"
            )
        rows = self._columns(ledger, np.arange(ledger.used))
        # With a known size, examples that were never drawn keep a row; held-out ones are not training examples.
        listed = (rows["n_observations"] > 0) | (ledger.fixed_size is not None)
        if isinstance(dataset, Part):
            held = np.asarray(dataset.indices)
            listed[held[held < len(listed)]] = False
        table = ScoreTable(rows).take(np.flatnonzero(listed))
        if not isinstance(dataset, Part) or anchors is False:
            return table
        own = self._columns(self.held_out(), np.asarray(dataset.indices))
        whole = ScoreTable({name: np.concatenate([table[name], own[name]]) for name in rows})
        return whole.take(np.argsort(whole["index"], kind="stable"))

    def anchor_scores(self) -> ScoreTable:
        """Scores of the hold-out by position."""
        ledger = self.held_out()
        return ScoreTable(self._columns(ledger, np.arange(ledger.used)))

    def _columns(self, ledger: Ledger, index: NDArray[Any]) -> dict[str, Any]:
        mean, width = ledger.mean("score"), interval_width(ledger, self.level, self.bound, self.dependence)
        noise = torch.nan_to_num(ledger.variance()) / ledger.effective_count().clamp_min(1)
        steady = mean * mean / (mean * mean + noise).clamp_min(torch.finfo(mean.dtype).tiny)
        group, _ = ledger.worst_group()
        names = np.array([*self.group_names, None], dtype=object)
        named: NDArray[Any] = names[group.cpu().numpy()]
        if all(name is None or isinstance(name, int) for name in self.group_names):
            named = np.array([-1 if name is None else name for name in named], dtype=np.int64)
        else:
            named = np.array(["" if name is None else str(name) for name in named], dtype=object)

        def array(tensor: Tensor) -> NDArray[Any]:
            found: NDArray[Any] = tensor.float().cpu().numpy()
            return found

        return {
            "index": index.astype(np.int64),
            "influence": array(mean),
            "interval_low": array((mean - width).clamp_min(-self.bound)),
            "interval_high": array((mean + width).clamp_max(self.bound)),
            "confidence": array(ledger.mean("support") * steady),
            "n_observations": ledger.column("count").cpu().numpy().astype(np.int64),
            "margin": array(ledger.mean("margin")),
            "group": named,
            "logit_margin": array(ledger.mean("logit_margin")),
            "loss": array(ledger.mean("loss")),
        }


@full_precision
def most_harmed(bank: AnchorBank, gradient: Tensor, count: int) -> Tensor:
    """Positions in the hold-out of the anchors that training on examples hurts most, by their gradients, [B, count].

    −1: no more.
    """
    if not isinstance(count, int) or count < 1:
        raise SettingError(f"count={count!r} is not valid: expected a whole number of at least 1")
    harm = -(gradient @ (bank.confidence.unsqueeze(1) * bank.communicator.gathered(bank.phi)).T)
    value, member = harm.topk(min(count, harm.shape[1]), dim=1)
    positions = bank.positions().to(member.device)[member]
    found = torch.where(value > 0, positions, -1)
    missing = count - found.shape[1]
    return found if missing <= 0 else torch.nn.functional.pad(found, (0, missing), value=-1)


@full_precision
def expected_error(curvature: Curvature, gradients: ExampleGradients, inputs: Any, labels: Tensor) -> Tensor:
    """√(gᵀH⁻¹g), g being gradients of the margin: how far chance moves it from one training to another, [B].

    The margin, since of the loss of an example that the model is sure of next to no gradient is left; solved in closed
    form with the curvature of this moment, since no direction is kept for examples that are not anchors.
    """
    if not gradients.objective.classes:
        raise SettingError("expected_error() speaks of margins, and the loss of this monitor has no classes")
    if not curvature.ready:
        raise SgoifError("there is no curvature yet, so no error can be foretold; run at least one step first")
    gradient = gradients.of_strangers(inputs, labels, negative_margin)
    return (gradient * curvature.solve(gradient)).sum(1).clamp_min(0).sqrt()
