"""What Google's libraries raise in calls of GKE, as a `GkeError`."""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.google import failures
from provisioner.google.errors import Call
from provisioner.slices.suppliers.gke.errors import GkeError, kind_of_answer, remedy_of

GRANT_HELP = "Grant the provisioner's identity the permission named here on the project of the cluster."


def to_gke_error(
    error: Exception, subject: str, *, call: Call, grant_help: str = GRANT_HELP, values: Iterable[str] = ()
) -> GkeError:
    """Return what an exception of Google's libraries means for this call.

    The subject names call and object for the reader, such as "delete of node pool 'a'"; `grant_help` tells which role
    a refused identity lacks; `values` are what the call says in words that may be a user's (see `echoes`). Raise the
    result `from` the exception.
    """
    values = tuple(values)
    api = failures.Api(
        name="GKE",
        address_option="GKE_ENDPOINT",
        kind_of_answer=lambda answer: kind_of_answer(answer, call, values),
        help_of=lambda words: remedy_of(words, grant_help),
    )
    found = failures.read(error, api, call)
    return GkeError(found.failure, subject, retry_after_seconds=found.retry_after_seconds, code=found.code)
