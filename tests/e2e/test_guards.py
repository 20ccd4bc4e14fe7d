"""What keeps the provisioner from acting on a world that it does not understand."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from provisioner import constants, kube
from provisioner.kube.protocol import collection_path
from provisioner.model.workloads import group_key
from provisioner.workloads import JOBSET
from rehearsal import localcluster
from rehearsal.demos import ProvisionerProcess
from rehearsal.demos.world import ZONE, wait_for
from rehearsal.simulators.gke.api import Api
from rehearsal.simulators.gke.app import GkeService, Simulator
from tests.e2e.kit import (
    EAGER,
    PATIENCE_SECONDS,
    Ground,
    await_round,
    jobset,
    logged,
    metric,
    ready,
    simulator_settings,
)
from tests.e2e.proxy import Proxy

pytestmark = pytest.mark.e2e

NAMESPACE = "default"


class Bare:
    """A cluster that has no JobSet, and its GKE."""

    def __init__(self, directory: Path) -> None:
        self.cluster = localcluster.start(directory, jobset=False)
        self.api = kube.connect(str(self.cluster.kubeconfig))
        self.gke = Simulator(simulator_settings(create_seconds=1.0), kubeconfig=self.cluster.kubeconfig)
        self.gke.start()
        self.provisioner = ProvisionerProcess(
            kubeconfig=self.cluster.kubeconfig,
            gke_endpoint=self.gke.url,
            log=directory / "provisioner.log",
            environment={**EAGER, "POD_NAMESPACE": NAMESPACE},
        )

    def stop(self) -> None:
        """Stop everything."""
        self.provisioner.kill()
        self.gke.stop()
        self.api.close()
        self.cluster.stop()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Bare]:
    """Give a cluster without JobSet."""
    bare = Bare(tmp_path / "bare")
    yield bare
    bare.stop()


def test_without_the_jobset_kind_nothing_is_deleted(bare: Bare) -> None:
    """Where JobSet is not installed no pool is surplus; log and readiness say so; once it is there, work begins."""
    # A pool whose JobSet can't be found, because none can.
    labels = {
        constants.NODEPOOL_MANAGER: constants.MANAGER,
        constants.POOL_JOBSET_NAME: "of-old",
        constants.POOL_JOBSET_NAMESPACE: NAMESPACE,
        constants.POOL_JOBSET_UID: "uid-of-old",
    }
    # Of another shape than the JobSet's below, or its pod would rightly keep it.
    config = {"machineType": "ct5lp-hightpu-8t", "labels": labels}
    body = {"name": "of-old-1", "initialNodeCount": 1, "locations": [ZONE], "config": config}
    Ground.make_pool(_Here(bare), body)  # type: ignore[arg-type]
    wait_for(lambda: bare.gke.pools[0].status.value == "RUNNING", "the old pool runs", PATIENCE_SECONDS)
    bare.provisioner.start()
    wait_for(
        lambda: "JobSet CRD is not installed" in ready(bare.provisioner)[1], "readiness says why", PATIENCE_SECONDS
    )
    assert ready(bare.provisioner)[0] == 503
    # The deletion delay of two seconds twice over, and a round after that, in which a wrong delete would be sent.
    await_round(bare.provisioner, bare.api, after=datetime.now(UTC) + timedelta(seconds=4))
    assert bare.gke.count("nodePools.delete") == 0
    assert "JobSet CRD is not installed" in bare.provisioner.tail(lines=200)
    manifests = bare.cluster.binaries.manifests["jobset"] / "crd" / "bases"
    _kubectl(bare, "apply", "--server-side", "-f", str(manifests))
    wait_for(lambda: _put_job(bare), "a JobSet is taken", 60)
    wait_for(lambda: [pool for pool in bare.gke.pools if pool.name.startswith("new-")], "it gets its pool", 60)
    wait_for(lambda: bare.gke.pool("of-old-1") is None, "the old pool goes", PATIENCE_SECONDS)
    assert ready(bare.provisioner)[0] == 200


class _Here:
    """What making a pool needs of a ground."""

    def __init__(self, bare: Bare) -> None:
        self.gke = bare.gke
        self._pools_path = Ground._pools_path.fget(self)  # type: ignore[attr-defined]


def _kubectl(bare: Bare, *arguments: str) -> None:
    kubectl = str(bare.cluster.binaries["kubectl"])
    subprocess.run([kubectl, f"--kubeconfig={bare.cluster.kubeconfig}", *arguments], check=True, capture_output=True)


def _put_job(bare: Bare) -> bool:
    """Put a JobSet and, in the place of its controller, its child Job."""
    raw = jobset("new", NAMESPACE)
    try:
        made = bare.api.post(collection_path("jobsets", namespace=NAMESPACE, root=JOBSET.root), raw)
    except (kube.NotFound, kube.Invalid):
        return False
    spec = raw["spec"]["replicatedJobs"][0]["template"]["spec"]
    labels = {
        constants.JOBSET_NAME: "new",
        constants.JOBSET_UID: made["metadata"]["uid"],
        constants.JOB_KEY: group_key(NAMESPACE, "new-w-0"),
    }
    template = {**spec["template"], "metadata": {**spec["template"]["metadata"], "labels": labels}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "new-w-0"},
        "spec": {**spec, "completionMode": "Indexed", "template": template},
    }
    bare.api.post(collection_path("jobs", namespace=NAMESPACE, root="/apis/batch/v1"), job)
    return True


def _api(simulator: Simulator) -> Api:
    assert simulator._server is not None
    service = simulator._server.service
    assert isinstance(service, GkeService)
    return service._api


@pytest.mark.parametrize(
    ("certificate", "features", "want", "advice"),
    [
        pytest.param(b"", {}, "No certificate authority to compare", "GCP_CLUSTER", id="GKE names no authority"),
        pytest.param(
            b"-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n",
            {},
            "does not trust the certificate authority",
            "GCP_CLUSTER",
            id="GKE names another authority",
        ),
        pytest.param(
            None, {"autopilot": True}, "is an Autopilot cluster", "on a Standard cluster", id="an Autopilot cluster"
        ),
    ],
)
def test_another_cluster_is_left_alone(
    alone: Ground, certificate: bytes | None, features: dict[str, bool], want: str, advice: str
) -> None:
    """Where GCP_CLUSTER is not proven to be that of the kubeconfig, or cannot be served, nothing is touched."""
    with Simulator(simulator_settings(**features)) as other:
        own = _api(alone.gke)._ca_certificate
        _api(other)._ca_certificate = own if certificate is None else base64.b64encode(certificate).decode()
        process = ProvisionerProcess(
            kubeconfig=alone.rehearsal.cluster.kubeconfig,
            gke_endpoint=other.url,
            log=alone.rehearsal.cluster.directory / f"other-{alone.namespace}.log",
            environment=EAGER,
        )
        try:
            alone.apply("homeless", run_for="1s")
            process.launch()
            alone.wait(lambda: want in ready(process)[1], "readiness says why")
            assert ready(process)[0] == 503
            assert advice in ready(process)[1]
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


def test_what_a_cluster_without_a_certificate_tells(alone: Ground, tmp_path: Path) -> None:
    """Its nodes without TPUs prove it; on no release channel auto-upgrade is off; auto-provisioning is warned of."""
    alone.gke.set(release_channel=None, auto_provisioning_limits={"tpu-v6e-slice": 8})
    config = {"machineType": "ct5lp-hightpu-1t", "diskType": "pd-balanced"}
    alone.make_pool({"name": "theirs", "initialNodeCount": 1, "locations": [ZONE], "config": config})
    with Proxy(alone.rehearsal.cluster.kubeconfig) as proxy:
        # Plain http: there is no certificate to trust.
        kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        alone.wait(alone.nodes, "a node with TPUs is there")
        early = alone.provisioner(kubeconfig=kubeconfig, wait=False)
        alone.wait(lambda: "none of the 0 nodes without TPUs" in ready(early)[1], "a node with TPUs proves nothing")
        early.kill()
        config = {"machineType": "e2-medium"}
        alone.make_pool({"name": "web", "initialNodeCount": 1, "locations": [ZONE], "config": config})
        alone.wait(lambda: len(alone.nodes()) == 2, "a node without TPUs is there")
        process = alone.provisioner(kubeconfig=kubeconfig)
        (proven,) = logged(process, "cluster.proven")
        assert "/gke-rehearsal-web-" in proven["why"]
        (warned,) = logged(process, "cluster.auto_provisions_tpus")
        assert "tpu-v6e-slice" in warned["advice"]
        alone.apply("train", run_for="1h")
        alone.wait(lambda: alone.runs("train"), "a JobSet runs")
        (body,) = [body for name, body in alone.sent().items() if name.startswith("train-")]
        assert body["management"] == {"autoRepair": True}
        assert "maintenancePolicy" not in body
