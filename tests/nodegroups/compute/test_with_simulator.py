"""The client against the simulated Compute Engine over a socket, which is checked by Google's own client.

What Compute Engine does beyond this is tried by all tests of planning: the same client and simulator, without a socket.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from provisioner.model.capacity import Failure, FailureKind
from provisioner.nodegroups.api.specs import (
    FailureAction,
    InstanceConfig,
    ProvisioningModel,
    ServiceAccount,
    SizePolicyMode,
)
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.compute.records import (
    DELETE,
    READY,
    TERMINATE,
    Compute,
    ComputeError,
    ManagedInstance,
    Manager,
    Operation,
    ResourcePolicy,
    Scope,
    Template,
    same_resource,
)
from rehearsal.simulators.compute import ComputeSettings, ComputeSimulator
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


def test_a_reservation_is_used(client: ComputeClient) -> None:
    config = replace(TEMPLATE.config, reservation="res")
    bound = replace(
        TEMPLATE, provisioning_model=ProvisioningModel.RESERVATION_BOUND, termination_action=DELETE, config=config
    )
    make_slice(client, bound)

    assert len(running(client)) == 4


def test_the_same_request_again_is_the_same_operation(simulator: ComputeSimulator, client: ComputeClient) -> None:
    request_id = new_id()

    first = client.insert(REGION, POLICY, request_id=request_id)
    second = client.insert(REGION, POLICY, request_id=request_id)

    assert first.name == second.name
    done(client, first)
    assert failure_of(lambda: client.insert(REGION, POLICY, request_id=new_id())).kind is K.ALREADY_EXISTS
    assert client.get(ResourcePolicy, REGION, "g-policy").description == MARK


@pytest.mark.parametrize("zone", ["us-nowhere9-z", "..", "US"])
def test_in_a_zone_that_is_none_there_is_nothing_to_find_or_delete(
    simulator: ComputeSimulator, client: ComputeClient, zone: str
) -> None:
    simulator.set(zones=["us-east5-a"])
    nowhere = Scope(project="proj", zone=zone)

    assert failure_of(lambda: client.get(Manager, nowhere, "g-mig")).kind is K.NOT_FOUND
    assert failure_of(lambda: client.delete(Manager, nowhere, "g-mig", request_id=new_id())).kind is K.NOT_FOUND
    assert failure_of(lambda: client.insert(nowhere, MANAGER, request_id=new_id())).kind is K.INVALID


def test_a_regional_template_of_a_user_is_read_where_it_is(client: ComputeClient) -> None:
    done(client, client.insert(REGION, TEMPLATE, request_id=new_id()))

    assert client.get(Template, REGION, "g-template").machine_type == "ct6e-standard-4t"
    assert failure_of(lambda: client.get(Template, GLOBAL, "g-template")).kind is K.NOT_FOUND
