"""What keeps the provisioner from acting on a world that it does not understand."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest

from provisioner.kube.errors import ClusterError
from provisioner.kube.protocol import collection_path
from provisioner.workloads import JOBSET
from rehearsal.demos import ProvisionerProcess
from rehearsal.localcluster import recipes
from rehearsal.simulators.gke.api import Api
from rehearsal.simulators.gke.app import GkeService, Simulator
from tests.e2e.kit import EAGER, Ground, await_round, logged, metric, ready, simulator_settings

pytestmark = pytest.mark.e2e


def _api(simulator: Simulator) -> Api:
    assert simulator._server is not None
    service = simulator._server.service
    assert isinstance(service, GkeService)
    return service._api


def test_another_cluster_is_left_alone(alone: Ground) -> None:
    """Where GCP_CLUSTER is not that of the kubeconfig, nothing is touched, and readiness says why."""
    certificate = b"-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
    with Simulator(simulator_settings()) as other:
        _api(other)._ca_certificate = base64.b64encode(certificate).decode()
        process = ProvisionerProcess(
            kubeconfig=alone.rehearsal.cluster.kubeconfig,
            gke_endpoint=other.url,
            log=alone.rehearsal.cluster.directory / f"other-{alone.namespace}.log",
            environment=EAGER,
        )
        try:
            alone.apply("homeless", run_for="1s")
            process.launch()
            alone.wait(lambda: "does not trust the certificate authority" in ready(process)[1], "readiness says why")
            assert ready(process)[0] == 503
            assert "GCP_CLUSTER" in ready(process)[1]
            alone.wait(lambda: alone.leader("homeless") is not None, "the JobSet has a pod")
            rounds = metric(process, "rounds_total", result="ok")
            alone.apply("another", run_for="1s")
            alone.wait(lambda: metric(process, "rounds_total", result="ok") >= rounds + 2, "it has heard of that")
            # What the checks ask at the start changes nothing.
            checks = {"nodePools.list", "projects.testIamPermissions", "serviceAccounts.testIamPermissions"}
            assert "clusters.get" in other.call_counts()
            assert set(other.call_counts()) <= {"clusters.get", *checks}
            assert other.count("nodePools.list") <= 1
            assert len(logged(process, "cluster.not_proven")) == 1
        finally:
            process.kill()


def test_the_jobset_kind_is_removed_and_put_back(alone: Ground) -> None:
    """While the kind is missing nothing is deleted, and readiness says why; once it is back all goes on."""
    running = alone.rehearsal.cluster
    process = alone.provisioner(environment={"NODEPOOL_DELETION_DELAY": "10s"})
    alone.apply("before", run_for="1h")
    alone.wait(lambda: alone.runs("before"), "it runs")
    alone.rehearsal.kubectl("delete", "crd", "jobsets.jobset.x-k8s.io", "--wait=true")
    try:
        alone.wait(lambda: "JobSet CRD is not installed" in ready(process)[1], "readiness says why", 90)
        assert ready(process)[0] == 503
        # The JobSet went with its kind, and its Job too, unless the collector was late: the pool looks idle now.
        alone.rehearsal.kubectl("delete", "jobs", "--all", "-n", alone.namespace)
        alone.wait(lambda: not alone.pods(), "its pod is gone")
        rounds = metric(process, "rounds_total", result="ok")
        # A provisioner that trusts what it has would send the delete by then.
        await_round(process, alone.api, after=datetime.now(UTC) + timedelta(seconds=10))
        assert metric(process, "rounds_total", result="ok") >= rounds + 2
        assert metric(process, "watch_synced", resource="jobsets") == 0
        # Not even tried: the gate would stop it as well, and say so.
        assert not logged(process, "node_pool.delete_postponed")
        assert alone.gke.count("nodePools.delete") == 0
        assert len(alone.living("before-")) == 1
        assert not any(node["spec"].get("unschedulable") for node in alone.nodes())
    finally:
        manifests = running.binaries.manifests["jobset"] / "crd" / "bases"
        alone.rehearsal.kubectl("apply", "--server-side", "-f", str(manifests))
        alone.wait(lambda: _jobsets_are_served(alone), "the kind is back")
        # How long JobSet's own controller takes to notice is not the question here.
        running.restart(recipes.JOBSET)
    alone.wait(lambda: ready(process)[0] == 200, "it is ready again")
    alone.wait(lambda: _taken(alone, "after"), "a JobSet is taken", 60)
    alone.await_completed("after", seconds=60)
    # The JobSet was removed with its kind, so that its pool may go now.
    alone.await_gone(seconds=60)
    assert alone.accepted("nodePools.delete") == 2


def _jobsets_are_served(ground: Ground) -> bool:
    try:
        ground.rehearsal.objects(collection_path("jobsets", namespace=ground.namespace, root=JOBSET.root))
    except ClusterError:
        return False
    return True


def _taken(ground: Ground, name: str) -> bool:
    try:
        ground.apply(name, run_for="1s", topology="2x2x2", parallelism=2)
    except ClusterError:
        return False
    return True
