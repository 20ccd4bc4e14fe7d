"""The Kubernetes boundary: list-watches, live reads, Lease election, Events.

No type and no exception of the kubernetes package leaves it; every failure is a ClusterError (see errors.py).

Its parts are imported when they are first used: a command that only reads manifests need not wait for the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from provisioner.kube.lease import LeaseElector, pod_of
    from provisioner.kube.live import (
        PoolNode,
        cordon,
        cordon_open_node,
        list_nodes_of_pool,
        list_provider_ids_without_tpus,
        release,
        uncordon,
    )
    from provisioner.kube.protocol import Api, Timeouts
    from provisioner.kube.reflector import WATCH_DEFAULTS, Collection, WatchOptions
    from provisioner.kube.watches import CombinedWatch, ListWatch, Watch, parse_node

__all__ = [
    "WATCH_DEFAULTS", "Api", "ClusterError", "Collection", "CombinedWatch", "Conflict", "EventRecorder",
    "Forbidden", "Gone", "Invalid", "KubeApi", "KubeconfigError", "LeaseElector", "ListWatch",
    "Malformed", "MalformedObject", "NotFound", "PoolNode", "Timeouts",
    "TooManyRequests", "Unauthorized", "Unavailable", "Watch", "WatchOptions", "connect", "cordon",
    "cordon_open_node", "list_nodes_of_pool", "list_provider_ids_without_tpus", "parse_node",
    "pod_of", "release", "uncordon",
]  # fmt: skip

#: Which module each name comes from.
_HOMES = {
    "api": "KubeApi connect",
    "errors": "ClusterError Conflict Forbidden Gone Invalid KubeconfigError Malformed NotFound "
    "TooManyRequests Unauthorized Unavailable",
    "events": "EventRecorder",
    "fields": "MalformedObject",
    "lease": "LeaseElector pod_of",
    "live": "PoolNode cordon cordon_open_node list_nodes_of_pool list_provider_ids_without_tpus release uncordon",
    "protocol": "Api Timeouts",
    "reflector": "WATCH_DEFAULTS Collection WatchOptions",
    "watches": "CombinedWatch ListWatch Watch parse_node",
}


def __getattr__(name: str) -> Any:
    """Import the part that a name comes from, when it is first used."""
    for home, names in _HOMES.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
