"""State of the simulated Compute Engine: policies, templates, groups, VMs, operations; and the checks of requests.

Workload policies: by "About workload policies", a policy has a type, and may have either an accelerator topology or a
maximum distance; a topology needs HIGH_THROUGHPUT. Which topologies exist depends on the machine type, so a wrong one
is rejected only for a group.

VMs can be read, and their metadata can be replaced. The fingerprint must be that of the current metadata, otherwise the
status is 412 conditionNotMet (reference of Metadata). The fingerprint is checked again when the change takes effect: an
operation was seen to fail in this way (bosh-google-cpi-release 159). A managed instance that waits for capacity has a
link and no VM, so its VM is not found ("About bulk mode").

Managed instance groups: the operation of an insert ends when the group exists; whether its VMs exist is a status of the
group and of its managed instances (reference of instanceGroupManagers). The operation of a delete ends when all VMs are
deleted. "About bulk mode": only TPU machine types have it; flex-start needs defaultActionOnFailure DO_NOTHING. "About
workload policies": a policy is regional, and needed for a slice of several hosts. A policy's topology fixes the size,
as seen through GKE (xpk 751): "Should be equal to the gang size". Not supported: resizing of groups, deletes and
recreates of single instances.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rehearsal.simulators.compute import errors, names, templates
from rehearsal.simulators.compute.capacity import Market
from rehearsal.simulators.compute.errors import Failure
from rehearsal.simulators.compute.faults import FLEX_START, Fault
from rehearsal.simulators.compute.ledger import Asked, Ledger
from rehearsal.simulators.compute.lifecycle import Lifecycle, MachineObserver
from rehearsal.simulators.compute.names import BASE_NAME_LENGTH, Scope
from rehearsal.simulators.compute.records import (
    GROUPS,
    INSTANCES,
    POLICIES,
    TEMPLATES,
    Group,
    Loss,
    Machine,
    MachineStatus,
    MachineView,
    Operation,
    Policy,
    Resource,
    Template,
    view_of,
)
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.compute.store import Store
from rehearsal.simulators.compute.templates import items_of
from rehearsal.simulators.http import google
from rehearsal.simulators.http.world import BaseWorld, Clock
from rehearsal.simulators.machines import find_machine, parse_topology

_STALE = "Supplied fingerprint does not match current metadata fingerprint."


_MAX_INSTANCES = 1000


def base_name(body: Mapping[str, Any]) -> str:
    """Return the prefix of the names of a group's instances; the default is the group's name."""
    sent = body.get("baseInstanceName")
    if sent is None:
        return str(body["name"])[:BASE_NAME_LENGTH].rstrip("-")
    if "#" in sent:
        raise errors.not_played("numbered names of instances")
    if not google.is_name(sent) or len(sent) > BASE_NAME_LENGTH:
        rule = f"Must be a match of regex '{google.NAME_PATTERN}' with at most {BASE_NAME_LENGTH} characters."
        raise errors.invalid("resource.baseInstanceName", sent, rule)
    return str(sent)


def reference(body: Mapping[str, Any], field: str, collection: str, within: Scope) -> tuple[Scope, str]:
    """Return the scope and name in a field that links to a resource. Raises ApiError."""
    found = names.read_reference(body[field], collection, within)
    if found is None:
        raise errors.invalid(f"resource.{field}", body[field], "The URL is malformed.")
    return found


def check_group(body: Mapping[str, Any], scope: Scope, template: Template, policy: Policy | None) -> None:
    """Raise ApiError for a group that cannot be created from its template and policy."""
    if "targetSize" not in body:
        raise errors.required("resource.targetSize")
    size = body["targetSize"]
    if not 0 <= size <= _MAX_INSTANCES:
        raise errors.invalid("resource.targetSize", size, f"Must be from 0 to {_MAX_INSTANCES}.")
    terms = template.terms
    lifecycle = body.get("instanceLifecyclePolicy", {})
    if terms.model == FLEX_START and lifecycle.get("defaultActionOnFailure") != "DO_NOTHING":
        field = "resource.instanceLifecyclePolicy.defaultActionOnFailure"
        raise errors.invalid(field, "REPAIR", "Must be DO_NOTHING for provisioning model FLEX_START.")
    if template.scope.location and template.scope.location != scope.region:
        raise errors.invalid("resource.instanceTemplate", body["instanceTemplate"], "Is of another region.")
    if body.get("targetSizePolicy", {}).get("mode") == "BULK" and not terms.chips:
        rule = f"Not supported for machine type {terms.machine_type}."
        raise errors.invalid("resource.targetSizePolicy.mode", "BULK", rule)
    if policy is not None:
        if policy.scope != scope.regional:
            link = body["resourcePolicies"]["workloadPolicy"]
            raise errors.invalid("resource.resourcePolicies.workloadPolicy", link, "Is of another region.")
        _check_gang(size, template, policy)


def _check_gang(size: int, template: Template, policy: Policy) -> None:
    """Raise ApiError for a size that does not match the slice of the policy; 0 is allowed."""
    if not policy.topology:
        return
    terms = template.terms
    machine = find_machine(terms.machine_type)
    hosts = machine.hosts_of(policy.topology) if machine is not None else None
    if hosts is None:
        rule = f"Accelerator topology {policy.topology} is not supported by machine type {terms.machine_type}."
        raise errors.invalid("resource.resourcePolicies.workloadPolicy", policy.path, rule)
    if size not in (0, hosts):
        rule = (
            f"Requested invalid target size '{size}' for a Managed Instance Group in the gang mode of size '{hosts}'. "
            "Should be equal to the gang size."
        )
        raise errors.invalid("resource.targetSize", size, rule)


def check_account(template: Template, settings: ComputeSettings) -> None:
    """Raise ApiError for a group whose VMs cannot use their service account."""
    account = templates.service_account(template.properties, template.scope.project)
    state = settings.service_accounts.get(account)
    if state == "missing":
        raise errors.invalid("resource.serviceAccounts", account, "The service account does not exist.")
    if state == "forbidden":
        text = f"The user does not have access to service account '{account}'. User: 'somebody@example.com'."
        raise errors.ApiError(400, "serviceAccountAccessDenied", text)


def check_policy(body: Mapping[str, Any]) -> None:
    """Raise ApiError for an invalid resource policy."""
    policy = body.get("workloadPolicy")
    if policy is None:
        raise errors.invalid("resource", "", "Exactly one type of policy must be specified.")
    if "type" not in policy:
        raise errors.required("resource.workloadPolicy.type")
    topology, kind = policy.get("acceleratorTopology"), policy["type"]
    if topology is not None:
        field = "resource.workloadPolicy.acceleratorTopology"
        if parse_topology(topology) is None:
            raise errors.invalid(field, topology, "Must be a topology such as 4x4x4.")
        if kind != "HIGH_THROUGHPUT":
            raise errors.invalid(field, topology, "Can be specified only with type HIGH_THROUGHPUT.")


class World(BaseWorld[ComputeSettings, Fault]):
    """State of the simulated Compute Engine."""

    def __init__(self, settings: ComputeSettings, *, clock: Clock, rng: random.Random | None = None) -> None:
        super().__init__(settings, clock=clock, rng=rng)
        now = self._current_settings
        self._ledger = Ledger(settings=now, timeline=self.timeline, faults=self.faults, rng=self._rng)
        self._store = Store(settings=now, ledger=self._ledger)
        self._market = Market(settings=now, faults=self.faults, machines=self._store.machines)
        self._life = Lifecycle(
            settings=now,
            taken_names=self._store.instance_names,
            market=self._market,
            ledger=self._ledger,
            timeline=self.timeline,
            rng=self._rng,
        )

    def attach(self, observer: MachineObserver) -> None:
        """Report changes of VMs to an observer from now on."""
        self._life.observer = observer

    # -- calls of clients ----------------------------------------------------------------------------------------

    def get(self, collection: str, scope: Scope, name: str) -> Any:
        """Return a resource, a VM or an operation of a scope. Raises ApiError."""
        with self.moment():
            match collection:
                case "instances":
                    return self._machine(scope, name)
                case "operations":
                    return self._ledger.find(scope, name)
            return self._store.get(self._store.shelves[collection], scope.resource(collection, name))

    def listed(self, collection: str, scope: Scope) -> list[Any]:
        """Return all items of a collection in a scope."""
        with self.moment():
            match collection:
                case "instances":
                    return [machine for machine in self._store.machines() if machine.scope == scope]
                case "operations":
                    return self._ledger.in_scope(scope)
            return self._store.listed(self._store.shelves[collection], scope)

    def insert(self, collection: str, scope: Scope, body: dict[str, Any], asked: Asked) -> Operation:
        """Begin to create a policy, a template or a group."""
        with self.moment() as now:
            if "name" not in body:
                raise errors.required("resource.name")
            if not google.is_name(body["name"]):
                raise errors.invalid("resource.name", body["name"], f"Must be a match of regex '{google.NAME_PATTERN}'")
            templates.check_description(body)
            if collection == GROUPS:
                group = self._planned(scope, body, now)
                return self._store.insert(
                    self._store.groups, group, asked, then=lambda when: self._life.fill(group, when)
                )
            if collection == POLICIES:
                check_policy(body)
                policy = Policy(scope=scope, name=body["name"], body=body, created=now)
                return self._store.insert(self._store.policies, policy, asked)
            terms = templates.check_template(body, scope.project)
            template = Template(scope=scope, name=body["name"], body=body, created=now, terms=terms)
            return self._store.insert(self._store.templates, template, asked)

    def _planned(self, scope: Scope, body: dict[str, Any], now: datetime) -> Group:
        if "instanceTemplate" not in body:
            raise errors.required("resource.instanceTemplate")
        base, store = base_name(body), self._store
        within, name = reference(body, "instanceTemplate", TEMPLATES, scope)
        template = store.usable(store.templates, within.resource(TEMPLATES, name))
        policy = None
        if "workloadPolicy" in body.get("resourcePolicies", {}):
            within, name = reference(body["resourcePolicies"], "workloadPolicy", POLICIES, scope)
            policy = store.usable(store.policies, within.resource(POLICIES, name))
        check_group(body, scope, template, policy)
        check_account(template, self._settings)
        return Group(
            scope=scope,
            name=body["name"],
            body=body,
            created=now,
            template=template,
            policy=policy,
            base_name=base,
            size=body["targetSize"],
        )

    def delete(self, collection: str, scope: Scope, name: str, asked: Asked) -> Operation:
        """Begin to delete a policy or a template that no group uses, or a group with its VMs."""
        with self.moment() as now:
            shelf = self._store.shelves[collection]
            found = self._store.usable(shelf, scope.resource(collection, name))
            if not isinstance(found, Group):
                return self._store.delete(shelf, found, asked, now)
            operation = self._store.delete(
                shelf,
                found,
                asked,
                now,
                seconds=self._settings.stopping_seconds if found.machines else 0.0,
                then=lambda when: self._life.end(found, when),
            )
            if operation.fate is None:
                self._life.remove(found, [*found.members], now)
            return operation

    def metadata(self, scope: Scope, name: str) -> dict[str, str]:
        """Return the metadata of a VM by key, as its guest can read it. Raises ApiError if the VM is missing."""
        with self.moment():
            return dict(self._machine(scope, name).items)

    def set_metadata(self, scope: Scope, name: str, sent: Mapping[str, Any], asked: Asked) -> Operation:
        """Begin to replace the metadata of a VM."""
        with self.moment() as now:
            machine = self._machine(scope, name)
            items = items_of(sent, "metadata")
            if sent.get("fingerprint") != machine.fingerprint:
                raise errors.condition_not_met(_STALE)
            if machine.status is MachineStatus.STOPPING:
                raise errors.not_ready(machine.path)
            operation = self._ledger.begin(asked, machine, now)

            def effect(_when: datetime) -> Failure | None:
                if machine not in machine.group.machines:
                    text = f"The resource '{machine.path}' was not found"
                    return Failure(code="RESOURCE_NOT_FOUND", message=text, http_code=404)
                if sent["fingerprint"] != machine.fingerprint:
                    return Failure(code="CONDITION_NOT_MET", message=_STALE, http_code=412)
                self._life.set_items(machine, items)
                return None

            self._ledger.finish_later(operation, self._settings.metadata_seconds, effect=effect)
            return operation

    def _machine(self, scope: Scope, name: str) -> Machine:
        machines = self._store.machines()
        found = next((machine for machine in machines if machine.name == name and machine.scope == scope), None)
        if found is None:
            raise errors.not_found(scope.resource(INSTANCES, name))
        return found

    def all_operations(self) -> list[Operation]:
        """Return all operations within their retention period."""
        with self.moment():
            return self._ledger.all()

    def repeated(self, project: str, request_id: str, content: object) -> Operation | None:
        """Return the operation that the same request began before; None for a new request."""
        with self.moment():
            return self._ledger.repeated(project, request_id, content)

    # -- access for rehearsals -----------------------------------------------------------------------------------

    def lose(self, name: str, loss: Loss) -> bool:
        """Take away the VMs with a name; return False if no VM could be taken away."""
        with self.moment() as now:
            found = [machine for machine in self._store.machines() if machine.name == name]
            lost = [self._life.lose(machine, loss, now) for machine in found]
            return any(lost)

    def resources(self) -> tuple[Resource, ...]:
        """Return all policies, templates and groups in their current state."""
        with self.moment():
            return tuple(self._store)

    def machines(self) -> tuple[MachineView, ...]:
        """Return frozen snapshots of all VMs."""
        with self.moment():
            return tuple(view_of(machine) for machine in self._store.machines())
