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
    ProvisioningModel,
    ServiceAccount,
    SizePolicyMode,
)
from provisioner.nodegroups.compute import records, resources
from provisioner.nodegroups.compute.records import DELETE, TERMINATE, Manager, ResourcePolicy, Template

#: Time-out longer than the default, because importing the library takes several seconds.
pytestmark = pytest.mark.timeout(60)


def googles(name: str) -> Any:
    """Return a type of Google's library, whose import takes seconds of each process that collects tests."""
    from google.cloud import compute_v1

    return operator.attrgetter(name)(compute_v1)


TEMPLATE = Template(
    name="g-template",
    description="mark",
    machine_type="ct6e-standard-4t",
    provisioning_model=ProvisioningModel.FLEX_START,
    on_host_maintenance=TERMINATE,
    termination_action=DELETE,
    metadata={"a": "1"},
    config=InstanceConfig(
        machine_type="ct6e-standard-4t",
        max_run_duration_seconds=3600,
        reservation="r",
        image="i",
        boot_disk_size_gb=100,
        disk_type="hyperdisk-balanced",
        subnetwork="regions/us-east5/subnetworks/default",
        network_tags=("t",),
        service_accounts=(ServiceAccount(email="e", scopes=("s",)),),
    ),
)
NO_RESERVATION = replace(TEMPLATE.config, reservation="", reservation_affinity="NO_RESERVATION", secure_boot=True)
MANAGER = Manager(
    name="g-mig",
    description="mark",
    template="t",
    target_size=4,
    mode=SizePolicyMode.BULK,
    policy="p",
    action_on_failure=FailureAction.DO_NOTHING,
)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        pytest.param(
            resources.policy_body(ResourcePolicy(name="g-policy", description="mark", topology="2x2x4")),
            "ResourcePolicy",
            id="a policy",
        ),
        pytest.param(resources.template_body(TEMPLATE), "InstanceTemplate", id="a template"),
        pytest.param(
            resources.template_body(replace(TEMPLATE, config=NO_RESERVATION)),
            "InstanceTemplate",
            id="a template without reservations",
        ),
        pytest.param(resources.manager_body(MANAGER), "InstanceGroupManager", id="a manager"),
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
