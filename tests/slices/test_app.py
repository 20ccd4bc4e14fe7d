"""The parts put together: who starts whom, what a lost lease ends, and what ends in good order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from provisioner import constants, controller
from provisioner.controller import Addresses, Controller
from provisioner.kube import errors
from provisioner.model.capacity import PoolName
from provisioner.slices import app
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.plan import LookUp, Plan
from provisioner.slices.suppliers.gke.translate import Cluster
from tests.support.clock import FakeClock
from tests.support.controller import CERTIFICATE
from tests.support.gke import FakeGke
from tests.support.kube import FakeKube
from tests.support.settings import settings

LEASE = "/apis/coordination.k8s.io/v1/namespaces/tpu-provisioner-system/leases/tpu-provisioner"


class Kube(FakeKube):
    """An API server with what a connection says of itself."""

    server = "https://kube.example.com"
    context_name = "test"
    ca_pem = CERTIFICATE

    def __init__(self) -> None:
        super().__init__()
        #: Every renewal of the lease hangs while this is cleared.
        self.answers = threading.Event()
        self.answers.set()
        self.renewing = threading.Event()

    def put(self, path: str, *arguments: Any, **options: Any) -> Any:
        """Replace an object, when the server answers."""
        if path == LEASE:
            self.renewing.set()
            self.answers.wait(10)
        return super().put(path, *arguments, **options)


class Process:
    """A controller whose exit is only written down."""

    def __init__(self, *, leader_elect: bool = True, **changes: Any) -> None:
        self.kube = Kube()
        self.gke = FakeGke(cluster=Cluster(name="test", status="RUNNING", ca_certificate_pem=CERTIFICATE))
        self.clock = FakeClock()
        self.exit_codes: list[int] = []
        self.exited = threading.Event()
        self.controller: Controller = app.build(
            settings(**changes),
            Addresses(metrics="0", probes="0", leader_elect=leader_elect),
            self.kube,  # type: ignore[arg-type]
            None if changes.get("provider") == "gce" else self.gke,
            exit_process=self.exit,
            lease_clock=self.clock,
        )

    def exit(self, code: int) -> None:
        """Take note."""
        self.exit_codes.append(code)
        self.exited.set()

    def end(self) -> None:
        """Let all threads end."""
        self.kube.answers.set()
        self.controller.stop()
        if self.controller.replica.elector is not None:
            self.controller.replica.elector.stop()
        for watch in self.controller.loop.watches.named().values():
            watch.stop()
        self.controller.replica.recorder.stop()
        self.controller.actor.executor.shutdown(wait=True)


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.end()


def test_the_one_candidate_leads_and_wakes_the_loop(process: Process) -> None:
    assert not process.controller.loop.is_leader()
    process.controller.start()
    assert process.controller.loop.wake.wait(5)
    assert process.kube.object(LEASE) is not None
    never = threading.Event()
    # A watch may have woken the loop before.
    assert any(process.controller.loop.is_leader() or never.wait(0.01) for _ in range(500))
    assert 0 < process.controller.actor.lease_seconds() <= 30


def test_without_an_election_it_leads_from_the_start() -> None:
    process = Process(leader_elect=False)
    process.controller.start()
    assert process.controller.loop.is_leader()
    assert process.controller.actor.lease_seconds() == float("inf")
    assert process.kube.object(LEASE) is None
    process.end()


def test_a_lost_lease_ends_the_process_at_once(process: Process) -> None:
    """Though the loop hangs in its round: it never runs here. No further round would begin."""
    elector = process.controller.replica.elector
    assert elector is not None
    elector.step()
    assert process.controller.loop.is_leader()
    process.kube.fail("*", "leases", errors.Unavailable("away"), times=100)
    process.clock.advance(19)
    elector.step()
    assert process.exit_codes == []
    process.controller.loop.wake.clear()
    process.clock.advance(2)
    elector.step()
    assert process.exit_codes == [1]
    assert process.controller.loop.stopping.is_set()
    assert process.controller.loop.wake.is_set()
    assert not process.controller.loop.is_leader()


def test_a_renewal_that_hangs_does_not_hide_the_loss(process: Process) -> None:
    """The elector waits for an answer of the API server; another thread sees that the time is up."""
    elector = process.controller.replica.elector
    assert elector is not None
    elector.step()
    process.kube.answers.clear()
    process.controller.start()
    assert process.kube.renewing.wait(5)
    assert not process.exited.is_set()
    process.clock.advance(21)
    assert process.exited.wait(5)
    assert process.exit_codes == [1]


def test_a_log_that_hangs_does_not_keep_the_process(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads our output may have stopped; the last line gets its second and no more."""
    release = threading.Event()
    monkeypatch.setattr(controller, "_say_lease_lost", lambda: release.wait(10))
    monkeypatch.setattr(controller, "_LAST_WORDS_SECONDS", 0.01)
    elector = process.controller.replica.elector
    assert elector is not None
    elector.step()
    process.clock.advance(21)
    process.kube.fail("*", "leases", errors.Unavailable("away"), times=100)
    elector.step()
    assert process.exit_codes == [1]
    release.set()


def test_a_lease_that_is_given_back_is_not_lost(process: Process) -> None:
    """In good order: the lease is free for the next, and the process ends by itself."""
    process.controller.start()
    elector = process.controller.replica.elector
    assert elector is not None
    assert process.controller.loop.wake.wait(5)
    process.controller.stop()
    process.controller.loop.run()
    process.controller.shut_down()
    assert process.exit_codes == []
    lease = process.kube.object(LEASE)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""


def test_a_call_that_hangs_keeps_the_lease_and_not_the_process(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way may still have its effect, so nobody may lead before the lease has run out."""
    monkeypatch.setattr(controller, "_DRAIN_SECONDS", 0.01)
    hanging, entered = threading.Event(), threading.Event()

    def hang(_: PoolName) -> None:
        entered.set()
        hanging.wait(10)

    monkeypatch.setattr(process.gke, "get_node_pool", hang)
    elector = process.controller.replica.elector
    assert elector is not None
    elector.step()
    process.controller.actor.carry_out(Plan(memory=Memory(), look_ups=(LookUp(name=PoolName("a")),)))
    assert entered.wait(5)
    process.controller.stop()
    process.controller.shut_down()
    assert process.exit_codes == [0]
    lease = process.kube.object(LEASE)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == elector.identity
    hanging.set()


def test_without_gke_there_is_nothing_to_prove_and_groups_are_listed() -> None:
    """Nothing of Google's is called: the provisioner needs no credentials for it."""
    process = Process(leader_elect=False, provider="gce", node_group_namespace="slices")
    try:
        loop = process.controller.loop
        assert loop.identity is None
        assert loop.pools.supplier.rules.supplier_name == "Compute Engine"
        assert loop.pools.fetch()
        assert any(call.path.endswith("/namespaces/slices/tpunodegroups") for call in process.kube.calls)
        process.kube.uninstall("/apis/tpu.google.com")
        assert not loop.pools.fetch()
        assert loop.pools.problem.startswith("Compute Engine does not list the node pools: ")
        assert "CustomResourceDefinitions" in loop.pools.problem
        # Tenants choose the labels of their nodes, but for this one.
        trusted = f"{constants.TRUSTED_GROUP_NAMESPACE}=slices"
        assert process.controller.actor.gate.node_namespace == "slices"
        loop.watches.nodes.step()
        assert trusted in process.kube.calls[-1].query["labelSelector"]
    finally:
        process.end()


def test_gke_needs_its_client() -> None:
    with pytest.raises(ValueError, match="PROVIDER=gke"):
        app.build(settings(), Addresses(metrics="0", probes="0", leader_elect=False), Kube(), None)  # type: ignore[arg-type]
