"""Tests with Google's client library: each supported method over HTTP, and each response parsed by the library.

The library parses responses into message types, and fails on values of a wrong type. Fields that it does not know would
be dropped, so each response is also compared with the JSON that the simulator sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from rehearsal.simulators.compute import ComputeSettings, ComputeSimulator, faults, records, schema
from tests.support.compute import GROUPS, MARK, group, policy, template
from tests.support.waiting import wait_for

#: The import of the library takes seconds.
pytestmark = pytest.mark.timeout(60)

ZONE = {"project": "proj", "zone": "us-east5-a"}
GROUP = {**ZONE, "instance_group_manager": "group"}
REGION = {"project": "proj", "region": "us-east5"}
DONE = compute_v1.Operation.Status.DONE


class Google:
    """Google's clients of a simulator, created when they are needed."""

    def __init__(self, compute: ComputeSimulator) -> None:
        self.compute = compute

    def __call__(self, kind: Any) -> Any:
        """Return a client."""
        transport = kind.get_transport_class("rest")(
            host=self.compute.url.removeprefix("http://"), url_scheme="http", credentials=AnonymousCredentials()
        )
        return kind(transport=transport)

    def done(self, operation: Any) -> Any:
        """Wait for an operation. The library's own wait calls Google, regardless of the client's address."""
        if operation.zone:
            kind, place = compute_v1.ZoneOperationsClient, ZONE
        elif operation.region:
            kind, place = compute_v1.RegionOperationsClient, REGION
        else:
            kind, place = compute_v1.GlobalOperationsClient, {"project": "proj"}
        ended = self(kind).wait(**place, operation=operation.name)
        assert (ended.status, ended.error.errors) == (DONE, [])
        return ended

    def slice(self, model: str = "STANDARD") -> None:
        """Create policy, template and group of a slice."""
        resource = read(compute_v1.ResourcePolicy, policy())
        self.done(self(compute_v1.ResourcePoliciesClient).insert_unary(**REGION, resource_policy_resource=resource))
        body = read(compute_v1.InstanceTemplate, template(model=model))
        inserted = self(compute_v1.InstanceTemplatesClient).insert_unary(
            project="proj", instance_template_resource=body
        )
        self.done(inserted)
        manager = read(compute_v1.InstanceGroupManager, group())
        groups = self(compute_v1.InstanceGroupManagersClient)
        self.done(groups.insert_unary(**ZONE, instance_group_manager_resource=manager))

    def assert_read_whole(self, message: Any) -> None:
        """Check that the library has parsed every field that was sent."""
        path = message.self_link.removeprefix("https://www.googleapis.com")
        sent = requests.get(f"{self.compute.url}{path}", timeout=10).json()
        assert paths(sent) - paths(shown(message)) == set()

    def assert_members_read_whole(self, messages: list[Any]) -> None:
        """Check that the library has parsed every field of a group's managed instances."""
        sent = requests.post(f"{self.compute.url}{GROUPS}/group/listManagedInstances", timeout=10).json()
        assert paths(sent["managedInstances"]) - paths([shown(message) for message in messages]) == set()


def read(kind: Any, body: dict[str, Any]) -> Any:
    """Return a body as a message of the library."""
    return kind.from_json(json.dumps(body))


def shown(message: Any) -> Any:
    """Return the fields of a message that the library has parsed."""
    return json.loads(type(message).to_json(message, always_print_fields_with_no_presence=False))


def paths(body: Any, prefix: str = "") -> set[str]:
    """Return the paths of all fields of a body that are neither empty nor false."""
    if isinstance(body, dict):
        named = [(f"{prefix}.{key.lower().replace('_', '')}", value) for key, value in body.items()]
        return {path for name, value in named for path in paths(value, name)}
    if isinstance(body, list):
        return {path for value in body for path in paths(value, prefix)}
    return {prefix} if body and body != "0" else set()


@pytest.fixture
def google() -> Iterator[Google]:
    """Google's clients of a fast simulator with a reservation."""
    settings = ComputeSettings(
        operation_seconds=0.05,
        metadata_seconds=0.05,
        provisioning_seconds=0.05,
        staging_seconds=0.05,
        stopping_seconds=0.05,
        retry_seconds=0.05,
        reservations={"us-east5-a/res": {"machine_type": "ct6e-standard-4t", "count": 4}},
    )
    with ComputeSimulator(settings) as simulator:
        yield Google(simulator)


def test_library_reads_all_fields_of_resources(google: Google) -> None:
    """Policy, template, group and reservation, by get and by list."""
    google.slice(model="RESERVATION_BOUND")
    policies, templates = google(compute_v1.ResourcePoliciesClient), google(compute_v1.InstanceTemplatesClient)
    groups = google(compute_v1.InstanceGroupManagersClient)
    found = policies.get(**REGION, resource_policy="policy")
    assert (found.workload_policy.accelerator_topology, found.status, found.description) == ("4x4", "READY", MARK)
    google.assert_read_whole(found)
    assert [item.name for item in policies.list(**REGION)] == ["policy"]
    made = templates.get(project="proj", instance_template="template")
    assert made.properties.scheduling.provisioning_model == "RESERVATION_BOUND"
    google.assert_read_whole(made)
    assert [item.name for item in templates.list(project="proj")] == ["template"]
    wait_for(lambda: groups.get(**GROUP).status.is_stable)
    manager = groups.get(**GROUP)
    assert (manager.target_size, manager.target_size_policy.mode) == (4, "BULK")
    assert manager.status.applied_accelerator_topologies[0].state == "ACTIVE"
    assert manager.status.current_instance_statuses.running == 4
    google.assert_read_whole(manager)
    assert [item.name for item in groups.list(**ZONE)] == ["group"]
    reservations = google(compute_v1.ReservationsClient)
    assert [item.name for item in reservations.list(**ZONE)] == ["res"]
    reservation = reservations.get(**ZONE, reservation="res")
    assert (reservation.specific_reservation.in_use_count, reservation.status) == (4, "READY")
    google.assert_read_whole(reservation)


def test_library_reads_machines_and_replaces_metadata_with_a_current_fingerprint(google: Google) -> None:
    """An outdated fingerprint is rejected."""
    google.slice()
    groups, instances = google(compute_v1.InstanceGroupManagersClient), google(compute_v1.InstancesClient)
    wait_for(lambda: groups.get(**GROUP).status.is_stable)
    members = list(groups.list_managed_instances(**GROUP))
    assert [member.instance_status for member in members] == ["RUNNING"] * 4
    google.assert_members_read_whole(members)
    machine = instances.get(**ZONE, instance=members[0].name)
    assert (machine.id, machine.status) == (members[0].id, "RUNNING")
    google.assert_read_whole(machine)
    metadata = machine.metadata
    metadata.items.append(compute_v1.Items(key="token", value="x"))
    google.done(instances.set_metadata_unary(**ZONE, instance=machine.name, metadata_resource=metadata))
    keys = {item.key for item in instances.get(**ZONE, instance=machine.name).metadata.items}
    assert keys == {"startup-script", "token", "created-by", "instance-template"}
    with pytest.raises(exceptions.PreconditionFailed, match="Supplied fingerprint does not match"):
        instances.set_metadata_unary(**ZONE, instance=machine.name, metadata_resource=metadata)
    assert len(list(instances.list(**ZONE))) == 4


T = compute_v1.types


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (records.MachineStatus, T.Instance.Status),
        (records.MachineStatus, T.ManagedInstance.InstanceStatus),
        (records.Action, T.ManagedInstance.CurrentAction),
        (records.OperationStatus, T.Operation.Status),
        (faults.PROVISIONING_MODELS, T.Scheduling.ProvisioningModel),
        (("CREATING", "READY", "DELETING"), T.ResourcePolicy.Status),
        (
            ("ACTIVE", "ACTIVATING", "INCOMPLETE", "DEACTIVATING"),
            T.InstanceGroupManagerStatusAcceleratorTopology.State,
        ),
    ],
)
def test_states_are_values_of_googles_enums(values: Iterable[str], known: type[Enum]) -> None:
    """Otherwise Google's library would fail on them."""
    assert {str(value) for value in values} <= {item.name for item in known}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (schema.RESOURCE_POLICY, T.ResourcePolicy),
        (schema.INSTANCE_TEMPLATE, T.InstanceTemplate),
        (schema.INSTANCE_GROUP_MANAGER, T.InstanceGroupManager),
        (schema.METADATA, T.Metadata),
    ],
)
def test_fields_are_fields_of_googles_messages(fields: Mapping[str, Any], kind: Any) -> None:
    """Every field that the simulator accepts exists in Google's message."""
    assert_fields(fields, kind.pb(kind()).DESCRIPTOR, kind.__name__)


def assert_fields(fields: Mapping[str, Any], descriptor: Any, path: str) -> None:
    """Check the fields of a message and of nested messages."""
    known = {field.json_name: field for field in descriptor.fields}
    for name, value in fields.items():
        assert name in known, f"{path}.{name}"
        inner = value[0] if isinstance(value, list) else value
        if isinstance(inner, dict):
            assert_fields(inner, known[name].message_type, f"{path}.{name}")
        if isinstance(inner, schema.Choice):
            enums = [item for item in descriptor.enum_types if item.name.lower() == name.lower()]
            assert not enums or {*inner.values} <= {item.name for item in enums[0].values}, f"{path}.{name}"
