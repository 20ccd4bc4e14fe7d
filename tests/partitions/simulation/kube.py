"""An API server with pods and a ledger, its watch caches, a scheduler and kubelets, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from provisioner.model.writes import WriteFailure
from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.actions import OpenGate, SaveLedger, TakeBack
from provisioner.partitions.planning.ledger import Ledger, encode, ledger_of
from tests.support.simulations.stage import Stage, seconds_of

#: Interval in seconds between two requests of an init container.
_ASK_SECONDS = 5.0
CLUSTER = "5f0a3a52-0000-4000-8000-000000000001"


class Declined(Exception):  # noqa: N818 - an answer, not a failure
    """Rejection of a write by the API server."""

    def __init__(self, failure: WriteFailure) -> None:
        super().__init__(failure.value)
        self.failure = failure


@dataclass
class Cache:
    """Watch cache of one process: the unfinished pods, with a delay."""

    pods: dict[str, Pod]
    on_change: Callable[[], None]
    #: Whether the connection is lost, which the process does not notice.
    frozen: bool = False


class Kube:
    """Simulated API server, watch caches, scheduler and kubelets."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.pods: dict[str, Pod] = {}
        #: Run time of pods in seconds, by UID.
        self.runs: dict[str, float] = {}
        #: UIDs of pods for which there is no node.
        self.homeless: set[str] = set()
        #: UIDs of pods for which `make_room` added a node.
        self.late: set[str] = set()
        self.data: dict[str, str] | None = None
        self._version = 1
        self._ledger_version = ""
        self.caches: list[Cache] = []
        self.lag_seconds = 0.05
        #: Time from which a pod does not need its partition, by UID.
        self.ended: dict[str, float] = {}
        self.on_open: Callable[[Pod, OpenGate], None] = lambda _pod, _gate: None
        self.on_take_back: Callable[[Pod], None] = lambda _pod: None
        self.on_start: Callable[[Pod], None] = lambda _pod: None
        #: Returns whether the REST API answers the init container of a pod that the partition is active.
        self.is_served: Callable[[Pod], bool] = lambda _pod: True
        self.on_save: Callable[[Ledger], None] = lambda _ledger: None
        self._count = 0

    def create(self, *, size: int, seconds: float, **fields: Any) -> Pod:
        """Create a pod that runs for `seconds` after it has started."""
        self._count += 1
        now = self.stage.wall().replace(microsecond=0)
        defaults: dict[str, Any] = {"namespace": "team", "name": f"p{self._count}", "injected": True, "gated": True}
        pod = Pod(uid=f"uid-{self._count}", resource_version="", created_at=now, size=size, **{**defaults, **fields})
        self.runs[pod.uid] = seconds
        self.stage.note(
            "user", "creates %s: %s IPUs, %.0f s, deadline %s", pod.name, size, seconds, pod.active_deadline_seconds
        )
        return self._put(pod)

    def change(self, uid: str, **fields: Any) -> Pod | None:
        pod = self.pods.get(uid)
        return self._put(replace(pod, **fields)) if pod is not None else None

    def delete(self, uid: str, *, grace_seconds: float, dead_seconds: float = 0.0) -> None:
        """Delete a pod. If its node is dead, the pod exists for `dead_seconds` after its grace period."""
        pod = self.pods.get(uid)
        if pod is None or pod.deletion_deadline is not None:
            return
        self.stage.note("user", "deletes %s", pod.name)
        if not pod.node:
            self._drop(uid)
            return
        deadline = self.stage.wall() + timedelta(seconds=grace_seconds)
        self.change(uid, deletion_deadline=deadline, deletion_grace_seconds=grace_seconds)
        self.stage.after(
            grace_seconds * self.stage.rng.random() if not dead_seconds else grace_seconds + dead_seconds,
            lambda: self._drop(uid),
        )

    def finish(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is not None and not pod.finished:
            self.stage.note("kubelet", "%s has ended", pod.name)
            self.change(uid, finished=True, gated=False)
            self.stage.after(self.stage.rng.uniform(30.0, 200.0), lambda: self._drop(uid))

    def needs(self, pod: Pod, *, past_grace_seconds: float = 30.0) -> bool:
        if pod.finished or pod.released:
            return False
        deadline = pod.deletion_deadline
        return deadline is None or self.stage.wall() < deadline + timedelta(seconds=past_grace_seconds)

    def by_partition(self, partition_id: str) -> Pod | None:
        owner = names.owner_of(partition_id)
        return next((pod for uid, pod in self.pods.items() if names.owner_id(CLUSTER, uid) == owner), None)

    def _put(self, pod: Pod) -> Pod:
        self._version += 1
        pod = replace(pod, resource_version=str(self._version))
        before = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        if (pod.finished or pod.released) and not (before and (before.finished or before.released)):
            self.ended[pod.uid] = self.stage.agenda.now
        if pod.deletion_deadline is not None and pod.uid not in self.ended:
            self.ended[pod.uid] = seconds_of(pod.deletion_deadline)
        self._tell(pod.uid, None if pod.finished else pod)
        if not pod.gated and not pod.held_by_others and (before is None or before.gated or before.held_by_others):
            self.stage.after(self.stage.rng.uniform(0.1, 3.0), lambda: self._schedule(pod.uid))
        return pod

    def _drop(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self.ended[uid] = min(self.ended.get(uid, self.stage.agenda.now), self.stage.agenda.now)
            self._tell(uid, None)

    def _tell(self, uid: str, pod: Pod | None) -> None:
        for cache in self.caches:
            self.stage.after(self.lag_seconds, lambda cache=cache: self._reach(cache, uid, pod))

    def _reach(self, cache: Cache, uid: str, pod: Pod | None) -> None:
        if cache.frozen or cache not in self.caches:
            return
        if pod is None:
            cache.pods.pop(uid, None)
        else:
            cache.pods[uid] = pod
        cache.on_change()

    def watch(self, on_change: Callable[[], None]) -> Cache:
        cache = Cache(pods={uid: pod for uid, pod in self.pods.items() if not pod.finished}, on_change=on_change)
        self.caches.append(cache)
        return cache

    def _schedule(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.node or pod.finished or uid in self.homeless:
            return
        self.change(uid, node="node-1")
        self.stage.after(self.stage.rng.uniform(0.5, 5.0), lambda: self._start(uid))

    def make_room(self, uid: str) -> None:
        self.homeless.discard(uid)
        self.late.add(uid)
        pod = self.pods.get(uid)
        if pod is not None and not pod.gated and not pod.held_by_others:
            self._schedule(uid)

    def _start(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.finished or pod.deletion_deadline is not None:
            return
        started = self.change(uid, started_at=self.stage.wall())
        if started is not None:
            self.on_start(started)
        if pod.active_deadline_seconds is not None:
            self.stage.after(pod.active_deadline_seconds, lambda: self.finish(uid))
        self._begin(uid)

    def _begin(self, uid: str) -> None:
        """Run the init container of a pod, which polls until the partition is active."""
        pod = self.pods.get(uid)
        if pod is None or pod.finished or pod.deletion_deadline is not None:
            return
        if not self.is_served(pod):
            self.stage.after(_ASK_SECONDS, lambda: self._begin(uid))
            return
        self.change(uid, begun=True)
        self.stage.after(self.runs[uid], lambda: self.finish(uid))

    def read_ledger(self) -> Ledger:
        if self.data is None:
            return Ledger()
        return ledger_of(dict(self.data), resource_version=self._ledger_version)

    def save(self, write: SaveLedger) -> Ledger:
        if write.before.resource_version != self._ledger_version:
            raise Declined(WriteFailure.CONFLICT)
        old, new = encode(write.before.entries), encode(write.entries)
        data = dict(self.data or {})
        for key in old.keys() - new.keys():
            data.pop(key, None)
        data |= {key: text for key, text in new.items() if old.get(key) != text}
        self.write_ledger(data)
        saved = self.read_ledger()
        self.on_save(saved)
        return saved

    def write_ledger(self, data: dict[str, str] | None) -> None:
        """Replace the data of the ConfigMap, as a user may; None deletes the ConfigMap."""
        self._version += 1
        self.data = data
        self._ledger_version = str(self._version) if data is not None else ""

    def open_gate(self, gate: OpenGate) -> None:
        """Remove a pod's gate. Raises Declined if the pod has changed."""
        pod = self.pods.get(gate.pod.uid)
        if pod is None or pod.resource_version != gate.pod.resource_version:
            raise Declined(WriteFailure.CONFLICT)
        if pod.servers is not None and gate.server.address not in pod.servers:
            # The selector of the pod excludes the server, and the API server does not let a write replace the selector.
            raise Declined(WriteFailure.CONFLICT)
        self.on_open(pod, gate)
        self.change(pod.uid, gated=False, server_annotation=gate.server.address, partition_annotation=gate.partition_id)

    def take_back(self, write: TakeBack) -> None:
        """Release a pod, which its user deletes within 200 s."""
        pod = self.pods.get(write.pod.uid)
        if pod is None or pod.resource_version != write.pod.resource_version:
            raise Declined(WriteFailure.CONFLICT)
        self.on_take_back(pod)
        self.change(pod.uid, released=True)
        self.stage.after(self.stage.rng.uniform(1.0, 200.0), lambda: self.delete(pod.uid, grace_seconds=1.0))
