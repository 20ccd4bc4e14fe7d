"""The client against the simulated Compute Engine, which knows nothing of it and is checked by Google's own client."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from provisioner.model.capacity import Failure, FailureKind, OperationName
from provisioner.nodegroups.api.specs import (
    FailureAction,
    InstanceConfig,
    ProvisioningModel,
    ServiceAccount,
    SizePolicyMode,
)
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.compute.links import same_resource
from provisioner.nodegroups.compute.protocol import Compute, ComputeError
from provisioner.nodegroups.compute.records import (
    DELETE,
    READY,
    TERMINATE,
    ManagedInstance,
    Manager,
    Operation,
    ResourcePolicy,
    Scope,
    Template,
)
from rehearsal.simulators.compute import ComputeSettings, ComputeSimulator, Fault, FaultKind, Loss
from tests.support.waiting import wait_for

K = FailureKind
GLOBAL = Scope(project="proj")
REGION = Scope(project="proj", region="us-east5")
ZONE = Scope(project="proj", zone="us-east5-a")
MARK = "tpu-provisioner: TPUNodeGroup ns/g uid 1 cluster 2"
POLICY = ResourcePolicy(name="g-policy", description=MARK, topology="4x4")
TEMPLATE = Template(
    name="g-template",
    description=MARK,
    machine_type="ct6e-standard-4t",
    provisioning_model=ProvisioningModel.STANDARD,
    on_host_maintenance=TERMINATE,
    metadata={"startup-script": "#!/bin/bash", "mine": "1"},
    config=InstanceConfig(
        machine_type="ct6e-standard-4t",
        image="projects/i/global/images/u",
        boot_disk_size_gb=100,
        disk_type="hyperdisk-balanced",
        subnetwork="regions/us-east5/subnetworks/default",
        network_tags=("a", "b"),
        service_accounts=(ServiceAccount(email="e@proj.iam.gserviceaccount.com", scopes=("cloud-platform",)),),
    ),
)
MANAGER = Manager(
    name="g-mig",
    description=MARK,
    template="projects/proj/global/instanceTemplates/g-template",
    target_size=4,
    mode=SizePolicyMode.BULK,
    policy="projects/proj/regions/us-east5/resourcePolicies/g-policy",
    action_on_failure=FailureAction.DO_NOTHING,
)


@pytest.fixture
def simulator() -> Iterator[ComputeSimulator]:
    settings = ComputeSettings(
        operation_seconds=0.02,
        metadata_seconds=0.02,
        provisioning_seconds=0.02,
        staging_seconds=0.02,
        stopping_seconds=0.02,
        retry_seconds=0.02,
        reservations={"us-east5-a/res": {"machine_type": "ct6e-standard-4t", "count": 4}},
    )
    with ComputeSimulator(settings) as running:
        yield running


@pytest.fixture
def client(simulator: ComputeSimulator) -> Iterator[ComputeClient]:
    made = ComputeClient(endpoint=simulator.url, change_seconds=1.0)
    yield made
    made.close()


def new_id() -> str:
    return str(uuid.uuid4())


def ended(client: Compute, started: Operation) -> Operation:
    """Wait for an operation as planning does: by asking."""
    return wait_for(lambda: (found := client.get_operation(started.scope, started.name)).done and found)


def done(client: Compute, started: Operation) -> None:
    assert ended(client, started).failure is None


def make_slice(client: Compute, template: Template = TEMPLATE) -> None:
    done(client, client.insert(REGION, POLICY, request_id=new_id()))
    done(client, client.insert(GLOBAL, template, request_id=new_id()))
    done(client, client.insert(ZONE, MANAGER, request_id=new_id()))


def machines(client: Compute) -> tuple[ManagedInstance, ...]:
    return client.list_managed_instances(ZONE, "g-mig")


def running(client: Compute) -> tuple[ManagedInstance, ...]:
    """Wait until all machines run; return them."""
    wait_for(lambda: client.get(Manager, ZONE, "g-mig").is_stable)
    return machines(client)


def failure_of(call: Callable[[], object]) -> Failure:
    with pytest.raises(ComputeError) as caught:
        call()
    return caught.value.failure


def test_a_slice_from_nothing_to_nothing_left(simulator: ComputeSimulator, client: ComputeClient) -> None:
    make_slice(client)

    policy = client.get(ResourcePolicy, REGION, "g-policy")
    assert replace(policy, url="") == replace(POLICY, status=READY)
    template = client.get(Template, GLOBAL, "g-template")
    assert (template.machine_type, template.metadata) == (TEMPLATE.machine_type, TEMPLATE.metadata)
    found = running(client)
    manager = client.get(Manager, ZONE, "g-mig")
    assert same_resource(manager.template, MANAGER.template)
    assert same_resource(manager.policy, MANAGER.policy)
    assert (manager.description, manager.target_size, manager.mode) == (MARK, 4, SizePolicyMode.BULK)
    assert manager.bulk is not None
    assert (manager.bulk.in_progress, manager.bulk.failures) == (False, ())
    assert [each.status for each in found] == ["RUNNING"] * 4
    assert len({each.id for each in found}) == 4
    assert [each.name for each in found] == sorted(each.name for each in found)

    done(client, client.delete(Manager, ZONE, "g-mig", request_id=new_id()))
    done(client, client.delete(Template, GLOBAL, "g-template", request_id=new_id()))
    done(client, client.delete(ResourcePolicy, REGION, "g-policy", request_id=new_id()))
    assert simulator.world.resources() == ()


def test_metadata_is_replaced_by_whom_knows_what_it_is(client: ComputeClient) -> None:
    make_slice(client)
    name = running(client)[0].name
    (before,) = client.list_instances(ZONE, [name])
    assert before.status == "RUNNING"
    assert before.items["mine"] == "1"
    items = {**before.items, "kubeadm-join-token": "t"}
    fingerprint = before.fingerprint

    done(client, client.set_metadata(ZONE, name, items, fingerprint=fingerprint, request_id=new_id()))

    after = client.list_instances(ZONE, [name])[0]
    assert after.items == items
    assert after.fingerprint != fingerprint
    late = failure_of(
        lambda: client.set_metadata(ZONE, name, before.items, fingerprint=fingerprint, request_id=new_id())
    )
    assert late.kind is K.OPERATION_IN_THE_WAY


def test_all_machines_of_a_group_are_read_with_their_metadata_and_no_others(client: ComputeClient) -> None:
    make_slice(client)
    names = [each.name for each in running(client)]

    found = client.list_instances(ZONE, names)

    assert [each.name for each in found] == names
    assert {each.items["mine"] for each in found} == {"1"}
    assert all(each.id and each.fingerprint for each in found)
    assert [each.name for each in client.list_instances(ZONE, names[1:3])] == names[1:3]


def test_fault_2_a_group_that_is_not_there_yet_has_no_machines_to_ask_for(client: ComputeClient) -> None:
    assert failure_of(lambda: machines(client)).kind is K.NOT_FOUND


def test_fault_2_placeholders_are_listed_as_such_and_are_no_machines(
    simulator: ComputeSimulator, client: ComputeClient
) -> None:
    stockout = simulator.inject(Fault(kind=FaultKind.STOCKOUT))
    make_slice(client)

    waiting = machines(client)

    assert [(each.has_machine, each.id, each.action) for each in waiting] == [(False, "", "CREATING")] * 4
    assert client.list_instances(ZONE, [each.name for each in waiting]) == ()
    simulator.clear(stockout)
    assert all(each.has_machine for each in running(client))


def test_a_group_that_waits_says_what_for(simulator: ComputeSimulator, client: ComputeClient) -> None:
    simulator.inject(Fault(kind=FaultKind.STOCKOUT))
    make_slice(client)

    found = wait_for(lambda: (manager := client.get(Manager, ZONE, "g-mig")).bulk.failures and manager)

    assert not found.is_stable
    assert found.bulk.in_progress
    assert {failure.kind for failure in found.bulk.failures} == {K.STOCKOUT}
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in found.bulk.failures[0].message


def test_a_quota_of_chips_is_a_quota(simulator: ComputeSimulator, client: ComputeClient) -> None:
    simulator.set(quotas={"TPUS": 4.0})
    make_slice(client)

    found = wait_for(lambda: client.get(Manager, ZONE, "g-mig").bulk.failures)

    assert {failure.kind for failure in found} == {K.QUOTA}


def test_a_reservation_is_used(client: ComputeClient) -> None:
    config = replace(TEMPLATE.config, reservation="res")
    bound = replace(
        TEMPLATE, provisioning_model=ProvisioningModel.RESERVATION_BOUND, termination_action=DELETE, config=config
    )
    make_slice(client, bound)

    assert len(running(client)) == 4


def test_a_machine_that_is_lost_is_seen(simulator: ComputeSimulator, client: ComputeClient) -> None:
    make_slice(client)
    lost = running(client)[0].name

    assert simulator.lose(lost, Loss.DELETED)

    wait_for(lambda: lost not in {each.name for each in machines(client) if each.status == "RUNNING"})


def test_the_same_request_again_is_the_same_operation(simulator: ComputeSimulator, client: ComputeClient) -> None:
    request_id = new_id()

    first = client.insert(REGION, POLICY, request_id=request_id)
    second = client.insert(REGION, POLICY, request_id=request_id)

    assert first.name == second.name
    done(client, first)
    assert failure_of(lambda: client.insert(REGION, POLICY, request_id=new_id())).kind is K.ALREADY_EXISTS
    assert client.get(ResourcePolicy, REGION, "g-policy").description == MARK


def test_an_answer_that_was_lost_is_found_again_by_its_request_id(
    simulator: ComputeSimulator, client: ComputeClient
) -> None:
    request_id = new_id()
    simulator.inject(
        Fault(kind=FaultKind.HTTP_ERROR, method="resourcePolicies.insert", code=0, count=1, before_effect=False)
    )

    lost = failure_of(lambda: client.insert(REGION, POLICY, request_id=request_id))

    assert lost.kind is K.UNKNOWN_OUTCOME
    done(client, client.insert(REGION, POLICY, request_id=request_id))


def test_an_operation_that_is_forgotten_is_not_found(simulator: ComputeSimulator, client: ComputeClient) -> None:
    simulator.set(operations_kept_seconds=0.0)
    started = client.insert(REGION, POLICY, request_id=new_id())

    wait_for(lambda: _kind_of(client, started) is K.NOT_FOUND)

    assert client.get(ResourcePolicy, REGION, "g-policy").status == READY


def _kind_of(client: Compute, started: Operation) -> FailureKind | None:
    try:
        client.get_operation(started.scope, started.name)
    except ComputeError as error:
        return error.failure.kind
    return None


def test_what_is_in_use_is_not_deleted(client: ComputeClient) -> None:
    make_slice(client)

    template = failure_of(lambda: client.delete(Template, GLOBAL, "g-template", request_id=new_id()))
    policy = failure_of(lambda: client.delete(ResourcePolicy, REGION, "g-policy", request_id=new_id()))

    assert (template.kind, policy.kind) == (K.OPERATION_IN_THE_WAY, K.OPERATION_IN_THE_WAY)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("QUOTA_EXCEEDED", K.QUOTA),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", K.STOCKOUT),
        ("RESOURCE_NOT_FOUND", K.INVALID),
        ("PERMISSIONS_ERROR", K.PERMISSION),
        ("INTERNAL_ERROR", K.UNAVAILABLE),
        ("SOMETHING_NEW", K.UNAVAILABLE),
    ],
)
def test_an_operation_that_fails_says_why(
    simulator: ComputeSimulator, client: ComputeClient, code: str, kind: FailureKind
) -> None:
    simulator.inject(Fault(kind=FaultKind.OPERATION_ERROR, error_code=code))

    failed = ended(client, client.insert(REGION, POLICY, request_id=new_id()))

    assert failed.failure is not None
    assert failed.failure.kind is kind
    assert code in failed.failure.message


CALLS: dict[str, Callable[[Compute], object]] = {
    "resourcePolicies.get": lambda it: it.get(ResourcePolicy, REGION, "g-policy"),
    "resourcePolicies.create": lambda it: it.insert(REGION, replace(POLICY, name="other"), request_id=new_id()),
    "resourcePolicies.delete": lambda it: it.delete(ResourcePolicy, REGION, "g-policy", request_id=new_id()),
    "instanceTemplates.get": lambda it: it.get(Template, GLOBAL, "g-template"),
    "instanceTemplates.create": lambda it: it.insert(GLOBAL, replace(TEMPLATE, name="other"), request_id=new_id()),
    "instanceTemplates.delete": lambda it: it.delete(Template, GLOBAL, "g-template", request_id=new_id()),
    "instanceGroupManagers.get": lambda it: it.list_managed_instances(ZONE, "g-mig"),
    "instanceGroupManagers.create": lambda it: it.insert(ZONE, replace(MANAGER, name="other"), request_id=new_id()),
    "instanceGroupManagers.delete": lambda it: it.delete(Manager, ZONE, "g-mig", request_id=new_id()),
    "instances.list": lambda it: it.list_instances(ZONE, ["x"]),
    "instances.setMetadata": lambda it: it.set_metadata(ZONE, "x", {}, fingerprint="f", request_id=new_id()),
    "zoneOperations.get": lambda it: it.get_operation(ZONE, OperationName("operation-1")),
    "regionOperations.get": lambda it: it.get_operation(REGION, OperationName("operation-1")),
    "globalOperations.get": lambda it: it.get_operation(GLOBAL, OperationName("operation-1")),
}


@pytest.mark.parametrize("right", CALLS)
def test_a_right_that_is_missing_is_named(simulator: ComputeSimulator, client: ComputeClient, right: str) -> None:
    simulator.set(denied_permissions=[f"compute.{right}"])

    found = failure_of(lambda: CALLS[right](client))

    assert found.kind is K.PERMISSION
    assert f"compute.{right}" in found.message


@pytest.mark.parametrize("code", [403, 429])
def test_too_many_requests_are_no_quota_and_no_missing_right(
    simulator: ComputeSimulator, client: ComputeClient, code: int
) -> None:
    simulator.set(reads_per_minute=1, changes_per_minute=1, rate_limit_code=code)
    client.insert(REGION, POLICY, request_id=new_id())
    client.get(ResourcePolicy, REGION, "g-policy")

    assert failure_of(lambda: client.get(ResourcePolicy, REGION, "g-policy")).kind is K.UNAVAILABLE
    assert failure_of(lambda: client.insert(GLOBAL, TEMPLATE, request_id=new_id())).kind is K.UNAVAILABLE


def test_what_the_organisation_forbids_is_refused_for_good(simulator: ComputeSimulator, client: ComputeClient) -> None:
    simulator.set(violated_constraints={"instanceTemplates.insert": "constraints/compute.trustedImageProjects"})

    found = failure_of(lambda: client.insert(GLOBAL, TEMPLATE, request_id=new_id()))

    assert found.kind is K.INVALID
    assert "constraints/compute.trustedImageProjects" in found.message


def test_a_quota_of_templates_is_a_quota(simulator: ComputeSimulator, client: ComputeClient) -> None:
    simulator.set(quotas={"INSTANCE_TEMPLATES": 0.0})

    assert failure_of(lambda: client.insert(GLOBAL, TEMPLATE, request_id=new_id())).kind is K.QUOTA


@pytest.mark.parametrize("zone", ["us-nowhere9-z", "..", "US"])
def test_in_a_zone_that_is_none_there_is_nothing_to_find_or_delete(
    simulator: ComputeSimulator, client: ComputeClient, zone: str
) -> None:
    simulator.set(zones=["us-east5-a"])
    nowhere = Scope(project="proj", zone=zone)

    assert failure_of(lambda: client.get(Manager, nowhere, "g-mig")).kind is K.NOT_FOUND
    assert failure_of(lambda: client.delete(Manager, nowhere, "g-mig", request_id=new_id())).kind is K.NOT_FOUND
    assert failure_of(lambda: client.insert(nowhere, MANAGER, request_id=new_id())).kind is K.INVALID


def test_a_group_of_a_template_that_is_not_there_is_refused(client: ComputeClient) -> None:
    assert failure_of(lambda: client.insert(ZONE, MANAGER, request_id=new_id())).kind is K.INVALID


@pytest.mark.parametrize("code", [500, 502, 503])
def test_an_outage_leaves_the_outcome_of_changes_open(
    simulator: ComputeSimulator, client: ComputeClient, code: int
) -> None:
    simulator.inject(Fault(kind=FaultKind.HTTP_ERROR, code=code))

    assert failure_of(lambda: client.insert(REGION, POLICY, request_id=new_id())).kind is K.UNKNOWN_OUTCOME
    assert failure_of(lambda: client.get(ResourcePolicy, REGION, "g-policy")).kind is K.UNAVAILABLE


def test_a_regional_template_of_a_user_is_read_where_it_is(client: ComputeClient) -> None:
    done(client, client.insert(REGION, TEMPLATE, request_id=new_id()))

    assert client.get(Template, REGION, "g-template").machine_type == "ct6e-standard-4t"
    assert failure_of(lambda: client.get(Template, GLOBAL, "g-template")).kind is K.NOT_FOUND


@pytest.mark.parametrize(
    "right", ["instanceGroupManagers.delete", "instanceTemplates.delete", "resourcePolicies.delete"]
)
def test_a_delete_of_what_is_not_there_ends_in_not_found(client: ComputeClient, right: str) -> None:
    assert failure_of(lambda: CALLS[right](client)).kind is K.NOT_FOUND
