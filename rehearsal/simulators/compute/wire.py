"""Creates JSON bodies of resources, managed instances, VMs and operations. 64-bit numbers are texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rehearsal.simulators.compute import names
from rehearsal.simulators.compute.names import REGIONS, ZONES, Scope
from rehearsal.simulators.compute.records import (
    INSTANCES,
    OPERATIONS,
    Group,
    Machine,
    MachineStatus,
    Member,
    Operation,
    OperationStatus,
    Policy,
    Resource,
    Template,
)
from rehearsal.simulators.http import google

#: Operation.operationType of calls that are neither an insert nor a delete of the target.
_TYPES = {
    "instances.setMetadata": "setMetadata",
}
_ACTION_FIELDS = (
    "none",
    "creating",
    "creatingWithoutRetries",
    "recreating",
    "deleting",
    "abandoning",
    "restarting",
    "refreshing",
    "verifying",
)


def link(path: str) -> str:
    """Return the link of a resource with this full name."""
    return f"{google.COMPUTE_API}/{path}"


def _located(scope: Scope) -> dict[str, str]:
    return {{ZONES: "zone", REGIONS: "region"}[scope.kind]: scope.link} if scope.location else {}


def _common(resource: Resource, kind: str) -> dict[str, Any]:
    return {
        "kind": f"compute#{kind}",
        "id": str(resource.number),
        "creationTimestamp": names.timestamp(resource.created),
        "name": resource.name,
        "selfLink": link(resource.path),
        **({"description": resource.mark} if resource.mark else {}),
        **_located(resource.scope),
    }


def policy_body(policy: Policy) -> dict[str, Any]:
    """Return a ResourcePolicy."""
    status = "CREATING" if policy.inserting is not None else "DELETING" if policy.deleting is not None else "READY"
    sent = policy.body["workloadPolicy"]
    mode = {"acceleratorTopologyMode": "AUTO_CONNECT"} if policy.topology else {}
    return {**_common(policy, "resourcePolicy"), "status": status, "workloadPolicy": {**mode, **sent}}


def template_body(template: Template) -> dict[str, Any]:
    """Return an InstanceTemplate with the defaults of Compute Engine."""
    sent, terms = template.properties, template.terms
    may_restart = not terms.is_preemptible and not terms.ends_by_itself
    scheduling = {
        "automaticRestart": may_restart,
        "onHostMaintenance": "MIGRATE" if may_restart else "TERMINATE",
        "preemptible": terms.is_preemptible,
        "provisioningModel": terms.model,
        **template.scheduling,
    }
    metadata = sent.get("metadata", {})
    properties = {
        **sent,
        "metadata": _metadata(metadata.get("items", []), names.fingerprint(metadata, 0)),
        "scheduling": _with_texts(scheduling),
    }
    return {**_common(template, "instanceTemplate"), "properties": properties}


def _with_texts(scheduling: Mapping[str, Any]) -> dict[str, Any]:
    duration = scheduling.get("maxRunDuration")
    return {**scheduling, "maxRunDuration": {"seconds": str(duration["seconds"])}} if duration else {**scheduling}


def _metadata(items: Any, fingerprint: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": "compute#metadata", "fingerprint": fingerprint}
    return {**shown, "items": list(items)} if items else shown


def group_body(group: Group, now: datetime) -> dict[str, Any]:
    """Return an InstanceGroupManager."""
    sent = group.body
    actions = Counter(member.action.value.lower() for member in group.members)
    return {
        **_common(group, "instanceGroupManager"),
        "instanceTemplate": link(group.template.path),
        "versions": [{"instanceTemplate": link(group.template.path), "targetSize": {"calculated": group.size}}],
        "instanceGroup": link(group.scope.resource("instanceGroups", group.name)),
        "baseInstanceName": group.base_name,
        "targetSize": group.size,
        "targetSizePolicy": {"mode": "INDIVIDUAL", **sent.get("targetSizePolicy", {})},
        "fingerprint": names.fingerprint([group.size, group.deleting is None], 0),
        "instanceLifecyclePolicy": {
            "defaultActionOnFailure": "REPAIR",
            "forceUpdateOnRepair": "NO",
            **sent.get("instanceLifecyclePolicy", {}),
        },
        "listManagedInstancesResults": "PAGELESS",
        "currentActions": {name: actions[name.lower()] for name in _ACTION_FIELDS},
        **({"resourcePolicies": {"workloadPolicy": link(group.policy.path)}} if group.policy is not None else {}),
        "status": _group_status(group, now),
    }


def _group_status(group: Group, now: datetime) -> dict[str, Any]:
    status: dict[str, Any] = {
        "isStable": group.is_stable,
        "versionTarget": {"isReached": all(member.machine is not None for member in group.members)},
        "stateful": {"hasStatefulConfig": False, "perInstanceConfigs": {"allEffective": True}},
    }
    if group.template.terms.chips:
        counts = Counter(machine.status for machine in group.machines)
        status["currentInstanceStatuses"] = {item.value.lower(): counts[item] for item in MachineStatus if counts[item]}
    if group.is_bulk:
        status["bulkInstanceOperation"] = _bulk_operation(group, now)
    if group.is_slice and group.policy is not None:
        shown = {"acceleratorTopology": group.policy.topology, "state": _topology_state(group)}
        status["appliedAcceleratorTopologies"] = [shown]
    return status


def _bulk_operation(group: Group, now: datetime) -> dict[str, Any]:
    shown: dict[str, Any] = {"inProgress": group.bulk_running}
    if group.bulk_running:
        check: dict[str, Any] = {"timestamp": names.timestamp(group.checked or now)}
        if group.check_failure is not None:
            check["error"] = {"errors": [group.check_failure.entry()]}
        shown["lastProgressCheck"] = check
    return shown


def _topology_state(group: Group) -> str:
    running = sum(machine.status is MachineStatus.RUNNING for machine in group.machines)
    if group.deleting is not None:
        return "DEACTIVATING"
    if group.size and running == group.size:
        return "ACTIVE"
    return "ACTIVATING" if group.bulk_running and group.size == len(group.machines) else "INCOMPLETE"


def member_body(group: Group, member: Member) -> dict[str, Any]:
    """Return a ManagedInstance. Without a VM, it has no ID and no status, except for PENDING of flex-start."""
    machine = member.machine
    shown: dict[str, Any] = {
        "name": member.name,
        "instance": link(group.scope.resource(INSTANCES, member.name)),
        "currentAction": member.action.value,
        "version": {"instanceTemplate": link(group.template.path)},
    }
    if machine is not None:
        shown |= {"id": str(machine.number), "instanceStatus": machine.status.value}
        if machine.ends_at is not None:
            shown["scheduling"] = {"terminationTimestamp": names.timestamp(machine.ends_at)}
    elif member.wants_machine and group.template.scheduling.get("provisioningModel") == "FLEX_START":
        shown["instanceStatus"] = "PENDING"
    if member.errors:
        shown["lastAttempt"] = {"errors": {"errors": [failure.entry() for failure in member.errors]}}
    return shown


def machine_body(machine: Machine) -> dict[str, Any]:
    """Return an Instance."""
    sent, scope = machine.template.properties, machine.scope
    interface = sent["networkInterfaces"][0]
    items = [{"key": key, "value": value} for key, value in machine.items.items()]
    started = {"lastStartTimestamp": names.timestamp(machine.started)} if machine.started else {}
    stopped = {"lastStopTimestamp": names.timestamp(machine.stopped)} if machine.stopped else {}
    return {
        "kind": "compute#instance",
        "id": str(machine.number),
        "creationTimestamp": names.timestamp(machine.created),
        "name": machine.name,
        "zone": scope.link,
        "selfLink": link(machine.path),
        "status": machine.status.value,
        "machineType": link(scope.resource("machineTypes", machine.template.terms.machine_type)),
        "metadata": _metadata(items, machine.fingerprint),
        "scheduling": template_body(machine.template)["properties"]["scheduling"],
        "networkInterfaces": [{**interface, "name": "nic0", "networkIP": machine.address}],
        "disks": [
            {
                "kind": "compute#attachedDisk",
                "boot": True,
                "autoDelete": sent["disks"][0].get("autoDelete", False),
                "source": link(scope.resource("disks", machine.name)),
            }
        ],
        "serviceAccounts": sent.get("serviceAccounts", []),
        "tags": {**sent.get("tags", {}), "fingerprint": names.fingerprint(sent.get("tags"), 0)},
        "fingerprint": names.fingerprint([machine.status, machine.revision, machine.boots], 0),
        **started,
        **stopped,
    }


def operation_body(operation: Operation) -> dict[str, Any]:
    """Return an Operation."""
    scope = operation.scope
    shown: dict[str, Any] = {
        "kind": "compute#operation",
        "id": str(google.number_of(operation.name)),
        "name": operation.name,
        "operationType": _TYPES.get(operation.method, operation.method.partition(".")[2]),
        "targetLink": link(operation.target),
        "targetId": str(operation.target_number),
        "status": operation.status.value,
        "user": operation.user,
        "progress": 100 if operation.is_done else 0,
        "insertTime": names.timestamp(operation.inserted),
        "selfLink": link(scope.resource(OPERATIONS, operation.name)),
        **_located(scope),
    }
    if operation.request_id:
        shown["clientOperationId"] = operation.request_id
    if operation.started is not None and operation.status is not OperationStatus.PENDING:
        shown["startTime"] = names.timestamp(operation.started)
    if operation.ended is not None:
        shown["endTime"] = names.timestamp(operation.ended)
    if operation.failure is not None:
        failure = operation.failure
        shown["error"] = {"errors": [failure.entry()]}
        shown["httpErrorStatusCode"] = failure.http_code
        shown["httpErrorMessage"] = failure.http_message
    return shown
