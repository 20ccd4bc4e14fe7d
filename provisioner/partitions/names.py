"""Names that partitions are asked for, marked and kept by, and what the init container and the REST API agree on."""

from __future__ import annotations

import hashlib
import re

# --- Of Graphcore's Kubernetes plugin -------------------------------------------------------------------------------
#: Annotations of pods: how many IPUs. The second is the spelling of the plugin's own tests.
IPUS = "graphcore.ai/ipus"
IPU = "graphcore.ai/ipu"
SIZE_ANNOTATIONS = (IPUS, IPU)
#: Label of pods that have been injected; the value says nothing.
POD_LABEL = "graphcore.ai/pod"
#: Annotation of pods that have been injected.
STATUS = "graphcore.ai/status"
INJECTED = "injected"
#: Annotation of pods that the kubelet runs from files whatever the API server says: of what it shows of them.
MIRROR = "kubernetes.io/config.mirror"

# --- Ours -----------------------------------------------------------------------------------------------------------
#: Holds a pod back from the scheduler until its partition is active.
SCHEDULING_GATE = "tpu-provisioner.cloud.google.com/partition"
#: Annotations of pods, set when the gate is opened: the partition's id, and HOST:PORT of the V-IPU server it is on.
PARTITION_ID = "tpu-provisioner.cloud.google.com/partition-id"
PARTITION_HOST = "tpu-provisioner.cloud.google.com/partition-host"
PARTITION_PORT = "tpu-provisioner.cloud.google.com/partition-port"
#: Annotation of pods: the partition may be removed although the pod is unfinished; set by the REST API alone.
RELEASE = "tpu-provisioner.cloud.google.com/partition-release"
#: The ledger, in the controller's own namespace.
LEDGER_CONFIGMAP_NAME = "tpu-provisioner-partitions"
LEASE_NAME = "tpu-provisioner-partitions"

_ID_PREFIX = "tpup"
_CLUSTER_DIGITS = 8
_POD_DIGITS = 12
_SERVER_DIGITS = 5
_ID = re.compile(rf".*-[0-9a-f]{{{_SERVER_DIGITS}}}")


def id_prefix(cluster_uid: str) -> str:
    """Return what the ids of a cluster's partitions begin with, by the UID of its namespace kube-system."""
    return f"{_ID_PREFIX}-{_digits(cluster_uid, _CLUSTER_DIGITS)}-"


def owner_id(cluster_uid: str, pod_uid: str) -> str:
    """Return what the ids of all partitions of a pod begin with."""
    return id_prefix(cluster_uid) + _digits(pod_uid, _POD_DIGITS)


def owner_of(partition_id: str) -> str:
    """Return the part of an id that names its pod (`owner_id`)."""
    return partition_id.rpartition("-")[0]


def is_of(partition_id: str, cluster_uid: str, pod_uid: str) -> bool:
    """Whether an id, which anybody may have written, is that of a pod's partition on some server."""
    return _ID.fullmatch(partition_id) is not None and owner_of(partition_id) == owner_id(cluster_uid, pod_uid)


def partition_id(cluster_uid: str, pod_uid: str, server: str) -> str:
    """Return the id of a pod's partition on a server (HOST:PORT): 32 characters, a DNS label.

    Each server has another id of it: one that appears late is not taken for the one that the pod was told of.
    """
    return f"{owner_id(cluster_uid, pod_uid)}-{_digits(server, _SERVER_DIGITS)}"


def _digits(text: str, count: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:count]


#: Tokens of ServiceAccounts are made for this audience alone, and no other tokens are taken.
AUDIENCE = "tpu-provisioner-partitions"
#: Partitions are asked for here by POST; one is at this path, "/" and its id, its configuration at /config below.
ROOT = "/v1/partitions"
CONFIG = "config"
HEALTH = "/health"
SERVICE = "tpu-provisioner-partitions"

#: The container that waits for the partition: it tells pods that were prepared here from those of Graphcore's plugin.
INIT_CONTAINER = "graphcore-partition"

# --- in the pod -----------------------------------------------------------------------------------------------------
#: Where the token is mounted in the init container.
TOKEN_DIRECTORY = "/var/run/secrets/tpu-provisioner"  # noqa: S105 - a path
TOKEN_FILE = "token"  # noqa: S105 - a name
#: Beside it: whom the client trusts; also the key in the ConfigMap that it comes from.
CA_FILE = "ca.crt"
#: Where the volume with the IPUoF configuration is mounted, and the file in it.
CONFIG_DIRECTORY = "/etc/graphcore"
CONFIG_FILE = "ipuof.conf"
#: Variables of the init container, which say whose partition it waits for.
NAMESPACE_VARIABLE = "POD_NAMESPACE"
POD_VARIABLE = "POD_NAME"
UID_VARIABLE = "POD_UID"
SIZE_VARIABLE = "IPUS"
