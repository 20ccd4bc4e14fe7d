"""Creates, deletes, lost answers, stockouts and crashes in any order, with the controller of node groups behind it all.

What the simulation of the loop demands of GKE's pools is demanded here of TPUNodeGroups: each name is there as long as
it was asked for and not given back, others' groups stay, and in the end nothing is left anywhere.
"""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from provisioner.kube import errors
from provisioner.model.capacity import Failure, FailureKind, PoolName, PoolStatus
from provisioner.slices.supplier import SupplierError
from rehearsal.simulators.compute.faults import Fault, FaultKind
from tests.slices.suppliers.nodegroup.test_conformance import SLICE, NodeGroupGround

_NAMES = st.sampled_from([PoolName("js-0000000001"), PoolName("js-0000000002"), PoolName("js-0000000003")])
_THEIRS = PoolName("theirs")
_LOST = st.sampled_from(["", "before its effect", "after its effect"])
#: Between a look of the controller at Compute Engine and the longest wait for capacity.
_SECONDS = st.sampled_from([1.0, 30.0, 700.0])


class Supply(RuleBasedStateMachine):
    """What was asked for, and what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.ground = NodeGroupGround(SLICE)
        self.wanted: set[PoolName] = set()
        #: Given back, and perhaps not gone yet.
        self.leaving: set[PoolName] = set()
        self.stockout: Fault | None = None

    @initialize()
    def somebody_has_a_group(self) -> None:
        """Made by hand; it is ready before anything happens."""
        self.ground.create_foreign(_THEIRS)
        self.ground.finish()

    @rule(name=_NAMES, lost=_LOST)
    def create(self, name: PoolName, lost: str) -> None:
        there = name in self._listed()
        self._lose("POST", lost)
        failure = self._failure(lambda: self.ground.supplier.create_pool(self.ground.request(name), lambda: None))
        if lost:
            assert failure is not None
            assert failure.kind is FailureKind.UNKNOWN_OUTCOME or there
        elif there and failure is not None:
            assert failure.kind in (FailureKind.ALREADY_EXISTS, FailureKind.OPERATION_IN_THE_WAY)
        else:
            assert failure is None
        # A name that was given back is free again once its group is gone.
        if failure is None or (lost == "after its effect" and not there):
            self.wanted.add(name)
            self.leaving.discard(name)
        self.ground.world.kube.clear_faults()

    @rule(name=_NAMES, lost=_LOST)
    def delete(self, name: PoolName, lost: str) -> None:
        before = self._listed().get(name)
        self._lose("DELETE", lost)
        failure = self._failure(lambda: self.ground.supplier.delete_pool(name))
        self.ground.world.kube.clear_faults()
        if before is None:
            assert failure is not None
            assert failure.kind is FailureKind.NOT_FOUND
        elif before is PoolStatus.STOPPING:
            assert failure is not None
            assert failure.kind is FailureKind.OPERATION_IN_THE_WAY
        elif lost:
            assert failure is not None
            assert failure.kind is FailureKind.UNKNOWN_OUTCOME
        else:
            assert failure is None
        if before is not None and lost != "before its effect":
            self.wanted.discard(name)
            self.leaving.add(name)

    @rule(seconds=_SECONDS)
    def time_passes(self, seconds: float) -> None:
        """The controller works, and machines join."""
        world = self.ground.world
        end = world.clock.seconds + seconds
        world.run(lambda: world.clock.seconds >= end, seconds=seconds + 60)

    @rule()
    def the_controller_crashes(self) -> None:
        """It begins anew, and remembers nothing."""
        self.ground.world.start()

    @precondition(lambda self: self.stockout is None)
    @rule()
    def nothing_is_in_stock(self) -> None:
        """From now on."""
        self.stockout = self.ground.world.compute.world.faults.add(Fault(kind=FaultKind.STOCKOUT))

    @precondition(lambda self: self.stockout is not None)
    @rule()
    def it_is_in_stock_again(self) -> None:
        """What waits gets its machines."""
        self.ground.world.compute.world.faults.clear()
        self.stockout = None

    @invariant()
    def what_was_asked_for_is_listed(self) -> None:
        """And nothing else, but what is on its way out, and what is somebody's."""
        listed = self._listed()
        assert self.wanted <= listed.keys()
        assert listed.keys() <= self.wanted | self.leaving | {_THEIRS}
        assert all(listed[name] is not PoolStatus.STOPPING for name in self.wanted)
        assert listed.get(_THEIRS, PoolStatus.RUNNING) is PoolStatus.RUNNING

    def teardown(self) -> None:
        """In the end all can be had, and all is given back: nothing is left but what somebody made."""
        world = self.ground.world
        world.compute.world.faults.clear()
        self.ground.finish()
        listed = self._listed()
        assert all(listed[name] in (PoolStatus.RUNNING, PoolStatus.ERROR) for name in self.wanted)
        for name in self.wanted:
            self.ground.supplier.delete_pool(name)
        self.ground.finish()
        assert self._listed().keys() <= {_THEIRS}
        kept = [each for each in world.resources() if _THEIRS not in each]
        assert kept == []
        self.ground.close()

    def _listed(self) -> dict[PoolName, PoolStatus]:
        return {pool.name: pool.status for pool in self.ground.supplier.list_pools()}

    def _lose(self, method: str, lost: str) -> None:
        if lost:
            error = errors.Unavailable("Connection reset by peer.")
            self.ground.world.kube.fail(method, "/tpunodegroups", error, after_effect=lost == "after its effect")

    @staticmethod
    def _failure(call: object) -> Failure | None:
        assert callable(call)
        try:
            call()
        except SupplierError as error:
            return error.failure
        return None


# Each step is some seconds of a whole controller's life.
@pytest.mark.timeout(120)
class TestSupply(Supply.TestCase):  # type: ignore[misc]
    """Runs it."""

    settings = hypothesis.settings(
        max_examples=8, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
