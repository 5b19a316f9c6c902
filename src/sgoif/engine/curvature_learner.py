"""Learning from training steps: the running curvature, the gradient norm of the stability proxy, the training loss.

A run of 30 steps cannot wait for the 32nd, and one of 300,000 need not learn from each. So the interval k between two
updates grows with the number t of steps so far, up to the one of long runs:

    k(t) = min(longest, 2^⌊log₂ max(1, t / 8)⌋)

The curvature forgets by updates. It is thus an average over a share of the run so far, about the last third, until the
interval is the longest.
"""

from sgoif.core.precision import full_precision
from sgoif.curvature.base import Curvature, Factors
from sgoif.engine.block_scorer import BlockScorer
from sgoif.scoring.influence import gradient_norms
from sgoif.scoring.outputs import Outputs
from sgoif.scoring.step_batch import Observation
from sgoif.stability.controller import StabilityController
from sgoif.tracking.pass_record import PassRecord

CURVATURE_EXAMPLES = 64
"""Examples of a batch from which the curvature of layers below the head is read."""
EVERY_HEAD, EVERY_BODY = 32, 64
"""Most steps between two updates, where the head alone is watched and where layers below it are."""
DENSE = 8
"""Updates before the number of steps doubles once more."""


class CurvatureLearner:
    """Folds every k-th step into the curvature."""

    def __init__(self, curvature: Curvature, controller: StabilityController, scorer: BlockScorer) -> None:
        self.curvature, self.controller, self.scorer = curvature, controller, scorer
        self.step_weight, self.communicator, self.device = scorer.step_weight, scorer.communicator, scorer.device
        self.layers, self.given = scorer.directions.layers, scorer.settings.curvature_every
        self.longest = EVERY_HEAD if scorer.head_alone else EVERY_BODY

    def interval(self, step: int) -> int:
        """Steps between two updates at this time of the run; as given, if it was."""
        return self.given or min(self.longest, 1 << max(0, (step // DENSE).bit_length() - 1))

    def wants(self, step: int) -> bool:
        """Whether to learn from the step of this number."""
        return step % self.interval(step) == 0 or not self.curvature.ready

    @full_precision
    def learn(self, step: Observation, record: PassRecord | None) -> None:
        """Fold one step in; `record` has what the layers below the head left behind."""
        outputs, head = self._observe(step)
        if len(self.layers) == 1 and self.communicator.size == 1:
            self.curvature.update([head])
            return
        # Every block must see the same examples.
        count = min(-(-CURVATURE_EXAMPLES // self.communicator.size), len(step.indices))
        blocks = [record.factors(layer, outputs.scale[0], count) for layer in self.layers[:-1]] if record else []
        blocks.append(head if not blocks else Factors(head.inputs[:count], head.delta[:count], head.elementwise))
        everyone = self.communicator.gathered
        self.curvature.update([Factors(everyone(f.inputs), everyone(f.delta), f.elementwise) for f in blocks])

    def _observe(self, step: Observation) -> tuple[Outputs, Factors]:
        """Read a step and fold in what its outputs say."""
        outputs, head = self.scorer.read(step, [len(step.logits)])
        everyone = self.communicator.gathered
        self.controller.observe(everyone(gradient_norms(head)))
        self.step_weight.observe(everyone(outputs.loss))
        return outputs, head
