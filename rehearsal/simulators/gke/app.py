"""The simulated GKE, for use in a process (`with Simulator() as gke: ...`) and as a command.

The state is in memory: after a restart there are no pools, and Node objects of earlier processes are deleted from the
cluster of the kubeconfig. The simulator's own API has these calls in addition to those in `http/service.py`:

    GET    /simulator/v1/state                      pools, nodes and operations
    POST   /simulator/v1/pools/NAME:preempt         {"hosts": N}; without it, all hosts
    POST   /simulator/v1/pools/NAME:setStatus       {"status": S, "message": M}
"""

from __future__ import annotations

import base64
import dataclasses
import random
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provisioner.kube.api import KubeApi, connect
from provisioner.kube.errors import ClusterError
from rehearsal.simulators.gke import api, names, schema
from rehearsal.simulators.gke.api import Api
from rehearsal.simulators.gke.capacity import capacity_of, reservation_names, reservation_of
from rehearsal.simulators.gke.errors import ApiError, of_http_code
from rehearsal.simulators.gke.faults import Fault, Target
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.records import PoolStatus, PoolView
from rehearsal.simulators.gke.registrar import Registrar
from rehearsal.simulators.gke.settings import SimulatorSettings
from rehearsal.simulators.gke.wire import operation_body
from rehearsal.simulators.http.app import LocalSimulator
from rehearsal.simulators.http.exchange import CallLog, Request, Route
from rehearsal.simulators.http.faults import BaseFault
from rehearsal.simulators.http.server import Server
from rehearsal.simulators.http.service import BaseService
from rehearsal.simulators.http.world import Clock


class Simulator(LocalSimulator[World, SimulatorSettings]):
    """A GKE on a local port; use it as a context manager, or call `start` and `stop`."""

    _registrar: Registrar | None = None

    def __init__(
        self, settings: SimulatorSettings | None = None, *, kubeconfig: Path | str | None = None, **options: Any
    ) -> None:
        super().__init__(settings, **options)
        self._kubeconfig = Path(kubeconfig) if kubeconfig is not None else None

    def _make_world(self, settings: SimulatorSettings | None, clock: Clock, rng: random.Random | None) -> World:
        return World(settings or SimulatorSettings(), clock=clock, rng=rng)

    def start(self) -> None:
        """Open the port and serve, and manage the simulated Nodes of the cluster.

        Raises OSError if the port is in use, and ClusterError if the kubeconfig or its cluster cannot be used.
        """
        cluster = connect(str(self._kubeconfig)) if self._kubeconfig is not None else None
        certificate = base64.b64encode((cluster.ca_pem or b"") if cluster else b"").decode()
        endpoint = urlsplit(cluster.server).netloc if cluster else ""
        server = self._listen(
            lambda address: GkeService(
                self.world,
                self._calls,
                Api(self.world, ca_certificate=certificate, endpoint=endpoint or address),
            )
        )
        # Manage Nodes only after the port is open: a simulator that already has the port manages the same Nodes.
        if cluster is not None:
            self._take_charge(cluster, server)
        self._run()

    def _take_charge(self, cluster: KubeApi, server: Server) -> None:
        registrar = Registrar(cluster, self.world)
        try:
            registrar.start()
        except ClusterError:
            server.server_close()
            self._server = None
            cluster.close()
            raise
        self._registrar = registrar
        self.world.attach(registrar)

    def stop(self) -> None:
        """Close the port and end all threads. Nodes remain in the cluster."""
        super().stop()
        if self._registrar is not None:
            self._registrar.stop()

    @property
    def pools(self) -> tuple[PoolView, ...]:
        """Snapshots of all pools."""
        return self.world.views()

    def pool(self, name: str) -> PoolView | None:
        """Return a snapshot of the first pool with a name; None if there is no such pool."""
        return next((view for view in self.pools if view.name == name), None)

    def preempt(self, pool: str, *, hosts: int | None = None) -> tuple[str, ...]:
        """Take the first `hosts` nodes, by default all, from a pool; return the names of the nodes."""
        return self.world.preempt(pool, hosts=hosts)


def serve(settings: SimulatorSettings, *, kubeconfig: Path | None, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM; return 1 if the port or the cluster cannot be used."""
    try:
        return Simulator(settings, kubeconfig=kubeconfig, host=host, port=port).serve("GKE simulator", _use)
    except ClusterError as error:
        sys.stderr.write(f"GKE simulator: can't use the cluster of {kubeconfig}: {error}\n")
        return 1


def _use(url: str) -> str:
    return f"set GKE_ENDPOINT={url} for the provisioner, or CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER={url}/ for gcloud"


_POOL_ACTION = re.compile(r"pools/([^/:]+):(preempt|setStatus)")


class GkeService(BaseService[World]):
    """Serves the API of a simulated GKE."""

    fault_type = Fault

    def __init__(self, world: World, calls: CallLog, own_api: api.Api) -> None:
        super().__init__(world, calls)
        self._api = own_api

    def route(self, http_method: str, path: str) -> Route:
        """Return the call that a request makes. Raises ApiError if the call does not exist."""
        return api.route(http_method, path)

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the response."""
        return self._api.handle(found, request)

    def broken(self, fault: BaseFault) -> ApiError:
        """Return the error that a fault causes."""
        told = fault.status if isinstance(fault, Fault) and fault.status != "INTERNAL" else None
        return of_http_code(fault.code, fault.message or "The service is currently unavailable.", status=told)

    def target_of(self, found: Route, request: Request) -> Target:
        """Return the call and, if known, the attributes of its pool, for faults to match."""
        if found.method == "nodePools.create":
            return self._target_of_create(found, request)
        name = found.parts.get("pool")
        pool = self._world.peek(api.cluster_of(found), name) if name else None
        if pool is None:
            return Target(method=found.method, pool=name)
        return dataclasses.replace(pool.target, method=found.method)

    def _target_of_create(self, found: Route, request: Request) -> Target:
        try:
            sent = schema.read(schema.message("CreateNodePoolRequest", found.parts["version"]), request.body)[
                "nodePool"
            ]
        except (ApiError, KeyError):
            return Target(method=found.method)
        return Target(
            method=found.method,
            pool=sent.get("name"),
            zone=sent.get("locations") or names.zones_of(found.parts["location"]),
            machine_type=sent.get("config", {}).get("machineType"),
            topology=self._world.asked_topology(api.cluster_of(found), sent),
            capacity=capacity_of(sent),
            reservation=reservation_names(reservation_of(sent)),
        )

    def refusal(self, code: int, message: str) -> ApiError:
        """Return an error with an HTTP status."""
        return of_http_code(code, message)

    def act(self, http_method: str, path: str, body: object) -> dict[str, Any] | None:
        """Handle the calls of this simulator's own API; None if the call is unknown."""
        action = _POOL_ACTION.fullmatch(path)
        if action is not None and http_method == "POST":
            return self._act(action[1], action[2], self.object_of(body))
        return self._state() if (http_method, path) == ("GET", "state") else None

    def _state(self) -> dict[str, Any]:
        with self._world.moment():
            return {
                "pools": [_view_json(view) for view in self._world.views()],
                "operations": [operation_body(item) for item in self._world.all_operations()],
            }

    def _act(self, pool: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
        if action == "preempt":
            hosts = body.get("hosts")
            if hosts is not None and (isinstance(hosts, bool) or not isinstance(hosts, int) or hosts < 0):
                raise self.refusal(400, f"hosts: {hosts!r} is not a number from 0")
            return {"nodes": list(self._world.preempt(pool, hosts=hosts))}
        status, message = body.get("status"), body.get("message", "")
        known = [item.value for item in PoolStatus]
        if status not in known:
            raise self.refusal(400, f"status: {status!r} is not one of {', '.join(known)}")
        if not isinstance(message, str):
            raise self.refusal(400, f"message: {message!r} is not a text")
        self._world.set_status(pool, PoolStatus(status), message=message)
        return {}


def _view_json(view: PoolView) -> dict[str, Any]:
    raw = dataclasses.asdict(view)
    return {**raw, "cluster": view.cluster.path, "created": names.timestamp(view.created)}
