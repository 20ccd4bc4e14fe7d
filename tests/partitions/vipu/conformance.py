"""The contract of `Vipu`, as tests that run against each of its implementations.

A test module gives a fixture `ground`, and has a class that inherits from `VipuContract`. All play on the memory of a
simulated server, in which what happened can be seen, and broken. Its creates and removes take no time.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from provisioner.model.capacity import FailureKind
from provisioner.partitions.vipu.protocol import (
    Allocation,
    Partition,
    PartitionRequest,
    PartitionState,
    Vipu,
    VipuError,
)
from rehearsal.simulators.vipu.faults import CREATE, GET, LIST_ALLOCATIONS, LIST_PARTITIONS, REMOVE, Fault, FaultKind
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.records import Asked, Caller

#: The allocations and users that the ground's server has.
ALLOCATIONS = {
    "ours": {"cluster": "c16", "agents": ["ag0", "ag1", "ag2", "ag3"]},
    "small": {"cluster": "c16", "agents": ["ag4"]},
    "theirs": {"cluster": "c16", "agents": ["ag5", "ag6"]},
}
USERS = {
    "us": {"key": "open-sesame", "allocations": ["ours", "small"]},
    "them": {"key": "key-of-others", "allocations": ["small", "theirs"]},
}
THEM = Caller(user="them", key="key-of-others")

_FAULTY, _CREATES = 0.4, 0.6
#: What befalls a change of the last test of the contract.
_FAULTS = (
    Fault(kind=FaultKind.REFUSED, grpc_code="Aborted", message="later"),
    Fault(kind=FaultKind.REFUSED, grpc_code="", message="the hamster is tired"),
    Fault(kind=FaultKind.CREATE_FAILS),
    Fault(kind=FaultKind.CREATE_LEAKS),
    Fault(kind=FaultKind.REMOVE_LEAKS),
    Fault(kind=FaultKind.HTTP_ERROR),
    Fault(kind=FaultKind.HTTP_ERROR, before_effect=False),
    Fault(kind=FaultKind.HTTP_ERROR, code=0, before_effect=False),
    Fault(kind=FaultKind.HTTP_ERROR, code=502, body="<html>Bad Gateway</html>", before_effect=False),
)


class Ground(Protocol):
    """An implementation, which asks as user `us`, and the server that it asks."""

    @property
    def vipu(self) -> Vipu:
        """What is tried."""

    @property
    def world(self) -> World:
        """The server's memory."""


def _request(name: str = "p1", size: int = 4, allocation: str = "ours") -> PartitionRequest:
    return PartitionRequest(id=name, size=size, allocation=allocation)


class VipuContract:
    """What every implementation keeps."""

    def _failure(self, call: object, *arguments: object) -> FailureKind:
        with pytest.raises(VipuError) as caught:
            call(*arguments)  # type: ignore[operator]
        return caught.value.failure.kind

    def _states(self, ground: Ground) -> dict[str, str]:
        return {item.id: item.state for item in ground.world.all_partitions()}

    def test_allocations_of_the_user_are_listed_with_their_ipus(self, ground: Ground) -> None:
        assert ground.vipu.list_allocations() == (Allocation(name="ours", ipus=16), Allocation(name="small", ipus=4))

    def test_a_partition_that_was_made_is_listed_with_all_that_is_told(self, ground: Ground) -> None:
        ground.vipu.create_partition(_request(size=8))
        expected = Partition(id="p1", size=8, state=PartitionState.ACTIVE, state_text="ACTIVE", cluster="c16")
        assert ground.vipu.list_partitions() == (expected,)
        (made,) = ground.world.all_partitions()
        assert (made.allocation, made.reconfigurable, made.user) == ("ours", True, "us")

    def test_what_is_not_asked_for_is_left_to_the_server(self, ground: Ground) -> None:
        ground.world.change_settings({"picks_allocation": True})
        ground.vipu.create_partition(PartitionRequest(id="p1", size=16, reconfigurable=False))
        ground.vipu.create_partition(PartitionRequest(id="p2", size=4))
        made = [(item.allocation, item.reconfigurable) for item in ground.world.all_partitions()]
        assert made == [("ours", False), ("small", True)]

    def test_a_server_may_tell_the_allocation_of_partitions(self, ground: Ground) -> None:
        ground.world.change_settings({"lists_allocations": True, "added_columns": {"Health": "GOOD"}})
        ground.vipu.create_partition(_request(allocation="small"))
        assert [item.allocation for item in ground.vipu.list_partitions()] == ["small"]

    def test_partitions_of_others_in_a_shared_allocation_are_listed_and_none_elsewhere(self, ground: Ground) -> None:
        ground.world.create(Asked(id="shared", size=2, allocation="small"), THEM)
        ground.world.create(Asked(id="hidden", size=2, allocation="theirs"), THEM)
        assert [item.id for item in ground.vipu.list_partitions()] == ["shared"]

    def test_a_second_create_of_an_id_says_so_and_changes_nothing(self, ground: Ground) -> None:
        ground.vipu.create_partition(_request(size=2))
        assert self._failure(ground.vipu.create_partition, _request(size=4)) is FailureKind.ALREADY_EXISTS
        assert [item.size for item in ground.world.all_partitions()] == [2]

    def test_a_removed_partition_is_gone_and_a_second_remove_says_that_it_is_not_there(self, ground: Ground) -> None:
        ground.vipu.create_partition(_request())
        ground.vipu.remove_partition("p1")
        assert self._states(ground) == {}
        assert self._failure(ground.vipu.remove_partition, "p1") is FailureKind.NOT_FOUND

    def test_without_aligned_free_ipus_in_the_allocation_there_is_a_stockout(self, ground: Ground) -> None:
        ground.vipu.create_partition(_request("p1", 1))
        assert self._failure(ground.vipu.create_partition, _request("p2", 16)) is FailureKind.STOCKOUT
        ground.vipu.create_partition(_request("p3", 8))
        assert set(self._states(ground)) == {"p1", "p3"}

    @pytest.mark.parametrize(
        "request_",
        [
            pytest.param(_request(size=3), id="a size that is no power of two"),
            pytest.param(_request(size=128), id="a size that no server has"),
            pytest.param(_request(name="p" * 40), id="an id that is too long"),
            pytest.param(_request(name="--reconfigurable"), id="an id that looks like an option"),
            pytest.param(_request(allocation="--help"), id="an allocation that looks like an option"),
            pytest.param(_request(allocation="theirs"), id="an allocation of others"),
            pytest.param(_request(allocation="not enough IPUs"), id="an allocation with a name like an error"),
        ],
    )
    def test_what_can_never_be_made_is_invalid(self, ground: Ground, request_: PartitionRequest) -> None:
        assert self._failure(ground.vipu.create_partition, request_) is FailureKind.INVALID
        assert self._states(ground) == {}

    def test_partitions_of_others_cannot_be_touched(self, ground: Ground) -> None:
        ground.world.create(Asked(id="hidden", size=2, allocation="theirs"), THEM)
        assert self._failure(ground.vipu.remove_partition, "hidden") is FailureKind.NOT_FOUND
        assert self._failure(ground.vipu.ipuof_config, "hidden") is FailureKind.NOT_FOUND
        assert list(self._states(ground)) == ["hidden"]

    def test_the_configuration_is_a_json_document(self, ground: Ground) -> None:
        ground.vipu.create_partition(_request(size=4))
        document = ground.vipu.ipuof_config("p1")
        assert len(json.loads(document)["devices"]) == 4
        assert document.endswith("}\n")

    def test_states_that_nobody_knows_are_neither_good_nor_bad(self, ground: Ground) -> None:
        ground.vipu.create_partition(_request())
        ground.world.mark("p1", state="DEFRAGMENTING")
        (listed,) = ground.vipu.list_partitions()
        assert (listed.state, listed.state_text) == (PartitionState.OTHER, "DEFRAGMENTING")

    def test_a_change_while_another_is_under_way_waits_for_it_to_pass(self, ground: Ground) -> None:
        ground.world.faults.add(Fault(kind=FaultKind.CREATE_STUCK, count=1))
        ground.world.create(Asked(id="p1", size=1, allocation="ours"), Caller(user="us", key="open-sesame"))
        assert self._failure(ground.vipu.remove_partition, "p1") is FailureKind.OPERATION_IN_THE_WAY

    def test_a_create_that_fails_in_the_end_may_have_left_something(self, ground: Ground) -> None:
        ground.world.faults.add(Fault(kind=FaultKind.CREATE_LEAKS, count=1))
        assert self._failure(ground.vipu.create_partition, _request()) is FailureKind.UNKNOWN_OUTCOME
        (leaked,) = ground.vipu.list_partitions()
        assert leaked.state is PartitionState.ERROR
        ground.vipu.remove_partition("p1")
        assert self._states(ground) == {}

    def test_a_remove_that_fails_in_the_end_may_have_changed_something(self, ground: Ground) -> None:
        ground.vipu.create_partition(_request())
        ground.world.faults.add(Fault(kind=FaultKind.REMOVE_LEAKS, count=1))
        assert self._failure(ground.vipu.remove_partition, "p1") is FailureKind.UNKNOWN_OUTCOME

    @pytest.mark.parametrize("before_effect", [True, False])
    def test_a_change_whose_answer_is_lost_has_an_unknown_outcome(self, ground: Ground, before_effect: bool) -> None:
        lost = Fault(kind=FaultKind.HTTP_ERROR, code=0, method=CREATE, before_effect=before_effect, count=1)
        ground.world.faults.add(lost)
        assert self._failure(ground.vipu.create_partition, _request()) is FailureKind.UNKNOWN_OUTCOME
        ground.world.faults.add(
            Fault(kind=FaultKind.HTTP_ERROR, code=0, method=REMOVE, before_effect=before_effect, count=1)
        )
        assert self._failure(ground.vipu.remove_partition, "p1") is FailureKind.UNKNOWN_OUTCOME

    @pytest.mark.parametrize("method", [LIST_ALLOCATIONS, LIST_PARTITIONS, GET])
    def test_a_read_that_fails_is_an_error_and_never_an_empty_list(self, ground: Ground, method: str) -> None:
        ground.vipu.create_partition(_request())
        read = {
            LIST_ALLOCATIONS: ground.vipu.list_allocations,
            LIST_PARTITIONS: ground.vipu.list_partitions,
            GET: lambda: ground.vipu.ipuof_config("p1"),
        }[method]
        for code in (0, 503):
            ground.world.faults.add(Fault(kind=FaultKind.HTTP_ERROR, code=code, method=method, count=1))
            assert self._failure(read) is FailureKind.UNAVAILABLE
        assert read()

    def test_while_the_server_restarts_nothing_is_done_and_that_is_certain(self, ground: Ground) -> None:
        ground.vipu.create_partition(_request())
        ground.world.restart(keeps_partitions=True, down_seconds=3600)
        assert self._failure(ground.vipu.create_partition, _request("p2")) is FailureKind.UNAVAILABLE
        assert self._failure(ground.vipu.remove_partition, "p1") is FailureKind.UNAVAILABLE
        assert self._failure(ground.vipu.list_partitions) is FailureKind.UNAVAILABLE
        assert self._states(ground) == {"p1": "ACTIVE"}

    def test_who_may_not_ask_is_told_so(self, ground: Ground) -> None:
        ground.world.change_settings({"users": {"us": {"key": "changed", "allocations": ["ours"]}}})
        assert self._failure(ground.vipu.list_partitions) is FailureKind.PERMISSION
        assert self._failure(ground.vipu.create_partition, _request()) is FailureKind.PERMISSION

    def test_many_threads_may_ask_at_once(self, ground: Ground) -> None:
        names = [f"p{number}" for number in range(6)]
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(lambda name: ground.vipu.create_partition(_request(name, 1)), names))
        assert sorted(item.id for item in ground.vipu.list_partitions()) == names

    @pytest.mark.parametrize("seed", range(4))
    def test_only_what_has_an_unknown_outcome_may_have_changed_anything_besides_what_succeeds(
        self, ground: Ground, seed: int
    ) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            if rng.random() < _FAULTY:
                ground.world.faults.clear()
                ground.world.faults.add(rng.choice(_FAULTS))
            name, size, allocation = f"p{rng.randrange(6)}", rng.choice((1, 2, 3, 4, 16)), rng.choice(("ours", "small"))
            before = {item.id: item for item in ground.world.all_partitions()}
            creates = rng.random() < _CREATES
            kind = None
            try:
                if creates:
                    ground.vipu.create_partition(_request(name, size, allocation))
                else:
                    ground.vipu.remove_partition(name)
            except VipuError as error:
                kind = error.failure.kind
            after = {item.id: item for item in ground.world.all_partitions()}
            if kind is None:
                assert (name in before, name in after) == (not creates, creates)
                assert not creates or after[name].size == size
            elif kind is not FailureKind.UNKNOWN_OUTCOME:
                assert after == before
            ground.world.faults.clear()
            assert {item.id: item.state_text for item in ground.vipu.list_partitions()} == self._states(ground)
