"""Transition times of conditions, and values that follow from other fields: provisioning model, mode, column NODES."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import bounds
from provisioner.nodegroups.api.specs import InstanceConfig, ManagedInstanceGroupSpec, ProvisioningModel, SizePolicyMode
from provisioner.nodegroups.api.statuses import (
    Condition,
    ConditionStatus,
    ConditionType,
    NodeSummary,
    Reason,
    TpuNodeGroupStatus,
    condition_of,
    with_condition,
)

NOW = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
THEN = NOW.replace(microsecond=0)
LATER = NOW + timedelta(hours=1)

WAITING = Condition(
    type=ConditionType.READY,
    status=ConditionStatus.FALSE,
    reason=Reason.AWAITING_NODE_JOIN,
    message="",
    observed_generation=1,
)
POLICY = Condition(
    type=ConditionType.WORKLOAD_POLICY_READY,
    status=ConditionStatus.TRUE,
    reason=Reason.READY,
    message="",
    observed_generation=1,
)
BEFORE = with_condition(with_condition((), WAITING, NOW), POLICY, NOW)


@pytest.mark.parametrize(
    ("new", "want"),
    [
        pytest.param(WAITING, THEN, id="nothing changed: the time stays"),
        pytest.param(replace(WAITING, message="3 of 4"), THEN, id="another message alone keeps the time"),
        pytest.param(replace(WAITING, reason=Reason.UNSTABLE), THEN, id="another reason alone keeps the time"),
        pytest.param(replace(WAITING, observed_generation=2), THEN, id="another generation alone keeps the time"),
        pytest.param(
            replace(WAITING, last_transition_time=LATER), THEN, id="a time that the new condition brings counts nothing"
        ),
        pytest.param(
            replace(WAITING, status=ConditionStatus.TRUE),
            THEN + timedelta(hours=1),
            id="another status is a transition, in whole seconds",
        ),
    ],
)
def test_transition_time_changes_only_if_the_status_does(new: Condition, want: datetime) -> None:
    after = with_condition(BEFORE, new, LATER)
    assert after == (replace(new, last_transition_time=want), BEFORE[1])


def test_condition_of_a_new_type_is_appended() -> None:
    assert [condition.type for condition in BEFORE] == ["Ready", "WorkloadPolicyReady"]
    assert condition_of(BEFORE, "WorkloadPolicyReady") == replace(POLICY, last_transition_time=THEN)
    assert condition_of(BEFORE, "ManagedInstanceGroupReady") is None


def test_condition_without_a_transition_time_gets_one() -> None:
    (after,) = with_condition((WAITING,), WAITING, NOW)
    assert after.last_transition_time == THEN


def test_message_that_exceeds_the_bound_is_cut() -> None:
    (after,) = with_condition((), replace(WAITING, message="x" * 100_000), NOW)
    assert len(after.message) == bounds.CONDITION_MESSAGE


@given(st.lists(st.tuples(st.sampled_from(list(ConditionType)), st.sampled_from(list(ConditionStatus)))))
def test_each_type_has_one_condition_with_the_time_of_its_last_change(
    changes: list[tuple[ConditionType, ConditionStatus]],
) -> None:
    conditions: tuple[Condition, ...] = ()
    want: dict[str, tuple[ConditionStatus, datetime]] = {}
    for second, (kind, status) in enumerate(changes):
        moment = THEN + timedelta(seconds=second)
        conditions = with_condition(conditions, Condition(type=kind, status=status, reason="Any", message=""), moment)
        if want.get(kind, (None, None))[0] is not status:
            want[kind] = status, moment
    assert {condition.type: (condition.status, condition.last_transition_time) for condition in conditions} == want
    assert len(conditions) == len(want)


@pytest.mark.parametrize(
    ("model", "reservation", "want"),
    [
        pytest.param(None, "", ProvisioningModel.STANDARD, id="nothing is given: standard"),
        pytest.param(None, "r", ProvisioningModel.RESERVATION_BOUND, id="a reservation tells its model"),
        pytest.param(ProvisioningModel.SPOT, "", ProvisioningModel.SPOT, id="a model that is given counts"),
    ],
)
def test_provisioning_model_that_is_not_set_follows_from_the_reservation(
    model: ProvisioningModel | None, reservation: str, want: ProvisioningModel
) -> None:
    config = InstanceConfig(machine_type="tpu7x-standard-4t", provisioning_model=model, reservation=reservation)
    assert config.effective_provisioning_model is want


@pytest.mark.parametrize(
    ("mode", "policy", "want"),
    [
        pytest.param(None, "", SizePolicyMode.INDIVIDUAL, id="without a policy machines are made one by one"),
        pytest.param(None, "p", SizePolicyMode.BULK, id="a policy wires machines that are made together"),
        pytest.param(SizePolicyMode.INDIVIDUAL, "p", SizePolicyMode.INDIVIDUAL, id="a mode that is given counts"),
    ],
)
def test_mode_that_is_not_set_follows_from_the_workload_policy(
    mode: SizePolicyMode | None, policy: str, want: SizePolicyMode
) -> None:
    spec = ManagedInstanceGroupSpec(
        project="my-project",
        location="us-central1-c",
        instance_template="t",
        target_size=2,
        workload_policy=policy,
        target_size_policy_mode=mode,
    )
    assert spec.effective_mode is want


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param(TpuNodeGroupStatus(), "", id="nothing is known yet"),
        pytest.param(TpuNodeGroupStatus(node_count=4), "0/4", id="nodes have not been counted yet"),
        pytest.param(
            TpuNodeGroupStatus(node_count=4, node_summary=NodeSummary(ready=3, reconciling=1, failed=0)),
            "3/4",
            id="three of four",
        ),
    ],
)
def test_column_nodes_is_empty_until_the_count_is_known(status: TpuNodeGroupStatus, want: str) -> None:
    assert status.nodes == want
