"""Runs all checks in order. Never raises."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

import structlog

from provisioner.kube.api import KubeApi
from provisioner.kube.errors import ClusterError
from provisioner.kube.protocol import Api
from provisioner.runtime.clock import wall_clock
from provisioner.settings import Settings
from provisioner.slices.preflight import Finding, Status, failed, in_google, in_kubernetes, in_placement, unknown
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.translate import Cluster
from provisioner.workloads import kinds_served

_log = structlog.get_logger(__name__)

#: Checks whose findings `ClusterProof` logs, so `log_findings` leaves them out.
_LOGGED_BY_PROOF = frozenset({"cluster identity", "Autopilot"})
_Check = tuple[str, Callable[[], Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Settings to check, and clients for the checks."""

    settings: Settings
    #: None if the kubeconfig is not usable, which the caller reports.
    api: KubeApi | None
    #: None if the provider is not GKE, or if credentials are missing, which the caller reports.
    gke: GkeClient | None
    now: Callable[[], datetime] = wall_clock


def run_checks(subject: Subject) -> Iterator[Finding]:
    """Yield the findings of all checks except those of settings, kubeconfig and credentials. Never raises.

    If the API server or the GKE cluster cannot be read, the checks that need it are skipped.
    """
    api, gke = subject.api, subject.gke
    if api is not None:
        server = _run("API server", functools.partial(in_kubernetes.check_api_server, api, api.server))
        yield server
        if server.status is Status.FAILED:
            api = None
        else:
            yield from (_run(name, check) for name, check in _of_kubernetes(api, subject))
    if gke is not None:
        read: list[Cluster] = []

        def describe() -> Finding:
            read.append(gke.get_cluster())
            return in_google.check_status(read[0])

        yield _run("cluster", describe)
        for cluster in read:
            yield from (_run(name, check) for name, check in _of_cluster(cluster, api, subject.settings))
        yield from (_run(name, check) for name, check in _of_project(gke, subject.settings))


def _run(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check().of(name)
    except (GkeError, ClusterError) as error:
        return failed(str(error)).of(name)
    except Exception as error:  # noqa: BLE001 - the boundary of each check
        _log.exception("check.crashed", check=name)
        return unknown(f"the check itself failed: {error!r}").of(name)


def _of_kubernetes(api: Api, subject: Subject) -> Iterator[_Check]:
    settings, namespace = subject.settings, subject.settings.own_namespace
    for kind in kinds_served(settings).values():
        yield str(kind.kind), functools.partial(in_kubernetes.check_kind, api, kind)
    yield "rights in Kubernetes", lambda: in_kubernetes.check_rights(api, settings)
    yield "placement", lambda: in_placement.check_placement(api, settings)
    yield "pause", lambda: in_kubernetes.check_pause(api, namespace)
    yield "Go provisioner", lambda: in_kubernetes.check_go_provisioner(api, namespace, subject.now())
    if settings.on_gce:
        yield "TPUNodeGroups", lambda: in_kubernetes.check_node_groups(api, settings.node_groups_in)


def _of_cluster(cluster: Cluster, api: KubeApi | None, settings: Settings) -> Iterator[_Check]:
    if api is not None:
        yield "cluster identity", lambda: in_google.check_identity(cluster, api, assume=settings.assume_same_cluster)
    yield "release channel", lambda: in_google.check_channel(cluster, auto_upgrade=settings.auto_upgrade)
    yield "Autopilot", lambda: in_google.check_autopilot(cluster)
    yield "node auto-provisioning", lambda: in_google.check_auto_provisioning(cluster)
    yield "Workload Identity", lambda: in_google.check_workload_identity(cluster)


def _of_project(gke: GkeClient, settings: Settings) -> Iterator[_Check]:
    project = settings.project_id
    yield "node pools", lambda: in_google.check_node_pools(gke)
    yield "permissions on the project", lambda: in_google.check_permissions(gke, project)
    yield "nodes' service account", lambda: in_google.check_node_account(gke, settings)
    for (owner, name), zones in in_google.named_reservations(settings).items():
        yield f"reservation {name}", functools.partial(in_google.check_reservation, gke, owner, name, zones)


def log_findings(subject: Subject) -> None:
    """Run all checks; log findings that are not OK, and the number of findings by status. Never raises."""
    counts: Counter[Status] = Counter()
    for finding in run_checks(subject):
        counts[finding.status] += 1
        if finding.status is not Status.OK and finding.name not in _LOGGED_BY_PROOF:
            log = _log.error if finding.status is Status.FAILED else _log.warning
            log(f"check.{finding.status.value}", check=finding.name, problem=finding.message, advice=finding.advice)
    _log.info("check.done", **{status.value: counts[status] for status in Status})
