"""Maximum logit score: an input belongs as far as one class is strongly present.

Hendrycks, Basart, Mazeika, Zou, Kwon, Mostajabi, Steinhardt, Song: Scaling Out-of-Distribution Detection for Real-World
Settings. ICML 2022.

    score = −max_k z_k

Softmax divides by all classes, so that an input between two similar classes looks uncertain; the logit does not.
"""

from __future__ import annotations

from torch import Tensor

from sgoif.tasks.ood.network import Seen
from sgoif_bench.ood.detector import Detector


class MLS(Detector):
    """The negative largest logit. It has nothing to fit and no settings."""

    name = "mls"
    title = "MLS"
    paper = (
        "Hendrycks, Basart, Mazeika, Zou, Kwon, Mostajabi, Steinhardt, Song: Scaling Out-of-Distribution Detection for "
        "Real-World Settings. ICML 2022"
    )

    def score(self, seen: Seen) -> Tensor:
        return -seen.logits.amax(dim=1)
