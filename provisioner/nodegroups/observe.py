"""Watches Kubernetes, reads facts about the cluster, and combines both into snapshots.

- Secrets: only bootstrap tokens with the labels of a group are listed.
- Nodes: all are listed, as the API server cannot select by providerID. Nodes that cannot be in a group are dropped.
- Pods: bound, unfinished pods are kept, except static pods and pods of DaemonSets. To save memory, once all nodes are
  listed, pods without chips are dropped, unless they tolerate the taint of TPU nodes or are on a node of a group. If
  an existing node gets the labels of a group, or a new node has them but no taint, all pods are listed again.
"""

import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import yaml
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from provisioner.kube import fields
from provisioner.kube.errors import NotFound
from provisioner.kube.live import PeriodicRead, read_cluster_uid
from provisioner.kube.protocol import Api, Timeouts, object_path
from provisioner.kube.reflector import WATCH_DEFAULTS, Collection, WatchOptions
from provisioner.kube.watches import UNFINISHED, ListWatch, Watch, doubt_of
from provisioner.nodegroups import device_plugin, reading
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.documents import R, parse
from provisioner.nodegroups.api.types import InstanceTemplate, Kind, ManagedInstanceGroup, TpuNodeGroup, WorkloadPolicy
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.bootstrap.metadata import api_server
from provisioner.nodegroups.bootstrap.tokens import Request, Token
from provisioner.nodegroups.planning.round import Cluster, DevicePlugin, Node, Pod, Snapshot

T = TypeVar("T")


_INSTALL_HINT = "install the definitions of node groups"
#: Label that Kubernetes sets on the pods of DaemonSets and on no other pods.
_OF_A_DAEMON_SET = "pod-template-generation"
_REREAD_SECONDS = 600.0
_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)
_ROOT_CA = ("kube-system", "kube-root-ca.crt")
_CLUSTER_INFO = ("kube-public", "cluster-info")
_HTTPS_PORT = 443
_GIT_VERSION = re.compile(r"v?(1\.[0-9]{1,3})\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """The list-watches of one controller."""

    groups: Watch[TpuNodeGroup]
    policies: Watch[WorkloadPolicy]
    templates: Watch[InstanceTemplate]
    managers: Watch[ManagedInstanceGroup]
    nodes: Watch[Node]
    pods: Watch[Pod]
    tokens: Watch[Token]
    requests: Watch[Request]
    device_plugin: Watch[DevicePlugin]

    def named(self) -> dict[str, Watch[Any]]:
        """Return the watches by the name of their resource."""
        return {
            Kind.TPU_NODE_GROUP.plural: self.groups,
            Kind.WORKLOAD_POLICY.plural: self.policies,
            Kind.INSTANCE_TEMPLATE.plural: self.templates,
            Kind.MANAGED_INSTANCE_GROUP.plural: self.managers,
            "nodes": self.nodes,
            "pods": self.pods,
            "secrets": self.tokens,
            "certificatesigningrequests": self.requests,
            "daemonsets": self.device_plugin,
        }


def make_watches(
    api: Api, on_change: Callable[[], None], *, served: tuple[str, ...] = (), options: WatchOptions = WATCH_DEFAULTS
) -> Watches:
    """Create the list-watches without starting them. `served` are the served namespaces, empty if all are."""

    def watch(
        name: str, parse: Callable[[object], T | None], quiet: Callable[[T, T], bool] | None = None, **collection: Any
    ) -> ListWatch[T]:
        made = Collection(name=name, resource=name, **collection)
        return ListWatch(api, made, parse=parse, quiet=quiet, on_change=on_change, options=options)

    def of_kind(record: type[R]) -> Watch[R]:
        read = functools.partial(parse, record, served=served)
        return watch(record.kind.plural, read, root=reading.API_ROOT, install_hint=_INSTALL_HINT)

    nodes: Watch[Node] = watch("nodes", lambda raw: _node_seen(raw, nodes, pods), _differ_by_version_alone)
    pods: ListWatch[Pod] = watch(
        "pods",
        lambda raw: _wanted_pod(raw, nodes),
        query={"labelSelector": f"!{_OF_A_DAEMON_SET}", "fieldSelector": f"spec.nodeName!=,{UNFINISHED}"},
    )
    return Watches(
        groups=of_kind(TpuNodeGroup),
        policies=of_kind(WorkloadPolicy),
        templates=of_kind(InstanceTemplate),
        managers=of_kind(ManagedInstanceGroup),
        nodes=nodes,
        pods=pods,
        tokens=watch(
            "secrets",
            tokens.parse_secret,
            namespace=tokens.NAMESPACE,
            query={
                "labelSelector": f"{names.GROUP_NAMESPACE},{names.GROUP_NAME}",
                "fieldSelector": f"type={tokens.SECRET_TYPE}",
            },
        ),
        requests=watch(
            "certificatesigningrequests",
            functools.partial(tokens.parse_request, has_room=tokens.Room().has),
            root=tokens.CERTIFICATES_ROOT,
            query={"fieldSelector": f"spec.signerName={tokens.SIGNER}"},
        ),
        device_plugin=watch(
            "daemonsets",
            reading.parse_device_plugin,
            root=reading.APPS_ROOT,
            namespace=device_plugin.NAMESPACE,
            query={"fieldSelector": f"metadata.name={device_plugin.NAME}"},
        ),
    )


def _node_seen(raw: object, nodes: Watch[Node], pods: ListWatch[Pod]) -> Node | None:
    node = reading.parse_node(raw)
    if not reading.may_be_of_a_group(node):
        return None
    if nodes.synced and _has_come_to_a_group(node, nodes.records().get(("", node.name))):
        # The pods of the node may have been dropped. The watch does not repeat them, so all pods are listed again.
        pods.relist()
    return node


def _has_come_to_a_group(node: Node, before: Node | None) -> bool:
    """Return whether pods on a node may have been dropped, because the node was unknown or had no labels of a group."""
    if names.GROUP_NAME not in node.labels:
        return False
    if before is not None and before.uid == node.uid:
        return names.GROUP_NAME not in before.labels
    # Pods that the scheduler binds to a tainted node tolerate the taint, and such pods are never dropped.
    return not node.tainted


def _differ_by_version_alone(before: Node, after: Node) -> bool:
    return replace(before, resource_version=after.resource_version) == after


def _wanted_pod(raw: object, nodes: Watch[Node]) -> Pod | None:
    pod = reading.parse_pod(raw)
    if pod.bound_to_node or not pod.node:
        return None
    if pod.chips or reading.tolerates_tpu_nodes(raw):
        return pod
    if not nodes.synced:
        # The node may belong to a group, and the watch does not repeat the pod, so the pod must be kept.
        return pod
    # A pod without a toleration may be on a group's node, for example if it was bound before the node had the taint.
    node = nodes.records().get(("", pod.node))
    return pod if node is not None and names.GROUP_NAME in node.labels else None


@dataclass(slots=True, kw_only=True)
class ClusterReader(PeriodicRead):
    """Reads the UID of the cluster, and the data that machines need to join. Only the loop's thread calls `read`."""

    #: KUBERNETES_VERSION, which overrides the cluster's version; empty if not set.
    kubernetes_version: str = ""
    cluster: Cluster | None = None

    def due_in_seconds(self, now: datetime) -> float:
        """Return the seconds until the next read is due; 0 or negative if it is due now."""
        return self.left_seconds(now, self.retry_seconds() or _REREAD_SECONDS)

    def read(self) -> None:
        """Read all data with at most 4 calls. If a call fails, the data of the last successful read is kept."""
        trouble = "what machines have to know of the cluster cannot be read:"
        self.attempt(self._read, trouble, failed_event="cluster.not_read", ended_event="cluster.read_again")

    def doubt(self) -> str:
        """Return why nothing may be decided; empty after the first successful read, even if later reads fail."""
        if self.cluster is not None:
            return ""
        return self.problem or "what machines have to know of the cluster is not read yet"

    def _read(self) -> None:
        cluster = Cluster(
            uid=read_cluster_uid(self.api, timeouts=_TIMEOUTS),
            ca_hash=ca_hash_of(self._config_map(_ROOT_CA)),
            api_server=api_server_of(self._config_map(_CLUSTER_INFO)),
            kubernetes_version=self.kubernetes_version
            or kubernetes_version_of(self.api.get("/version", timeouts=_TIMEOUTS)),
        )
        self.cluster = self.cluster if cluster == self.cluster else cluster

    def _config_map(self, place: tuple[str, str]) -> object:
        """Read a ConfigMap; empty if it does not exist, as on a cluster that was not created by kubeadm."""
        namespace, name = place
        try:
            return self.api.get(object_path("configmaps", name, namespace=namespace), timeouts=_TIMEOUTS)
        except NotFound:
            return {}


def ca_hash_of(config_map: object) -> str:
    """Return hashes of public keys in kube-root-ca.crt as sha256:HEX,sha256:HEX for kubeadm; empty if unreadable."""
    pem = fields.text(fields.at(config_map, "data").get("ca.crt"))
    try:
        keys = [
            certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            for certificate in x509.load_pem_x509_certificates(pem.encode())
        ]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return ""
    return ",".join(dict.fromkeys(f"sha256:{hashlib.sha256(key).hexdigest()}" for key in keys))


def api_server_of(config_map: object) -> str:
    """Return HOST:PORT of the API server from the ConfigMap cluster-info; empty if the address is not usable HTTPS."""
    text = fields.text(fields.at(config_map, "data").get("kubeconfig"))
    try:
        kubeconfig = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return ""
    clusters = fields.mappings(fields.mapping(kubeconfig).get("clusters"))
    server = fields.text(fields.mapping(clusters[0].get("cluster")).get("server")) if clusters else ""
    try:
        parts = urlsplit(server)
        host, port = parts.hostname or "", parts.port or _HTTPS_PORT
    except ValueError:
        return ""
    return api_server(host, port) if parts.scheme == "https" else ""


def kubernetes_version_of(version: object) -> str:
    """Return the API server's minor version, such as 1.31, from its response to /version; empty if it has none."""
    found = _GIT_VERSION.match(fields.text(fields.mapping(version).get("gitVersion")))
    return found[1] if found is not None else ""


def not_synced(watches: Watches) -> tuple[str, ...]:
    """Return the reasons why the caches must not be used for decisions; empty if they may be used."""
    return tuple(filter(None, (doubt_of(name, watch) for name, watch in watches.named().items())))


def take_snapshot(watches: Watches, cluster: ClusterReader, live: frozenset[str] = frozenset()) -> Snapshot:
    """Return the input of one decision. `live` are the keys of calls and writes whose results are not processed yet."""
    return Snapshot(
        cluster=cluster.cluster or Cluster(uid=""),
        groups=tuple(watches.groups.records().values()),
        policies=tuple(watches.policies.records().values()),
        templates=tuple(watches.templates.records().values()),
        managers=tuple(watches.managers.records().values()),
        nodes=tuple(watches.nodes.records().values()),
        pods=tuple(watches.pods.records().values()),
        tokens=tuple(watches.tokens.records().values()),
        requests=tuple(watches.requests.records().values()),
        device_plugin=next(iter(watches.device_plugin.records().values()), None),
        live=live,
        not_synced=tuple(filter(None, (*not_synced(watches), cluster.doubt()))),
    )
