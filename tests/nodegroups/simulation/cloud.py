"""The simulated Compute Engine in virtual time, used through the real client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from provisioner.model.capacity import FailureKind
from provisioner.nodegroups import act
from provisioner.nodegroups.api.specs import WorkloadPolicySpec
from provisioner.nodegroups.api.types import Kind, WorkloadPolicy
from provisioner.nodegroups.compute import records
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.compute.records import ComputeError
from provisioner.nodegroups.planning.actions import Call, Delete, ListMachines, Result, Target
from rehearsal.simulators.compute.api import Api
from rehearsal.simulators.compute.faults import Fault, FaultKind
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.records import Action, Group, Loss, MachineView, Member, Resource
from rehearsal.simulators.compute.settings import ComputeSettings
from tests.support.compute import Wire
from tests.support.nodegroup_world import meta
from tests.support.simulations.stage import Stage

ZONE = "us-central1-b"
_ADDRESS = "http://compute.test"
_METHODS = {
    Kind.WORKLOAD_POLICY: "resourcePolicies",
    Kind.INSTANCE_TEMPLATE: "instanceTemplates",
    Kind.MANAGED_INSTANCE_GROUP: "instanceGroupManagers",
}


class Cloud:
    """The simulated Compute Engine, which calls `on_running` and `on_stopped` for its machines."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        rng = stage.rng
        settings = ComputeSettings(
            project="project-1",
            operation_seconds=rng.choice((0.5, 5.0, 20.0)),
            pending_seconds=rng.choice((0.0, 2.0)),
            provisioning_seconds=rng.choice((2.0, 20.0)),
            staging_seconds=rng.choice((3.0, 20.0)),
            machine_jitter_seconds=rng.choice((0.0, 20.0)),
            operations_kept_seconds=rng.choice((1.0, 86_400.0)),
            visible_while_inserted=stage.chance(0.5),
            retry_seconds=30.0,
            request_id_seconds=86_400.0,
        )
        self.world = World(settings, clock=stage.wall, rng=rng)
        self.api = Api(self.world)
        self.client = ComputeClient(endpoint=_ADDRESS)
        self.client._session = Wire(self.api)  # type: ignore[assignment]
        #: Last seen state of each machine, by name. A deleted machine has an empty status.
        self._seen: dict[str, MachineView] = {}
        self._failing: dict[Kind, Fault] = {}
        self._foreign = 0
        self.partial_chance = 0.0
        self.on_running: Callable[[MachineView], None] = lambda _machine: None
        self.on_stopped: Callable[[MachineView], None] = lambda _machine: None
        #: Called with a resource before the controller deletes it.
        self.on_delete: Callable[[Resource], None] = lambda _resource: None
        self.world.attach(self)
        stage.drive(self.world)

    def call(self, call: Call) -> Result:
        if isinstance(call, Delete):
            self._tell_of_delete(call.target)
        result = act._exchange(self.client, call)[1]()
        if isinstance(call, ListMachines) and self.stage.chance(self.partial_chance):
            self.stage.fault("partial list", call.target.name)
            return tuple(listed for listed in result if self.stage.chance(0.5))
        return result

    def resources(self) -> list[Resource]:
        return list(self.world.resources())

    def machines(self) -> list[MachineView]:
        return list(self.world.machines())

    def machine(self, name: str) -> MachineView | None:
        found = self._seen.get(name)
        return found if found is not None and found.status else None

    def limit(self, free: int | None) -> None:
        room = {} if free is None else {f"{ZONE}/ct6e-standard-4t": len(self.machines()) + free}
        self.world.change_settings({"capacity": room})

    def fail(self, kind: Kind, code: str, message: str, *, name: str | None = None) -> None:
        """Make creates of resources of a kind fail; with `name`, only creates of names that match this pattern."""
        self.mend(kind)
        method = f"{_METHODS[kind]}.insert"
        fault = Fault(kind=FaultKind.OPERATION_ERROR, method=method, name=name, error_code=code, message=message)
        self._failing[kind] = self.world.faults.add(fault)

    def mend(self, kind: Kind) -> None:
        fault = self._failing.pop(kind, None)
        if fault is not None:
            self.world.faults.remove(fault.fault_id)
            self.world.release()

    def lose(self, machine: MachineView, loss: Loss) -> None:
        self.stage.fault(loss.value, machine.name)
        self.world.lose(machine.name, loss)

    def groups(self) -> list[Group]:
        """List the managed instance groups that exist and are not being deleted."""
        found = (resource for resource in self.resources() if isinstance(resource, Group))
        return [group for group in found if group.is_ready and group.deleting is None]

    def resize(self, group: Group, size: int, member: Member | None = None) -> None:
        """Resize a managed instance group, as a user may. A reduced group loses `member` first."""
        self.stage.fault("resized", f"{group.name} from {group.size} to {size}")
        with self.world.moment() as now:
            group.size = size
            group.body["targetSize"] = size
            staying = [candidate for candidate in group.members if candidate.action is not Action.DELETING]
            first = sorted(staying, key=lambda candidate: candidate is not member)
            self.world._life.remove(group, first[: max(0, len(staying) - size)], now)
            self.world._life.fill(group, now)

    def recreate(self, group: Group, member: Member) -> None:
        self.stage.fault("recreated", member.name)
        with self.world.moment() as now:
            self.world._life.recreate(group, [member], now)

    def drop(self, group: Group) -> None:
        self.stage.fault("managed instance group deleted", group.name)
        self._foreign += 1
        scope = records.Scope(project=group.scope.project, zone=group.scope.location)
        with contextlib.suppress(ComputeError):
            self.client.delete(
                Kind.MANAGED_INSTANCE_GROUP,
                scope,
                group.name,
                request_id=f"00000000-0000-4000-8000-{self._foreign:012d}",
            )

    def forget_operations_after(self, seconds: float) -> None:
        self.world.change_settings({"operations_kept_seconds": seconds})

    def hold(self, target: Target) -> None:
        """Create another user's workload policy with the name of `target`."""
        self._foreign += 1
        spec = WorkloadPolicySpec(project=target.scope.project, region=target.scope.region, accelerator_topology="4x4")
        policy = WorkloadPolicy(meta=meta(target.name), spec=spec)
        self.client.insert(target.scope, policy, "", request_id=f"00000000-0000-4000-8000-{self._foreign:012d}")

    def release(self, target: Target) -> None:
        """Delete the workload policy that `hold` created, and repeat failed deletes."""
        self._foreign += 1
        try:
            self.client.delete(
                Kind.WORKLOAD_POLICY,
                target.scope,
                target.name,
                request_id=f"00000000-0000-4000-8000-{self._foreign:012d}",
            )
        except ComputeError as error:
            # The policy does not exist if its create failed. `_check_delete` reports deletes by the controller.
            if error.failure.kind is not FailureKind.NOT_FOUND:
                self.stage.after(30.0, lambda: self.release(target))

    def changed(self, machine: MachineView) -> None:
        last = self._seen.get(machine.name)
        before = last.status if last is not None and last.number == machine.number else ""
        self._seen[machine.name] = machine
        if machine.status == "RUNNING" and before != "RUNNING":
            self.stage.after(0.0, lambda: self.on_running(machine))
        elif before == "RUNNING" and machine.status != "RUNNING":
            self.stage.after(0.0, lambda: self.on_stopped(machine))

    def _tell_of_delete(self, target: Target) -> None:
        collection = _METHODS[target.kind]
        for resource in self.world.resources():
            if (resource.collection, resource.name) == (collection, target.name) and resource.deleting is None:
                self.on_delete(resource)
