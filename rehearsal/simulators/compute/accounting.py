"""What there is, by the mark of whoever made it: for checks that nothing was left, and nothing of others was touched.

The mark of a policy, template or group is its description; a managed instance, with or without a VM, has that of its
group.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rehearsal.simulators.compute import names
from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.records import INSTANCES, Group, MachineStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A resource. `state` is the status of a VM, "waiting" for one that is not there yet, else ready or busy."""

    collection: str
    path: str
    mark: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """A change that somebody asked for: the call, and the mark that its target had."""

    method: str
    path: str
    mark: str


def inventory(world: World) -> tuple[Item, ...]:
    """Return everything that there is."""
    with world.frozen():
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


def counts_by_mark(world: World) -> dict[str, Counter[str]]:
    """Return how many resources of each collection each mark has; a mark without any is not there."""
    counts: dict[str, Counter[str]] = {}
    for item in inventory(world):
        counts.setdefault(item.mark, Counter())[item.collection] += 1
    return counts


def touches(world: World) -> tuple[Touch, ...]:
    """Return the changes that clients asked for and whose operations are remembered, oldest first."""
    return tuple(
        Touch(method=operation.method, path=operation.target, mark=operation.mark)
        for operation in world.all_operations()
        if operation.user != names.service_agent(operation.scope.project)
    )


def broken_invariants(world: World) -> list[str]:
    """Return what must not be, whatever clients do: a text each. A mistake of the simulator itself, if there is any."""
    with world.frozen():
        resources = world.resources()
        kept = {id(resource) for resource in resources}
        problems = []
        for group in resources:
            if not isinstance(group, Group):
                continue
            problems += [
                f"{group.path} uses {used.path}, which is gone"
                for used in (group.template, group.policy)
                if used is not None and id(used) not in kept
            ]
            problems += _broken_group(group)
        return problems


def _broken_group(group: Group) -> list[str]:
    counts = Counter(member.name for member in group.members)
    problems = [f"{group.path} has {name} twice" for name, number in counts.items() if number > 1]
    coming = [machine for machine in group.machines if machine.status is MachineStatus.PROVISIONING]
    if group.is_bulk and coming and any(member.wants_machine for member in group.members):
        problems.append(f"{group.path} makes some of its VMs while others wait")
    return problems
