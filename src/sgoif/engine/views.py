"""The frozen views of a run that analyses are given, and the one warning of a run whose health is not good."""

import warnings
from functools import partial

from sgoif.analysis.attribution import LedgerView
from sgoif.analysis.health import HealthView
from sgoif.engine.held_out import HeldOutScorer
from sgoif.engine.pipeline import StepPipeline
from sgoif.errors import HealthWarning
from sgoif.scoring.ledger import Ledger
from sgoif.tracking.validation import levels_to_caller


class Views:
    """Makes views of what is known at that moment; all ranks ask for one together."""

    def __init__(self, pipeline: StepPipeline, held_out: HeldOutScorer, guess: float) -> None:
        self.pipeline, self.held_out, self.guess = pipeline, held_out, guess
        self._told = False

    def scores(self, label: int | None = None) -> LedgerView:
        """What tables of scores are made from; before the first of all examples, bad health is warned of."""
        scorer, bank = self.pipeline.scorer, self.held_out.bank
        ledger = scorer.record(label)
        whole = ledger if label is None else scorer.label_record()
        if label is None and not self._told:
            self._warn(ledger)
        given = ledger, partial(self.held_out.record, label), bank.dataset, bank.group_names
        bound, ratio = scorer.scaling.bound, whole.autocorrelation.ratio(whole)
        return LedgerView(*given, scorer.settings.level, bound, ratio)

    def health(self, ledger: Ledger | None = None) -> HealthView:
        """What the health of the run is read off; `ledger` is that of all ranks, if it is at hand."""
        refresher, scorer = self.pipeline.refresher, self.pipeline.scorer
        known = scorer.record() if ledger is None else ledger
        return HealthView(known, refresher.history, refresher.bank, refresher.curvature, self.guess)

    def _warn(self, ledger: Ledger) -> None:
        problems = self.health(ledger).examine().warnings
        if problems:
            self._told = True
            told = "\n".join(f"    {check.name}: {check.sentence}" for check in problems)
            warnings.warn(
                f"the scores rest on little so far (monitor.health() says more):\n{told}",
                HealthWarning,
                stacklevel=levels_to_caller(),
            )
