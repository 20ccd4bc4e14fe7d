"""Names of annotations, labels, objects and paths that the webhook, controller, REST API and init container share."""

import hashlib
import re

# --- Names of Graphcore's Kubernetes plugin ---------------------------------------------------------------------------
#: Annotation of pods: the number of requested IPUs. IPU is a second spelling, from the tests of Graphcore's plugin.
IPUS = "graphcore.ai/ipus"
IPU = "graphcore.ai/ipu"
SIZE_ANNOTATIONS = (IPUS, IPU)
#: Label that the webhook or Graphcore's plugin adds to a pod with IPUs. Any value counts.
POD_LABEL = "graphcore.ai/pod"
#: Annotation, with the value INJECTED, that the webhook or Graphcore's plugin adds to a pod with IPUs.
STATUS = "graphcore.ai/status"
INJECTED = "injected"
#: Annotation of mirror pods: the API server's copies of static pods, which the kubelet runs from files.
MIRROR = "kubernetes.io/config.mirror"

# --- Names of tpu-provisioner -----------------------------------------------------------------------------------------
#: Scheduling gate that holds a pod back from the scheduler until its partition is active.
SCHEDULING_GATE = "tpu-provisioner.cloud.google.com/partition"
#: Annotations of pods, set when the gate is removed: id of the partition, host and port of its V-IPU server.
PARTITION_ID = "tpu-provisioner.cloud.google.com/partition-id"
PARTITION_HOST = "tpu-provisioner.cloud.google.com/partition-host"
PARTITION_PORT = "tpu-provisioner.cloud.google.com/partition-port"
#: Annotation of a pod whose partition may be removed before the pod ends. The REST API and `take_back` set it.
RELEASE = "tpu-provisioner.cloud.google.com/partition-release"
#: Name of the ledger, a ConfigMap in the controller's namespace.
LEDGER_CONFIGMAP_NAME = "tpu-provisioner-partitions"
LEASE_NAME = "tpu-provisioner-partitions"

_ID_PREFIX = "tpup"
_CLUSTER_DIGITS = 8
_POD_DIGITS = 12
_SERVER_DIGITS = 5
_ID = re.compile(rf".*-[0-9a-f]{{{_SERVER_DIGITS}}}")


def id_prefix(cluster_uid: str) -> str:
    """Return the prefix of the ids of a cluster's partitions; `cluster_uid` is the UID of the namespace kube-system."""
    return f"{_ID_PREFIX}-{_digits(cluster_uid, _CLUSTER_DIGITS)}-"


def owner_id(cluster_uid: str, pod_uid: str) -> str:
    """Return the prefix that the ids of all partitions of a pod share."""
    return id_prefix(cluster_uid) + _digits(pod_uid, _POD_DIGITS)


def owner_of(partition_id: str) -> str:
    """Return the part of a partition's id that identifies the pod (`owner_id`)."""
    return partition_id.rpartition("-")[0]


def is_of(partition_id: str, cluster_uid: str, pod_uid: str) -> bool:
    """Return whether `partition_id`, which a user may have written, is the id of the pod's partition on some server."""
    return _ID.fullmatch(partition_id) is not None and owner_of(partition_id) == owner_id(cluster_uid, pod_uid)


def partition_id(cluster_uid: str, pod_uid: str, server: str) -> str:
    """Return the id of a pod's partition on a server (HOST:PORT): a DNS label of 32 characters."""
    # The server is in the id: a partition that one server creates late is not taken for a partition of another server.
    return f"{owner_id(cluster_uid, pod_uid)}-{_digits(server, _SERVER_DIGITS)}"


def _digits(text: str, count: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:count]


#: Audience of the ServiceAccount tokens for the REST API; tokens for other audiences are rejected.
AUDIENCE = "tpu-provisioner-partitions"
#: Path of the REST API: a POST requests a partition. ROOT/ID is one partition, ROOT/ID/config its configuration.
ROOT = "/v1/partitions"
CONFIG = "config"
HEALTH = "/health"
SERVICE = "tpu-provisioner-partitions"

#: Init container that waits for the partition. Pods that Graphcore's plugin prepared do not have this container.
INIT_CONTAINER = "graphcore-partition"

# --- Files and variables in the pod -----------------------------------------------------------------------------------
TOKEN_DIRECTORY = "/var/run/secrets/tpu-provisioner"  # noqa: S105 - a path
TOKEN_FILE = "token"  # noqa: S105 - a name
#: File, next to the token, with the authorities that the client trusts. Its key in the ConfigMap has the same name.
CA_FILE = "ca.crt"
CONFIG_DIRECTORY = "/etc/graphcore"
CONFIG_FILE = "ipuof.conf"
NAMESPACE_VARIABLE = "POD_NAMESPACE"
POD_VARIABLE = "POD_NAME"
UID_VARIABLE = "POD_UID"
SIZE_VARIABLE = "IPUS"
