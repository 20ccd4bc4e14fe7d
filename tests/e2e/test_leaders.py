"""Two replicas and one lease: one acts, the other takes over, and no slice ever gets two pools."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest

from provisioner import cluster, constants
from provisioner.cluster.protocol import LEASES_ROOT, collection_path, object_path
from provisioner.cluster.quantities import format_micro_time
from provisioner.rehearsal import ProvisionerProcess
from tests.e2e.kit import Ground, logged, metrics, ready

pytestmark = pytest.mark.e2e

ELECT = ("--leader-elect",)


def leads(process: ProvisionerProcess) -> bool:
    """Whether a replica leads and has begun to work."""
    return bool(logged(process, "cluster.proven")) and "tpu_provisioner_leader 1.0" in metrics(process)


def test_two_replicas(alone: Ground) -> None:
    """One of two replicas acts; ended in good order it hands over in seconds, killed it is replaced after its lease."""
    first = alone.provisioner(arguments=ELECT)
    second = alone.provisioner(arguments=ELECT, wait=False)
    alone.wait(lambda: ready(second)[0] == 200, "the follower is ready")
    alone.apply("relay", run_for="1s")
    alone.await_completed("relay")
    assert not logged(second, "cluster.proven")
    alone.apply("second-leg", run_for="1s", topology="2x2x2", parallelism=2)
    assert first.stop() == 0
    alone.wait(lambda: leads(second), "the follower takes over", 10)
    alone.await_completed("relay", "second-leg")
    third = alone.provisioner(arguments=ELECT, wait=False)
    alone.wait(lambda: ready(third)[0] == 200, "the next follower is ready")
    alone.apply("third-leg", run_for="1s", topology="2x2x4", parallelism=4)
    alone.wait(lambda: alone.pools("third-leg-"), "its pool is in the making")
    second.kill()
    alone.wait(lambda: leads(third), "the lease runs out, and the next takes over", 45)
    alone.await_completed("third-leg")
    alone.await_gone()
    assert alone.accepted("nodePools.create") == 3
    # In good order, or the next test would have to wait for its lease.
    assert third.stop() == 0


def test_the_go_provisioner_leads(alone: Ground) -> None:
    """While the Go provisioner holds its lease ours waits and says so; once that is released ours leads."""
    path = object_path("leases", constants.ORIGINAL_LEASE_NAME, namespace=constants.DEFAULT_NAMESPACE, root=LEASES_ROOT)
    spec = {
        "holderIdentity": "controller-manager-0",
        "leaseDurationSeconds": 60,
        "renewTime": format_micro_time(datetime.now(UTC)),
    }
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": constants.ORIGINAL_LEASE_NAME, "namespace": constants.DEFAULT_NAMESPACE},
        "spec": spec,
    }
    alone.api.post(collection_path("leases", namespace=constants.DEFAULT_NAMESPACE, root=LEASES_ROOT), body)
    try:
        process = alone.provisioner(arguments=ELECT, wait=False)
        alone.apply("patient", run_for="1s")
        alone.wait(lambda: "Go original" in process.tail(), "the log says who leads")
        alone.wait(lambda: alone.leader("patient") is not None, "the JobSet has a pod")
        assert not logged(process, "cluster.proven")
        assert alone.gke.calls == ()
        alone.api.patch(path, {"spec": {"holderIdentity": ""}})
        alone.wait(lambda: leads(process), "ours leads", 15)
        alone.await_completed("patient")
        alone.await_gone()
        assert process.stop() == 0
        assert alone.api.get(path)["spec"]["holderIdentity"] == ""
    finally:
        with contextlib.suppress(cluster.NotFound):
            alone.api.delete(path)
