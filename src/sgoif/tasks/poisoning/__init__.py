"""Which training examples cause a wrong behaviour: found from victims, or from nothing but the run."""

from sgoif.tasks.poisoning.families import Family
from sgoif.tasks.poisoning.removal_estimate import RestoreEstimate
from sgoif.tasks.poisoning.trace import PoisonTrace
from sgoif.tasks.poisoning.trace_result import Found
from sgoif.tasks.poisoning.watch import PoisonWatch

__all__ = ["Family", "Found", "PoisonTrace", "PoisonWatch", "RestoreEstimate"]
