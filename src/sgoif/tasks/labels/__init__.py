"""Wrong labels: which ones, what they should be, and how sure that is.

evidence     what a monitor knows about every example
channel      how true labels become given ones, estimated on the held-out examples
structure    how structured the noise looks
ranking      one ranking out of influence, margins and the channel
noise_rate   how many labels are wrong: three estimators, and the interval that they leave open
calibration  from the ranking and a rate to probabilities
judgement    all of these in order
tiers        surely wrong, worth a look, fine
checked      a few checked labels say which class is which
closing      one look more at the end of a short run
errors       the answers
"""

from sgoif.tasks.labels.errors import LabelErrors

__all__ = ["LabelErrors"]
