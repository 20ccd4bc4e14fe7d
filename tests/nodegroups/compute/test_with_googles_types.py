"""Fields of requests, fields of masks, and enum values exist in Google's client library."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from google.cloud import compute_v1

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
    ("body", "kind"),
    [
        pytest.param(
            resources.policy_body(ResourcePolicy(name="g-policy", description="mark", topology="2x2x4")),
            compute_v1.ResourcePolicy,
            id="a policy",
        ),
        pytest.param(resources.template_body(TEMPLATE), compute_v1.InstanceTemplate, id="a template"),
        pytest.param(
            resources.template_body(replace(TEMPLATE, config=NO_RESERVATION)),
            compute_v1.InstanceTemplate,
            id="a template without reservations",
        ),
        pytest.param(resources.manager_body(MANAGER), compute_v1.InstanceGroupManager, id="a manager"),
        pytest.param(resources.metadata_body({"a": "1"}, "f"), compute_v1.Metadata, id="metadata"),
    ],
)
def test_googles_library_knows_every_field_of_a_request(body: dict[str, Any], kind: Any) -> None:
    """The library rejects unknown fields and values, and writes the fields that it has read."""
    read = kind.from_json(json.dumps(body))

    assert json.loads(kind.to_json(read, always_print_fields_with_no_presence=False)) == body


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (resources.POLICY_FIELDS, compute_v1.ResourcePolicy),
        (resources.TEMPLATE_FIELDS, compute_v1.InstanceTemplate),
        (resources.MANAGER_FIELDS, compute_v1.InstanceGroupManager),
        (resources.MANAGERS_FIELDS, compute_v1.InstanceGroupManagerAggregatedList),
        (resources.MANAGED_INSTANCES_FIELDS, compute_v1.InstanceGroupManagersListManagedInstancesResponse),
        (resources.INSTANCES_FIELDS, compute_v1.InstanceList),
        (resources.OPERATION_FIELDS, compute_v1.Operation),
    ],
)
def test_googles_library_knows_every_field_of_a_mask(mask: str, kind: Any) -> None:
    for path in mask.split(","):
        descriptor = kind.pb().DESCRIPTOR
        for name in path.split("/"):
            field = descriptor.fields_by_camelcase_name.get(name)
            assert field is not None, f"{path}: {descriptor.name} has no {name}"
            descriptor = field.message_type


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        pytest.param(set(SizePolicyMode), compute_v1.InstanceGroupManagerTargetSizePolicy.Mode, id="modes"),
        pytest.param(
            set(ProvisioningModel),
            compute_v1.Scheduling.ProvisioningModel,
            id="provisioning models",
        ),
        pytest.param(
            {records.STOP, records.DELETE}, compute_v1.Scheduling.InstanceTerminationAction, id="termination actions"
        ),
        pytest.param({records.TERMINATE}, compute_v1.Scheduling.OnHostMaintenance, id="maintenance"),
        pytest.param(
            set(FailureAction),
            compute_v1.InstanceGroupManagerInstanceLifecyclePolicy.DefaultActionOnFailure,
            id="actions on failure",
        ),
        pytest.param({records.READY}, compute_v1.ResourcePolicy.Status, id="statuses of policies"),
        pytest.param(
            statuses.STARTING_OR_RUNNING, compute_v1.ManagedInstance.InstanceStatus, id="statuses of managed instances"
        ),
        pytest.param(statuses.STARTING_OR_RUNNING, compute_v1.Instance.Status, id="statuses of machines"),
        pytest.param({records.NO_ACTION}, compute_v1.ManagedInstance.CurrentAction, id="actions"),
        pytest.param({"DONE"}, compute_v1.Operation.Status, id="statuses of operations"),
    ],
)
def test_googles_library_knows_every_value_that_decisions_use(words: set[str], choices: Any) -> None:
    assert words <= {member.name for member in choices}
