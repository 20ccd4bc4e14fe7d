"""The simulated Compute Engine, for use in a process: `with ComputeSimulator() as compute: ...`.

The simulator's own API has these calls in addition to those in `http/service.py`:

    GET    /simulator/v1/state                      all resources and operations
    POST   /simulator/v1/instances/NAME:lose        {"loss": LOSS}, one of records.Loss

In the state, the `mark` of a policy, template or group is its description; the `mark` of a managed instance is that of
its group.
"""

from __future__ import annotations

import dataclasses
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rehearsal.simulators.compute import api, errors
from rehearsal.simulators.compute.faults import Fault, Target
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.records import INSTANCES, Group, Loss, MachineView
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.compute.wire import operation_body
from rehearsal.simulators.http.app import LocalSimulator
from rehearsal.simulators.http.exchange import CallLog, Request, Route
from rehearsal.simulators.http.faults import BaseFault
from rehearsal.simulators.http.service import BaseService
from rehearsal.simulators.http.world import Clock

if TYPE_CHECKING:
    from rehearsal.simulators.compute.guests.crew import Crew


class ComputeSimulator(LocalSimulator[World, ComputeSettings]):
    """A Compute Engine on a local port; use it as a context manager, or call `start` and `stop`."""

    _crew: Crew | None = None

    def _make_world(self, settings: ComputeSettings | None, clock: Clock, rng: random.Random | None) -> World:
        return World(settings or ComputeSettings(), clock=clock, rng=rng)

    def start(self) -> None:
        """Open the port and serve; VMs join clusters if the settings say so. Raises OSError if the port is in use."""
        self._listen(lambda _address: ComputeService(self.world, self._calls))
        if self.settings.machines_join:
            # Import only if needed: the certificate library takes 0.1 s.
            from rehearsal.simulators.compute.guests.crew import Crew  # noqa: PLC0415

            self._crew = Crew(settings=lambda: self.settings, clock=self._clock)
            self.world.attach(self._crew)
            self._crew.start()
        self._run()

    def stop(self) -> None:
        """Close the port and end all threads. Nodes of VMs remain in their clusters."""
        super().stop()
        if self._crew is not None:
            self._crew.stop()

    @property
    def machines(self) -> tuple[MachineView, ...]:
        """Snapshots of all VMs."""
        return self.world.machines()

    def lose(self, name: str, loss: Loss) -> bool:
        """Take away the VMs with a name; return False if no VM could be taken away."""
        return self.world.lose(name, loss)


def serve(settings: ComputeSettings, *, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM; return 1 if the port cannot be used."""
    simulator = ComputeSimulator(settings, host=host, port=port)
    return simulator.serve(
        "Compute Engine simulator", lambda url: f"set GCE_ENDPOINT={url} for the controller of node groups"
    )


_LOSE = re.compile(r"instances/([^/:]+):lose")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A resource or a VM. `state` is "ready" or "busy"; for a VM, its status, or "waiting" before it exists."""

    collection: str
    path: str
    mark: str
    state: str


def inventory(world: World) -> tuple[Item, ...]:
    """Return all resources and VMs."""
    with world.moment():
        items = []
        for resource in world.resources():
            state = "ready" if resource.is_ready else "busy"
            items.append(Item(collection=resource.collection, path=resource.path, mark=resource.mark, state=state))
            if isinstance(resource, Group):
                items += _instances(resource)
        return tuple(items)


def _instances(group: Group) -> list[Item]:
    return [
        Item(
            collection=INSTANCES,
            path=group.scope.resource(INSTANCES, member.name),
            mark=group.mark,
            state=member.machine.status.value if member.machine is not None else "waiting",
        )
        for member in group.members
    ]


class ComputeService(BaseService[World]):
    """Serves the API of a simulated Compute Engine."""

    fault_type = Fault

    def __init__(self, world: World, calls: CallLog) -> None:
        super().__init__(world, calls)
        self._api = api.Api(world)

    def route(self, http_method: str, path: str) -> Route:
        """Return the call that a request makes. Raises ApiError if the call does not exist."""
        return api.route(http_method, path)

    def handle(self, found: Route, request: Request) -> dict[str, Any]:
        """Return the body of the response."""
        return self._api.handle(found, request)

    def broken(self, fault: BaseFault) -> errors.ApiError:
        """Return the error that a fault causes."""
        return errors.of_http_code(fault.code, fault.message or "Backend Error")

    def target_of(self, found: Route, request: Request) -> Target:
        """Return the attributes of a call that faults can match."""
        sent = request.body if isinstance(request.body, dict) else {}
        name = found.parts.get("name") or sent.get("name")
        return Target(method=found.method, name=name, location=api.scope_of(found).location)

    def refusal(self, code: int, message: str) -> errors.ApiError:
        """Return an error with an HTTP status."""
        return errors.of_http_code(code, message)

    def act(self, http_method: str, path: str, body: object) -> dict[str, Any] | None:
        """Handle the calls of this simulator's own API; None if the call is unknown."""
        lose = _LOSE.fullmatch(path)
        if lose is not None and http_method == "POST":
            return self._lose(lose[1], self.object_of(body))
        return self._state() if (http_method, path) == ("GET", "state") else None

    def _state(self) -> dict[str, Any]:
        with self._world.moment():
            return {
                "resources": [dataclasses.asdict(item) for item in inventory(self._world)],
                "operations": [operation_body(item) for item in self._world.all_operations()],
            }

    def _lose(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        known = [loss.value for loss in Loss]
        if body.get("loss") not in known:
            raise self.refusal(400, f"loss: {body.get('loss')!r} is not one of {', '.join(known)}")
        if not self._world.lose(name, Loss(body["loss"])):
            raise self.refusal(404, f"no VM {name!r} that could go; GET /simulator/v1/state lists all")
        return {}
