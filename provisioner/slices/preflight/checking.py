"""All checks in order, each within bounds, whatever it meets."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import structlog

from provisioner.kube.api import KubeApi
from provisioner.kube.errors import ClusterError
from provisioner.kube.protocol import Api
from provisioner.runtime.clock import wall_clock
from provisioner.settings import Settings
from provisioner.slices.preflight import Finding, Status, failed, in_google, in_kubernetes, unknown
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.translate import Cluster
from provisioner.workloads import kinds_served

_log = structlog.get_logger(__name__)

#: No check begins later than this; each call has its own time-out.
TIME_LIMIT_SECONDS = 60.0
#: What the proof of the cluster logs by itself.
_LOGGED_BY_PROOF = frozenset({"cluster identity", "Autopilot"})
#: Its name, and what makes it.
_Check = tuple[str, Callable[[], Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is checked."""

    settings: Settings
    #: None where there is no usable kubeconfig; that is a finding of its own.
    api: KubeApi | None
    #: None where there are no credentials for GKE, likewise, or no GKE.
    gke: GkeClient | None
    now: Callable[[], datetime] = wall_clock


def run_checks(
    subject: Subject,
    *,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Finding]:
    """Make all checks but those of settings, kubeconfig and credentials; nothing is ever raised."""
    deadline = monotonic() + time_limit_seconds

    def one(name: str, check: Callable[[], Finding]) -> Finding:
        if monotonic() >= deadline:
            return unknown(f"the checks before it took longer than {time_limit_seconds:.0f} s").of(name)
        try:
            return check().of(name)
        except (GkeError, ClusterError) as error:
            return failed(str(error)).of(name)
        except Exception as error:  # noqa: BLE001 - the boundary of each check
            # A mistake in a check must cost nothing but its finding.
            _log.exception("check.crashed", check=name)
            return unknown(f"the check itself failed: {error!r}").of(name)

    def each_of(checks: Iterable[_Check], *, impossible: str = "") -> Iterator[Finding]:
        """Make checks; `impossible` says why none of them can be made."""
        for name, check in checks:
            yield unknown(impossible).of(name) if impossible else one(name, check)

    api, gke = subject.api, subject.gke
    serves = False
    if api is not None:
        server = one("API server", lambda: in_kubernetes.check_api_server(api, api.server))
        yield server
        serves = server.status is not Status.FAILED
        yield from each_of(_of_kubernetes(api, subject), impossible="" if serves else "the API server cannot be used")
    if gke is not None:
        read: list[Cluster] = []

        def describe() -> Finding:
            read.append(gke.get_cluster())
            return in_google.check_status(read[0])

        yield one("cluster", describe)
        of_cluster = _of_cluster(lambda: read[0], api if serves else None, subject.settings)
        yield from each_of(of_cluster, impossible="" if read else "GKE does not describe the cluster")
        yield one("node pools", lambda: in_google.check_node_pools(gke))
        yield from each_of(_of_project(gke, subject.settings))


def _of_kubernetes(api: Api, subject: Subject) -> Iterator[_Check]:
    settings, namespace = subject.settings, subject.settings.own_namespace
    for kind in kinds_served(settings).values():
        yield str(kind.kind), functools.partial(in_kubernetes.check_kind, api, kind)
    yield "rights in Kubernetes", lambda: in_kubernetes.check_rights(api, settings)
    yield "pause", lambda: in_kubernetes.check_pause(api, namespace)
    yield "Go provisioner", lambda: in_kubernetes.check_go_provisioner(api, namespace, subject.now())
    if settings.on_gce:
        yield "TPUNodeGroups", lambda: in_kubernetes.check_node_groups(api, settings.node_groups_in)


def _of_cluster(read: Callable[[], Cluster], api: KubeApi | None, settings: Settings) -> Iterator[_Check]:
    assume, auto_upgrade = settings.assume_same_cluster, settings.auto_upgrade
    yield "cluster identity", lambda: in_google.check_identity(read(), api, assume=assume)
    yield "release channel", lambda: in_google.check_channel(read(), auto_upgrade=auto_upgrade)
    yield "Autopilot", lambda: in_google.check_autopilot(read())
    yield "node auto-provisioning", lambda: in_google.check_auto_provisioning(read())
    yield "Workload Identity", lambda: in_google.check_workload_identity(read())


def _of_project(gke: GkeClient, settings: Settings) -> Iterator[_Check]:
    project = settings.project_id
    yield "permissions on the project", lambda: in_google.check_permissions(gke, project)
    yield "nodes' service account", lambda: in_google.check_node_account(gke, settings)
    for named in in_google.named_reservations(settings):
        yield f"reservation {named.name}", functools.partial(in_google.check_reservation, gke, named)


def log_findings(subject: Subject) -> None:
    """Make all checks, and log each finding that somebody should know of; nothing is ever raised."""
    counts: Counter[Status] = Counter()
    for finding in run_checks(subject):
        counts[finding.status] += 1
        if finding.status is not Status.OK and finding.name not in _LOGGED_BY_PROOF:
            log = _log.error if finding.status is Status.FAILED else _log.warning
            log(f"check.{finding.status.value}", check=finding.name, problem=finding.message, advice=finding.advice)
    _log.info("check.done", **{status.value: counts[status] for status in Status})
