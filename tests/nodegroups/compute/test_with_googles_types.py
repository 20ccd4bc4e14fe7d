"""Fields of requests, fields of masks, and enum values exist in Google's client library."""

from __future__ import annotations

import json
import operator
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
    """Return a type of Google's library, whose import takes seconds of each process that collects tests."""
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


@pytest.mark.parametrize(
    ("body", "name"),
    [
        pytest.param(resources.insert_body(a_child(Kind.WORKLOAD_POLICY), "mark"), "ResourcePolicy", id="a policy"),
        pytest.param(resources.insert_body(TEMPLATE, "mark"), "InstanceTemplate", id="a template"),
        pytest.param(
            resources.insert_body(NO_RESERVATION, "mark"),
            "InstanceTemplate",
            id="a template without reservations",
        ),
        pytest.param(
            resources.insert_body(a_child(Kind.MANAGED_INSTANCE_GROUP), "mark"),
            "InstanceGroupManager",
            id="a manager",
        ),
        pytest.param(resources.metadata_body({"a": "1"}, "f"), "Metadata", id="metadata"),
    ],
)
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


@pytest.mark.parametrize(
    ("words", "name"),
    [
        pytest.param(set(SizePolicyMode), "InstanceGroupManagerTargetSizePolicy.Mode", id="modes"),
        pytest.param(
            set(ProvisioningModel),
            "Scheduling.ProvisioningModel",
            id="provisioning models",
        ),
        pytest.param({records.STOP, records.DELETE}, "Scheduling.InstanceTerminationAction", id="termination actions"),
        pytest.param({records.TERMINATE}, "Scheduling.OnHostMaintenance", id="maintenance"),
        pytest.param(
            set(FailureAction),
            "InstanceGroupManagerInstanceLifecyclePolicy.DefaultActionOnFailure",
            id="actions on failure",
        ),
        pytest.param({records.READY}, "ResourcePolicy.Status", id="statuses of policies"),
        pytest.param(
            statuses.STARTING_OR_RUNNING, "ManagedInstance.InstanceStatus", id="statuses of managed instances"
        ),
        pytest.param(statuses.STARTING_OR_RUNNING, "Instance.Status", id="statuses of machines"),
        pytest.param({records.NO_ACTION}, "ManagedInstance.CurrentAction", id="actions"),
        pytest.param({"DONE"}, "Operation.Status", id="statuses of operations"),
    ],
)
def test_googles_library_knows_every_value_that_decisions_use(words: set[str], name: str) -> None:
    assert words <= {member.name for member in googles(name)}
