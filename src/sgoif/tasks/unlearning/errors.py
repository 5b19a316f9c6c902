"""What can go wrong with a deletion request, beside wrong settings and damaged states."""

from sgoif.errors import SgoifError


class RequestError(SgoifError, ValueError):
    """A request names an example that is not there, or one whose deletion was asked for before."""


class LogError(SgoifError, ValueError):
    """The audit log was tampered with, is damaged, or belongs to something else."""
