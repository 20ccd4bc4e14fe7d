"""Request bodies, records from responses, and addresses of resources."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model.capacity import Failure, FailureKind, Operation, OperationName
from provisioner.nodegroups.api.specs import (
    InstanceConfig,
    InstanceTemplateSpec,
    ManagedInstanceGroupSpec,
    ProvisioningModel,
    ServiceAccount,
    SizePolicyMode,
    WorkloadPolicySpec,
)
from provisioner.nodegroups.api.types import InstanceTemplate, ManagedInstanceGroup, ObjectMeta, WorkloadPolicy
from provisioner.nodegroups.compute import resources
from provisioner.nodegroups.compute.records import (
    BulkOperation,
    Instance,
    ManagedInstance,
    Manager,
    ResourcePolicy,
    Scope,
    Template,
    address_problem,
    parse_link,
    same_resource,
)

GLOBAL, REGION, ZONE = Scope(project="p"), Scope(project="p", region="r1"), Scope(project="p", zone="r1-a")
MARK = "tpu-provisioner: TPUNodeGroup ns/g uid 1 cluster 2"


def meta(name: str) -> ObjectMeta:
    return ObjectMeta(namespace="ns", name=name, uid="1")


CONFIG = InstanceConfig(
    machine_type="tpu7x-standard-4t",
    provisioning_model=ProvisioningModel.RESERVATION_BOUND,
    max_run_duration_seconds=3600,
    reservation="projects/q/reservations/r",
    image="projects/i/global/images/u",
    boot_disk_size_gb=100,
    disk_type="hyperdisk-balanced",
    subnetwork="regions/us-east5/subnetworks/default",
    network_tags=("a", "b"),
    service_accounts=(ServiceAccount(email="e@p.iam.gserviceaccount.com", scopes=("s",)),),
    metadata={"startup-script": "#!/bin/bash", "a": "1"},
)
POLICY = WorkloadPolicy(
    meta=meta("g-policy"), spec=WorkloadPolicySpec(project="p", region="us-central1", accelerator_topology="2x2x4")
)
TEMPLATE = InstanceTemplate(meta=meta("g-template"), spec=InstanceTemplateSpec(project="p", config=CONFIG))
MANAGER = ManagedInstanceGroup(
    meta=meta("g-mig"),
    spec=ManagedInstanceGroupSpec(
        project="p",
        location="us-central1-a",
        instance_template="projects/p/global/instanceTemplates/g-template",
        target_size=4,
        workload_policy="projects/p/regions/us-central1/resourcePolicies/g-policy",
        target_size_policy_mode=SizePolicyMode.BULK,
    ),
)
TEMPLATE_BODY = {
    "name": "g-template",
    "description": MARK,
    "properties": {
        "machineType": "tpu7x-standard-4t",
        "metadata": {"items": [{"key": "a", "value": "1"}, {"key": "startup-script", "value": "#!/bin/bash"}]},
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": "projects/i/global/images/u",
                    "diskSizeGb": "100",
                    "diskType": "hyperdisk-balanced",
                },
            }
        ],
        "scheduling": {
            "onHostMaintenance": "TERMINATE",
            "provisioningModel": "RESERVATION_BOUND",
            "instanceTerminationAction": "DELETE",
            "maxRunDuration": {"seconds": "3600"},
        },
        "reservationAffinity": {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": ["projects/q/reservations/r"],
        },
        "networkInterfaces": [{"subnetwork": "regions/us-east5/subnetworks/default"}],
        "tags": {"items": ["a", "b"]},
        "serviceAccounts": [{"email": "e@p.iam.gserviceaccount.com", "scopes": ["s"]}],
    },
}
#: Each child with the body of its insert, and with its resource as it is read.
READ = {
    "a policy": (
        POLICY,
        {
            "name": "g-policy",
            "description": MARK,
            "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "2x2x4"},
        },
        resources.policy_of,
        ResourcePolicy(name="g-policy", description=MARK, type="HIGH_THROUGHPUT", topology="2x2x4"),
    ),
    "a template": (
        TEMPLATE,
        TEMPLATE_BODY,
        resources.template_of,
        Template(
            name="g-template",
            description=MARK,
            machine_type="tpu7x-standard-4t",
            provisioning_model="RESERVATION_BOUND",
            on_host_maintenance="TERMINATE",
            termination_action="DELETE",
            metadata=CONFIG.metadata,
        ),
    ),
    "a manager": (
        MANAGER,
        {
            "name": "g-mig",
            "baseInstanceName": "g-mig",
            "description": MARK,
            "instanceTemplate": MANAGER.spec.instance_template,
            "targetSize": 4,
            "targetSizePolicy": {"mode": "BULK"},
            "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
            "resourcePolicies": {"workloadPolicy": MANAGER.spec.workload_policy},
        },
        resources.manager_of,
        Manager(
            name="g-mig",
            description=MARK,
            template=MANAGER.spec.instance_template,
            target_size=4,
            mode="BULK",
            policy=MANAGER.spec.workload_policy,
        ),
    ),
}
_PLAIN = {"onHostMaintenance": "TERMINATE", "provisioningModel": "STANDARD"}
_FLEX = {**_PLAIN, "provisioningModel": "FLEX_START", "instanceTerminationAction": "DELETE"}
_NO_RESERVATION = {"reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}
#: Fields of an instance config, and the properties of its template without the machine type, by case.
_PROPERTIES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "no fields": ({}, {"scheduling": _PLAIN}),
    "secure boot without reservations": (
        {"secure_boot": True, "reservation_affinity": "NO_RESERVATION"},
        {"scheduling": _PLAIN, **_NO_RESERVATION, "shieldedInstanceConfig": {"enableSecureBoot": True}},
    ),
    "flex-start": (
        {"provisioning_model": ProvisioningModel.FLEX_START, "max_run_duration_seconds": 600},
        {"scheduling": {**_FLEX, "maxRunDuration": {"seconds": "600"}}, **_NO_RESERVATION},
    ),
}


@pytest.mark.parametrize(("config", "want"), _PROPERTIES.values(), ids=_PROPERTIES)
def test_properties_of_a_template_are_those_of_its_config(config: dict[str, Any], want: dict[str, object]) -> None:
    instance_config = InstanceConfig(machine_type="ct6e-standard-4t", **{"subnetwork": "", **config})
    template = replace(TEMPLATE, spec=InstanceTemplateSpec(project="p", config=instance_config))
    body = resources.insert_body(template, "")
    assert body["properties"] == {"machineType": "ct6e-standard-4t", **want}


def test_body_of_a_manager_without_machines_has_target_size_0() -> None:
    name = "m" * 57 + "-12345"
    body = resources.insert_body(replace(MANAGER, meta=meta(name), spec=replace(MANAGER.spec, target_size=0)), MARK)
    assert (body["name"], body["baseInstanceName"], body["targetSize"]) == (name, "m" * 57, 0)


@pytest.mark.parametrize(("child", "body", "read", "want"), READ.values(), ids=READ)
def test_body_of_a_child_has_all_its_fields_and_is_read(
    child: object, body: object, read: object, want: object
) -> None:
    made = resources.insert_body(child, MARK)
    assert made == body
    assert read(json.loads(json.dumps(made))) == want


def test_resource_policy_of_another_type_has_no_type() -> None:
    found = resources.policy_of({"name": "x", "status": "READY", "groupPlacementPolicy": {"collocation": "COLLOCATED"}})
    assert (found.type, found.topology, found.status) == ("", "", "READY")


@pytest.mark.parametrize(
    ("raw", "want"),
    [(7, 7), ("7", 7), ("9" * 20, int("9" * 20)), ("9" * 21, 0), ("²", 0), ("seven", 0), ("", 0), (True, 0), (7.0, 0)],
)
def test_number_is_read_from_an_integer_or_a_string(raw: object, want: int) -> None:
    assert resources.manager_of({"targetSize": raw}).target_size == want


def test_group_that_waits_for_capacity_has_googles_failure() -> None:
    found = resources.manager_of(
        {
            "name": "m",
            "creationTimestamp": "2026-11-23T02:00:00.000-08:00",
            "targetSize": 4,
            "status": {
                "isStable": False,
                "bulkInstanceOperation": {
                    "inProgress": True,
                    "lastProgressCheck": {
                        "timestamp": "2026-11-23T10:05:00Z",
                        "error": {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "No luck."}]},
                    },
                },
            },
        }
    )
    assert found.bulk == BulkOperation(
        in_progress=True,
        failures=(Failure(kind=FailureKind.STOCKOUT, message="ZONE_RESOURCE_POOL_EXHAUSTED: No luck."),),
    )
    assert found.created_at == datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
    assert not found.is_stable


def test_machines_and_placeholders_are_distinguished() -> None:
    base = "https://www.googleapis.com/compute/v1/projects/p/zones/r1-a/instances"
    raw = {
        "managedInstances": [
            {"name": "m-1", "instance": f"{base}/m-1", "id": "7", "instanceStatus": "RUNNING", "currentAction": "NONE"},
            {
                "instance": f"{base}/m-2",
                "currentAction": "CREATING",
                "lastAttempt": {"errors": {"errors": [{"code": "QUOTA_EXCEEDED", "message": "Quota 'X' exceeded."}]}},
            },
            {"currentAction": "CREATING"},
            None,
        ],
        "nextPageToken": "more",
    }
    assert resources.managed_instances_of(raw, ZONE) == (
        (
            ManagedInstance(name="m-1", scope=ZONE, status="RUNNING", action="NONE", id="7"),
            ManagedInstance(
                name="m-2",
                scope=ZONE,
                action="CREATING",
                failures=(Failure(kind=FailureKind.QUOTA, message="QUOTA_EXCEEDED: Quota 'X' exceeded."),),
            ),
        ),
        "more",
    )


def test_machine_is_read_with_its_metadata() -> None:
    raw = {
        "name": "m-1",
        "id": 7,
        "status": "RUNNING",
        "machineType": "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a/machineTypes/ct6e-standard-4t",
        "metadata": {"fingerprint": "f", "items": [{"key": "a", "value": "1"}, {"key": "b"}, {"value": "c"}, 7]},
    }
    found, token = resources.instances_of({"items": [raw, {"status": "RUNNING"}, 7], "nextPageToken": "t"}, {})
    assert token == "t"
    assert found == (Instance(name="m-1", id="7", items={"a": "1", "b": ""}, fingerprint="f"),)


def test_script_of_several_machines_is_in_memory_once() -> None:
    """Otherwise the controller would hold a copy of the script for each of thousands of machines."""
    page = {"items": [{"name": name, "metadata": {"items": [{"key": "s", "value": "x" * 9}]}} for name in "abc"]}
    shared: dict[str, str] = {}
    pages = [resources.instances_of(json.loads(json.dumps(page)), shared) for _ in range(2)]
    assert len({id(instance.items["s"]) for found, _ in pages for instance in found}) == 1


def _ended(kind: str, code: str = "", **parts: object) -> dict[str, object]:
    return {
        "status": "DONE",
        "operationType": kind,
        **({"error": {"errors": [{"code": code}]}} if code else {}),
        **parts,
    }


#: Operation, whether it has ended, and the kind of its failure (None if it has not failed), by case.
_OPERATIONS: dict[str, tuple[dict[str, object], bool, FailureKind | None]] = {
    "pending": ({"status": "PENDING"}, False, None),
    "running": ({"status": "RUNNING", "error": {"errors": []}}, False, None),
    "ended": ({"status": "DONE"}, True, None),
    "ended with code 200": ({"status": "DONE", "httpErrorStatusCode": 200}, True, None),
    "failed with a code": (_ended("insert", "QUOTA_EXCEEDED"), True, FailureKind.QUOTA),
    "insert that names a missing resource": (_ended("insert", "RESOURCE_NOT_FOUND"), True, FailureKind.INVALID),
    "delete of a missing resource": (
        _ended("delete", httpErrorStatusCode=404, httpErrorMessage="NOT FOUND"),
        True,
        FailureKind.NOT_FOUND,
    ),
    "metadata that another client changed": (
        _ended("compute.instances.setMetadata", "CONDITION_NOT_MET", httpErrorStatusCode=412),
        True,
        FailureKind.OPERATION_IN_THE_WAY,
    ),
}


@pytest.mark.parametrize(("raw", "done", "kind"), _OPERATIONS.values(), ids=_OPERATIONS)
def test_operation_is_read_with_its_outcome(raw: dict[str, object], done: bool, kind: FailureKind | None) -> None:
    found = resources.operation_of({"name": "operation-1", **raw})
    assert found.done is done
    assert (found.failure.kind if found.failure else None) is kind


def test_name_of_the_target_does_not_affect_the_kind_of_failure() -> None:
    raw = {
        "name": "operation-1",
        "status": "DONE",
        "operationType": "insert",
        "targetLink": "projects/p/global/instanceTemplates/gce-quota-exceeded",
        "error": {"errors": [{"code": "NEW", "message": "The thing gce-quota-exceeded broke."}]},
    }
    assert resources.operation_of(raw) == Operation(
        name=OperationName("operation-1"),
        done=True,
        failure=Failure(kind=FailureKind.UNAVAILABLE, message="NEW: The thing gce-quota-exceeded broke."),
    )


#: Keys that the parsers read, and some that they ignore. Random keys would almost never be read.
_KEYS = sorted(
    {
        "name", "description", "id", "status", "selfLink", "workloadPolicy", "type", "acceleratorTopology",
        "properties", "scheduling", "maxRunDuration", "seconds", "networkInterfaces", "subnetwork", "metadata", "items",
        "key", "value", "fingerprint", "disks", "boot", "initializeParams", "diskSizeGb", "reservationAffinity",
        "consumeReservationType", "values", "tags", "serviceAccounts", "email", "scopes", "targetSize",
        "targetSizePolicy", "mode", "currentActions", "none", "isStable", "bulkInstanceOperation", "inProgress",
        "lastProgressCheck", "timestamp", "error", "errors", "code", "message", "managedInstances", "instance",
        "instanceStatus", "currentAction", "lastAttempt", "nextPageToken", "httpErrorStatusCode", "operationType",
        "creationTimestamp", "machineType", "provisioningModel", "onHostMaintenance", "instanceTerminationAction",
        "instanceTemplate", "resourcePolicies", "httpErrorMessage", "targetLink",
    }
)  # fmt: skip
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**1100, max_value=2**1200)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["DONE", "SPECIFIC_RESERVATION", "99", "9" * 30, "2026-11-23T10:05:00Z", "²", "insert"])
)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=6),
    max_leaves=25,
)


@given(_JSON)
def test_any_json_is_read_without_an_exception(raw: object) -> None:
    for read in (resources.policy_of, resources.template_of, resources.manager_of):
        hash(str(read(raw)))
    instances, token = resources.instances_of(raw, {})
    assert all(instance.name for instance in instances)
    assert isinstance(token, str)
    machines, token = resources.managed_instances_of(raw, ZONE)
    assert all(machine.name for machine in machines)
    assert isinstance(token, str)
    operation = resources.operation_of(raw)
    assert operation.done or operation.failure is None


_LOCATIONS = "projects/p/locations/us-central1"
#: Scope, collection and name of a resource by URL or path; None if the URL or path is invalid.
_LINKS: dict[str, tuple[Scope, str, str] | None] = {
    "projects/p/global/instanceTemplates/t": (GLOBAL, "instanceTemplates", "t"),
    "https://www.googleapis.com/compute/v1/projects/p/regions/r1/instanceTemplates/t": (
        REGION,
        "instanceTemplates",
        "t",
    ),
    "https://compute.googleapis.com/compute/beta/projects/p/zones/r1-a/instanceGroupManagers/m": (
        ZONE,
        "instanceGroupManagers",
        "m",
    ),
    f"{_LOCATIONS}/instanceTemplates/t": (Scope(project="p", region="us-central1"), "instanceTemplates", "t"),
    f"{_LOCATIONS}-a/instances/t": (Scope(project="p", zone="us-central1-a"), "instances", "t"),
    "projects/p/instanceTemplates/t": None,
    "myprojects/p/global/instanceTemplates/t": None,
    "": None,
}


@pytest.mark.parametrize(("url", "want"), _LINKS.items())
def test_url_or_path_of_a_resource_is_parsed(url: str, want: tuple[Scope, str, str] | None) -> None:
    link = parse_link(url)
    assert (link and (link.scope, link.collection, link.name)) == want


def test_urls_of_one_resource_are_equal() -> None:
    path = "projects/p/global/instanceTemplates/t"

    assert same_resource(path, f"https://www.googleapis.com/compute/v1/{path}")
    assert not same_resource(path, "projects/p/regions/r1/instanceTemplates/t")
    assert not same_resource("", path)


@given(st.text() | st.from_regex(r"projects/[^/]*/(global|zones/[^/]*)/[A-Za-z]*/[^/]*"))
def test_parsed_url_gives_a_path_that_is_parsed_equally(url: str) -> None:
    link = parse_link(url)

    assert link is None or parse_link(f"{link.scope.path}/{link.collection}/{link.name}") == link


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        pytest.param(ZONE, "a.b", id="a name with a dot, as objects of Kubernetes have"),
        pytest.param(ZONE, "1a", id="a name that begins with a digit"),
        pytest.param(ZONE, "a" * 64, id="a name that is too long"),
        pytest.param(ZONE, "a-", id="a name that ends with a hyphen"),
        pytest.param(ZONE, "", id="no name"),
        pytest.param(ZONE, "..", id="a step up"),
        pytest.param(Scope(project="p", zone=".."), "a", id="a zone that is a step up"),
        pytest.param(Scope(project="p", region="../../q/regions/r1"), "a", id="a region that leads elsewhere"),
        pytest.param(Scope(project="p/zones/z", zone="r1-a"), "a", id="a project that leads elsewhere"),
        pytest.param(Scope(project="", zone="r1-a"), "a", id="no project"),
    ],
)
def test_invalid_address_is_recognized(scope: Scope, name: str) -> None:
    assert address_problem(scope, name)


@pytest.mark.parametrize("project", ["p", "example.com:my-project-1", "123456789012"])
def test_valid_address_has_no_problem(project: str) -> None:
    scope = Scope(project=project, zone="us-central1-a")

    assert not address_problem(scope, "a-mig-0123abcd")
    assert not address_problem(scope, "operation-1700000000000-60a1b2c3-0a1b_2c3d", operation=True)
    assert address_problem(scope, "../instances/a", operation=True)
