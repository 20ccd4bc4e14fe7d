"""Controller of partitions in one thread, with a V-IPU server in memory and a fake API server."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

from provisioner.controller.loop import Wake
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.capacity import Failure, FailureKind
from provisioner.partitions import names
from provisioner.partitions.act import Actor, Line
from provisioner.partitions.app import Loop
from provisioner.partitions.board import Board
from provisioner.partitions.demand import Pod, parse_pod
from provisioner.partitions.metrics import Metrics
from provisioner.partitions.observe import Known
from provisioner.partitions.report import Reporter
from provisioner.partitions.vipu.records import Allocation, Partition, PartitionRequest, PartitionState, VipuError
from provisioner.runtime.clock import FollowedClock
from provisioner.settings.partitions import PartitionSettings, Server
from tests.support.clock import FakeClock
from tests.support.controller import FakeRecorder, FakeWatch
from tests.support.kube import FakeKube

NAMESPACE = "research"
SYSTEM = "system"
CLUSTER_UID = "cluster-uid"
SERVER = Server(host="10.0.0.5", port=8090, node_selector=("ipu-pod", "one"))
_PODS = collection_path("pods")
_IPUS = 64
CONFIGURATION = '{"partition": "the configuration"}'


class FakeVipu:
    """V-IPU server in memory, which creates partitions immediately."""

    def __init__(self) -> None:
        self.partitions: dict[str, Partition] = {}
        self.calls: list[tuple[str, str]] = []
        #: Number of calls of `list_partitions`. A call waits until `answers` is set, and fails if `failing` is set.
        self.reads = 0
        self.answers = threading.Event()
        self.answers.set()
        self.failing: FailureKind | None = None

    def put(self, partition_id: str, state: PartitionState) -> None:
        self.partitions[partition_id] = replace(partition(partition_id), state=state)

    def list_allocations(self) -> tuple[Allocation, ...]:
        return (Allocation(name="a", ipus=_IPUS),)

    def list_partitions(self) -> tuple[Partition, ...]:
        self.reads += 1
        assert self.answers.wait(20)
        if self.failing is not None:
            raise VipuError(Failure(kind=self.failing, message="it is down"), "list partitions")
        return tuple(self.partitions.values())

    def create_partition(self, request: PartitionRequest) -> None:
        self.calls.append(("create", request.id))
        if request.id in self.partitions:
            raise VipuError(Failure(kind=FailureKind.ALREADY_EXISTS, message="it exists"))
        if sum(existing.size for existing in self.partitions.values()) + request.size > _IPUS:
            raise VipuError(Failure(kind=FailureKind.STOCKOUT, message="not enough IPUs"))
        self.partitions[request.id] = partition(request.id, request.size)

    def remove_partition(self, partition_id: str) -> None:
        self.calls.append(("remove", partition_id))
        if self.partitions.pop(partition_id, None) is None:
            raise VipuError(Failure(kind=FailureKind.NOT_FOUND, message="there is none"))

    def ipuof_config(self, partition_id: str) -> str:
        assert self.partitions[partition_id].state is PartitionState.ACTIVE
        return CONFIGURATION


class Inline(Executor):
    """Executor that runs each call immediately, in the caller's thread."""

    def submit(self, fn: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*arguments, **options))
        return future


class Controller:
    """A controller process with its cluster and V-IPU server."""

    def __init__(self) -> None:
        self.kube, self.vipu, self.clock = FakeKube(), FakeVipu(), FakeClock()
        self.recorder = FakeRecorder()
        self.metrics = Metrics(version="test")
        self.lease_seconds = float("inf")
        self.kube.put_object(object_path("namespaces", "kube-system"), {"metadata": {"uid": CLUSTER_UID}})
        time = FollowedClock(self.clock.now, self.clock)
        wake = Wake()
        known = Known(api=self.kube, namespace=SYSTEM, clock=time, servers=(SERVER,))
        settings = PartitionSettings(servers=())
        self.actor = Actor(
            servers={SERVER.address: Line(vipu=self.vipu, changes=Inline(), reads=Inline())},
            api=self.kube,
            namespace=SYSTEM,
            cluster_uid=lambda: CLUSTER_UID,
            clock=time,
            lease_seconds=lambda: self.lease_seconds,
            on_answer=wake.set,
            write_executor=Inline(),
            metrics=self.metrics,
            monotonic=self.clock,
        )
        self.loop = Loop(
            settings=settings,
            pods=FakeWatch(self._unfinished),
            known=known,
            actor=self.actor,
            reporter=Reporter(recorder=self.recorder, metrics=self.metrics, clock=time),
            metrics=self.metrics,
            board=Board(release="test", identity="test", now=self.clock.now),
            is_leader=lambda: True,
            clock=time,
            wake=wake,
            stopping=wake,
            monotonic=self.clock,
        )

    def rounds(self, count: int = 1, *, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.loop.round()
            self.clock.advance(seconds)

    def create_pod(self, name: str, size: int = 4) -> str:
        """Create a pod as it is after admission; return the id of its partition."""
        raw = {
            "metadata": {
                "namespace": NAMESPACE,
                "name": name,
                "uid": f"uid-{name}",
                "creationTimestamp": self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
                "labels": {names.POD_LABEL: ""},
                "annotations": {names.IPUS: str(size), names.STATUS: names.INJECTED},
            },
            "spec": {
                "schedulingGates": [{"name": names.SCHEDULING_GATE}],
                "initContainers": [{"name": names.INIT_CONTAINER}],
                "containers": [{"name": "main"}],
            },
            "status": {"phase": "Pending"},
        }
        self.kube.put_object(pod_path(name), raw)
        return names.partition_id(CLUSTER_UID, f"uid-{name}", SERVER.address)

    def pod(self, name: str) -> dict[str, Any]:
        return self.kube.object(pod_path(name)) or {}

    def is_gated(self, name: str) -> bool:
        return {"name": names.SCHEDULING_GATE} in (self.pod(name)["spec"].get("schedulingGates") or [])

    def end(self, name: str) -> None:
        raw = copy.deepcopy(self.pod(name))
        raw["status"]["phase"] = "Succeeded"
        self.kube.put_object(pod_path(name), raw)

    def delete(self, name: str) -> None:
        self.kube.remove_object(pod_path(name))

    def _unfinished(self) -> dict[tuple[str, str], Pod]:
        pods = (parse_pod(raw, servers=(SERVER,)) for raw in self.kube.objects(_PODS))
        return {(pod.namespace, pod.name): pod for pod in pods if not pod.finished}


def pod_path(name: str) -> str:
    return object_path("pods", name, namespace=NAMESPACE)


def partition(partition_id: str, size: int = 4) -> Partition:
    return Partition(id=partition_id, size=size, state=PartitionState.ACTIVE, allocation="a")
