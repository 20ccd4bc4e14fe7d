"""What failed writes mean."""

from __future__ import annotations

import pytest

from provisioner.kube.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    failure_of,
)
from provisioner.model.writes import WriteFailure


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (Conflict("changed", status=409), WriteFailure.CONFLICT),
        (NotFound("gone", status=404), WriteFailure.CONFLICT),
        (Forbidden("no right", status=403), WriteFailure.REFUSED),
        (Invalid("no such field", status=422), WriteFailure.REFUSED),
        (Unauthorized("who?", status=401), WriteFailure.UNAVAILABLE),
        (TooManyRequests("later"), WriteFailure.UNAVAILABLE),
        (Unavailable("no answer"), WriteFailure.UNAVAILABLE),
        (Malformed("no JSON"), WriteFailure.UNAVAILABLE),
    ],
)
def test_what_a_failure_means(error: ClusterError, want: WriteFailure) -> None:
    """What has changed is looked at again, what is refused waits for people, all else may have happened or not."""
    assert want is failure_of(error)
