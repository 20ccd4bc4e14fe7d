"""Tests of the findings of each check of `tpu-provisioner check`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from provisioner import constants
from provisioner.kube import errors
from provisioner.kube.fields import format_micro_time
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import CapacityKind, FailureKind, NodePool, PoolName, PoolStatus, Zone
from provisioner.model.choices import CapacityChoice, reservation_path
from provisioner.slices.preflight import Finding, Status
from provisioner.slices.preflight.checking import log_findings, run_checks
from provisioner.slices.preflight.in_google import ACT_AS, named_reservations
from provisioner.slices.preflight.in_kubernetes import ACCESS_REVIEWS, Right, rights_used
from provisioner.slices.suppliers.nodegroup.supplier import groups_path
from provisioner.workloads import JOBSET, LEADER_WORKER_SET, kinds_served
from provisioner.workloads.capacity_requests import CAPACITY_BUFFER
from tests.support.controller import OTHER_CERTIFICATE
from tests.support.preflight import ACCOUNT, NOW, ORIGINAL_LEASE, World, described
from tests.support.settings import settings

Change = Callable[[World], object]
#: Names of the checks that run in every cluster.
IN_KUBERNETES = (
    "API server",
    *(kind.value for kind in kinds_served(settings())),
    "rights in Kubernetes",
    "placement",
    "pause",
    "Go provisioner",
)
#: Number of permissions that are checked. With SERVE_JOBS, get, list and watch of Jobs are checked as well.
_RIGHTS = len({*rights_used(settings())})
PAUSE = object_path("configmaps", constants.PAUSE_CONFIGMAP_NAME, namespace=constants.DEFAULT_NAMESPACE)


def test_all_checks_are_ok_in_a_correct_cluster() -> None:
    world = World(changes={"capacity": (CapacityChoice(kind=CapacityKind.RESERVATION, reservation="r1"),)})
    world.inspector.reservations["project-1", "us-central2-b", "r1"] = "READY"
    found = world.find()
    assert list(found) == [
        *IN_KUBERNETES,
        "cluster",
        "cluster identity",
        "release channel",
        "Autopilot",
        "node auto-provisioning",
        "Workload Identity",
        "node pools",
        "permissions on the project",
        "nodes' service account",
        "reservation r1",
    ]
    assert [str(finding) for finding in found.values() if finding.status is not Status.OK or finding.advice] == []
    assert {call.method for call in world.kube.calls if call.path != ACCESS_REVIEWS} == {"GET"}
    assert set(world.gke.counts()) == {"get_cluster", "list_node_pools"}


def _lease(*, age_seconds: float, holder: str = "go_1") -> Change:
    renewed = format_micro_time(NOW - timedelta(seconds=age_seconds))
    return lambda world: world.kube.put_object(
        ORIGINAL_LEASE, {"spec": {"holderIdentity": holder, "renewTime": renewed}}
    )


def _cluster(**changes: object) -> Change:
    return lambda world: setattr(world.gke, "cluster", described(**changes))


def _asked(method: str, kind: FailureKind) -> Change:
    return lambda world: world.inspector.failures.update({method: kind})


OK, WARNING, FAILED = Status.OK, Status.WARNING, Status.FAILED
CASES = [
    pytest.param(
        lambda world: world.kube.fail("GET", "^/version$", errors.Unavailable("can't be reached")),
        "API server", FAILED, "can't be reached", id="the API server is away",
    ),
    pytest.param(
        lambda world: world.kube.fail("GET", "^/version$", errors.Unauthorized("Unauthorized", status=401)),
        "API server", FAILED, "get-credentials", id="the API server does not know us",
    ),
    pytest.param(
        lambda world: world.kube.fail("GET", "^/version$", errors.Forbidden("no", status=403)),
        "API server", WARNING, "does not report its version", id="the API server keeps its version",
    ),
    pytest.param(
        lambda world: world.kube.put_object("/version", {"hello": "world"}),
        "API server", FAILED, "but not as a Kubernetes API server", id="something else answers",
    ),
    pytest.param(
        lambda world: world.kube.put_object("/version", {"gitVersion": "v1.29.9"}),
        "API server", WARNING, "before 1.30", id="an old API server",
    ),
    pytest.param(
        lambda world: world.kube.remove_object(JOBSET.root), "JobSet", FAILED, "Install JobSet", id="no JobSet"
    ),
    pytest.param(
        lambda world: world.kube.put_object(JOBSET.root, {"resources": [{"name": "others"}]}),
        "JobSet", FAILED, "jobset.x-k8s.io/v1alpha2 is not served", id="other kinds of its API group",
    ),
    pytest.param(
        lambda world: world.kube.remove_object(LEADER_WORKER_SET.root),
        "LeaderWorkerSet", OK, "by the API server; LeaderWorkerSets get node pools once it is", id="no LeaderWorkerSet",
    ),
    pytest.param(
        lambda world: world.serve(CAPACITY_BUFFER),
        "ProvisioningRequest", OK, "ProvisioningRequests get node pools once it is", id="only a CapacityBuffer",
    ),
    pytest.param(
        lambda world: world.kube.denied.update({("list", "podtemplates")}),
        "rights in Kubernetes", FAILED, f"1 of {_RIGHTS} permissions are missing: list podtemplates",
        id="no right to PodTemplates",
    ),
    pytest.param(
        lambda world: world.kube.denied.update({("patch", "nodes"), ("create", "leases")}),
        "rights in Kubernetes", FAILED,
        f"2 of {_RIGHTS} permissions are missing: patch nodes, create leases in tpu-provisioner-system. Grant",
        id="missing rights",
    ),
    pytest.param(
        lambda world: world.kube.fail("POST", "selfsubject", errors.Unavailable("away")),
        "rights in Kubernetes", FAILED, "away", id="no answer about rights",
    ),
    pytest.param(
        lambda world: world.kube.put_object(PAUSE, {"metadata": {"creationTimestamp": "2026-03-01T10:00:00Z"}}),
        "pause", WARNING, "no node pools are created since 2026-03-01 10:00 UTC", id="creation is paused",
    ),
    pytest.param(_lease(age_seconds=3), "Go provisioner", WARNING, "go_1 holds Lease", id="the Go provisioner runs"),
    pytest.param(_lease(age_seconds=300), "Go provisioner", OK, "does not renew it", id="the Go provisioner ended"),
    pytest.param(_lease(age_seconds=3, holder=""), "Go provisioner", OK, "no process", id="the Go provisioner gave up"),
    pytest.param(
        lambda world: world.kube.fail("GET", "ecaf1259", errors.Forbidden("no", status=403)),
        "Go provisioner", WARNING, "Grant permission to get Lease", id="the Lease may not be read",
    ),
    pytest.param(_cluster(status="DEGRADED"), "cluster", WARNING, "DEGRADED", id="a degraded cluster"),
    pytest.param(
        lambda world: world.gke.fail_next("get_cluster", FailureKind.NOT_FOUND, message="Not found: c"),
        "cluster", FAILED, "Not found: c", id="no such cluster",
    ),
    pytest.param(
        _cluster(ca_certificate_pem=OTHER_CERTIFICATE),
        "cluster identity", FAILED, "GCP_CLUSTER", id="kubeconfig of another cluster",
    ),
    pytest.param(
        _cluster(release_channel="REGULAR"), "release channel", OK, "excluded from maintenance", id="a release channel"
    ),
    pytest.param(
        lambda world: (_cluster(release_channel="REGULAR")(world), world.changes.update(auto_upgrade=False)),
        "release channel", WARNING, "NODEPOOL_AUTO_UPGRADE=off", id="no auto-upgrade on a release channel",
    ),
    pytest.param(
        lambda world: world.changes.update(auto_upgrade=True),
        "release channel", WARNING, "NODEPOOL_AUTO_UPGRADE=on", id="auto-upgrade on no release channel",
    ),
    pytest.param(_cluster(autopilot=True), "Autopilot", FAILED, "Standard", id="an Autopilot cluster"),
    pytest.param(
        _cluster(auto_provisioned_tpus=("tpu-v6e-slice",)),
        "node auto-provisioning", WARNING, "limits for tpu-v6e-slice", id="auto-provisioning of TPUs",
    ),
    pytest.param(
        _cluster(workload_pool=""), "Workload Identity", WARNING, "--workload-pool", id="no Workload Identity"
    ),
    pytest.param(
        _cluster(pools_without_identity=("default-pool",)), "Workload Identity", WARNING,
        "node-pools update default-pool --cluster=test --workload-metadata=GKE_METADATA", id="none on a node pool",
    ),
    pytest.param(
        lambda world: world.gke.fail_next("list_node_pools", FailureKind.PERMISSION, message="clusters.get denied"),
        "node pools", FAILED, "clusters.get denied", id="node pools that may not be listed",
    ),
    pytest.param(
        lambda world: world.gke.set_pool(NodePool(name=PoolName("odd"), status=PoolStatus.UNKNOWN)),
        "node pools", WARNING, "1 of 1 cannot be read: odd", id="a node pool that cannot be read",
    ),
    pytest.param(
        lambda world: world.inspector.on_project.remove("container.clusters.update"),
        "permissions on the project", FAILED, "container.clusters.update missing", id="a permission is missing",
    ),
    pytest.param(
        _asked("test_project_permissions", FailureKind.PERMISSION),
        "permissions on the project", WARNING,
        "not known: fake Google Cloud: API has not been used in project 1. If the API is not enabled: gcloud services "
        "enable cloudresourcemanager.googleapis.com", id="Resource Manager is disabled",
    ),
    pytest.param(
        _asked("test_project_permissions", FailureKind.UNAVAILABLE),
        "permissions on the project", WARNING, "Try again later.", id="Resource Manager is away",
    ),
    pytest.param(
        lambda world: world.inspector.on_account[ACCOUNT].clear(),
        "nodes' service account", FAILED, f"{ACT_AS} missing on {ACCOUNT}", id="no actAs",
    ),
    pytest.param(
        lambda world: world.inspector.on_account.clear(),
        "nodes' service account", FAILED, "does not exist", id="no such service account",
    ),
    pytest.param(
        _asked("test_account_permissions", FailureKind.PERMISSION),
        "nodes' service account", WARNING, "enable iam.googleapis.com", id="IAM is disabled",
    ),
    pytest.param(
        lambda world: world.changes.update(node_service_account=""),
        "nodes' service account", WARNING, "GCP_NODE_SERVICE_ACCOUNT is not set", id="the default account",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "name", "status", "words"), CASES)
def test_problem_is_found_by_its_check(change: Change, name: str, status: Status, words: str) -> None:
    world = World()
    change(world)
    finding = world.find()[name]
    assert (finding.status, words in str(finding)) == (status, True), str(finding)
    assert "\n" not in str(finding)


def _reserved(*reservations: str, zone: str = "", **more: object) -> dict[str, object]:
    choices = (CapacityChoice(kind=CapacityKind.RESERVATION, reservation=r, zone=Zone(zone)) for r in reservations)
    return {"capacity": tuple(choices), **more}


@pytest.mark.parametrize(
    ("there", "status", "words"),
    [
        pytest.param({("p", "us-central2-b"): "READY"}, OK, "READY in us-central2-b", id="ready in one of its zones"),
        pytest.param({("p", "us-central2-b"): "CREATING"}, WARNING, "not READY", id="not ready yet"),
        pytest.param({("p", "us-central2-c"): "READY"}, FAILED, "no reservation of this name in", id="in another zone"),
        pytest.param({}, FAILED, "project p has no reservation", id="nowhere"),
    ],
)
def test_reservation_is_searched_in_each_zone_of_the_settings(
    there: dict[tuple[str, str], str], status: Status, words: str
) -> None:
    """Other zones are not searched."""
    zones = (Zone("us-central2-a"), Zone("us-central2-b"))
    world = World(changes=_reserved(reservation_path("r1", project="p"), zones=zones))
    world.inspector.reservations = {(project, zone, "r1"): state for (project, zone), state in there.items()}
    finding = world.find()["reservation r1"]
    assert (finding.status, words in str(finding)) == (status, True), str(finding)


def test_end_of_a_reservation_is_in_the_message() -> None:
    world = World(changes=_reserved("r1"))
    world.inspector.reservations = {("project-1", "us-central2-b", "r1"): "READY"}
    world.inspector.ends_at = NOW
    assert world.find()["reservation r1"].message == "READY in us-central2-b until 2026-01-02 03:04 UTC"


def test_forbidden_reservation_is_unknown_with_the_permission_to_grant() -> None:
    """The roles in the documentation lack the permission, so the result is only a warning."""
    world = World(changes=_reserved("r1"))
    world.inspector.failures["get_reservation"] = FailureKind.PERMISSION
    finding = world.find()["reservation r1"]
    assert finding.status is WARNING
    assert str(finding).endswith("Grant compute.reservations.get on project project-1.")


def test_reservations_in_the_settings_are_checked_without_patterns() -> None:
    block = reservation_path("r1", project="p", block="b")
    given = settings(**_reserved("r2", block, zone="us-central2-a", allowed_reservations=("p/r1", "r3", "team-*")))
    assert named_reservations(given) == {
        ("project-1", "r2"): ("us-central2-a",),
        ("p", "r1"): ("us-central2-a",),
        ("project-1", "r3"): ("us-central2-b",),
    }
    many = settings(allowed_reservations=tuple(f"r{number}" for number in range(30)))
    assert len(named_reservations(many)) == 20
    assert named_reservations(settings()) == {}


@pytest.mark.parametrize(
    ("change", "name", "status", "words"),
    [
        pytest.param(lambda _: None, "Job", OK, "batch/v1 is served", id="all is well"),
        pytest.param(
            lambda world: world.kube.denied.update({("list", "jobs"), ("watch", "leaderworkersets")}),
            "rights in Kubernetes",
            FAILED,
            f"2 of {_RIGHTS + 3} permissions are missing: watch leaderworkersets, list jobs",
            id="no right to Jobs",
        ),
        pytest.param(
            lambda world: world.kube.denied.add(("list", "machineconfigs")),
            "rights in Kubernetes",
            FAILED,
            f"1 of {_RIGHTS + 3} permissions are missing: list machineconfigs",
            id="no right to MachineConfigs",
        ),
    ],
)
def test_jobs_are_checked_only_if_they_are_served(change: Change, name: str, status: Status, words: str) -> None:
    """Without SERVE_JOBS, the right to read Jobs is not needed."""
    world = World(changes={"serve_jobs": True})
    change(world)
    found = world.find()
    assert (found[name].status, words in found[name].message) == (status, True), found[name]
    assert "Job" not in World().find()


def test_rights_on_workloads_are_limited_to_served_namespaces() -> None:
    """Pods are watched in the served namespaces only, but the gate lists the pods of all namespaces."""
    narrow = set(rights_used(settings(namespaces=("a", "b"), opt_in_label=("key", "value"))))
    wide = set(rights_used(settings()))
    read = [kind.resource for kind in kinds_served(settings()).values()]
    assert {str(right) for right in narrow - wide} == {
        *(
            f"{what} in {namespace}"
            for what in (
                *(f"{verb} {kinds}" for verb in ("get", "list", "watch") for kinds in read),
                "patch provisioningrequests/status",
                "patch capacitybuffers/status",
                "list podtemplates",
                "watch podtemplates",
                "list persistentvolumeclaims",
                "watch persistentvolumeclaims",
                "watch pods",
                "patch pods",
            )
            for namespace in "ab"
        ),
        "watch namespaces",
    }  # fmt: skip
    assert Right("", "pods", "list") in narrow


# --- Failures of the checks themselves ---


def test_unavailable_api_server_gets_no_further_calls() -> None:
    world = World()
    world.kube.fail("*", ".", errors.Unavailable("away"), times=100)
    found = world.find()
    assert found.keys().isdisjoint({*IN_KUBERNETES[1:], "cluster identity"})
    assert len(world.kube.calls) == 1
    assert found["node pools"].status is OK


def test_unreadable_cluster_does_not_prevent_other_checks() -> None:
    world = World()
    world.gke.fail_next("get_cluster", FailureKind.PERMISSION, message="denied")
    found = world.find()
    assert found.keys().isdisjoint({"Autopilot", "Workload Identity"})
    assert found["node pools"].status is OK


def test_crashed_check_affects_only_its_own_finding() -> None:
    world = World()
    world.kube.fail("GET", "^/version$", RuntimeError("a mistake of ours"))
    with capture_logs() as logs:
        found = world.find()
    assert found["API server"].status is WARNING
    assert "a mistake of ours" in found["API server"].message
    assert [log["event"] for log in logs] == ["check.crashed"]
    assert found["JobSet"].status is OK


def test_run_logs_each_finding_once() -> None:
    """Findings that the proof of the cluster logs itself are not repeated."""
    world = World(changes={"node_service_account": ""})
    world.inspector.on_project.remove("container.clusters.update")
    world.gke.cluster = described(autopilot=True, release_channel="RAPID", auto_provisioned_tpus=("tpu-v6e-slice",))
    with capture_logs() as logs:
        log_findings(world.subject)
    assert [(log["log_level"], log["event"], log.get("check")) for log in logs] == [
        ("warning", "check.warning", "node auto-provisioning"),
        ("error", "check.failed", "permissions on the project"),
        ("warning", "check.warning", "nodes' service account"),
        ("info", "check.done", None),
    ]
    assert logs[1]["problem"].startswith("container.clusters.update missing")
    assert (logs[-1]["ok"], logs[-1]["warning"], logs[-1]["failed"]) == (10 + len(kinds_served(settings())), 2, 2)


GROUPS = groups_path("slices")


@pytest.fixture
def without_gke() -> World:
    without_gke = World(changes={"provider": "gce", "node_group_namespace": "slices"})
    without_gke.kube.put_object(f"{GROUPS}/a", {"metadata": {"namespace": "slices"}})
    return without_gke


def found_without_gke(without_gke: World) -> dict[str, Finding]:
    without_gke.ca_pem = None
    subject = replace(without_gke.subject, gke=None)
    return {finding.name: finding for finding in run_checks(subject)}


def test_all_checks_are_ok_without_gke(without_gke: World) -> None:
    found = found_without_gke(without_gke)
    assert list(found) == [*IN_KUBERNETES, "TPUNodeGroups"]
    assert [str(finding) for finding in found.values() if finding.status is not Status.OK] == []
    assert found["TPUNodeGroups"].message == "1 in namespace slices, where the provisioner makes its own"
    assert {call.method for call in without_gke.kube.calls if call.path != ACCESS_REVIEWS} == {"GET"}


def test_missing_crd_of_node_groups_is_a_failure_with_advice(without_gke: World) -> None:
    without_gke.kube.uninstall("/apis/tpu.google.com")
    finding = found_without_gke(without_gke)["TPUNodeGroups"]
    assert (finding.status, finding.message) == (Status.FAILED, "their CRD is not installed")
    assert "deploy/nodegroups" in finding.advice


def test_forbidden_list_of_node_groups_is_a_failure(without_gke: World) -> None:
    without_gke.kube.fail("GET", GROUPS, errors.Forbidden("no", status=403))
    assert found_without_gke(without_gke)["TPUNodeGroups"].status is Status.FAILED


@pytest.mark.parametrize("verb", ["get", "list", "create", "delete"])
def test_missing_right_to_node_groups_is_named(without_gke: World, verb: str) -> None:
    without_gke.kube.denied.add((verb, "tpunodegroups"))
    finding = found_without_gke(without_gke)["rights in Kubernetes"]
    assert finding.status is Status.FAILED
    assert f"{verb} tpunodegroups in slices" in finding.message
