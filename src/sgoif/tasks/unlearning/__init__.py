"""Deletion requests: what removing training examples does, which need a new training now, and a log of it all."""

from sgoif.tasks.unlearning.errors import LogError, RequestError
from sgoif.tasks.unlearning.keys import open_key
from sgoif.tasks.unlearning.log import AuditLog, verify_log
from sgoif.tasks.unlearning.priority import Limits
from sgoif.tasks.unlearning.records import Check, Decision, Removal
from sgoif.tasks.unlearning.unlearner import Unlearner

__all__ = [
    "AuditLog",
    "Check",
    "Decision",
    "Limits",
    "LogError",
    "Removal",
    "RequestError",
    "Unlearner",
    "open_key",
    "verify_log",
]
