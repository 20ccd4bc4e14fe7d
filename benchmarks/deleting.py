"""Measures the proof before the delete of a pool with many hosts: calls to the API server, and time."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from provisioner import constants
from provisioner.kube.api import KubeApi, connect
from provisioner.kube.live import uncordon
from provisioner.kube.protocol import collection_path
from provisioner.model.capacity import PoolName, Zone
from provisioner.model.workloads import WorkloadKind, WorkloadName, WorkloadUid
from provisioner.settings import Settings
from provisioner.slices.app import make_gate
from provisioner.slices.planning.plan import Delete, DeleteReason
from rehearsal import localcluster

#: Number of runs by number of hosts.
_RUNS = {256: 5, 2048: 1}
_TARGET_HOSTS = 256
#: Number of DaemonSet pods on each node of GKE, and of images in its status.
_DAEMONS, _IMAGES = 8, 50
#: Number of pods on nodes of no pool, in total and for each of these nodes.
_STRANGERS, _STRANGERS_PER_NODE = 2000, 100
_NAMESPACE = "default"
_SETTINGS = Settings(project_id="p", cluster_location="us-central2", zone=Zone("us-central2-b"), cluster="c")
_WRITERS = 16
#: Programs that are stopped, because they would use the cores of this machine for changes of nodes and pods.
_AROUND = ("kube-controller-manager", "kube-scheduler", "kwok", "jobset")


def measure(say: Callable[..., None]) -> None:
    """Measure the gate of unused pools of 256 and 2,048 hosts."""
    with localcluster.start(progress=lambda _: None) as control_plane:
        api = connect(str(control_plane.kubeconfig))
        for name in _AROUND:
            control_plane.send(name, signal.SIGSTOP)
        with ThreadPoolExecutor(_WRITERS) as writers:
            others = [f"other-{index}" for index in range(_STRANGERS // _STRANGERS_PER_NODE)]
            _populate(api, writers, "others", others, pods=_STRANGERS_PER_NODE)
            for hosts in _RUNS:
                pool = PoolName(f"pool-{hosts}")
                nodes = [f"{pool}-{index}" for index in range(hosts)]
                _populate(api, writers, pool, nodes, pods=_DAEMONS)
                _measure_pool(say, api, writers, pool, nodes)
        for name in _AROUND:
            control_plane.send(name, signal.SIGCONT)


def _measure_pool(
    say: Callable[..., None], api: KubeApi, writers: ThreadPoolExecutor, pool: PoolName, nodes: Sequence[str]
) -> None:
    gate = make_gate(api, lambda: datetime.now(UTC), _SETTINGS)
    delete = Delete(
        name=pool,
        reason=DeleteReason.WORKLOAD_GONE,
        named=WorkloadName(WorkloadKind.JOBSET, _NAMESPACE, "gone"),
        workload_uid=WorkloadUid("uid-of-gone"),
        workload=None,
        node=None,
    )
    seconds, processor_seconds = [], []
    runs = _RUNS[len(nodes)]
    for run in range(runs):
        if run:
            list(writers.map(lambda name: uncordon(api, name), nodes))
        with _counted(api) as calls:
            started, worked = time.perf_counter(), time.process_time()
            gate.verify_deletable(delete)
            seconds.append(time.perf_counter() - started)
            processor_seconds.append(time.process_time() - worked)
    target = "target: 2 s" if len(nodes) == _TARGET_HOSTS else ""
    say(f"gate: {len(nodes)} hosts, median of {runs}", f"{statistics.median(seconds):.2f} s", target)
    say("  least of them", f"{min(seconds):.2f} s")
    say("  processor time of this process, median", f"{statistics.median(processor_seconds):.2f} s")
    say("  calls to the API server", str(calls.total()))
    for kind, count in sorted(calls.items()):
        say(f"    {kind}", str(count))


@contextmanager
def _counted(api: KubeApi) -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()
    lock = threading.Lock()
    send = api._send  # noqa: SLF001 - below it nothing repeats a request

    def counting(request: Any, *, accept: str) -> Any:
        listed = "limit" in (request.query or {})
        parts = request.path.rsplit("/", 2)
        with lock:
            counts[f"LIST {parts[-1]}" if listed else f"{request.method} {parts[-2]}"] += 1
        return send(request, accept=accept)

    api._send = counting  # type: ignore[method-assign] # noqa: SLF001
    try:
        yield counts
    finally:
        api._send = send  # type: ignore[method-assign] # noqa: SLF001


def _populate(api: KubeApi, writers: ThreadPoolExecutor, pool: str, nodes: Sequence[str], *, pods: int) -> None:
    list(writers.map(lambda name: api.post(collection_path("nodes"), _node(name, pool)), nodes))
    path = collection_path("pods", namespace=_NAMESPACE)
    bodies = [_pod(f"{node}-{index}", node) for node in nodes for index in range(pods)]
    list(writers.map(lambda body: api.post(path, body), bodies))


def _node(name: str, pool: str) -> dict[str, Any]:
    """Return a node as large as GKE's: about 10 KB, most of it for images."""
    images = [
        {"names": [f"registry.example.com/images/one-of-many-{index}@sha256:{index:064x}"], "sizeBytes": 1}
        for index in range(_IMAGES)
    ]
    labels = {constants.NODE_POOL: pool, constants.NODEPOOL_MANAGER: constants.MANAGER}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"images": images, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _pod(name: str, node: str) -> dict[str, Any]:
    """Return a pod of a DaemonSet of about 6 KB, bound to its node."""
    variables = [{"name": f"VARIABLE_{index}", "value": "value" * 4} for index in range(20)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": _NAMESPACE, "annotations": {"example.com/note": "n" * 2500}},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none", "env": variables}],
        },
    }
