"""Fields of requests, fields of masks, and enum values exist in Google's client library."""

from __future__ import annotations

import json
import operator
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from provisioner.nodegroups.api import statuses
from provisioner.nodegroups.api.specs import (
    FailureAction,
    InstanceConfig,
    InstanceTemplateSpec,
    ProvisioningModel,
    SizePolicyMode,
)
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute import records, resources
from tests.support.nodegroup_world import a_child

#: Time-out longer than the default, because importing the library takes several seconds.
pytestmark = pytest.mark.timeout(60)


def googles(name: str) -> Any:
    """Return a type of Google's library. Its import takes seconds, so it must not happen when tests are collected."""
    from google.cloud import compute_v1

    return operator.attrgetter(name)(compute_v1)


TEMPLATE = a_child(Kind.INSTANCE_TEMPLATE)
CONFIG = InstanceConfig(
    machine_type="ct6e-standard-4t",
    provisioning_model=ProvisioningModel.FLEX_START,
    max_run_duration_seconds=3600,
    reservation_affinity="NO_RESERVATION",
    secure_boot=True,
)
NO_RESERVATION = replace(TEMPLATE, spec=InstanceTemplateSpec(project="p", config=CONFIG))


#: Body of a request, and the type that it must be, by case.
_BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "a policy": (resources.insert_body(a_child(Kind.WORKLOAD_POLICY), "mark"), "ResourcePolicy"),
    "a template": (resources.insert_body(TEMPLATE, "mark"), "InstanceTemplate"),
    "a template without reservations": (resources.insert_body(NO_RESERVATION, "mark"), "InstanceTemplate"),
    "a manager": (resources.insert_body(a_child(Kind.MANAGED_INSTANCE_GROUP), "mark"), "InstanceGroupManager"),
    "metadata": (resources.metadata_body({"a": "1"}, "f"), "Metadata"),
}


@pytest.mark.parametrize(("body", "name"), _BODIES.values(), ids=_BODIES)
def test_googles_library_knows_every_field_of_a_request(body: dict[str, Any], name: str) -> None:
    """The library rejects unknown fields and values, and writes the fields that it has read."""
    kind = googles(name)
    read = kind.from_json(json.dumps(body))

    assert json.loads(kind.to_json(read, always_print_fields_with_no_presence=False)) == body


@pytest.mark.parametrize(
    ("mask", "name"),
    [
        (resources.POLICY_FIELDS, "ResourcePolicy"),
        (resources.TEMPLATE_FIELDS, "InstanceTemplate"),
        (resources.MANAGER_FIELDS, "InstanceGroupManager"),
        (resources.MANAGERS_FIELDS, "InstanceGroupManagerAggregatedList"),
        (resources.MANAGED_INSTANCES_FIELDS, "InstanceGroupManagersListManagedInstancesResponse"),
        (resources.INSTANCES_FIELDS, "InstanceList"),
        (resources.OPERATION_FIELDS, "Operation"),
    ],
)
def test_googles_library_knows_every_field_of_a_mask(mask: str, name: str) -> None:
    for path in mask.split(","):
        descriptor = googles(name).pb().DESCRIPTOR
        for part in path.split("/"):
            field = descriptor.fields_by_camelcase_name.get(part)
            assert field is not None, f"{path}: {descriptor.name} has no {part}"
            descriptor = field.message_type


#: Values that decisions use, by the enumeration that must have them.
_VALUES: dict[str, Collection[str]] = {
    "InstanceGroupManagerTargetSizePolicy.Mode": SizePolicyMode,
    "Scheduling.ProvisioningModel": ProvisioningModel,
    "Scheduling.InstanceTerminationAction": {records.STOP, records.DELETE},
    "Scheduling.OnHostMaintenance": {records.TERMINATE},
    "InstanceGroupManagerInstanceLifecyclePolicy.DefaultActionOnFailure": FailureAction,
    "ResourcePolicy.Status": {records.READY},
    "ManagedInstance.InstanceStatus": statuses.STARTING_OR_RUNNING,
    "Instance.Status": statuses.STARTING_OR_RUNNING,
    "ManagedInstance.CurrentAction": {records.NO_ACTION},
    "Operation.Status": {"DONE"},
}


@pytest.mark.parametrize("name", _VALUES)
def test_googles_library_knows_every_value_that_decisions_use(name: str) -> None:
    assert set(_VALUES[name]) <= {member.name for member in googles(name)}
