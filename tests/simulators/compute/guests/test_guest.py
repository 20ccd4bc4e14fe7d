"""Tests of guests in virtual time: joining and leaving a cluster in memory, one VM and all VMs of a Compute Engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rehearsal import localcluster
from rehearsal.simulators.compute.faults import Fault
from rehearsal.simulators.compute.guests import kubelet
from rehearsal.simulators.compute.guests.crew import Crew, Guest
from rehearsal.simulators.compute.guests.joining import CERTIFICATE_SECONDS
from rehearsal.simulators.compute.names import ZONES, Scope
from rehearsal.simulators.compute.records import Loss, MachineView
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http.faults import FaultBook
from tests.support.clock import FakeClock
from tests.support.compute import GROUPS, POLICIES, TEMPLATES, Compute, group, policy, template
from tests.support.kubeadm_cluster import TOKEN, KubeadmCluster

NAME = "slice-x1b2"
CHIPS = "google.com/tpu"


class Machine:
    """A VM with its guest, on its own clock."""

    def __init__(self, **settings: Any) -> None:
        self.cluster = KubeadmCluster()
        self.settings = ComputeSettings(**settings)
        self.faults = FaultBook[Fault]()
        self.clock = FakeClock()
        self.view = MachineView(
            scope=Scope("proj", ZONES, "us-east5-a"),
            name=NAME,
            number=7,
            status="RUNNING",
            boots=1,
            address="10.128.0.9",
            metadata=self.cluster.metadata(),
            group="slice",
            machine_type="ct6e-standard-4t",
            chips=4,
        )
        self.guest = Guest(settings=lambda: self.settings, faults=self.faults, connect=self.cluster.connect)

    def live(self, seconds: float = 30) -> None:
        """Let time pass, and run the guest whenever it is due."""
        end = self.clock.seconds + seconds
        while (pause := self.guest.turn(self.view, self.clock.now())) is not None:
            if self.clock.seconds + pause > end:
                break
            self.clock.advance(pause)
        self.clock.advance(max(end - self.clock.seconds, 0))

    def become(self, status: str, **changes: Any) -> None:
        """Change the VM, and run its guest once."""
        self.view = replace(self.view, status=status, **changes)
        self.guest.turn(self.view, self.clock.now())

    def chips(self) -> tuple[str | None, str | None]:
        """Return capacity and allocatable of the node."""
        status = self.cluster.node(NAME)["status"]
        return status["capacity"].get(CHIPS), status["allocatable"].get(CHIPS)

    def count(self, method: str, part: str) -> int:
        """Return the number of calls with this method and this part in their path."""
        return sum(called == method and part in path for _, called, path in self.cluster.calls)


def test_machine_that_joins_becomes_a_ready_node_with_chips() -> None:
    """Two anonymous reads establish trust, the token gets the certificate, and the certificate is used for the rest."""
    machine = Machine()
    machine.live(5)
    node = machine.cluster.node(NAME)
    assert node["spec"]["providerID"] == f"gce://proj/us-east5-a/{NAME}"
    assert node["spec"]["taints"] == [{"key": CHIPS, "value": "present", "effect": "NoSchedule"}]
    assert node["metadata"]["labels"]["cloud.google.com/gke-tpu-accelerator"] == "tpu-v6e-slice"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NAME
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.0"
    assert machine.cluster.ready(NAME) == "True"
    assert machine.chips() == ("4", "4")
    lease = machine.cluster.lease(NAME)
    assert lease["spec"]["holderIdentity"] == NAME
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    users = [(user.partition(":")[2], method) for user, method, _ in machine.cluster.calls]
    assert users[:2] == [("anonymous", "GET")] * 2
    assert {user for user, _ in users[2:5]} == {f"bootstrap:{TOKEN[:6]}"}
    assert {user for user, _ in users[5:]} == {f"node:{NAME}"}
    # The kubelet keeps its connection open.
    assert machine.cluster.open_clients == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("tokens", {"fedcba.fedcba9876543210"}, id="the cluster signs with another token"),
        pytest.param("approves", False, id="nobody approves its request"),
        pytest.param("denies", True, id="its request is denied"),
        pytest.param("forbidden", ("GET", "/api/v1/nodes/"), id="it may not look at the node's name"),
        pytest.param("away", True, id="the API server is away"),
    ],
)
def test_join_is_retried_until_the_obstacle_is_removed(name: str, value: object) -> None:
    """Before that, no Node is registered."""
    machine = Machine()
    good = getattr(machine.cluster, name)
    setattr(machine.cluster, name, value)
    machine.live(60)
    assert machine.cluster.nodes() == []
    setattr(machine.cluster, name, good)
    machine.live(CERTIFICATE_SECONDS + 70)
    assert machine.cluster.ready(NAME) == "True"


def test_name_of_a_ready_node_is_not_taken_over() -> None:
    """As with kubeadm. A Node that is not ready is taken over with its labels."""
    machine = Machine()
    other: dict[str, Any] = {
        "metadata": {"name": NAME, "uid": "of-another", "labels": {"kept": "yes"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    machine.cluster.objects[f"/api/v1/nodes/{NAME}"] = other
    machine.live(60)
    assert machine.count("POST", "certificatesigningrequests") == 0
    other["status"]["conditions"][0]["status"] = "Unknown"
    machine.live(70)
    assert machine.cluster.ready(NAME) == "True"
    assert machine.cluster.node(NAME)["metadata"]["labels"] == {"kept": "yes"}


def test_allocatable_chips_follow_the_device_plugin_while_capacity_remains() -> None:
    """A kubelet keeps the capacity of a device plugin that has failed."""
    machine = Machine()
    machine.cluster.device_plugin = False
    machine.live(60)
    assert machine.cluster.ready(NAME) == "True"
    assert machine.chips() == (None, None)
    machine.cluster.device_plugin = True
    machine.live(15)
    assert machine.chips() == ("4", "4")
    machine.cluster.device_plugin = False
    machine.live(15)
    assert machine.chips() == ("4", "0")


def test_restarted_machine_keeps_its_node_and_certificate() -> None:
    """The certificate is on its disk, so it joins only once."""
    machine = Machine()
    machine.live(15)
    uid = machine.cluster.node(NAME)["metadata"]["uid"]
    machine.cluster.tokens.clear()
    machine.become("REPAIRING")
    machine.become("RUNNING", boots=2)
    machine.live(15)
    assert machine.cluster.node(NAME)["metadata"]["uid"] == uid
    assert machine.cluster.ready(NAME) == "True"
    assert machine.cluster.node(NAME)["status"]["nodeInfo"]["bootID"].endswith("0002")
    assert machine.count("POST", "certificatesigningrequests") == 1


def test_deleted_node_is_registered_again_only_after_a_restart() -> None:
    """A kubelet registers its Node only at its start."""
    machine = Machine()
    machine.live(15)
    machine.cluster.objects.clear()
    machine.live(900)
    assert machine.cluster.nodes() == []
    assert machine.cluster.lease(NAME) == {}
    machine.become("STOPPING")
    machine.become("RUNNING", boots=2)
    machine.live(15)
    assert machine.cluster.ready(NAME) == "True"


def test_own_kubelet_annotation_is_the_same_in_simulator_and_local_cluster() -> None:
    """The two packages do not import each other, so both define the annotation."""
    assert kubelet.OWN_KUBELET == localcluster.OWN_KUBELET


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
        """Create a slice whose VMs have the metadata of the cluster, with these changes."""
        items = [{"key": key, "value": value} for key, value in self.cluster.metadata(**metadata).items()]
        self.compute.do("POST", POLICIES, policy())
        self.compute.do("POST", TEMPLATES, template(metadata={"items": items}))
        self.compute.do("POST", GROUPS, group(instanceLifecyclePolicy={"defaultActionOnFailure": "REPAIR"}))

    def requests(self) -> int:
        """Return the number of certificate requests."""
        asked = [path for _, method, path in self.cluster.calls if method == "POST"]
        return sum("/certificatesigningrequests" in path for path in asked)

    def ready(self) -> list[str]:
        """Return the status of the condition Ready of each node."""
        return [self.cluster.ready(raw["metadata"]["name"]) for raw in self.cluster.nodes()]


def test_recreated_machines_join_again_but_restarted_ones_do_not(compute: Compute) -> None:
    """Recreated machines have empty disks although their names are the same."""
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
