"""What failed writes mean."""

from __future__ import annotations

import pytest

from provisioner import kube
from provisioner.kube.errors import failure_of
from provisioner.model.writes import WriteFailure


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (kube.Conflict("changed", status=409), WriteFailure.CONFLICT),
        (kube.NotFound("gone", status=404), WriteFailure.CONFLICT),
        (kube.Forbidden("no right", status=403), WriteFailure.REFUSED),
        (kube.Invalid("no such field", status=422), WriteFailure.REFUSED),
        (kube.Unauthorized("who?", status=401), WriteFailure.UNAVAILABLE),
        (kube.TooManyRequests("later"), WriteFailure.UNAVAILABLE),
        (kube.Unavailable("no answer"), WriteFailure.UNAVAILABLE),
        (kube.Malformed("no JSON"), WriteFailure.UNAVAILABLE),
    ],
)
def test_what_a_failure_means(error: kube.ClusterError, want: WriteFailure) -> None:
    """What has changed is looked at again, what is refused waits for people, all else may have happened or not."""
    assert want is failure_of(error)
