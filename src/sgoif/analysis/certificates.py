"""What can be said for certain about the order of scores."""

import torch

from sgoif.errors import IndexingError, SgoifError
from sgoif.scoring.ledger import Ledger
from sgoif.stability.bounds import TopKCertificate, misranking_bound, top_k_certificate

Certificate = TopKCertificate


def misranking(ledger: Ledger, higher: int, lower: int, bias: float) -> float:
    """exp(−(Δ − b)² m / 2σ²): how likely two examples this far apart are in the wrong order by sampling alone.

    Δ is the difference of the mean scores, σ² the sum of their variances, m the smaller number of observations, and
    `bias` what systematic errors may add (0: sampling error only). 1 means that nothing can be said. All of them are
    measured in the run and observations count as independent, so this is an estimate and not a bound known to hold.
    """
    pair = torch.tensor([higher, lower])
    if int(pair.min()) < 0 or int(pair.max()) >= ledger.used or bool((ledger.column("count")[pair] < 2).any()):
        raise IndexingError(f"examples {higher} and {lower} need at least two observations each to be compared")
    mean, variance, count = ledger.mean("score")[pair], ledger.variance()[pair], ledger.effective_count()[pair]
    return float(misranking_bound(float(mean[0] - mean[1]), bias, float(variance.sum()), float(count.min())))


def certificate(ledger: Ledger, k: int, *, head_alone: bool = True) -> Certificate:
    """Are these k the true top k under the surrogate? Needs a watched head and, in practice, a converged solver.

    Every score deviates from the one with exact H⁻¹ by at most Σ_g ‖r_ψg‖/λ_min · ‖g_i‖ in each step (‖Σ_g r_ψg‖ for a
    plain sum over groups); the ledger keeps the mean of that bound. A residual left large on purpose (few solver steps,
    the default for detection) gives a bound larger than the margins, and the answer is then no.
    """
    if not head_alone:
        raise SgoifError(
            "a certificate needs the norm of every example's gradient, which is formed for layers='head' only"
        )
    seen = ledger.column("count") > 0
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= int(seen.sum()):
        raise IndexingError(f"k={k} is out of range: {int(seen.sum())} examples have a score")
    return top_k_certificate(ledger.mean("score")[seen], ledger.mean("bound")[seen], k)
