"""The Kubernetes boundary: list-watches, live reads, Lease election, Events, hints.

No type and no exception of the kubernetes package leaves it; every failure is a ClusterError (see errors.py).
"""

from provisioner.kube.api import KubeApi, connect
from provisioner.kube.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeconfigError,
    Malformed,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from provisioner.kube.events import EventRecorder
from provisioner.kube.fields import MalformedObject
from provisioner.kube.hints import HintsStore
from provisioner.kube.lease import LeaseElector, boot_clock
from provisioner.kube.listwatch import ListWatch
from provisioner.kube.live import (
    PoolNode,
    cordon,
    cordon_open_node,
    list_nodes_of_pool,
    list_open_nodes_of_pool,
    list_provider_ids_without_tpus,
    release,
    uncordon,
)
from provisioner.kube.parse import parse_node
from provisioner.kube.protocol import Api, Page, Stream, Timeouts
from provisioner.kube.reflector import Collection
from provisioner.kube.watches import CombinedWatch, Namespace, Watch, WatchOptions, namespaces, nodes

__all__ = [
    "Api",
    "ClusterError",
    "Collection",
    "CombinedWatch",
    "Conflict",
    "EventRecorder",
    "Forbidden",
    "Gone",
    "HintsStore",
    "Invalid",
    "KubeApi",
    "KubeconfigError",
    "LeaseElector",
    "ListWatch",
    "Malformed",
    "MalformedObject",
    "Namespace",
    "NotFound",
    "Page",
    "PoolNode",
    "Stream",
    "Timeouts",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "Watch",
    "WatchOptions",
    "boot_clock",
    "connect",
    "cordon",
    "cordon_open_node",
    "list_nodes_of_pool",
    "list_open_nodes_of_pool",
    "list_provider_ids_without_tpus",
    "namespaces",
    "nodes",
    "parse_node",
    "release",
    "uncordon",
]
