"""Tests that the provisioner changes nothing if its cluster is wrong or a CRD is missing."""

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


def test_provisioner_with_another_clusters_name_changes_nothing_and_is_not_ready(alone: Ground) -> None:
    """GCP_CLUSTER and the cluster of the kubeconfig have different certificate authorities."""
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
            # The checks at the start of the process call these methods, which change nothing.
            checks = {"nodePools.list", "projects.testIamPermissions", "serviceAccounts.testIamPermissions"}
            assert "clusters.get" in other.call_counts()
            assert set(other.call_counts()) <= {"clusters.get", *checks}
            assert other.count("nodePools.list") <= 1
            assert len(logged(process, "cluster.not_proven")) == 1
        finally:
            process.kill()


def test_no_pool_is_deleted_while_the_jobset_crd_is_missing(alone: Ground) -> None:
    running = alone.rehearsal.cluster
    process = alone.provisioner(environment={"NODEPOOL_DELETION_DELAY": "10s"})
    alone.apply("before", run_for="1h")
    alone.wait(lambda: alone.runs("before"), "it runs")
    alone.rehearsal.kubectl("delete", "crd", "jobsets.jobset.x-k8s.io", "--wait=true")
    try:
        alone.wait(lambda: "JobSet CRD is not installed" in ready(process)[1], "readiness says why", 90)
        assert ready(process)[0] == 503
        # The JobSet was deleted with its CRD. The test deletes the Job, so that the pool looks idle without a wait.
        alone.rehearsal.kubectl("delete", "jobs", "--all", "-n", alone.namespace)
        alone.wait(lambda: not alone.pods(), "its pod is gone")
        rounds = metric(process, "rounds_total", result="ok")
        # A provisioner that trusted its cache of JobSets would delete the pool within these 10 s.
        await_round(process, alone.api, after=datetime.now(UTC) + timedelta(seconds=10))
        assert metric(process, "rounds_total", result="ok") >= rounds + 2
        assert metric(process, "watch_synced", resource="jobsets") == 0
        # A decided delete would have been postponed and logged, so no delete was decided.
        assert not logged(process, "node_pool.delete_postponed")
        assert alone.gke.count("nodePools.delete") == 0
        assert len(alone.living("before-")) == 1
        assert not any(node["spec"].get("unschedulable") for node in alone.nodes())
    finally:
        manifests = running.binaries.manifests["jobset"] / "crd" / "bases"
        alone.rehearsal.kubectl("apply", "--server-side", "-f", str(manifests))
        alone.wait(lambda: _jobsets_are_served(alone), "the kind is back")
        # JobSet's controller may notice the new CRD late; a restart makes it notice the CRD immediately.
        running.restart(recipes.JOBSET)
    alone.wait(lambda: ready(process)[0] == 200, "it is ready again")
    alone.wait(lambda: _taken(alone, "after"), "a JobSet is taken", 60)
    alone.await_completed("after", seconds=60)
    # The JobSet was deleted with its CRD, so its pool may be deleted now.
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
