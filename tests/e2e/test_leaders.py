"""Two replicas and one lease: one acts, the other takes over, and no slice ever gets two pools."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime

import pytest

from provisioner import constants, kube
from provisioner.kube.protocol import LEASES_ROOT, collection_path, object_path
from provisioner.kube.quantities import format_micro_time
from rehearsal.demos import ProvisionerProcess
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.e2e.kit import Ground, logged, metrics, ready

pytestmark = pytest.mark.e2e

ELECT = ("--leader-elect",)


def leads(process: ProvisionerProcess) -> bool:
    """Whether a replica leads and has begun to work."""
    return bool(logged(process, "cluster.proven")) and "tpu_provisioner_leader 1.0" in metrics(process)


def chip_seconds(process: ProvisionerProcess, ground: Ground) -> float:
    """What a replica exports of the chip-seconds of a namespace, whatever the chips did."""
    of_namespace = rf'tpu_provisioner_chip_seconds_total\{{.*workload_namespace="{ground.namespace}"\}} (\S+)'
    return sum(map(float, re.findall(of_namespace, metrics(process))))


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
    # Sooner than the lease of 30 s would run out.
    alone.wait(lambda: leads(second), "the follower takes over", 20)
    # One replica ended before its first minute was over, the other has just begun: the end has written it.
    alone.wait(lambda: chip_seconds(second, alone) > 0, "the chip-seconds go on")
    handed_over = chip_seconds(second, alone)
    alone.await_completed("relay", "second-leg")
    third = alone.provisioner(arguments=ELECT, wait=False)
    alone.wait(lambda: ready(third)[0] == 200, "the next follower is ready")
    alone.apply("third-leg", run_for="1s", topology="2x2x4", parallelism=4)
    alone.wait(lambda: alone.pools("third-leg-"), "its pool is in the making")
    second.kill()
    alone.wait(lambda: leads(third), "the lease runs out, and the next takes over", 60)
    alone.wait(lambda: chip_seconds(third, alone) >= handed_over, "the chip-seconds go on after a crash, too")
    alone.await_completed("third-leg")
    alone.await_gone()
    assert alone.accepted("nodePools.create") == 3
    # In good order, or the next test would have to wait for its lease.
    assert third.stop() == 0


def test_a_leader_that_was_frozen(alone: Ground) -> None:
    """A leader frozen for longer than its lease, with creates unsent, acts on nothing any more: it ends."""
    names = [f"frost-{index}" for index in range(6)]
    alone.gke.set(request_seconds=0.5)
    first = alone.provisioner(arguments=ELECT, environment={"CONCURRENCY": "1", "POD_NAME": "first"})
    second = alone.provisioner(arguments=ELECT, environment={"POD_NAME": "second"}, wait=False)
    alone.wait(lambda: ready(second)[0] == 200, "the follower is ready")
    for name in names:
        alone.apply(name, run_for="1h")
    alone.wait(lambda: alone.accepted("nodePools.create") >= 2, "some creates are taken")
    first.pause()
    assert alone.accepted("nodePools.create") < 6
    alone.gke.set(request_seconds=0.0)
    alone.wait(lambda: leads(second), "the lease runs out, and the second takes over", 60)
    alone.wait(lambda: all(alone.runs(name) for name in names), "all run")
    assert alone.accepted("nodePools.create") == len(alone.pools()) == 6
    # What the frozen one still has to send would make these anew.
    for name in names[2:]:
        alone.delete(name)
    alone.wait(lambda: len(alone.pools()) == 2, "the pools of four are gone")
    sent = alone.gke.count("nodePools.create")
    first.resume()
    alone.wait(lambda: not first.running, "the frozen one ends")
    assert first.exit_code == 1
    assert logged(first, "controller.lease_lost")
    assert alone.gke.count("nodePools.create") == sent
    assert (len(alone.pools()), alone.accepted("nodePools.delete")) == (2, 4)
    assert all(alone.runs(name) for name in names[:2])
    for name in names[:2]:
        alone.delete(name)
    alone.await_gone()
    # In good order, or the next test would have to wait for its lease.
    assert second.stop() == 0


def test_told_to_end_in_the_middle_of_a_create(alone: Ground) -> None:
    """At SIGTERM the call under way is waited for, then the lease is released, and the next leader adopts the pool."""
    alone.gke.inject(Fault(kind=FaultKind.HANG, method="nodePools.create", seconds=5.0, before_effect=False, count=1))
    first = alone.provisioner(arguments=ELECT)
    alone.apply("baton", run_for="1s")
    alone.wait(lambda: alone.pools("baton-"), "GKE makes the pool, and has not answered")
    assert alone.gke.count("nodePools.create") == 0
    assert first.stop() == 0
    assert alone.gke.count("nodePools.create") == 1
    path = object_path("leases", constants.LEASE_NAME, namespace=constants.DEFAULT_NAMESPACE, root=LEASES_ROOT)
    assert alone.api.get(path)["spec"]["holderIdentity"] == ""
    second = alone.provisioner(arguments=ELECT)
    alone.await_completed("baton")
    alone.await_gone()
    assert alone.gke.count("nodePools.create") == 1
    assert second.stop() == 0


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
        alone.wait(lambda: "is held by the Go provisioner" in process.tail(), "the log says who leads")
        alone.wait(lambda: alone.leader("patient") is not None, "the JobSet has a pod")
        assert not logged(process, "cluster.proven")
        # What `run` finds out about its surroundings is read from GKE; nothing is changed there.
        changes = {"nodePools.create", "nodePools.update", "nodePools.delete"}
        assert not changes & {call.method for call in alone.gke.calls}
        alone.api.patch(path, {"spec": {"holderIdentity": ""}})
        # Sooner than the lease of 60 s would run out.
        alone.wait(lambda: leads(process), "ours leads", 50)
        alone.await_completed("patient")
        alone.await_gone()
        assert process.stop() == 0
        assert alone.api.get(path)["spec"]["holderIdentity"] == ""
    finally:
        with contextlib.suppress(kube.NotFound):
            alone.api.delete(path)
