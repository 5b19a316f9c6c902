"""Wrong labels from features alone: heads that each hold out a part of the examples, and the neighbours of each."""

from sgoif.tasks.crossfit.crossfit import CrossFit

__all__ = ["CrossFit"]
