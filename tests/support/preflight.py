"""Subject that passes all checks of the preflight, and a fake of the Google Cloud APIs other than GKE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from provisioner import constants
from provisioner.kube.protocol import LEASES_ROOT, object_path
from provisioner.model.capacity import FailureKind
from provisioner.slices.preflight import Finding
from provisioner.slices.preflight.checking import Subject, run_checks
from provisioner.slices.preflight.in_google import ACT_AS, PROJECT_PERMISSIONS
from provisioner.slices.preflight.in_kubernetes import ADMISSION_GROUP, PLACEMENT_POLICY
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.translate import Cluster, Reservation
from provisioner.workloads import JOBSET, LEADER_WORKER_SET, PLAIN_JOB
from provisioner.workloads.kind import Kind
from tests.support.controller import CERTIFICATE
from tests.support.gke import FakeGke, failure
from tests.support.kube import FakeKube
from tests.support.settings import settings

ACCOUNT = "tpu-nodes@project-1.iam.gserviceaccount.com"
ORIGINAL_LEASE = object_path(
    "leases", constants.ORIGINAL_LEASE_NAME, namespace=constants.DEFAULT_NAMESPACE, root=LEASES_ROOT
)
#: Paths of the admission policy that marks pods, and of its binding.
PLACEMENT_OBJECTS = tuple(
    object_path(resource, PLACEMENT_POLICY, root=f"/apis/{ADMISSION_GROUP}/v1")
    for resource in ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings")
)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class FakeInspector:
    """Methods of a `GkeClient` for permissions and reservations, with results and failures that tests set."""

    on_project: set[str] = field(default_factory=lambda: {*PROJECT_PERMISSIONS})
    on_account: dict[str, set[str]] = field(default_factory=lambda: {ACCOUNT: {ACT_AS}})
    reservations: dict[tuple[str, str, str], str] = field(default_factory=dict)
    ends_at: datetime | None = None
    failures: dict[str, FailureKind] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def test_project_permissions(self, permissions: Sequence[str]) -> frozenset[str]:
        self._call("test_project_permissions")
        return frozenset(permissions) & self.on_project

    def test_account_permissions(self, account: str, permissions: Sequence[str]) -> frozenset[str]:
        self._call("test_account_permissions")
        if account not in self.on_account:
            raise GkeError(failure(FailureKind.NOT_FOUND, "Unknown service account"), "fake IAM")
        return frozenset(permissions) & self.on_account[account]

    def get_reservation(self, *, project: str, zone: str, name: str) -> Reservation:
        self._call("get_reservation")
        status = self.reservations.get((project, zone, name))
        if status is None:
            raise GkeError(
                failure(FailureKind.NOT_FOUND, f"The resource '{name}' was not found"), "fake Compute Engine"
            )
        return Reservation(status=status, ends_at=self.ends_at)

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if method in self.failures:
            raise GkeError(failure(self.failures[method], "API has not been used in project 1"), "fake Google Cloud")


@dataclass
class FakeGoogle:
    """Client with the methods of the inspector and of the fake GKE."""

    gke: FakeGke
    inspector: FakeInspector

    def __getattr__(self, method: str) -> Any:
        return getattr(self.inspector if hasattr(self.inspector, method) else self.gke, method)


@dataclass
class World:
    """Environment that passes all checks."""

    changes: dict[str, Any] = field(default_factory=dict)
    kube: FakeKube = field(default_factory=FakeKube)
    gke: FakeGke = field(default_factory=lambda: FakeGke(cluster=described()))
    inspector: FakeInspector = field(default_factory=FakeInspector)
    ca_pem: bytes | None = CERTIFICATE

    def __post_init__(self) -> None:
        self.kube.put_object("/version", {"gitVersion": "v1.34.1-gke.3084001"})
        for kind in (JOBSET, LEADER_WORKER_SET, PLAIN_JOB):
            self.serve(kind)
        for path in PLACEMENT_OBJECTS:
            self.kube.put_object(path, {"metadata": {"name": PLACEMENT_POLICY}})

    def serve(self, kind: Kind) -> None:
        self.kube.put_object(kind.root, {"resources": [{"name": kind.resource}]})

    @property
    def subject(self) -> Subject:
        self.kube.server, self.kube.ca_pem = "https://kube.example.com", self.ca_pem
        return Subject(
            settings=settings(**({"node_service_account": ACCOUNT} | self.changes)),
            api=self.kube,
            gke=FakeGoogle(self.gke, self.inspector),  # type: ignore[arg-type]
            now=lambda: NOW,
        )

    def find(self) -> dict[str, Finding]:
        found = list(run_checks(self.subject))
        named = {finding.name: finding for finding in found}
        assert len(named) == len(found)
        return named


def described(**changes: Any) -> Cluster:
    values: dict[str, Any] = {
        "name": "test",
        "status": "RUNNING",
        "ca_certificate_pem": CERTIFICATE,
        "workload_pool": "project-1.svc.id.goog",
    }
    return Cluster(**(values | changes))
