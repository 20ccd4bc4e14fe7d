"""Proves that the Kubernetes client and the GKE client use the same cluster.

No pool is created or deleted without the proof: the provisioner's pools in another cluster would look unneeded.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from provisioner.kube.errors import ClusterError
from provisioner.kube.live import list_provider_ids_without_tpus
from provisioner.kube.protocol import Api
from provisioner.runtime.clock import shifted
from provisioner.slices.supplier import with_remedy
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.translate import INSTANCE_GROUP, Cluster

_log = structlog.get_logger(__name__)

#: Interval between attempts to prove the cluster, which may succeed when GKE responds again or a node registers.
_RETRY = timedelta(seconds=15)
#: Interval between reads of a proven cluster's release channel, which can change at any time.
_LOOK_AGAIN = timedelta(minutes=10)
#: Effect of a release channel on node pools under NODEPOOL_AUTO_UPGRADE=auto.
CHANNEL_CONSEQUENCE = (
    "node pools are created with auto-upgrade on and excluded from maintenance until the end of support of their "
    "version, so that GKE does not upgrade them earlier while their jobs run"
)
#: Matches a certificate in PEM. A certificate with invalid characters does not match and is ignored.
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]*)-----END CERTIFICATE-----")
_ADVICE = (
    "Check GCP_PROJECT_ID, GCP_CLUSTER_LOCATION and GCP_CLUSTER against the current context of the kubeconfig. Set "
    "ASSUME_SAME_CLUSTER=true only if you are sure that they name the same cluster: otherwise, node pools of another "
    "cluster may be deleted."
)


def prove(cluster: Cluster, api: Api, *, trusted_ca_pem: bytes | None, assume: bool) -> tuple[bool, str]:
    """Return whether `api` serves the cluster, and the evidence or what to do. Raises ClusterError.

    `trusted_ca_pem` has the certificate authorities that the Kubernetes client trusts. If None, the client trusts the
    public authorities, and names of nodes (gke-CLUSTER-POOL-HASH-xxxx) are compared with names of instance groups
    (gke-CLUSTER-POOL-HASH-grp): the hash differs between clusters of the same name. `assume` replaces a missing proof.
    """
    name = f"cluster {cluster.name!r}"
    trusted = _certificates(trusted_ca_pem or b"")
    issued = _certificates(cluster.ca_certificate_pem)
    if trusted & issued:
        return True, f"The Kubernetes client trusts the certificate authority of {name}."
    if trusted_ca_pem is not None and issued:
        # If the authorities differ, matching names of nodes would not prove the cluster.
        doubt = f"The Kubernetes client does not trust the certificate authority of {name}."
    else:
        urls, nodes = cluster.instance_group_urls, 0
        matches = filter(None, map(INSTANCE_GROUP.search, urls))
        groups = {"gce://{}/{}/{}".format(*match.group("project", "zone", "prefix")) for match in matches}
        for node in list_provider_ids_without_tpus(api) if trusted_ca_pem is None else ():
            nodes += 1
            if node.rpartition("-")[0] in groups:
                return True, f"Node {node} is in an instance group of {name}."
        doubt = (
            f"No certificate authority to compare with {name}, and none of the {nodes} nodes "
            f"without TPUs that Kubernetes lists is in one of its {len(urls)} instance groups."
        )
    if assume:
        return True, f"Assumed because ASSUME_SAME_CLUSTER is set. {doubt}"
    return False, f"{doubt} {_ADVICE}"


def _certificates(pem: bytes) -> frozenset[bytes]:
    return frozenset(filter(None, (b"".join(body.split()) for body in _CERTIFICATE.findall(pem))))


@dataclass(slots=True, kw_only=True)
class ClusterProof:
    """Proof that kubeconfig and GCP_CLUSTER are the same cluster. Used by one thread."""

    get_cluster: Callable[[], Cluster]
    api: Api
    trusted_ca_pem: bytes | None
    assume: bool
    clock: Callable[[], datetime]
    proven: bool = False
    problem: str = "the controller has not tried yet to prove that the kubeconfig and GCP_CLUSTER are one cluster"
    #: Release channel of the cluster; empty if the cluster has none or is not proven.
    release_channel: str = ""
    #: Time from which the next read of the cluster is due; `datetime.min` before the first read.
    due_at: datetime = datetime.min.replace(tzinfo=UTC)

    def follow(self) -> float:
        """Read the cluster if a read is due; return the seconds until the next one, 0 if the cluster is proven."""
        if self.clock() >= self.due_at:
            self.attempt()
        return 0.0 if self.proven else max(0.1, (self.due_at - self.clock()).total_seconds())

    def clock_set(self, by: timedelta) -> None:
        """Shift the time of the next read after the clock was set, so that the wait does not change."""
        self.due_at = shifted(self.due_at, by)

    def attempt(self) -> bool:
        """Try to prove the cluster, or read a proven cluster's channel; return whether the cluster is proven."""
        started_at = self.clock()
        try:
            found = self.get_cluster()
            if not self.proven:
                self._prove(found)
        except (GkeError, ClusterError) as error:
            if self.proven:
                # A failed read changes neither the proof nor the release channel.
                _log.info("cluster.not_read", error=str(error))
            else:
                self._set_problem(f"cannot identify the cluster: {with_remedy(error)}")
        else:
            if self.proven and found.release_channel != self.release_channel:
                self.release_channel = found.release_channel
                _log.info("cluster.on_release_channel", channel=found.release_channel, consequence=CHANNEL_CONSEQUENCE)
        self.due_at = started_at + (_LOOK_AGAIN if self.proven else _RETRY)
        return self.proven

    def _prove(self, cluster: Cluster) -> None:
        proven, reason = prove(cluster, self.api, trusted_ca_pem=self.trusted_ca_pem, assume=self.assume)
        if cluster.autopilot or not proven:
            self._set_problem(autopilot_refusal(cluster.name) if cluster.autopilot else reason)
            return
        self.proven, self.problem = True, ""
        _log.info("cluster.proven", cluster=cluster.name, why=reason)

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("cluster.not_proven", problem=problem)
        self.problem = problem


def autopilot_refusal(name: str) -> str:
    """Return the message that the provisioner cannot work on an Autopilot cluster, with what to do."""
    return (
        f"cluster {name!r} is an Autopilot cluster: GKE creates the nodes there itself and rejects all other node "
        "pools. Run the provisioner on a Standard cluster; on Autopilot, TPU pods do not need it."
    )
