"""Controller with a fake GKE, API server and clock, whose rounds tests start. Caches usually have no delay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from provisioner import constants
from provisioner.controller.loop import Wake
from provisioner.kube.fields import format_time
from provisioner.kube.machineconfigs import MACHINE_CONFIGS, parse_machine_config
from provisioner.kube.protocol import collection_path, object_path
from provisioner.kube.watches import parse_node
from provisioner.model.capacity import CapacityKind, NodePool, PoolName, PoolStatus
from provisioner.model.workloads import ObjectRef, WorkloadKind, WorkloadName
from provisioner.runtime.clock import FollowedClock
from provisioner.slices.act import Actor
from provisioner.slices.gate import Gate
from provisioner.slices.hints import HintsStore
from provisioner.slices.loop import Loop
from provisioner.slices.metrics import Meter, Metrics
from provisioner.slices.observe import PoolList, Watches
from provisioner.slices.planning.plan import Delete, DeleteReason
from provisioner.slices.report import Reporter
from provisioner.slices.supplier import Supplier
from provisioner.slices.suppliers.gke.identity_check import ClusterProof
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from provisioner.slices.suppliers.gke.translate import Cluster
from provisioner.workloads import JOBSET
from provisioner.workloads.jobset import parse_jobset
from provisioner.workloads.parse_pod import parse_pod
from tests.support.board import make_board
from tests.support.clock import FakeClock
from tests.support.gke import FakeGke
from tests.support.kube import FakeKube
from tests.support.objects import pod_spec, raw_jobset, raw_leader, raw_node, taint, toleration
from tests.support.settings import settings

T = TypeVar("T")

NAMESPACE = "research"
_SETTLE_SECONDS = 10.0
CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
OTHER_CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nWFla\n-----END CERTIFICATE-----\n"


class FakeWatch(Generic[T]):
    """A cache that shows the current objects, or records that `keep` has saved. Tests can make it appear outdated."""

    def __init__(self, read: Callable[[], Mapping[tuple[str, str], T]]) -> None:
        self._read = read
        self.synced = True
        self.problem: str | None = None
        self.missing = False
        self.absent_seconds = 0.0
        self.last_contact_monotonic: float | None = None
        self.silent = False
        self.deleted: set[str] = set()
        self.invalidations = 0
        self._invalid = False
        self._kept: Mapping[tuple[str, str], T] | None = None

    def keep(self) -> None:
        """Show the current records, as parsed now, until the next list."""
        self._kept = self._read()

    def invalidate(self) -> None:
        """Request a new list; until `list_again`, the records are not synced."""
        self.invalidations += 1
        self._invalid, self.synced = True, False

    def list_again(self) -> None:
        if self._invalid:
            self._invalid, self.synced, self._kept = False, True, None

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def records(self) -> Mapping[tuple[str, str], T]:
        return MappingProxyType(dict(self._read() if self._kept is None else self._kept))

    def missing_seconds(self) -> float:
        return self.absent_seconds

    def seen_deleted(self, uid: str) -> bool:
        return uid in self.deleted

    def fresh(self, *, max_silence_seconds: float) -> bool:
        return self.synced and not self.silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An Event that the controller emitted."""

    ref: ObjectRef
    kind: str
    reason: str
    message: str
    key: str


@dataclass(slots=True)
class FakeRecorder:
    """Recorder that keeps Events instead of sending them."""

    told: list[Told] = field(default_factory=list)
    dropped_total: int = 0

    def emit(self, ref: ObjectRef, reason: str, message: str, *, warning: bool = False, key: str = "") -> None:
        kind = "Warning" if warning else "Normal"
        self.told.append(Told(ref=ref, kind=kind, reason=reason, message=message, key=key))

    def reasons(self, kind: str) -> list[str]:
        """Return the reasons of Events on objects of a kind, oldest first; equal keys or texts count once."""
        seen = dict.fromkeys((told.reason, told.key or told.message) for told in self.told if told.ref.kind == kind)
        return [reason for reason, _ in seen]


class World:
    """A controller of slices with a fake cluster and a fake GKE; tests start each of its rounds."""

    def __init__(self, *, ca_pem: bytes | None = CERTIFICATE, **changes: Any) -> None:
        self.clock = FakeClock()
        self.time = FollowedClock(lambda: self.clock.now(), self.clock)  # noqa: PLW0108 - a test may replace `now`
        self.kube = FakeKube()
        self.gke = FakeGke(cluster=Cluster(name="test", status="RUNNING", ca_certificate_pem=CERTIFICATE))
        self.settings = settings(**{"node_min_lifespan_seconds": 0.0} | changes)
        self.recorder = FakeRecorder()
        self.metrics = Metrics(version="test")
        self.leading = True
        self.lease_seconds = float("inf")
        #: Whether lists take long, so that invalidated watches are not synced until a test calls `list_again`.
        self.slow_lists = False
        self.wake, self.stopping = Wake(), threading.Event()
        self.jobsets = FakeWatch(lambda: self._read(collection_path("jobsets", root=JOBSET.root), parse_jobset))
        self.pods = FakeWatch(lambda: self._read(collection_path("pods"), parse_pod, constants.JOBSET_NAME))
        self.nodes = FakeWatch(lambda: self._read(collection_path("nodes"), parse_node, constants.NODEPOOL_MANAGER))
        machine_configs = collection_path(MACHINE_CONFIGS.resource, root=MACHINE_CONFIGS.root)
        self.watches = Watches(
            workloads={WorkloadKind.JOBSET: self.jobsets},
            pods=self.pods,
            nodes=self.nodes,
            machine_configs=FakeWatch(lambda: self._read(machine_configs, parse_machine_config)),
        )
        self.loop = self.start(ca_pem=ca_pem)

    def start(self, *, ca_pem: bytes | None = CERTIFICATE) -> Loop:
        supplier, proof = self.choose(ca_pem)
        self.gate = Gate(api=self.kube, settings=self.settings, clock=self.clock.now, monotonic=self.clock)
        executor = ThreadPoolExecutor(max_workers=1)
        self.actor = Actor(
            supplier=supplier,
            api=self.kube,
            gate=self.gate,
            clock=self.time,
            lease_seconds=lambda: self.lease_seconds,
            on_answer=self.wake.set,
            executor=executor,
            delete_executor=executor,
            change_executor=executor,
            monotonic=self.clock,
        )
        self.board = make_board(self.time, self.clock)
        self.board.problems = lambda: self.loop.problems()  # noqa: PLW0108 - the loop comes later
        self.loop = Loop(
            settings=self.settings,
            watches=self.watches,
            pools=PoolList(supplier=supplier, clock=self.time, processor_seconds=lambda: 0.0),
            identity=proof,
            actor=self.actor,
            reporter=Reporter(
                recorder=self.recorder,
                metrics=self.metrics,
                meter=Meter(settings=self.settings, metrics=self.metrics, monotonic=self.clock),
                journal=self.board.journal,
                clock=self.time,
                monotonic=self.clock,
            ),
            metrics=self.metrics,
            board=self.board,
            store=HintsStore(self.kube, "tpu-provisioner-system"),
            is_leader=lambda: self.leading,
            clock=self.time,
            wake=self.wake,
            stopping=self.stopping,
            monotonic=self.clock,
        )
        return self.loop

    def choose(self, ca_pem: bytes | None) -> tuple[Supplier, ClusterProof | None]:
        """Return the supplier of pools, and the proof that kubeconfig and GCP_CLUSTER are the same cluster."""
        proof = ClusterProof(
            get_cluster=self.gke.get_cluster, api=self.kube, trusted_ca_pem=ca_pem, assume=False, clock=self.time
        )
        supplier = GkeSupplier(gke=self.gke, clock=self.time)
        # Reservations are read in the thread of the round, so that each round is deterministic.
        supplier.reservations.submit = lambda call: call()
        return supplier, proof

    @property
    def proof(self) -> ClusterProof:
        assert self.loop.identity is not None
        return self.loop.identity

    def round(self, *, after_seconds: float = 0.0) -> float:
        """Advance the clock, do one round, wait for its calls and lists; return the seconds until the next round."""
        self.clock.advance(after_seconds)
        pause = self.loop.round()
        self.settle()
        if not self.slow_lists:
            self.list_again()
        return pause

    def list_again(self) -> None:
        for watch in (self.watches.pods, *self.watches.workloads.values()):
            watch.list_again()  # type: ignore[union-attr]

    def rounds(self, count: int, *, every_seconds: float) -> None:
        for _ in range(count):
            self.round(after_seconds=every_seconds)

    def settle(self) -> None:
        assert self.actor.wait_until_idle(timeout_seconds=_SETTLE_SECONDS)

    # --- State of the cluster and of GKE ---

    def put_jobset(self, name: str = "train", *, topology: str = "2x2x1", uid: str = "", **changes: Any) -> str:
        """Create a JobSet of one v4 slice with its unschedulable leader pod; return the JobSet's UID."""
        uid = uid or f"uid-of-{name}"
        self.kube.put_object(jobset_path(name), jobset_of(name, topology=topology, uid=uid, **changes))
        self.put_leader(name, topology=topology, uid=uid)
        return uid

    def change_jobset(self, name: str = "train", **changes: Any) -> None:
        raw = self.kube.object(jobset_path(name))
        assert raw is not None
        for part, values in changes.items():
            raw.setdefault(part, {}).update(values)
        self.kube.put_object(jobset_path(name), raw)

    def put_leader(self, name: str = "train", *, topology: str = "2x2x1", uid: str = "", node: str = "") -> None:
        path = object_path("pods", f"{name}-workers-0-0", namespace=NAMESPACE)
        self.kube.put_object(path, leader_of(name, topology=topology, uid=uid, node=node))

    def remove_leader(self, name: str = "train") -> None:
        self.kube.remove_object(object_path("pods", f"{name}-workers-0-0", namespace=NAMESPACE))

    def complete(self) -> None:
        self.change_jobset(status={"terminalState": "Completed"})
        self.remove_leader()

    def vanish(self) -> None:
        self.kube.remove_object(jobset_path("train"))
        self.remove_leader()

    def finish_creates(self) -> list[PoolName]:
        """Complete the creation of all pools, whose nodes become ready; return the names of the pools."""
        made = [pool.name for pool in self.gke.pools.values() if pool.status is PoolStatus.PROVISIONING]
        for name in made:
            self.gke.finish_create(name)
            self.put_nodes(name)
        return made

    def put_nodes(self, pool_name: str) -> list[str]:
        """Register the nodes of a pool, none for flex-start; return their names."""
        pool = self.gke.pools[PoolName(pool_name)]
        names = [
            f"gke-test-{pool.name}-{index}"
            for index in range(0 if pool.capacity is CapacityKind.FLEX_START else pool.hosts)
        ]
        for name in names:
            self.kube.put_object(object_path("nodes", name), node_of(pool, name, self.clock))
        return names

    def finish_deletes(self) -> None:
        for pool in self.gke.pools.values():
            if pool.status is PoolStatus.STOPPING:
                self.gke.finish_delete(pool.name)
                self.remove_nodes(pool.name)

    def remove_nodes(self, pool_name: str) -> None:
        for raw in self.kube.objects(collection_path("nodes")):
            if raw["metadata"]["labels"][constants.NODE_POOL] == pool_name:
                self.kube.remove_object(object_path("nodes", raw["metadata"]["name"]))

    def run_to_use(self, name: str = "train") -> PoolName:
        """Create a JobSet, complete its pool, and bind its leader pod to a node; return the name of the pool."""
        self.put_jobset(name)
        self.round()
        (pool,) = self.finish_creates()
        self.round(after_seconds=3)
        self.put_leader(name, node=f"gke-test-{pool}-0")
        self.round(after_seconds=3)
        return pool

    def _read(self, path: str, parse: Callable[[Any], Any], label: str = "") -> dict[tuple[str, str], Any]:
        records = {}
        for raw in self.kube.objects(path):
            metadata = raw["metadata"]
            finished = raw.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if finished or (label and label not in metadata.get("labels", {})):
                continue
            record = parse(raw)
            if record is not None:
                records[(metadata.get("namespace", ""), metadata["name"])] = record
        return records

    def calls(self, method: str) -> list[str]:
        return [call.path for call in self.kube.calls if call.method == method]


def jobset_path(name: str) -> str:
    return object_path("jobsets", name, namespace=NAMESPACE, root=JOBSET.root)


def jobset_of(name: str = "train", *, topology: str = "2x2x1", **changes: Any) -> dict[str, Any]:
    pod = pod_spec(topology=topology, tolerations=[toleration()])
    return raw_jobset(name, namespace=NAMESPACE, job="workers", parallelism=1, pod=pod, **changes)


def leader_of(
    name: str = "train", *, number: int = 0, topology: str = "2x2x1", uid: str = "", node: str = ""
) -> dict[str, Any]:
    pod = pod_spec(topology=topology, tolerations=[toleration()])
    return raw_leader(name, namespace=NAMESPACE, uid=uid, job="workers", number=number, node=node, spec=pod)


def node_of(pool: NodePool, name: str, clock: FakeClock) -> dict[str, Any]:
    labels = {
        **pool.labels,
        constants.NODE_POOL: pool.name,
        constants.TPU_ACCELERATOR: "tpu-v4-podslice",
        constants.TPU_TOPOLOGY: pool.topology or "2x2x1",
    }
    metadata = {"creationTimestamp": format_time(clock.now()), "labels": labels}
    return raw_node(name, metadata=metadata, taints=[taint()])


def a_delete(
    pool: str = "train-pool",
    reason: DeleteReason = DeleteReason.WORKLOAD_GONE,
    *,
    kind: WorkloadKind = WorkloadKind.JOBSET,
    namespace: str = NAMESPACE,
    workload_name: str = "train",
    **changes: Any,
) -> Delete:
    values: dict[str, Any] = {
        "name": PoolName(pool),
        "reason": reason,
        "named": WorkloadName(kind, namespace, workload_name),
        "workload_uid": "uid-of-train",
        "workload": None,
        "node": None,
    }
    return Delete(**(values | changes))


def seconds_from(clock: FakeClock, seconds: float) -> str:
    return format_time(clock.now() + timedelta(seconds=seconds))
