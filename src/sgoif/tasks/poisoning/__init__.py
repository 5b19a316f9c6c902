"""Which training examples cause a wrong behaviour: found from victims, or from nothing but the run."""

from sgoif.tasks.poisoning.families import Family
from sgoif.tasks.poisoning.recorder import PoisonWatch
from sgoif.tasks.poisoning.removal_estimate import RemovalEstimate
from sgoif.tasks.poisoning.trace import PoisonTrace
from sgoif.tasks.poisoning.trace_result import TraceResult

__all__ = ["Family", "PoisonTrace", "PoisonWatch", "RemovalEstimate", "TraceResult"]
