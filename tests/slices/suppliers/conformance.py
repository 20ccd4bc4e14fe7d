"""Tests of the contract of `Supplier` and its `PoolRules`, which run against every supplier.

A supplier's test module provides a fixture `ground`, and a class that inherits from `SupplierContract`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

import pytest

from provisioner import constants
from provisioner.model.capacity import (
    CapacityKind,
    Failure,
    FailureKind,
    NodePool,
    NodePoolRequest,
    OperationName,
    PoolName,
    PoolStatus,
    expected_pool,
)
from provisioner.model.choices import CapacityChoice
from provisioner.model.fit import misfit
from provisioner.model.workloads import Toleration, WorkloadUid
from provisioner.slices.planning.spec.specification import LABEL_CHARACTERS, Candidates, pool_name, uncopied_labels
from provisioner.slices.supplier import Supplier, SupplierError, UnmeetableError
from tests.support.models import make_jobset, make_requirements, make_slice
from tests.support.settings import settings

#: Accelerator that every supplier sells, in slices of two hosts.
ACCELERATOR = "tpu7x"
FIRST, SECOND = PoolName("js-0123456789"), PoolName("js-9876543210")
_NOTHING_MAY = Failure(kind=FailureKind.UNAVAILABLE, message="this process does not lead any more")


class Ground(Protocol):
    """A supplier with a simulated cluster."""

    supplier: Supplier

    def sells(self, accelerator: str) -> bool: ...

    def request(self, name: PoolName) -> NodePoolRequest:
        """Return a request that the supplier accepts, with labels and taints."""
        ...

    def finish(self) -> None: ...

    def changes(self) -> int:
        """Return the number of changing requests that have reached the simulated cluster."""
        ...

    def lose_answer(self, *, to_create: bool, before_effect: bool) -> None: ...

    def fail_creation(self) -> None:
        """Let the next create be accepted, and its operation fail."""
        ...

    def create_foreign(self, name: PoolName) -> None: ...

    def make_unreadable(self, name: PoolName) -> None:
        """Give a pool a form that this release cannot parse."""
        ...


def _free() -> Failure | None:
    return None


def create(ground: Ground, name: PoolName = FIRST) -> OperationName:
    return ground.supplier.create_pool(ground.request(name), _free)


def failure_of(call: Callable[[], object]) -> Failure:
    with pytest.raises(SupplierError) as caught:
        call()
    assert caught.value.failure.message
    return caught.value.failure


def listed(ground: Ground) -> dict[PoolName, NodePool]:
    pools = ground.supplier.list_pools()
    assert len({pool.name for pool in pools}) == len(pools)
    return {pool.name: pool for pool in pools}


class SupplierContract:
    """Behaviour of a supplier on which the loop relies."""

    def test_pool_is_listed_from_its_create_until_its_delete_has_ended(self, ground: Ground) -> None:
        request = ground.request(FIRST)
        create(ground)
        pool = listed(ground)[FIRST]
        assert pool.status is PoolStatus.PROVISIONING
        assert request.labels.items() <= pool.labels.items()
        assert set(request.taints) <= set(pool.taints)
        assert (pool.machine_type, pool.hosts, pool.zones, pool.topology) == (
            request.machine_type,
            request.hosts,
            (request.zone,),
            request.topology,
        )
        assert ground.supplier.get_pool(FIRST) == pool
        ground.finish()
        up = listed(ground)[FIRST]
        assert up == replace(pool, status=PoolStatus.RUNNING, made=up.made)
        ground.supplier.delete_pool(FIRST)
        assert listed(ground)[FIRST].status is PoolStatus.STOPPING
        ground.finish()
        assert FIRST not in listed(ground)

    @pytest.mark.parametrize("topology", ["2x2x1", "2x2x2"])
    @pytest.mark.parametrize("accelerator", ["tpu-v4-podslice", "tpu-v5p-slice", "tpu7x"])
    @pytest.mark.parametrize("name", ["train", "0.9-" + "x" * 49], ids=["a short name", "a long name"])
    def test_specification_of_a_slice_is_accepted_and_listed_as_planned(
        self, ground: Ground, name: str, accelerator: str, topology: str
    ) -> None:
        rules = ground.supplier.rules
        asked = make_requirements(accelerator=accelerator, topology=topology)
        workload = make_jobset(name, uid=WorkloadUid("u"), parallelism=1 if topology == "2x2x1" else 2, template=asked)
        slice_ = make_slice(workload)
        choice = CapacityChoice(kind=CapacityKind.ON_DEMAND, zone=ground.request(FIRST).zone)
        candidates = Candidates(settings(auto_upgrade=True), rules)
        if not ground.sells(accelerator):
            with pytest.raises(UnmeetableError):
                candidates.specification(slice_, choice)
            return
        specification = candidates.specification(slice_, choice)
        request = specification.stamped(pool_name(name, slice_.id, 3), 3)
        facts = (request.zone, request.hosts, request.topology, request.capacity, request.reservation)
        assert facts == (choice.zone, slice_.nodes, topology, choice.kind, "")
        ground.supplier.create_pool(request, _free)
        pool = listed(ground)[request.name]
        assert pool == expected_pool(request)
        view = rules.expected_node(pool)
        assert (view.chips, misfit(slice_.requirements, view)) == (4, ())

    def test_labels_up_to_the_limit_are_accepted_and_more_are_not_requested(self, ground: Ground) -> None:
        rules, zone = ground.supplier.rules, ground.request(FIRST).zone
        keys = tuple(f"k{number:03}" for number in range(LABEL_CHARACTERS // 60 + 1))

        def specified(characters: int) -> NodePoolRequest:
            values = ["v" * min(max(characters - 50 * number, 0), 50) for number in range(len(keys))]
            pod = make_requirements(accelerator=ACCELERATOR, labels=dict(zip(keys, values, strict=True)))
            slice_ = make_slice(make_jobset("train", template=pod), requirements=pod)
            choice = CapacityChoice(kind=CapacityKind.ON_DEMAND, zone=zone)
            candidates = Candidates(settings(auto_upgrade=True, pod_to_node_labels=keys), rules)
            return candidates.specification(slice_, choice).stamped(pool_name("train", slice_.id, 1), 1)

        def count(request: NodePoolRequest) -> int:
            return sum(len(key) + len(value) for key, value in request.labels.items())

        room = LABEL_CHARACTERS - count(specified(0))
        request = specified(room)
        assert count(request) == LABEL_CHARACTERS
        ground.supplier.create_pool(request, _free)
        assert request.labels.items() <= listed(ground)[request.name].labels.items()
        with pytest.raises(UnmeetableError, match=f"{rules.supplier_name} allows {LABEL_CHARACTERS}"):
            specified(room + 1)

    def test_labels_that_pods_may_select_or_copy_are_in_the_request(self, ground: Ground) -> None:
        rules, zone = ground.supplier.rules, ground.request(FIRST).zone
        selected = dict.fromkeys(rules.requestable_labels, "asked")
        copied = dict.fromkeys(rules.copyable | rules.requestable_labels, "asked")
        selecting = make_requirements(accelerator=ACCELERATOR, selector=selected)
        copying = make_requirements(
            accelerator=ACCELERATOR, labels=copied, annotations={constants.COPY_LABELS: ",".join(copied)}
        )
        for pod, want in ((selecting, selected), (copying, copied)):
            slice_ = make_slice(make_jobset("train", template=pod), requirements=pod)
            assert uncopied_labels(slice_, settings(), rules) == ""
            choice = CapacityChoice(kind=CapacityKind.ON_DEMAND, zone=zone)
            specification = Candidates(settings(auto_upgrade=True), rules).specification(slice_, choice)
            assert want.items() <= specification.blueprint.request.labels.items()

    @pytest.mark.parametrize("kind", list(CapacityKind))
    def test_labels_of_a_capacity_choice_are_on_the_nodes(self, ground: Ground, kind: CapacityKind) -> None:
        rules = ground.supplier.rules
        reservation = "r" if kind is CapacityKind.RESERVATION else ""
        choice = CapacityChoice(kind=kind, zone=ground.request(FIRST).zone, reservation=reservation)
        anywhere = (Toleration(operator="Exists"),)
        pod = make_requirements(accelerator=ACCELERATOR, tolerations=anywhere)
        slice_ = make_slice(make_jobset("train", template=pod), requirements=pod)
        candidates = Candidates(settings(auto_upgrade=True), rules)
        added = candidates.specification(slice_, choice).blueprint.request.labels
        assert not constants.OWNER_LABELS & added.keys()
        pod = make_requirements(accelerator=ACCELERATOR, selector=dict(added), tolerations=anywhere)
        slice_ = make_slice(make_jobset("train", template=pod), requirements=pod)
        request = candidates.specification(slice_, choice).blueprint.request
        assert added.items() <= request.labels.items()
        assert added.items() <= rules.expected_node(expected_pool(request)).labels.items()

    def test_operation_is_known_until_it_is_done(self, ground: Ground) -> None:
        created = create(ground)
        assert not ground.supplier.get_operation(created).done
        ground.finish()
        operation = ground.supplier.get_operation(created)
        assert (operation.done, operation.failure) == (True, None)
        deleted = ground.supplier.delete_pool(FIRST)
        assert not ground.supplier.get_operation(deleted).done
        ground.finish()
        assert ground.supplier.get_operation(deleted).done

    def test_failed_create_has_its_failure_and_its_pool_remains_listed(self, ground: Ground) -> None:
        """The provisioner deletes failed pools, so it must see them in the list."""
        ground.fail_creation()
        operation = create(ground)
        ground.finish()
        ended = ground.supplier.get_operation(operation)
        assert ended.done
        assert ended.failure is not None
        pool = listed(ground)[FIRST]
        assert pool.status is PoolStatus.ERROR
        assert pool.failure is not None
        assert pool.failure.kind is ended.failure.kind
        ground.supplier.delete_pool(FIRST)
        ground.finish()
        assert FIRST not in listed(ground)

    def test_missing_pool_or_operation_is_not_found(self, ground: Ground) -> None:
        supplier = ground.supplier
        calls = (
            lambda: supplier.get_pool(FIRST),
            lambda: supplier.delete_pool(FIRST),
            lambda: supplier.get_operation(OperationName("operation-0")),
        )
        assert [failure_of(call).kind for call in calls] == [FailureKind.NOT_FOUND] * 3

    def test_a_second_create_of_a_name_changes_nothing(self, ground: Ground) -> None:
        """A caller that lost the answer to the first create may repeat the create."""
        create(ground)
        before = listed(ground)
        assert failure_of(lambda: create(ground)).kind in (
            FailureKind.ALREADY_EXISTS,
            FailureKind.OPERATION_IN_THE_WAY,
        )
        ground.finish()
        assert failure_of(lambda: create(ground)).kind is FailureKind.ALREADY_EXISTS
        assert listed(ground).keys() == before.keys()

    def test_a_second_delete_changes_nothing(self, ground: Ground) -> None:
        create(ground)
        ground.finish()
        ground.supplier.delete_pool(FIRST)
        kind = failure_of(lambda: ground.supplier.delete_pool(FIRST)).kind
        assert kind in (FailureKind.OPERATION_IN_THE_WAY, FailureKind.NOT_FOUND)
        ground.finish()
        assert failure_of(lambda: ground.supplier.delete_pool(FIRST)).kind is FailureKind.NOT_FOUND

    @pytest.mark.parametrize("before_effect", [True, False], ids=["before its effect", "after its effect"])
    def test_create_with_a_lost_answer_may_be_repeated(self, ground: Ground, *, before_effect: bool) -> None:
        """The outcome of the first create is unknown; with the same name, at most one pool can exist."""
        ground.lose_answer(to_create=True, before_effect=before_effect)
        assert failure_of(lambda: create(ground)).kind is FailureKind.UNKNOWN_OUTCOME
        assert (FIRST in listed(ground)) is not before_effect
        ground.finish()
        if before_effect:
            create(ground)
        else:
            assert failure_of(lambda: create(ground)).kind is FailureKind.ALREADY_EXISTS
        ground.finish()
        assert listed(ground)[FIRST].status is PoolStatus.RUNNING

    @pytest.mark.parametrize("before_effect", [True, False], ids=["before its effect", "after its effect"])
    def test_delete_with_a_lost_answer_may_be_repeated(self, ground: Ground, *, before_effect: bool) -> None:
        create(ground)
        ground.finish()
        ground.lose_answer(to_create=False, before_effect=before_effect)
        assert failure_of(lambda: ground.supplier.delete_pool(FIRST)).kind is FailureKind.UNKNOWN_OUTCOME
        ground.finish()
        if before_effect:
            ground.supplier.delete_pool(FIRST)
            ground.finish()
        assert failure_of(lambda: ground.supplier.delete_pool(FIRST)).kind is FailureKind.NOT_FOUND

    @pytest.mark.parametrize("free_for", range(3))
    def test_blocked_create_sends_no_further_request(self, ground: Ground, free_for: int) -> None:
        """A process that has lost the Lease must send no further changes, even during a call."""
        asked = 0

        def blocked() -> Failure | None:
            nonlocal asked
            asked += 1
            sent.append(ground.changes())
            return _NOTHING_MAY if asked > free_for else None

        sent: list[int] = []
        failure: Failure | None = None
        try:
            ground.supplier.create_pool(ground.request(FIRST), blocked)
        except SupplierError as error:
            failure = error.failure
        assert asked
        assert failure == (_NOTHING_MAY if asked > free_for else None)
        if failure is not None:
            # The simulated cluster has received only the requests from before the first rejection.
            assert ground.changes() == sent[free_for]
            assert FIRST not in listed(ground)

    def test_pools_of_other_clients_are_listed(self, ground: Ground) -> None:
        ground.create_foreign(SECOND)
        create(ground)
        assert listed(ground).keys() >= {FIRST, SECOND}
        assert failure_of(lambda: create(ground, SECOND)).kind in (
            FailureKind.ALREADY_EXISTS,
            FailureKind.OPERATION_IN_THE_WAY,
        )

    def test_unreadable_pool_is_listed_as_unknown(self, ground: Ground) -> None:
        create(ground)
        create_other = ground.request(SECOND)
        ground.finish()
        ground.supplier.create_pool(create_other, _free)
        ground.finish()
        ground.make_unreadable(FIRST)
        assert {name: pool.status for name, pool in listed(ground).items() if name in (FIRST, SECOND)} == {
            FIRST: PoolStatus.UNKNOWN,
            SECOND: PoolStatus.RUNNING,
        }

    def test_concurrent_calls_of_many_threads_succeed(self, ground: Ground) -> None:
        names = [PoolName(f"js-{number:010d}") for number in range(8)]
        together = threading.Barrier(len(names))

        def one(name: PoolName) -> OperationName:
            together.wait(10)
            ground.supplier.list_pools()
            return create(ground, name)

        with ThreadPoolExecutor(len(names)) as threads:
            operations = list(threads.map(one, names))
        assert len(set(operations)) == len(names)
        ground.finish()
        assert all(ground.supplier.get_operation(operation).done for operation in operations)
        assert listed(ground).keys() >= set(names)
