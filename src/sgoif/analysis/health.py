"""How far a run supports influence: what is well, what is not, and what to change, one line each.

    curvature   whether it has seen as many batches as it remembers
    anchors     whether every group has enough of them, and every class that is trained on has any
    gate        whether it lets enough of them through
    learning    whether the model knows more of held-out examples than a guess does
    run         how much of what sets the scores of examples apart is more than chance

The last is 1 − R · mean_i(V_i / m_i) / Var_i(x̄_i): the scores of example i have the mean x̄_i, the variance V_i and the
weighted number m_i, and R says by how much the halves of the run differ more than independent scores would
(`scoring.autocorrelation`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sgoif.anchors.bank import AnchorBank
from sgoif.curvature.base import Curvature
from sgoif.errors import some_of
from sgoif.scoring.autocorrelation import LEAST
from sgoif.scoring.ledger import Ledger
from sgoif.stability.step_weight import FLOOR

FORGOTTEN = 0.05
"""What the first batch may still count for in a curvature that is not young."""
LEAST_ANCHORS = 50
"""The fewest with which benchmarks were made."""
LEAST_A_GROUP = 5
"""With a fifth of all labels wrong, the majority of five is right in 94 groups of 100; of three, in 90."""
LEAST_PASSING = 0.25
"""Share of the anchors that should pass the gate. By default it aims at 0.8; in the loops of others 0.48 or more do."""
LEAST_SUPPORT = 0.5
"""Below it chance sets scores further apart than the examples do; influence alone then had below 80 AUPR on digits."""
NAMED = 5


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: Literal["good", "warning"]
    sentence: str

    def __str__(self) -> str:
        return f"{self.name:<10} {self.state:<8} {self.sentence}"


@dataclass(frozen=True)
class Health:
    """What `monitor.health()` found; printed, it is a line for each check."""

    checks: tuple[Check, ...]

    @property
    def warnings(self) -> tuple[Check, ...]:
        """What is not well."""
        return tuple(check for check in self.checks if check.state == "warning")

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))


@dataclass(frozen=True)
class HealthView:
    """What the health of a run is read off."""

    ledger: Ledger
    """Of the training examples."""
    history: Sequence[Mapping[str, float]]
    bank: AnchorBank
    curvature: Curvature
    guess: float
    """Mean loss of the best constant answer."""

    def examine(self) -> Health:
        """All checks; before the first refresh there is nothing to look at."""
        if not self.history:
            return Health((_check("run", "nothing was scored yet: train within `with monitor.step(index)`", bad=True),))
        found = [self._curvature(), self._anchors(), self._gate(), self._learning(), self._run()]
        return Health(tuple(check for check in found if check is not None))

    def _curvature(self) -> Check:
        seen, memory = self.curvature.updates, self.curvature.decay
        young = memory**seen > FORGOTTEN
        advice = ", too few for its memory: train for more steps, or leave curvature_every out"
        return _check("curvature", f"learned from {seen} batches{advice if young else ''}", bad=young)

    def _anchors(self) -> Check:
        bank, count = self.bank, len(self.bank)
        by_group = torch.bincount(bank.member_groups.cpu(), minlength=len(bank.group_names))
        few = [str(name) for name, n in zip(bank.group_names, by_group.tolist(), strict=True) if n < LEAST_A_GROUP]
        without = self._classes_without()
        problems = [f"fewer than {LEAST_ANCHORS}"] if count < LEAST_ANCHORS else []
        problems += [f"fewer than {LEAST_A_GROUP} of {some_of(few, NAMED)}"] if few else []
        problems += [f"none of class {some_of(without, NAMED)}"] if without else []
        told = f"{count}, {int(by_group.min())} or more a group" if not problems else f"{count}, {', '.join(problems)}"
        advice = ": hold out a larger share, split_holdout(dataset, share=...)" if problems else ""
        return _check("anchors", told + advice, bad=bool(problems))

    def _classes_without(self) -> list[str]:
        """Classes of training examples that no anchor has."""
        if not self.bank.objective.classes or self.bank.labels.dim() != 1:
            return []
        seen = self.ledger.label[: self.ledger.used].cpu().unique()
        known = self.bank.labels.long().cpu().unique()
        return [str(label) for label in seen[(seen >= 0) & ~torch.isin(seen.long(), known)].tolist()]

    def _gate(self) -> Check:
        share = self.history[-1]["pass_share"]
        closed = share < LEAST_PASSING
        advice = ": train for more steps, or change kappa, damping or solver_steps where you set them"
        return _check("gate", f"{share:.0%} of the anchors pass{advice if closed else ''}", bad=closed)

    def _learning(self) -> Check | None:
        if not self.guess > 0:
            return None  # of such a loss a guess says nothing
        best = min(entry["anchor_loss"] for entry in self.history)
        nothing = not best < (1 - FLOOR) * self.guess
        told = f"loss of the held-out examples {best:.3g} at best, of a guess {self.guess:.3g}"
        advice = ": train for longer, or look at learning rate, labels and hold-out"
        return _check("learning", told + (advice if nothing else ""), bad=nothing)

    def _run(self) -> Check:
        share = support(self.ledger)
        advice = ": train for more steps; until then losses and margins tell more"
        if share is None:
            told = f"fewer than {LEAST} examples were seen twice, so nothing tells influence from chance"
            return _check("run", told + advice, bad=True)
        short = share < LEAST_SUPPORT
        told = f"{max(share, 0.0):.0%} of what sets scores of influence apart is more than chance"
        return _check("run", told + (advice if short else ""), bad=short)


def support(ledger: Ledger) -> float | None:
    """Share of the variance of mean scores between examples that is more than chance; None where none can be told."""
    count, variance = ledger.effective_count(), ledger.variance()
    known = (count > 1) & torch.isfinite(variance)
    if int(known.sum()) < LEAST:
        return None
    mean, noise = _rows(ledger.mean("score"), known), _rows(variance, known) / _rows(count, known)
    apart = float(mean.var())
    return 1 - ledger.autocorrelation.ratio(ledger) * float(noise.mean()) / apart if apart > 0 else None


def _rows(values: Tensor, known: Tensor) -> Tensor:
    return values[known].cpu().double()


def _check(name: str, sentence: str, *, bad: bool) -> Check:
    return Check(name, "warning" if bad else "good", sentence)
