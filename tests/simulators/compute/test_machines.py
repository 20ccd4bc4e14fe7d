"""Tests of VMs: statuses, metadata, losses and repairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.simulators.compute.errors import ApiError
from rehearsal.simulators.compute.faults import Fault, FaultKind
from rehearsal.simulators.compute.records import Loss
from tests.support.compute import GROUPS, INSTANCES, ZONE, Compute

MakeCompute = Callable[..., Compute]
REPAIRS = {"instanceLifecyclePolicy": {"defaultActionOnFailure": "REPAIR"}}


def first(compute: Compute) -> str:
    """Return the name of a group's first instance."""
    return str(compute.members()[0]["name"])


def test_metadata_is_that_of_the_template_until_it_is_replaced(compute: Compute) -> None:
    """A replacement takes effect with the end of its operation."""
    compute.slice()
    name = first(compute)
    assert compute.world.metadata(ZONE, name)["startup-script"] == "#!/bin/sh"
    found = compute.get(f"{INSTANCES}/{name}")["metadata"]
    assert {item["key"] for item in found["items"]} == {"startup-script", "created-by", "instance-template"}
    compute("POST", f"{INSTANCES}/{name}/setMetadata", {**found, "items": [{"key": "k", "value": "v"}]})
    assert "k" not in compute.world.metadata(ZONE, name)
    compute.pass_seconds(1)
    assert compute.world.metadata(ZONE, name) == {"k": "v"}
    with pytest.raises(ApiError, match="instances/nobody' was not found"):
        compute.world.metadata(ZONE, "nobody")


@pytest.mark.parametrize("fingerprint", [None, "", "stale"])
def test_outdated_fingerprint_is_rejected_with_412(compute: Compute, fingerprint: str | None) -> None:
    """A fingerprint is outdated after any change, even one that sets the same content."""
    compute.slice()
    name = first(compute)
    found = compute.get(f"{INSTANCES}/{name}")["metadata"]
    body: dict[str, Any] = {"items": [], "fingerprint": fingerprint}
    if fingerprint == "stale":
        compute.do("POST", f"{INSTANCES}/{name}/setMetadata", found)
        body["fingerprint"] = found["fingerprint"]
    status, answer = compute("POST", f"{INSTANCES}/{name}/setMetadata", body)
    assert (status, answer["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
    assert len(compute.get(f"{INSTANCES}/{name}")["metadata"]["items"]) == 3


@pytest.mark.parametrize(
    ("model", "loss", "status"),
    [
        pytest.param("SPOT", Loss.PREEMPTED, "TERMINATED", id="a spot VM is stopped"),
        pytest.param("RESERVATION_BOUND", Loss.PREEMPTED, "", id="one that is deleted at its end"),
        pytest.param("SPOT", Loss.HOST_ERROR, "TERMINATED", id="a host error of a spot VM"),
    ],
)
def test_lost_vm_is_not_replaced_if_the_group_does_not_repair(
    make_compute: MakeCompute, model: str, loss: Loss, status: str
) -> None:
    """The group is stable without the VM, and its topology is incomplete."""
    compute = make_compute(reservations={"us-east5-a/res": {"machine_type": "ct6e-standard-4t", "count": 4}})
    compute.slice(model=model)
    compute.pass_seconds(10)
    name = first(compute)
    assert compute.world.lose(name, loss)
    compute.pass_seconds(600)
    assert compute.statuses() == [status, "RUNNING", "RUNNING", "RUNNING"]
    found = compute.status()
    assert (found["isStable"], found["appliedAcceleratorTopologies"][0]["state"]) == (True, "INCOMPLETE")
    assert compute.members()[0]["currentAction"] == "NONE"
    assert compute("GET", f"{INSTANCES}/{name}")[0] == (200 if status else 404)
    assert compute.get(f"{GROUPS}/group")["targetSize"] == 4


@pytest.mark.parametrize(("loss", "way"), [(Loss.HOST_ERROR, "REPAIRING"), (Loss.MAINTENANCE, "STOPPING")])
def test_whole_slice_restarts_after_a_host_error_or_maintenance(compute: Compute, loss: Loss, way: str) -> None:
    """All VMs of a slice start again, with the same IDs, and one boot more."""
    compute.slice()
    compute.pass_seconds(10)
    before = [member["id"] for member in compute.members()]
    compute.world.lose(first(compute), loss)
    assert compute.statuses() == [way] * 4
    compute.pass_seconds(20)
    assert compute.statuses() == ["RUNNING"] * 4
    assert [member["id"] for member in compute.members()] == before
    assert {view.boots for view in compute.world.machines()} == {2}


def test_preempted_slice_is_recreated_as_a_whole(compute: Compute) -> None:
    """All VMs are deleted, and created again under the same names once there is room for all."""
    compute.slice(model="SPOT", **REPAIRS)
    compute.pass_seconds(10)
    before = compute.members()
    compute.world.lose(first(compute), Loss.PREEMPTED)
    compute.world.faults.add(Fault(kind=FaultKind.STOCKOUT, model="SPOT"))
    compute.pass_seconds(30)
    assert compute.statuses() == [""] * 4
    assert {member["currentAction"] for member in compute.members()} == {"RECREATING"}
    compute.world.faults.clear()
    compute.pass_seconds(30)
    after = compute.members()
    assert compute.statuses() == ["RUNNING"] * 4
    assert [member["name"] for member in after] == [member["name"] for member in before]
    assert not {member["id"] for member in after} & {member["id"] for member in before}


def test_flex_start_vms_are_deleted_at_their_termination_time(compute: Compute) -> None:
    """The time is visible while they run. The group does not recreate them."""
    compute.slice(model="FLEX_START")
    compute.pass_seconds(10)
    assert all("terminationTimestamp" in member["scheduling"] for member in compute.members())
    compute.pass_seconds(3590)
    assert compute.statuses() == ["RUNNING"] * 4
    compute.pass_seconds(20)
    assert compute.statuses() == [""] * 4
    assert compute.status()["isStable"]


def test_machines_are_listed_by_page_and_by_filter(compute: Compute) -> None:
    """With `fields`, only the requested fields are returned."""
    compute.slice()
    names = sorted(member["name"] for member in compute.members())
    page = compute.get(f"{INSTANCES}?maxResults=3")
    rest = compute.get(f"{INSTANCES}?maxResults=3&pageToken={page['nextPageToken']}")
    assert [each["name"] for each in page["items"] + rest["items"]] == names
    assert "nextPageToken" not in rest
    chosen = f'{INSTANCES}?filter=name+eq+"{names[0][:-1]}.*"&fields=items/name,items/disks/boot'
    assert compute.get(chosen) == {"items": [{"name": names[0], "disks": [{"boot": True}]}]}
