"""Keeps the cluster's Node objects as the model wants them, with a few threads.

Each node is the work of one thread at a time, and the last order counts: a delete that comes while a create is being
retried ends the create. An API server that is away is retried until the order changes. Nodes that somebody else deletes
stay deleted, unless the settings ask for repair.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from rehearsal.simulators.gke.kube import KubeError, KubeNodes
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.nodes import MARKER, POOL_LABEL, node_labels, node_object
from rehearsal.simulators.gke.records import Pool, SimulatedNode

_log = structlog.get_logger(__name__)

_THREADS = 8
_FIRST_BACKOFF_SECONDS = 0.1
_LAST_BACKOFF_SECONDS = 2.0
_REPAIR_LOOK_SECONDS = 1.0


@dataclass(kw_only=True, eq=False)
class _Order:
    """What is wanted of one node; `wanted` None means gone."""

    name: str
    wanted: tuple[Pool, SimulatedNode] | None
    version: int = 0
    registered: bool = False
    busy: bool = False


class Registrar:
    """Carries out the model's orders about nodes."""

    def __init__(self, kube: KubeNodes, world: World) -> None:
        self._kube = kube
        self._world = world
        self._life = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._orders: dict[str, _Order] = {}
        self._queue: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Remove what an earlier life left, and begin to work."""
        self._remove_leftovers()
        targets: list[Callable[[], None]] = [self._work] * _THREADS
        for target in (*targets, self._watch_for_losses):
            thread = threading.Thread(target=target, name="simulator-nodes", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop working; Nodes stay, and the next start removes them."""
        self._stopping.set()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._kube.close()

    def register(self, pool: Pool, node: SimulatedNode) -> None:
        """Take the order to bring a node, or its labels, up to date."""
        self._take(node.name, (pool, node))

    def remove(self, node_name: str) -> None:
        """Take the order to remove a node."""
        self._take(node_name, None)

    def _take(self, name: str, wanted: tuple[Pool, SimulatedNode] | None) -> None:
        with self._lock:
            order = self._orders.setdefault(name, _Order(name=name, wanted=wanted))
            order.wanted = wanted
            order.version += 1
            if not order.busy:
                order.busy = True
                self._queue.put(order)

    def _work(self) -> None:
        while (order := self._queue.get()) is not None:
            self._carry_out(order)

    def _carry_out(self, order: _Order) -> None:
        backoff_seconds = _FIRST_BACKOFF_SECONDS
        while not self._stopping.is_set():
            with self._lock:
                version, wanted = order.version, order.wanted
            try:
                self._reach(order, wanted)
            except KubeError as error:
                # Once an order: an outage makes every node fail over and over.
                if backoff_seconds == _FIRST_BACKOFF_SECONDS:
                    _log.warning("node.write_failed", node=order.name, error=str(error), status=error.status)
                self._stopping.wait(backoff_seconds)
                backoff_seconds = min(backoff_seconds * 2, _LAST_BACKOFF_SECONDS)
                continue
            # Told before the order is closed: a removal that comes meanwhile finds the node known.
            if wanted is not None:
                self._world.node_registered(*wanted)
            with self._lock:
                if order.version == version:
                    order.busy = False
                    if wanted is None:
                        self._orders.pop(order.name, None)
                    return

    def _reach(self, order: _Order, wanted: tuple[Pool, SimulatedNode] | None) -> None:
        if wanted is None:
            self._kube.delete(order.name)
            order.registered = False
            return
        pool, node = wanted
        if order.registered:
            self._kube.patch(order.name, {"metadata": {"labels": self._label_changes(pool, node)}})
            return
        settings = self._world.settings
        made = node_object(pool, node, version=settings.version, life=self._life, ready=settings.ready_nodes)
        try:
            stored = self._kube.create(made)
        except KubeError as error:
            if error.status != 409:
                raise
            stored = {}  # an earlier attempt whose answer was lost
        if stored.get("status", {}).get("capacity") != made["status"]["capacity"]:
            self._kube.patch(order.name, {"status": made["status"]}, subresource="status")
        order.registered = True

    def _label_changes(self, pool: Pool, node: SimulatedNode) -> dict[str, str | None]:
        wanted = node_labels(pool, node)
        dropped = {key: None for key in pool.dropped_labels if key not in wanted}
        return {**wanted, **dropped}

    def _remove_leftovers(self) -> None:
        for node in self._kube.list(label=POOL_LABEL):
            if MARKER in node["metadata"].get("annotations", {}):
                self._kube.delete(node["metadata"]["name"])

    def _watch_for_losses(self) -> None:
        """Look for Nodes that somebody else deleted, as long as the settings ask for their repair."""
        while not self._stopping.wait(_REPAIR_LOOK_SECONDS):
            if self._world.settings.repair_seconds is None:
                continue
            # Taken before the list, so that a node registered meanwhile isn't missed in it.
            expected = self._world.registered_nodes()
            try:
                present = {node["metadata"]["name"] for node in self._kube.list(label=POOL_LABEL)}
            except KubeError as error:
                _log.warning("nodes.list_failed", error=str(error), status=error.status)
                continue
            for pool, node in expected:
                if node.name not in present:
                    self._forget(node.name)
                    self._world.node_vanished(pool, node)

    def _forget(self, name: str) -> None:
        with self._lock:
            order = self._orders.get(name)
            if order is not None:
                order.registered = False
