"""The guests of many VMs: in virtual time in one thread, and in real time in a few."""

from __future__ import annotations

from dataclasses import replace

from rehearsal.simulators.compute.guests.client import Access, Client
from rehearsal.simulators.compute.guests.crew import Crew
from rehearsal.simulators.compute.records import Loss
from tests.support.compute import GROUPS, POLICIES, TEMPLATES, Compute, group, policy, template
from tests.support.kubeadm_cluster import KubeadmCluster


class Stage:
    """A simulated Compute Engine whose VMs join a cluster in memory, in virtual time."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.cluster = KubeadmCluster()
        self.crew = Crew(
            settings=lambda: compute.world.settings,
            faults=compute.world.faults,
            clock=compute.clock.now,
            connect=self.cluster.connect,
        )
        compute.world.attach(self.crew)

    def live(self, seconds: float) -> None:
        """Let time pass for VMs and guests."""
        end = self.compute.clock.seconds + seconds
        while self.compute.clock.seconds < end:
            self.crew.run_due()
            self.compute.pass_seconds(0.25)
        self.crew.run_due()

    def make(self, **metadata: str) -> None:
        """Make a slice whose VMs have such metadata from the beginning."""
        items = [{"key": key, "value": value} for key, value in self.cluster.metadata(**metadata).items()]
        self.compute.do("POST", POLICIES, policy())
        self.compute.do("POST", TEMPLATES, template(metadata={"items": items}))
        self.compute.do("POST", GROUPS, group(instanceLifecyclePolicy={"defaultActionOnFailure": "REPAIR"}))

    def requests(self) -> int:
        """Return how often a certificate was asked for."""
        asked = [path for _, method, path in self.cluster.calls if method == "POST"]
        return sum("/certificatesigningrequests" in path for path in asked)

    def ready(self) -> list[str]:
        """Return the condition Ready of each node."""
        return [self.cluster.ready(raw["metadata"]["name"]) for raw in self.cluster.nodes()]


def test_other_machines_of_the_same_names_join_anew(compute: Compute) -> None:
    """Their disks are empty; machines that were only restarted keep what they have."""
    stage = Stage(compute)
    stage.make()
    stage.live(15)
    names = [machine.name for machine in compute.world.machines()]
    compute.world.lose(names[0], Loss.HOST_ERROR)
    # A slice is restarted as a whole.
    stage.live(30)
    assert stage.ready() == ["True"] * 4
    assert stage.requests() == 4
    compute.world.change_settings({"graceful_shutdown": True})
    compute.world.lose(names[0], Loss.DELETED)
    stage.live(60)
    assert stage.requests() == 8
    assert stage.ready() == ["True"] * 4


def test_what_happens_to_a_machine_during_its_turn_is_not_missed(compute: Compute) -> None:
    """It goes while its guest makes a call: the guest's connection is closed once it is back."""
    stage = Stage(compute)

    def connect(access: Access) -> Client:
        if access.certificate_pem:
            for machine in compute.world.machines():
                stage.crew.changed(replace(machine, status=""))
        return stage.cluster.connect(access)

    stage.crew._connect = connect
    stage.make()
    stage.live(15)
    assert len(stage.cluster.nodes()) == 1
    assert stage.cluster.open_clients == 0
    # Nor does one count that was never there.
    stage.crew.changed(replace(compute.world.machines()[0], status="", number=1))
    assert stage.crew.run_due() is None
