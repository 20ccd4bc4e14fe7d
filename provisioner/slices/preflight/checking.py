"""All checks in order, each within bounds, whatever it meets.

The check of a cluster without GKE: whether there can be TPUNodeGroups, and how many there are.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

import structlog

from provisioner import kube
from provisioner.settings import Settings
from provisioner.slices.preflight import in_google, in_kubernetes
from provisioner.slices.preflight.finding import Finding, Status, failed, unknown
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.protocol import Cluster, Inspector
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from provisioner.workloads import kinds_served

_log = structlog.get_logger(__name__)

#: No check begins later than this; each call has its own time-out.
TIME_LIMIT_SECONDS = 60.0
_OF_CLUSTER = (
    in_google.IDENTITY,
    in_google.CHANNEL,
    in_google.AUTOPILOT,
    in_google.AUTO_PROVISIONING,
    in_google.WORKLOAD_IDENTITY,
)
#: What the proof of the cluster logs by itself, again and again where that is useful.
_LOGGED_BY_PROOF = frozenset({in_google.IDENTITY, in_google.AUTOPILOT, in_google.CHANNEL, in_google.AUTO_PROVISIONING})
#: Makes one check, and turns whatever goes wrong into its finding.
_One = Callable[[str, Callable[[], Finding]], Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is checked."""

    settings: Settings
    #: None where there is no usable kubeconfig; that is a finding of its own.
    api: kube.Api | None
    #: The API server's address, for people.
    server: str
    trusted_ca_pem: bytes | None
    #: Both None where there are no credentials for GKE, likewise, or no GKE.
    gke: GkeSupplier | None
    inspector: Inspector | None
    now: Callable[[], datetime]


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
            return unknown(name, f"the checks before it took longer than {time_limit_seconds:.0f} s")
        try:
            return check()
        except (GkeError, kube.ClusterError) as error:
            return failed(name, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary of each check
            # A mistake in a check must cost nothing but its finding.
            _log.exception("check.crashed", check=name)
            return unknown(name, f"the check itself failed: {error!r}")

    settings, api, gke, inspector = subject.settings, subject.api, subject.gke, subject.inspector
    serves = False
    if api is not None:
        server = one(in_kubernetes.API_SERVER, lambda: in_kubernetes.check_api_server(api, subject.server))
        yield server
        serves = server.status is not Status.FAILED
        if serves:
            yield from _check_kubernetes(api, subject, one)
        else:
            names = (
                *map(str, kinds_served(settings)),
                in_kubernetes.RIGHTS,
                in_kubernetes.PAUSE,
                in_kubernetes.GO_PROVISIONER,
            )
            yield from (unknown(name, "the API server cannot be used") for name in names)
    if gke is not None:
        yield from _check_cluster(gke, api if serves else None, subject, one)
        yield one(in_google.NODE_POOLS, lambda: in_google.check_node_pools(gke))
    if inspector is not None:
        project = settings.project_id
        yield one(in_google.PERMISSIONS, lambda: in_google.check_permissions(inspector, project))
        yield one(in_google.NODE_ACCOUNT, lambda: in_google.check_node_account(inspector, settings))
        yield one(in_google.POLICIES, lambda: in_google.check_policies(inspector, project))
        for named in in_google.named_reservations(settings):
            look = functools.partial(in_google.check_reservation, inspector, named)
            yield one(f"reservation {named.name}", look)


def _check_kubernetes(api: kube.Api, subject: Subject, one: _One) -> Iterator[Finding]:
    settings = subject.settings
    for kind in kinds_served(settings).values():
        yield one(str(kind.kind), functools.partial(in_kubernetes.check_kind, api, kind))
    yield one(in_kubernetes.RIGHTS, lambda: in_kubernetes.check_rights(api, settings))
    yield one(in_kubernetes.PAUSE, lambda: in_kubernetes.check_pause(api, settings.own_namespace))
    yield one(
        in_kubernetes.GO_PROVISIONER,
        lambda: in_kubernetes.check_go_provisioner(api, settings.own_namespace, subject.now()),
    )
    if settings.on_gce:
        namespace = settings.node_groups_in
        yield one(in_kubernetes.NODE_GROUPS, lambda: in_kubernetes.check_node_groups(api, namespace))


def _check_cluster(gke: GkeSupplier, api: kube.Api | None, subject: Subject, one: _One) -> Iterator[Finding]:
    """Read the cluster once, and judge it."""
    read: list[Cluster] = []

    def describe() -> Finding:
        read.append(gke.get_cluster())
        return in_google.check_status(read[0])

    yield one(in_google.CLUSTER, describe)
    if not read:
        yield from (unknown(name, "GKE does not describe the cluster") for name in _OF_CLUSTER)
        return
    found = read[0]
    assume = subject.settings.assume_same_cluster
    if api is None:
        yield unknown(in_google.IDENTITY, "there is no API server to compare it with")
    else:
        ca_pem = subject.trusted_ca_pem
        yield one(in_google.IDENTITY, lambda: in_google.check_identity(found, api, ca_pem, assume=assume))
    yield in_google.check_channel(found, auto_upgrade=subject.settings.auto_upgrade)
    yield in_google.check_autopilot(found)
    yield in_google.check_auto_provisioning(found)
    yield in_google.check_workload_identity(found)


def log_findings(subject: Subject) -> None:
    """Make all checks, and log each finding that somebody should know of; nothing is ever raised.

    Once: what the proof of the cluster logs is left to that.
    """
    counts: Counter[Status] = Counter()
    for finding in run_checks(subject):
        counts[finding.status] += 1
        if finding.status is not Status.OK and finding.name not in _LOGGED_BY_PROOF:
            log = _log.error if finding.status is Status.FAILED else _log.warning
            log(f"check.{finding.status.value}", check=finding.name, problem=finding.message, advice=finding.advice)
    _log.info("check.done", **{status.value: counts[status] for status in Status})
