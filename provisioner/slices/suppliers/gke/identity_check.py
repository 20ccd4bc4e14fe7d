"""Proves that the Kubernetes client and the GKE client use the same cluster.

All pools of another cluster would look unneeded, so nothing is created or deleted before this is proven. The proof does
not cover the permissions of either client.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from provisioner.kube.errors import ClusterError
from provisioner.kube.live import list_provider_ids_without_tpus
from provisioner.kube.protocol import Api
from provisioner.runtime.clock import shifted
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.translate import INSTANCE_GROUP, Cluster

_log = structlog.get_logger(__name__)

#: Interval in seconds between attempts of the proof: GKE may respond again, or a node may have registered.
_RETRY_SECONDS = 15.0
#: Interval in seconds between reads of a proven cluster's release channel, which can change at any time.
_LOOK_AGAIN_SECONDS = 600.0
#: Effect of a release channel on node pools under NODEPOOL_AUTO_UPGRADE=auto.
CHANNEL_CONSEQUENCE = (
    "node pools are created with auto-upgrade on and excluded from maintenance until the end of support of their "
    "version, so that GKE does not upgrade them earlier while their jobs run"
)
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_ADVICE = (
    "Check GCP_PROJECT_ID, GCP_CLUSTER_LOCATION and GCP_CLUSTER against the current context of the kubeconfig; if they "
    "name the same cluster, set ASSUME_SAME_CLUSTER=true."
)


def prove(cluster: Cluster, api: Api, *, trusted_ca_pem: bytes | None, assume: bool) -> tuple[bool, str]:
    """Return whether `api` serves the cluster, and the evidence, or what to do. Raises ClusterError.

    `trusted_ca_pem` has the authorities that the Kubernetes client trusts, None for public roots: then nodes are
    compared. GKE names groups and instances alike (gke-CLUSTER-POOL-HASH-grp, gke-CLUSTER-POOL-HASH-xxxx); the hash
    distinguishes clusters of the same name. `assume` is the user's assertion, used only if nothing else proves it.
    """
    name = f"cluster {cluster.name!r}"
    trusted = _certificates(trusted_ca_pem or b"")
    issued = _certificates(cluster.ca_certificate_pem)
    if trusted & issued:
        return True, f"The Kubernetes client trusts the certificate authority of {name}."
    if trusted_ca_pem is not None and issued:
        # The two authorities differ, and no node can outweigh that.
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
    """Return the DER bytes of all certificates, regardless of line ends, text between them, and order."""
    found = set()
    for body in _CERTIFICATE.findall(pem):
        try:
            der = base64.b64decode(b"".join(body.split()), validate=True)
        except binascii.Error:
            # A damaged certificate proves nothing; another one may still do so.
            continue
        if der:
            found.add(der)
    return frozenset(found)


@dataclass(slots=True, kw_only=True)
class ClusterProof:
    """Proof that kubeconfig and GCP_CLUSTER are the same cluster. Used only by the loop's thread."""

    get_cluster: Callable[[], Cluster]
    api: Api
    trusted_ca_pem: bytes | None
    assume: bool
    clock: Callable[[], datetime]
    proven: bool = False
    #: Reason why it is not proven; empty if it is.
    problem: str = "the controller has not tried yet to prove that the kubeconfig and GCP_CLUSTER are one cluster"
    #: Release channel of the cluster; empty if it has none, or while nothing is proven.
    release_channel: str = ""
    tried_at: datetime | None = None

    def follow(self) -> float:
        """Read the cluster if that is due; return the seconds until the next attempt, 0 if it is proven."""
        if self._since_look_seconds() >= (_LOOK_AGAIN_SECONDS if self.proven else _RETRY_SECONDS):
            self.attempt()
        return 0.0 if self.proven else max(0.1, _RETRY_SECONDS - self._since_look_seconds())

    def _since_look_seconds(self) -> float:
        return (self.clock() - self.tried_at).total_seconds() if self.tried_at is not None else float("inf")

    def clock_set(self, by: timedelta) -> None:
        """Keep the age of the last attempt after the clock was set."""
        self.tried_at = shifted(self.tried_at, by)

    def attempt(self) -> bool:
        """Try the proof; return whether it holds. If it is proven already, read the release channel again."""
        self.tried_at = self.clock()
        try:
            found = self.get_cluster()
            if not self.proven:
                self._prove(found)
        except (GkeError, ClusterError) as error:
            if self.proven:
                # The proof and the last release channel remain valid.
                _log.info("cluster.not_read", error=str(error))
            else:
                self._set_problem(f"cannot prove that the kubeconfig and GCP_CLUSTER are one cluster: {error}")
        else:
            if self.proven and found.release_channel != self.release_channel:
                self.release_channel = found.release_channel
                _log.info("cluster.on_release_channel", channel=found.release_channel, consequence=CHANNEL_CONSEQUENCE)
        return self.proven

    def _prove(self, found: Cluster) -> None:
        proven, why = prove(found, self.api, trusted_ca_pem=self.trusted_ca_pem, assume=self.assume)
        if found.autopilot or not proven:
            self._set_problem(autopilot_refusal(found.name) if found.autopilot else why)
            return
        self.proven, self.problem = True, ""
        _log.info("cluster.proven", cluster=found.name, why=why)

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("cluster.not_proven", problem=problem)
        self.problem = problem


def autopilot_refusal(name: str) -> str:
    """Return why nothing can be done on an Autopilot cluster."""
    return (
        f"cluster {name!r} is an Autopilot cluster: GKE creates the nodes there itself and rejects all other node "
        "pools. Run the provisioner on a Standard cluster; on Autopilot, TPU pods do not need it."
    )
