"""Simulated GKE on virtual time, its nodes in the simulated Kubernetes, and the connection of a process to GKE.

The connection is an adapter under the HTTP session of the real client, so only the client's sockets are replaced.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import requests

from provisioner.kube.fields import format_time
from provisioner.kube.protocol import object_path
from rehearsal.simulators.gke import api, errors
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.records import NodeState, Pool, PoolStatus, SimulatedNode
from rehearsal.simulators.gke.registrar import node_labels, node_object
from rehearsal.simulators.gke.settings import SimulatorSettings
from rehearsal.simulators.http.exchange import Request
from tests.simulation.store import Stage
from tests.support.selectors import merged

if TYPE_CHECKING:
    from tests.simulation.calls import Calls, Trouble
    from tests.simulation.checks import Checker
    from tests.simulation.process import Process

CLUSTER = ClusterName("project-1", "us-central2", "test")
ZONE = "us-central2-b"
CA_PEM = b"-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
#: Minimum and maximum seconds from the registration of a node until its device plugin reports chips. With a minimum of
#: less than 12 s, pods could run on a node that registers between the gate's check and the effect of the delete.
_DEVICES_SECONDS = (13.0, 25.0)
#: Seconds from the start of a run until operations are limited, so that the creates of foreign pools are accepted.
_OTHERS_READY_SECONDS = 5.0
FOREIGN_POOLS = ("default-pool", "their-tpus")


class Cloud:
    """Simulated GKE, which registers its nodes in the simulated Kubernetes."""

    def __init__(self, stage: Stage, settings: SimulatorSettings, *, quota: int | None) -> None:
        self.stage = stage
        self.world = World(settings, clock=stage.agenda.wall, rng=stage.rng)
        self.api = api.Api(self.world, ca_certificate=base64.b64encode(CA_PEM).decode(), endpoint="kubernetes.test")
        self.on_repaired: Callable[[], None] = lambda: None
        self.world.attach(self)
        #: Called with the labels that the nodes of a pool will have; returns whether pods wait for such a node.
        self.on_looking_for_pods: Callable[[Mapping[str, str]], bool] = lambda _labels: True
        self.world._life.is_waited_for = self._is_waited_for
        stage.drive(self.world)
        for body in _foreign_pools():
            self.world.create_pool(CLUSTER, body)
        stage.agenda.after(_OTHERS_READY_SECONDS, lambda: self.limit_operations(quota))

    def limit_operations(self, quota: int | None) -> None:
        self.world.change_settings({"operations_quota": quota})

    @property
    def pools(self) -> dict[str, Pool]:
        return self.world.cluster(CLUSTER).pools

    def _is_waited_for(self, pool: Pool) -> bool:
        template = SimulatedNode(name="template", zone=pool.plan.zones[0], chips=pool.plan.machine.chips)
        return self.on_looking_for_pods(node_labels(pool, template))

    def register(self, pool: Pool, node: SimulatedNode) -> None:
        """Boot a VM, which registers, becomes ready and reports its chips after random delays."""
        rng, agenda = self.stage.rng, self.stage.agenda
        path = object_path("nodes", node.name)

        def appear() -> None:
            if not node.is_wanted or self.stage.store.find(path) is not None:
                return
            body = node_object(pool, node, version="1.34", life="sim", ready=False)
            body["metadata"]["creationTimestamp"] = format_time(agenda.wall())
            without = {key: text for key, text in body["status"]["allocatable"].items() if key != "google.com/tpu"}
            allocatable, body["status"] = body["status"]["allocatable"], {"allocatable": without}
            self.stage.note("kubelet", "registers %s of %s", node.name, pool.name)
            self.stage.store.put(path, body)
            agenda.after(rng.uniform(*_DEVICES_SECONDS), lambda: self.set_status(node.name, allocatable=allocatable))
            agenda.after(rng.uniform(0.1, 15.0), lambda: self.set_status(node.name, ready=True))
            self.world.node_registered(pool, node)

        agenda.after(rng.uniform(0.05, 2.0), appear)

    def remove(self, node_name: str) -> None:
        path = object_path("nodes", node_name)
        self.stage.agenda.after(self.stage.rng.uniform(0.05, 3.0), lambda: self.stage.store.remove(path))

    def set_status(
        self, node_name: str, *, ready: bool | None = None, allocatable: dict[str, str] | None = None
    ) -> None:
        path = object_path("nodes", node_name)
        raw = self.stage.store.find(path)
        if raw is None:
            return
        status: dict[str, Any] = {}
        if ready is not None:
            status["conditions"] = [{"type": "Ready", "status": "True" if ready else "False"}]
        if allocatable is not None:
            status["allocatable"] = allocatable
        self.stage.store.put(path, merged(raw, {"status": status}))

    def repair_hosts(self, pool_name: str, *, seconds: float) -> None:
        usual = self.world.settings.repair_seconds
        self.world.change_settings({"repair_seconds": seconds})
        self.world.preempt(pool_name)
        self.world.change_settings({"repair_seconds": usual})

    def repair(self) -> None:
        """Repair the permanent damage of faults, as GKE's auto-repair and administrators would."""
        self.world.faults.clear()
        self.world.release()
        self.on_repaired()
        for pool in self.pools.values():
            for node in pool.nodes:
                chips = pool.plan.machine.chips
                if node.chips < chips:
                    node.chips = chips
                    self.set_status(node.name, allocatable={"google.com/tpu": str(chips)})
                # Nodes that a failed delete removed are restored, also if the pool is RUNNING after another fault.
                # Otherwise a slice whose leader is on another node of the pool would wait for nearly
                # `SETTLED_WITHIN_SECONDS`.
                kept = pool.status in (PoolStatus.RUNNING, PoolStatus.RUNNING_WITH_ERROR)
                given_up = node.state is NodeState.REMOVED and kept
                if node.state is NodeState.NEVER or given_up:
                    self.world._life.lose(pool, node, self.stage.agenda.wall())
            if pool.status is PoolStatus.RUNNING_WITH_ERROR and pool.nodes:
                self.world.set_status(pool.name, PoolStatus.RUNNING)


class Wire(requests.adapters.BaseAdapter):
    """Connection of one process to the simulated GKE."""

    def __init__(self, cloud: Cloud, process: Process, calls: Calls, checker: Checker) -> None:
        super().__init__()
        self._cloud = cloud
        self._process = process
        self._calls = calls
        self._checker = checker

    def send(  # type: ignore[override]
        self, request: requests.PreparedRequest, *, timeout: tuple[float, float], **_options: object
    ) -> requests.Response:
        """Transmit one request and its response. Both take time, and may get lost."""
        process, agenda = self._process, self._process.stage.agenda
        address = urlsplit(str(request.url))
        found = api.route(str(request.method), address.path)
        limit = agenda.now + timeout[1]
        changes = request.method != "GET"
        self._checker.saw_call(process, found.method, found.parts.get("pool"))
        fault = self._calls.gke_fault(process, found.method)
        process.travel(fault.delay_seconds if fault is not None else 0.0, may_pause=not changes)
        if agenda.now > limit:
            # A request that is in transit for longer than the time-out has no effect.
            raise requests.ReadTimeout("the time is up")
        body = json.loads(request.body) if request.body else None
        creates = body if found.method == "nodePools.create" else None
        if creates is not None:
            fault = self._refusal(creates, fault) or fault
        if fault is not None and fault.code is not None and fault.before_effect:
            return _struck(fault.code, fault.text, request)
        try:
            if changes:
                self._checker.before_change(process, found.method, found.parts.get("pool"), body)
            answer = self._cloud.api.handle(
                found,
                Request(
                    http_method=str(request.method),
                    path=address.path,
                    query=dict(parse_qsl(address.query)),
                    headers={key.lower(): str(value) for key, value in request.headers.items()},
                    body=body,
                ),
            )
            code, text = 200, json.dumps(answer)
            if changes:
                self._checker.after_change(process, found.method, found.parts.get("pool"), body)
        except errors.ApiError as error:
            code, text = error.code, json.dumps(error.body(request_id="0x1"))
            if creates is not None:
                self._checker.stock.create_failed(creates, of_capacity=False)
            if creates is not None and "Too many operations" in str(error):
                self._checker.fairness.create_not_taken(self._process, creates["nodePool"])
            if creates is not None and not self._excuses_nobody(creates, error):
                self._checker.waiting.create_failed(creates, of_capacity=True)
            if changes:
                process.note("%s %s is refused: %s", found.method, found.parts.get("pool", ""), error)
        process.travel(self._checker.simulation.hostile.call_seconds(creates) if creates is not None else 0.0)
        if fault is not None and fault.code is not None:
            return _struck(fault.code, fault.text, request)
        if agenda.now > limit:
            raise requests.ReadTimeout("no answer in time")
        return _response(code, text, request)

    def _excuses_nobody(self, creates: dict[str, Any], error: errors.ApiError) -> bool:
        """Whether an error response to a create is no excuse for a slice that waits for too long."""
        simulation = self._checker.simulation
        turns = simulation.hostile.present and "Too many operations" in str(error)
        return turns or simulation.environment.concerns(creates)

    def _refusal(self, creates: dict[str, Any], fault: Trouble | None) -> Trouble | None:
        """Return the rejection of a create by a cause outside calls.py, None if no cause applies; record the create."""
        simulation, waiting = self._checker.simulation, self._checker.waiting
        waiting.create_sent(creates)
        lasting = (
            simulation.singled.answer(creates)
            or simulation.market.answer(creates)
            or simulation.hostile.answer(creates["nodePool"])
        )
        bad = lasting or fault
        if bad is None or "Too many operations" not in bad.text:
            self._checker.fairness.create_sent(self._process, creates["nodePool"])
        if bad is not None:
            out_of_stock = lasting is not None and lasting.of_capacity
            self._checker.stock.create_failed(creates, of_capacity=out_of_stock)
            waiting.create_failed(creates, of_capacity=out_of_stock)
        return lasting or simulation.environment.answer(creates)

    def close(self) -> None:
        """Do nothing."""


def _struck(code: int, text: str, request: requests.PreparedRequest) -> requests.Response:
    if code == 0:
        raise requests.ConnectionError("the connection broke")
    return _response(code, text, request)


def _response(code: int, text: str, request: requests.PreparedRequest) -> requests.Response:
    response = requests.Response()
    response.status_code = code
    response._content = text.encode()
    response.headers["Content-Type"] = "application/json"
    response.url = str(request.url)
    response.request = request
    return response


def _foreign_pools() -> list[dict[str, Any]]:
    """Return foreign pools, one of them with TPUs and the provisioner's manager label, but without a JobSet's name."""
    return [
        {"name": FOREIGN_POOLS[0], "initialNodeCount": 1, "locations": [ZONE], "config": {"machineType": "e2-medium"}},
        {
            "name": FOREIGN_POOLS[1],
            "initialNodeCount": 1,
            "locations": [ZONE],
            "config": {
                "machineType": "ct5lp-hightpu-1t",
                "diskType": "pd-balanced",
                "labels": {"google.com/nodepool-manager": "tpu-provisioner"},
            },
        },
    ]
