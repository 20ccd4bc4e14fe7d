"""Controller of node groups whose rounds tests start, with a simulated Compute Engine and a fake API server."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from provisioner.controller.loop import Wake
from provisioner.kube import errors
from provisioner.kube.fields import format_time
from provisioner.kube.protocol import JsonObject, collection_path, object_path
from provisioner.nodegroups.act import Actor, DryActor
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.statuses import ConditionType, condition_of
from provisioner.nodegroups.api.types import RECORDS, Kind, TpuNodeGroup
from provisioner.nodegroups.app import Loop
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.bootstrap.metadata import startup_script
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.device_plugin import manifest, version_of
from provisioner.nodegroups.gate import Gate
from provisioner.nodegroups.metrics import Metrics
from provisioner.nodegroups.observe import ClusterReader, Watches
from provisioner.nodegroups.planning.round import PlanningSettings
from provisioner.nodegroups.reading import (
    API_ROOT,
    APPS_ROOT,
    may_be_of_a_group,
    parse_device_plugin,
    parse_node,
    parse_pod,
)
from provisioner.nodegroups.report import Reporter
from provisioner.nodegroups.writing import Writer
from provisioner.runtime.clock import FollowedClock
from rehearsal.simulators.compute.model import World as ComputeWorld
from rehearsal.simulators.compute.settings import ComputeSettings
from tests.support.clock import FakeClock
from tests.support.compute import Compute, Wire
from tests.support.controller import FakeRecorder, FakeWatch
from tests.support.nodegroup_world import GroupKube, certificate, encoded

Json = dict[str, Any]

NAMESPACE, GROUP, PROJECT, ZONE = "research", "slice", "research-project", "us-east5-a"
#: Spec of a node group of four machines with four chips each.
SPEC: Json = {
    "project": PROJECT,
    "nodeLocation": ZONE,
    "topology": "4x4",
    "instanceConfig": {"machineType": "ct6e-standard-4t", "image": f"projects/{PROJECT}/global/images/u"},
    "bootstrapKubernetes": {},
}
_SETTLE_SECONDS = 10.0
_PLUGIN = manifest("plugin")
_SECRETS = collection_path("secrets", namespace=tokens.NAMESPACE)
_REQUESTS = collection_path("certificatesigningrequests", root=tokens.CERTIFICATES_ROOT)


class Cluster(GroupKube):
    """API server that implements finalizers and evictions, and stores Secrets in encoded form."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.on_evict: Callable[[str], object] = lambda _: None

    def post(self, path: str, body: JsonObject, **parts: Any) -> JsonObject:
        if path.endswith("/eviction"):
            self.on_evict(body["metadata"]["name"])
            return {}
        body = copy.deepcopy(body)
        body["metadata"].setdefault("creationTimestamp", format_time(self._clock.now()))
        return super().post(path, encoded(body) if "stringData" in body else body, **parts)

    def patch(self, path: str, body: JsonObject, **parts: Any) -> JsonObject:
        answer = super().patch(path, body, **parts)
        self._collect(path.removesuffix("/status"))
        return answer

    def delete(self, path: str, *, uid: str = "", **_: Any) -> JsonObject:
        with self._call("DELETE", path):
            current = self._existing(path)
            if uid and current["metadata"]["uid"] != uid:
                raise errors.Conflict(f"{path} has another uid", status=409, reason="Conflict")
            raw = copy.deepcopy(current)
            raw["metadata"].setdefault("deletionTimestamp", format_time(self._clock.now()))
            self._store(path, raw)
            self._collect(path)
            return current

    def _collect(self, path: str) -> None:
        with self._changed:
            raw = self._objects.get(path)
            if raw is not None and raw["metadata"].get("deletionTimestamp") and not raw["metadata"].get("finalizers"):
                self._drop(path)


class World:
    """A controller of node groups, a fake cluster and a simulated Compute Engine; tests start each round."""

    def __init__(self, *, dry_run: bool = False) -> None:
        self.dry_run = dry_run
        self.clock = FakeClock()
        self.time = FollowedClock(lambda: self.clock.now(), self.clock)  # noqa: PLW0108 - a test may replace `now`
        self.kube = Cluster(self.clock)
        simulated = ComputeWorld(ComputeSettings(), clock=self.clock.now, rng=random.Random(1))
        self.compute = Compute(simulated, self.clock)
        self.wire = Wire(self.compute.api)
        self.settings = PlanningSettings(
            project_id=PROJECT,
            startup_script=startup_script(),
            device_plugin_version=version_of(_PLUGIN),
            drain_seconds=600.0,
        )
        self.recorder, self.metrics = FakeRecorder(), Metrics(version="test")
        self.leading = True
        self.wake, self.stopping = Wake(), threading.Event()
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.watches = self._watches()
        self.kube.put_cluster(certificate())
        self.loop = self.start()

    def start(self) -> Loop:
        client = ComputeClient(endpoint="http://127.0.0.1:1")
        client._session = self.wire  # type: ignore[assignment]
        self.thread.shutdown(wait=True)
        self.thread = thread = ThreadPoolExecutor(max_workers=1)
        self.actor = (DryActor if self.dry_run else Actor)(
            compute=client,
            writer=Writer(api=self.kube, device_plugin=_PLUGIN),
            gate=Gate(api=self.kube, clock=self.time, monotonic=self.clock),
            clock=self.time,
            lease_seconds=lambda: float("inf"),
            on_answer=self.wake.set,
            executor=thread,
            gate_executor=thread,
            write_executor=thread,
            metrics=self.metrics,
            monotonic=self.clock,
        )
        self.loop = Loop(
            settings=self.settings,
            watches=self.watches,
            cluster=ClusterReader(api=self.kube, clock=self.time, kubernetes_version="1.31"),
            actor=self.actor,
            reporter=Reporter(recorder=self.recorder, metrics=self.metrics, dry_run=self.dry_run),
            metrics=self.metrics,
            is_leader=lambda: self.leading,
            clock=self.time,
            wake=self.wake,
            stopping=self.stopping,
            monotonic=self.clock,
        )
        return self.loop

    def round(self, *, after_seconds: float = 0.0) -> float:
        """Advance the clock, do one round, and wait for its calls; return the seconds until the next round."""
        self.compute.pass_seconds(after_seconds)
        pause = self.loop.round()
        assert self.actor.wait_until_idle(timeout_seconds=_SETTLE_SECONDS)
        return pause

    def run(self, until: Callable[[], bool], *, seconds: float = 600.0) -> None:
        """Do rounds when they are due, and let machines join, until `until` is true; fail after `seconds`."""
        end = self.clock.seconds + seconds
        pause = 0.0
        while not until():
            assert self.clock.seconds < end, self.state()
            pause = self.round(after_seconds=min(max(pause, 0.1), 15.0))
            if self.wake.is_set():
                self.wake.clear()
                pause = 0.1
            self.join()

    # --- State of the cluster and of Compute Engine ---

    def put_group(self) -> None:
        metadata = {"name": GROUP, "namespace": NAMESPACE, "generation": 1}
        self.kube.put_object(self.path(), {"metadata": metadata, "spec": SPEC})

    def path(self, kind: Kind = Kind.TPU_NODE_GROUP, name: str = GROUP) -> str:
        return object_path(kind.plural, name, namespace=NAMESPACE, root=API_ROOT)

    def group(self) -> TpuNodeGroup:
        record = parse(RECORDS[Kind.TPU_NODE_GROUP], self.kube.object(self.path()))
        assert isinstance(record, TpuNodeGroup)
        return record

    def reason(self) -> str:
        """Return the reason of the group's condition Ready; empty if the group does not have this condition."""
        condition = condition_of(self.group().status.conditions, ConditionType.READY)
        return condition.reason if condition is not None else ""

    def is_ready(self) -> bool:
        return self.reason() == "Ready"

    def is_gone(self) -> bool:
        return not any(self.state().values())

    def state(self) -> dict[str, list[str]]:
        collections = {kind.plural: collection_path(kind.plural, root=API_ROOT) for kind in Kind}
        collections |= {"nodes": collection_path("nodes"), "secrets": _SECRETS}
        found = {
            what: [raw["metadata"]["name"] for raw in self.kube.objects(path)] for what, path in collections.items()
        }
        found["machines"] = [machine.name for machine in self.compute.world.machines()]
        found["resources"] = self.resources()
        return found

    def resources(self) -> list[str]:
        base = f"/compute/v1/projects/{PROJECT}"
        paths = {
            "policy": f"{base}/regions/us-east5/resourcePolicies",
            "template": f"{base}/global/instanceTemplates",
            "manager": f"{base}/zones/{ZONE}/instanceGroupManagers",
        }
        return [
            f"{what} {item['name']}" for what, path in paths.items() for item in self.compute.get(path).get("items", [])
        ]

    def join(self) -> None:
        """Register a node for each running machine with a valid token. Nodes of ended machines stop reporting."""
        running = {}
        for machine in self.compute.world.machines():
            if machine.status == "RUNNING":
                running[machine.name] = machine
        known = {raw["metadata"]["name"] for raw in self.kube.objects(collection_path("nodes"))}
        for name in running.keys() - known:
            items = running[name].metadata
            if self._accepts(items.get("kubeadm-join-token", "")):
                labels = dict(label.split("=", 1) for label in items["kube-labels"].split(","))
                self.kube.put_node(
                    name,
                    labels=labels,
                    unschedulable=False,
                    spec={"providerID": f"gce://{PROJECT}/{ZONE}/{name}", "taints": []},
                    metadata={"uid": "", "creationTimestamp": format_time(self.clock.now())},
                )
        for raw in self.kube.objects(collection_path("nodes")):
            if raw["metadata"]["name"] not in running:
                raw["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
                self.kube.put_object(object_path("nodes", raw["metadata"]["name"]), raw)

    def nodes(self) -> list[Json]:
        return sorted(self.kube.objects(collection_path("nodes")), key=lambda raw: str(raw["metadata"]["name"]))

    def writes(self) -> list[str]:
        return [f"{call.method} {call.path}" for call in self.kube.calls if call.method not in ("GET", "WATCH")]

    def changes(self) -> list[str]:
        read = "/listManagedInstances"
        return [f"{method} {path}" for method, path in self.wire.sent if method != "GET" and read not in path]

    def _accepts(self, token: str) -> bool:
        raw = self.kube.object(f"{_SECRETS}/bootstrap-token-{token[:6]}") if token else None
        found = tokens.parse_secret(raw)
        return (
            found is not None
            and found.value == token
            and found.expires_at is not None
            and found.expires_at > self.clock.now()
        )

    def _watches(self) -> Watches:
        def of_kind(kind: Kind) -> FakeWatch[Any]:
            path = collection_path(kind.plural, root=API_ROOT)
            return FakeWatch(lambda: self._read(path, lambda raw: parse(RECORDS[kind], raw)))

        plugins = collection_path("daemonsets", root=APPS_ROOT, namespace="kube-system")
        return Watches(
            groups=of_kind(Kind.TPU_NODE_GROUP),
            policies=of_kind(Kind.WORKLOAD_POLICY),
            templates=of_kind(Kind.INSTANCE_TEMPLATE),
            managers=of_kind(Kind.MANAGED_INSTANCE_GROUP),
            nodes=FakeWatch(
                lambda: {
                    key: node
                    for key, node in self._read(collection_path("nodes"), parse_node).items()
                    if may_be_of_a_group(node)
                }
            ),
            pods=FakeWatch(lambda: self._read(collection_path("pods"), parse_pod)),
            tokens=FakeWatch(lambda: self._read(_SECRETS, tokens.parse_secret)),
            requests=FakeWatch(lambda: self._read(_REQUESTS, tokens.parse_request)),
            device_plugin=FakeWatch(lambda: self._read(plugins, parse_device_plugin)),
        )

    def _read(self, path: str, read: Callable[[Any], Any]) -> dict[tuple[str, str], Any]:
        found = {}
        for raw in self.kube.objects(path):
            record = read(raw)
            if record is not None:
                found[(raw["metadata"].get("namespace", ""), raw["metadata"]["name"])] = record
        return found
