"""Training with wrong labels: examples that are probably mislabelled count less, all others as before.

weights      from probabilities of wrong labels to weights
assessment   from what a monitor knows to such probabilities
curriculum   when examples are judged again, and what their losses are multiplied with
robust_loss  a loss that lets go of labels that are wrong at random
targets      the network's own answers in place of wrong labels, for the last epochs or a second training
summary      what the weights do to the data set
"""

from sgoif.tasks.curriculum.curriculum import Curriculum
from sgoif.tasks.curriculum.settings import CurriculumSettings
from sgoif.tasks.curriculum.summary import CurriculumReport

__all__ = ["Curriculum", "CurriculumReport", "CurriculumSettings"]
