"""What tells a cluster from all others."""

from __future__ import annotations

import pytest

from provisioner import kube
from provisioner.kube.live import read_cluster_uid
from provisioner.kube.protocol import Timeouts
from tests.support.kube import FakeKube

TIMEOUTS = Timeouts(connect_seconds=1.0, read_seconds=1.0)


def test_the_uid_of_a_cluster() -> None:
    """It is that of kube-system."""
    api = FakeKube()
    api.put_object("/api/v1/namespaces/kube-system", {"metadata": {"name": "kube-system", "uid": "c-1"}})
    assert read_cluster_uid(api, timeouts=TIMEOUTS) == "c-1"


def test_a_uid_that_is_none() -> None:
    """From such an answer nothing may be concluded."""
    api = FakeKube()
    api.put_object("/api/v1/namespaces/kube-system", {"metadata": {"name": "kube-system", "uid": 7}})
    with pytest.raises(kube.Malformed, match="kube-system has no uid"):
        read_cluster_uid(api, timeouts=TIMEOUTS)
