"""What it means that a write of a controller has failed."""

from __future__ import annotations

from provisioner.kube.errors import ClusterError, Conflict, Forbidden, Invalid, NotFound
from provisioner.model.writes import WriteFailure


def failure_of(error: ClusterError) -> WriteFailure:
    """Return what a failed write means for the next one of its object."""
    match error:
        case Conflict() | NotFound():
            # An object that is gone is another one than was decided on, too.
            return WriteFailure.CONFLICT
        case Forbidden() | Invalid():
            return WriteFailure.REFUSED
        case _:
            return WriteFailure.UNAVAILABLE
