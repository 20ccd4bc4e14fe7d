"""The gate reads live all conditions of the delete of a managed instance group and its machines."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner.kube.errors import Malformed, Unavailable
from provisioner.kube.live import KeptError
from provisioner.kube.protocol import object_path
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.gate import Gate
from provisioner.runtime.parallel import Parallel
from tests.support.clock import FakeClock
from tests.support.kube import FakeKube
from tests.support.nodegroup_world import (
    DELETED,
    LABELS,
    MANAGER,
    MANAGER_UID,
    NAMESPACE,
    a_proof,
    kind_path,
    provider_id,
    raw_kind,
    raw_machine_node,
    raw_pod_on,
)

MIG = Kind.MANAGED_INSTANCE_GROUP
ANOTHER = {**LABELS, names.GROUP_NAME: "another"}
UNLABELLED: dict[str, str] = {}
TPU_ALONE = {names.ACCELERATOR: "tpu7x"}


class World:
    """A deleted group of two machines, whose nodes are cordoned and empty."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.kube = FakeKube()
        self.gate = Gate(api=self.kube, clock=self.clock.now, monotonic=self.clock)
        self.put_manager()
        for name in ("m-0", "m-1"):
            self.put_node(name)

    def put_manager(self, **metadata: Any) -> None:
        """Create or replace the ManagedInstanceGroup."""
        raw = raw_kind(MIG, MANAGER, uid=MANAGER_UID, **(metadata or DELETED))
        self.kube.put_object(kind_path(MIG, MANAGER), raw)

    def put_node(self, name: str, **parts: Any) -> None:
        """Create or replace the node of a machine."""
        self.kube.put_object(object_path("nodes", name), raw_machine_node(name, **parts))

    def put_pod(self, node: str = "m-0", **parts: Any) -> None:
        self.kube.put_object(object_path("pods", "train-0", namespace=NAMESPACE), raw_pod_on(node, **parts))


#: Condition of a node whose kubelet reports to another control plane with a common backup.
SILENT = {
    "type": "Ready",
    "status": "Unknown",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    "lastTransitionTime": "2026-01-01T01:00:00Z",
}


def _silence(world: World, *names: str) -> None:
    for name in names:
        world.put_node(name, status={"conditions": [SILENT]})


@pytest.fixture
def world() -> World:
    """Return a group that may be deleted."""
    return World()


def test_group_with_cordoned_and_empty_nodes_passes(world: World) -> None:
    """The gate only reads."""
    world.gate.pass_through(a_proof())
    assert {call.method for call in world.kube.calls} == {"GET"}


def test_nodes_are_checked_in_parallel(world: World) -> None:
    """The result is the same as with one thread."""
    with ThreadPoolExecutor(max_workers=4) as threads:
        gate = replace(world.gate, for_each=Parallel(executor=threads, at_once=4))
        gate.pass_through(a_proof())
        world.put_pod("m-1")
        with pytest.raises(KeptError, match="research/train-0 on m-1"):
            gate.pass_through(a_proof())


_OF_CLASS = {"name": "main", "resources": {"limits": {"deviceclass.resource.kubernetes.io/tpu.google.com": "4"}}}


def _nothing(_: World) -> None: ...


@pytest.mark.parametrize(
    ("change", "proof"),
    [
        pytest.param(lambda world: world.put_pod(chips=0), {}, id="a pod without chips"),
        pytest.param(
            lambda world: world.put_pod(chips=0),
            {"deadline": datetime(2026, 1, 1, 0, 16, tzinfo=UTC)},
            id="a pod without chips after the deadline",
        ),
        pytest.param(
            lambda world: world.put_pod(chips=0, metadata={"namespace": "other"}),
            {"deadline": datetime(2026, 1, 1, 0, 17, tzinfo=UTC)},
            id="a pod without chips of another namespace",
        ),
        pytest.param(lambda world: world.put_pod("elsewhere"), {}, id="a pod on another node"),
        pytest.param(lambda world: world.put_pod(status={"phase": "Succeeded"}), {}, id="a pod that has ended"),
        pytest.param(
            lambda world: world.put_pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            {},
            id="a pod that has outlived its grace",
        ),
        pytest.param(
            lambda world: world.put_pod(
                metadata={"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]}
            ),
            {},
            id="a pod that ends with its node",
        ),
        pytest.param(
            lambda world: world.put_node("m-2", unschedulable=False, ready=False),
            {},
            id="a labelled node that is not ready and of no machine",
        ),
        pytest.param(
            lambda world: world.put_node("m-2", unschedulable=False, labels=ANOTHER), {}, id="a node of another group"
        ),
        pytest.param(
            lambda world: world.put_node(
                "m-2", unschedulable=False, labels=TPU_ALONE, status={"capacity": {"google.com/tpu": "10E"}}
            ),
            {},
            id="a node with TPUs of another machine, however many its kubelet reports",
        ),
        pytest.param(
            lambda world: world.put_node("m-2", unschedulable=False, spec={"providerID": "gce://other/z/m-2"}),
            {},
            id="a node of another place that says it is of the group",
        ),
        pytest.param(
            lambda world: world.put_node("m-mig-2", unschedulable=False),
            {},
            id="a node of a group that is named as this managed instance group, and says it is of this group",
        ),
        pytest.param(
            lambda world: world.put_node("n", unschedulable=False, spec={"providerID": provider_id("m-1")}),
            {},
            id="a node of another name that says it is a machine of the group",
        ),
        pytest.param(lambda world: world.kube.remove_object("/api/v1/nodes/m-1"), {}, id="a machine without a node"),
        pytest.param(
            lambda world: world.put_node(
                "m-1", unschedulable=False, labels=UNLABELLED, spec={"providerID": "gce://a/b/c"}
            ),
            {},
            id="a namesake of a machine in another zone",
        ),
        pytest.param(_nothing, {"group_labels": {}}, id="a managed instance group that belongs to no group"),
        pytest.param(_nothing, {"provider_ids": frozenset()}, id="a group without machines"),
        pytest.param(lambda world: _silence(world, "m-0"), {}, id="a silent node beside one that reports"),
    ],
)
def test_delete_passes_if_no_work_is_affected(
    world: World, change: Callable[[World], None], proof: dict[str, Any]
) -> None:
    """No work ends in these cases."""
    change(world)
    world.gate.pass_through(a_proof(**proof))


@pytest.mark.parametrize(
    ("change", "proof", "want"),
    [
        pytest.param(
            lambda world: world.kube.remove_object(kind_path(MIG, MANAGER)), {}, "there is no", id="its object is gone"
        ),
        pytest.param(_nothing, {"uid": "other"}, "was replaced by another one", id="its object is another one"),
        pytest.param(
            lambda world: world.put_manager(labels={}), {}, "is not being deleted", id="its object is not being deleted"
        ),
        pytest.param(World.put_pod, {}, "research/train-0 on m-0", id="a pod with chips"),
        pytest.param(
            lambda world: world.put_pod(spec={"containers": [_OF_CLASS]}),
            {},
            "research/train-0 on m-0",
            id="a pod with devices of a class",
        ),
        pytest.param(
            lambda world: world.put_pod(chips=0),
            {"deadline": datetime(2026, 1, 1, 0, 17, tzinfo=UTC)},
            "unfinished pods are on its machines: research/train-0 on m-0",
            id="a pod without chips before the deadline",
        ),
        pytest.param(
            lambda world: world.put_pod(chips=0, metadata={"namespace": "other"}),
            {"deadline_of_others": datetime(2026, 1, 1, 0, 17, tzinfo=UTC)},
            "unfinished pods are on its machines: other/train-0 on m-0",
            id="a pod without chips of another namespace before its deadline",
        ),
        pytest.param(
            lambda world: world.put_pod(metadata={"deletionTimestamp": "2026-01-01T00:17:00Z"}),
            {},
            "train-0",
            id="a pod within its grace",
        ),
        pytest.param(lambda world: world.put_pod(status={}), {}, "train-0", id="a pod that says nothing of its phase"),
        pytest.param(
            lambda world: world.put_node("m-1", unschedulable=False), {}, "m-1 is not cordoned", id="an open node"
        ),
        pytest.param(
            lambda world: _silence(world, "m-0", "m-1"),
            {},
            "m-0 had not reported for ten minutes",
            id="nodes that report to another control plane",
        ),
        pytest.param(
            lambda world: _silence(world, "m-0", "m-1"),
            {"provider_ids": frozenset({provider_id("m-2")})},
            "m-0 had not reported for ten minutes",
            id="silent nodes of machines that another control plane has replaced",
        ),
        pytest.param(
            lambda world: _silence(world, "m-0", "m-1"),
            {"provider_ids": frozenset()},
            "m-0 had not reported for ten minutes",
            id="silent nodes while another control plane recreates the machines",
        ),
        pytest.param(
            lambda world: world.put_node("m-1", unschedulable=False, ready=False),
            {},
            "m-1 is not cordoned",
            id="an open node of a machine, ready or not",
        ),
        pytest.param(
            lambda world: world.put_node("m-2", unschedulable=False),
            {},
            "m-2 is not cordoned",
            id="an open node that says it is of the group",
        ),
        pytest.param(
            lambda world: world.put_node("m-1", unschedulable=False, labels=TPU_ALONE),
            {},
            "m-1 is not cordoned",
            id="an open node that does not say so yet",
        ),
        pytest.param(
            lambda world: world.put_node("m-1", unschedulable=False, labels=UNLABELLED),
            {},
            "m-1 is not cordoned",
            id="an open node that says nothing at all",
        ),
        pytest.param(
            lambda world: world.put_node("m-1", unschedulable=False, labels=UNLABELLED, spec={"providerID": ""}),
            {},
            "m-1 is not cordoned",
            id="an open node that does not know its machine",
        ),
    ],
)
def test_delete_is_refused_with_the_reason(
    world: World, change: Callable[[World], None], proof: dict[str, Any], want: str
) -> None:
    """The message has the reason."""
    change(world)
    with pytest.raises(KeptError, match=want):
        world.gate.pass_through(a_proof(**proof))


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(lambda world: world.put_node("m-1", unschedulable=False), id="is uncordoned"),
        pytest.param(lambda world: world.put_node("m-9", unschedulable=False), id="registers with the group's labels"),
        pytest.param(
            lambda world: world.put_node("m-1", unschedulable=False, labels=TPU_ALONE), id="registers without them"
        ),
        pytest.param(lambda world: world.put_node("m-9"), id="registers and is closed by somebody else"),
    ],
)
def test_delete_is_refused_if_a_node_appears_or_is_uncordoned_during_the_check(late: Callable[[World], None]) -> None:
    """The nodes are read once more after their pods."""

    class Late(FakeKube):
        def list_page(self, path: str, query: Any = None, **parts: Any) -> Any:
            page = super().list_page(path, query, **parts)
            if path.endswith("/pods") and "m-1" in query["fieldSelector"]:
                late(world)
            return page

    world = World()
    world.kube.__class__ = Late
    with pytest.raises(KeptError, match="has registered or was uncordoned meanwhile"):
        world.gate.pass_through(a_proof())


@pytest.mark.parametrize("path", [f"/{MIG.plural}/", "/nodes$", "/pods$"])
def test_delete_is_not_permitted_if_the_api_server_does_not_respond(world: World, path: str) -> None:
    """The exception is the API server's, not a refusal."""
    world.kube.fail("GET", path, Unavailable("no answer"))
    with pytest.raises(Unavailable):
        world.gate.pass_through(a_proof())


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        pytest.param(
            object_path("pods", "odd", namespace=NAMESPACE),
            {
                "metadata": {"name": "odd", "namespace": NAMESPACE},
                "spec": {"nodeName": "m-0", "overhead": {"google.com/tpu": []}},
            },
            id="a pod",
        ),
        pytest.param(
            "/api/v1/nodes/odd",
            {"metadata": {"labels": LABELS}, "status": {"capacity": {"google.com/tpu": "x"}}},
            id="a node",
        ),
    ],
)
def test_delete_is_not_permitted_if_an_object_is_malformed(world: World, path: str, raw: dict[str, Any]) -> None:
    """A pod whose chips are unknown must prevent a delete."""
    world.kube.put_object(path, raw)
    with pytest.raises(Malformed):
        world.gate.pass_through(a_proof())
