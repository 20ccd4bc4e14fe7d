"""Tests of the assembled controller: its start, leader election, the loss of the Lease, and an orderly shutdown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from provisioner import constants
from provisioner.controller import process as processes
from provisioner.controller.process import Addresses, Controller
from provisioner.kube import errors
from provisioner.model.capacity import PoolName
from provisioner.slices import app
from provisioner.slices.planning.memory.state import LookUp, Memory
from provisioner.slices.planning.plan import Plan
from provisioner.slices.suppliers.gke.translate import Cluster
from tests.support.clock import FakeClock
from tests.support.controller import CERTIFICATE
from tests.support.gke import FakeGke
from tests.support.kube import FakeKube
from tests.support.settings import settings

LEASE = "/apis/coordination.k8s.io/v1/namespaces/tpu-provisioner-system/leases/tpu-provisioner"


class Kube(FakeKube):
    """API server with the attributes of a connection. The test can let renewals of the Lease hang."""

    server = "https://kube.example.com"
    context_name = "test"
    ca_pem = CERTIFICATE

    def __init__(self) -> None:
        super().__init__()
        #: Cleared by a test to let every renewal of the Lease hang.
        self.answers = threading.Event()
        self.answers.set()
        self.renewing = threading.Event()

    def put(self, path: str, *arguments: Any, **options: Any) -> Any:
        if path == LEASE:
            self.renewing.set()
            self.answers.wait(10)
        return super().put(path, *arguments, **options)


class Process:
    """Controller that records its exit codes instead of exiting."""

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
        self.exit_codes.append(code)
        self.exited.set()

    def end(self) -> None:
        self.kube.answers.set()
        self.controller.stop()
        if self.controller.replica.elector is not None:
            self.controller.replica.elector.stop()
        for watch in self.controller.loop.watches.named().values():
            watch.stop()
        self.controller.replica.recorder.stop()
        self.controller.loop.actor.executor.shutdown(wait=True)


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.end()


def test_single_candidate_acquires_the_lease_and_wakes_the_loop(process: Process) -> None:
    assert not process.controller.loop.is_leader()
    process.controller.start()
    assert process.controller.loop.wake.wait(5)
    assert process.kube.object(LEASE) is not None
    never = threading.Event()
    # A watch may have woken the loop before the Lease was acquired, so the test polls for up to 5 s.
    assert any(process.controller.loop.is_leader() or never.wait(0.01) for _ in range(500))
    assert 0 < process.controller.loop.actor.lease_seconds() <= 30


def test_process_without_election_leads_from_the_start() -> None:
    process = Process(leader_elect=False)
    process.controller.start()
    assert process.controller.loop.is_leader()
    assert process.controller.loop.actor.lease_seconds() == float("inf")
    assert process.kube.object(LEASE) is None
    process.end()


def test_lost_lease_ends_the_process_immediately(process: Process) -> None:
    """The process exits even if a round of the loop hangs; here, the loop never runs."""
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


def test_hanging_renewal_does_not_delay_the_exit(process: Process) -> None:
    """While the elector waits for the API server, another thread notices that the Lease has expired."""
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


def test_hanging_log_does_not_delay_the_exit(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the reader of the log has stopped, the write of the last line blocks. The process waits for at most 1 s."""
    release = threading.Event()
    monkeypatch.setattr(processes, "_say_lease_lost", lambda: release.wait(10))
    monkeypatch.setattr(processes, "_LAST_WORDS_SECONDS", 0.01)
    elector = process.controller.replica.elector
    assert elector is not None
    elector.step()
    process.clock.advance(21)
    process.kube.fail("*", "leases", errors.Unavailable("away"), times=100)
    elector.step()
    assert process.exit_codes == [1]
    release.set()


def test_orderly_shutdown_releases_the_lease(process: Process) -> None:
    """After an orderly shutdown the next process can acquire the Lease immediately. The exit is not forced."""
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


def test_hanging_call_at_shutdown_prevents_the_release_but_not_the_exit(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call in flight may still take effect, so no other process may lead before the Lease has expired."""
    monkeypatch.setattr(processes, "_DRAIN_SECONDS", 0.01)
    hanging, entered = threading.Event(), threading.Event()

    def hang(_: PoolName) -> None:
        entered.set()
        hanging.wait(10)

    monkeypatch.setattr(process.gke, "get_node_pool", hang)
    elector = process.controller.replica.elector
    assert elector is not None
    elector.step()
    process.controller.loop.actor.carry_out(Plan(memory=Memory(), look_ups=(LookUp(name=PoolName("a")),)))
    assert entered.wait(5)
    process.controller.stop()
    process.controller.shut_down()
    assert process.exit_codes == [0]
    lease = process.kube.object(LEASE)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == elector.identity
    hanging.set()


def test_provider_gce_needs_no_cluster_proof_and_lists_node_groups() -> None:
    """With PROVIDER=gce this process calls no Google API, so it needs no Google credentials."""
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
        # Nodes are selected by the one label that tenants cannot choose for the nodes of their groups.
        trusted = f"{constants.TRUSTED_GROUP_NAMESPACE}=slices"
        assert process.controller.loop.actor.gate.settings.node_namespace == "slices"
        loop.watches.nodes.step()
        assert trusted in process.kube.calls[-1].query["labelSelector"]
    finally:
        process.end()


def test_provider_gke_without_client_is_rejected() -> None:
    with pytest.raises(ValueError, match="PROVIDER=gke"):
        app.build(settings(), Addresses(metrics="0", probes="0", leader_elect=False), Kube(), None)  # type: ignore[arg-type]
