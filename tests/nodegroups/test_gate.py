"""The gate checks with live reads whether a managed instance group and its machines may be deleted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner.kube.errors import Malformed, Unavailable
from provisioner.kube.live import DeletionBlockedError
from provisioner.kube.protocol import Request
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.gate import Gate
from provisioner.runtime.parallel import Parallel
from tests.support.clock import FakeClock
from tests.support.nodegroup_world import (
    LABELS,
    MANAGER,
    STARTED,
    GroupKube,
    a_proof,
    kind_path,
    provider_id,
)

MIG = Kind.MANAGED_INSTANCE_GROUP
ANOTHER = {**LABELS, names.GROUP_NAME: "another"}
UNLABELLED: dict[str, str] = {}
TPU_ALONE = {names.ACCELERATOR: "tpu7x"}


#: Condition of a node whose kubelet reports to another control plane from the same backup.
SILENT = {
    "type": "Ready",
    "status": "Unknown",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    "lastTransitionTime": "2026-01-01T01:00:00Z",
}


@pytest.fixture
def kube() -> GroupKube:
    """Return a cluster with a deleted group of two machines, whose nodes are cordoned and empty."""
    made = GroupKube()
    made.put_manager()
    for name in ("m-0", "m-1"):
        made.put_node(name)
    return made


def verify(kube: GroupKube, **proof: Any) -> None:
    """Check with the gate whether the group may be deleted. Raises DeletionBlockedError with the reason."""
    clock = FakeClock()
    Gate(api=kube, clock=clock.now, monotonic=clock).verify_deletable(a_proof(**proof))


def test_nodes_are_checked_in_parallel_with_reads_only(kube: GroupKube) -> None:
    clock = FakeClock()
    with ThreadPoolExecutor(max_workers=4) as threads:
        for_each = Parallel(executor=threads, at_once=4)
        gate = Gate(api=kube, clock=clock.now, monotonic=clock, for_each=for_each)
        gate.verify_deletable(a_proof())
        assert {call.method for call in kube.calls} == {"GET"}
        kube.put_pod("m-1")
        with pytest.raises(DeletionBlockedError, match="research/train-0 on m-1"):
            gate.verify_deletable(a_proof())


_OF_CLASS = {"name": "main", "resources": {"limits": {"deviceclass.resource.kubernetes.io/tpu.google.com": "4"}}}


Change = Callable[[GroupKube], object]


def _nothing(_: GroupKube) -> None: ...


def _pod(node: str = "m-0", **parts: Any) -> Change:
    return lambda kube: kube.put_pod(node, **parts)


def _open_node(name: str, **parts: Any) -> Change:
    return lambda kube: kube.put_node(name, unschedulable=False, **parts)


def _deleted_node(change: Change = _nothing) -> Change:
    def delete(kube: GroupKube) -> None:
        change(kube)
        kube.remove_object("/api/v1/nodes/m-0")

    return delete


def _silent(*names: str) -> Change:
    """Return a change that replaces nodes by nodes that report to another control plane."""

    def silence(kube: GroupKube) -> None:
        for name in names:
            kube.put_node(name, status={"conditions": [SILENT]})

    return silence


def _at(minute: int) -> datetime:
    return datetime(2026, 1, 1, 0, minute, tzinfo=UTC)


_OF_DAEMON_SET = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]}
_CREATED = {"creationTimestamp": "2026-01-01T00:00:01Z"}
_MANY_CHIPS = {"capacity": {"google.com/tpu": "10E"}}
#: Changes of the cluster and of the proof with which a delete passes, by case.
_PASSES: dict[str, tuple[Change, dict[str, Any]]] = {
    "pod without chips": (_pod(chips=0), {}),
    "pod without chips after the deadline": (_pod(chips=0), {"deadline": _at(16)}),
    "pod without chips of another namespace": (_pod(chips=0, metadata={"namespace": "other"}), {"deadline": _at(17)}),
    "pod that was not started": (_pod(status={"phase": "Pending"}), {"deadline": _at(17)}),
    "pod that was created after the request": (_pod(metadata=_CREATED), {"requested_at": _at(0), "deadline": _at(17)}),
    "pod on another node": (_pod("elsewhere"), {}),
    "pod that has ended": (_pod(status={"phase": "Succeeded"}), {}),
    "pod that has outlived its grace period": (_pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), {}),
    "pod that ends with its node": (_pod(metadata=_OF_DAEMON_SET), {}),
    "labelled node of no machine that is not ready": (_open_node("m-2", ready=False), {}),
    "node of another group": (_open_node("m-2", labels=ANOTHER), {}),
    "node of another machine with any number of chips": (_open_node("m-2", labels=TPU_ALONE, status=_MANY_CHIPS), {}),
    "node of another project with the group's labels": (
        _open_node("m-2", spec={"providerID": "gce://other/z/m-2"}),
        {},
    ),
    "node of a group with a similar name and this group's labels": (_open_node("m-mig-2"), {}),
    "node of another name with a machine's provider ID": (_open_node("n", spec={"providerID": provider_id("m-1")}), {}),
    "machine without a node": (_deleted_node(), {}),
    "deleted node of a machine that does not run": (_deleted_node(_pod()), {"provider_ids": frozenset()}),
    "namesake of a machine in another zone": (
        _open_node("m-1", labels=UNLABELLED, spec={"providerID": "gce://a/b/c"}),
        {},
    ),
    "managed instance group of no group": (_nothing, {"group_labels": {}}),
    "group without machines": (_nothing, {"provider_ids": frozenset()}),
    "silent node beside one that reports": (_silent("m-0"), {}),
    "silent nodes while an older node reports": (
        _silent("m-0", "m-1"),
        {"oldest_ready": datetime(2025, 1, 1, tzinfo=UTC)},
    ),
}


@pytest.mark.parametrize(("change", "proof"), _PASSES.values(), ids=_PASSES)
def test_delete_passes_if_no_work_is_affected(kube: GroupKube, change: Change, proof: dict[str, Any]) -> None:
    change(kube)
    verify(kube, **proof)


_IS_OPEN, _IS_SILENT = "m-1 is not cordoned", "m-0 had not reported for ten minutes"
#: Changes of the cluster and of the proof, and the reason of the refusal, by case.
_REFUSED: dict[str, tuple[Change, dict[str, Any], str]] = {
    "object is gone": (lambda kube: kube.remove_object(kind_path(MIG, MANAGER)), {}, "there is no"),
    "object is another one": (_nothing, {"uid": "other"}, "was replaced by another one"),
    "object is not being deleted": (lambda kube: kube.put_manager(labels={}), {}, "is not being deleted"),
    "pod with chips": (_pod(), {}, "research/train-0 on m-0"),
    "pod on a machine whose node was deleted": (_deleted_node(_pod()), {}, "research/train-0 on m-0"),
    "pod with devices of a class": (_pod(spec={"containers": [_OF_CLASS]}), {}, "research/train-0 on m-0"),
    "pod without chips before the deadline": (
        _pod(chips=0),
        {"deadline": _at(17)},
        "unfinished pods are on its machines: research/train-0 on m-0",
    ),
    "pod without chips of another namespace before its deadline": (
        _pod(chips=0, metadata={"namespace": "other"}),
        {"deadline_of_others": _at(17)},
        "unfinished pods are on its machines: other/train-0 on m-0",
    ),
    "pod within its grace period": (_pod(metadata={"deletionTimestamp": "2026-01-01T00:17:00Z"}), {}, "train-0"),
    "pod that was created before the request": (_pod(metadata=_CREATED), {"requested_at": _at(1)}, "train-0"),
    "pod that was not started before the deadline": (_pod(status={}), {"deadline_of_others": _at(17)}, "train-0"),
    "pod without a phase": (_pod(status=STARTED), {}, "train-0"),
    "nodes that report to another control plane": (_silent("m-0", "m-1"), {}, _IS_SILENT),
    "silent nodes while only newer nodes report": (_silent("m-0", "m-1"), {"oldest_ready": _at(1)}, _IS_SILENT),
    "silent nodes of machines that another control plane has replaced": (
        _silent("m-0", "m-1"),
        {"provider_ids": frozenset({provider_id("m-2")})},
        _IS_SILENT,
    ),
    "silent nodes while another control plane recreates the machines": (
        _silent("m-0", "m-1"),
        {"provider_ids": frozenset()},
        _IS_SILENT,
    ),
    "open node": (_open_node("m-1"), {}, _IS_OPEN),
    "open node that is not ready": (_open_node("m-1", ready=False), {}, _IS_OPEN),
    "open node of no machine with the group's labels": (_open_node("m-2"), {}, "m-2 is not cordoned"),
    "open node without the group's labels": (_open_node("m-1", labels=TPU_ALONE), {}, _IS_OPEN),
    "open node without any label": (_open_node("m-1", labels=UNLABELLED), {}, _IS_OPEN),
    "open node without a provider ID": (_open_node("m-1", labels=UNLABELLED, spec={"providerID": ""}), {}, _IS_OPEN),
}


@pytest.mark.parametrize(("change", "proof", "want"), _REFUSED.values(), ids=_REFUSED)
def test_delete_is_refused_with_the_reason(kube: GroupKube, change: Change, proof: dict[str, Any], want: str) -> None:
    change(kube)
    with pytest.raises(DeletionBlockedError, match=want):
        verify(kube, **proof)


_LATE: dict[str, Change] = {
    "uncordoned": _open_node("m-1"),
    "registered with the group's labels": _open_node("m-9"),
    "registered without labels": _open_node("m-1", labels=TPU_ALONE),
    "registered and cordoned by another client": lambda kube: kube.put_node("m-9"),
}


@pytest.mark.parametrize("late", _LATE.values(), ids=_LATE)
def test_delete_is_refused_if_a_node_appears_or_is_uncordoned_during_the_check(kube: GroupKube, late: Change) -> None:
    class Late(GroupKube):
        def list_page(self, request: Request, **parts: Any) -> Any:
            page = super().list_page(request, **parts)
            if request.path.endswith("/pods") and "m-1" in request.query["fieldSelector"]:
                late(self)
            return page

    kube.__class__ = Late
    with pytest.raises(DeletionBlockedError, match="has registered or was uncordoned meanwhile"):
        verify(kube)


@pytest.mark.parametrize("path", [f"/{MIG.plural}/", "/nodes$", "/pods$"])
def test_delete_is_not_permitted_if_the_api_server_does_not_respond(kube: GroupKube, path: str) -> None:
    """The gate raises the exception of the API server, not a refusal."""
    kube.fail("GET", path, Unavailable("no answer"))
    with pytest.raises(Unavailable):
        verify(kube)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_pod(spec={"overhead": {"google.com/tpu": []}}), id="a pod"),
        pytest.param(_open_node("odd", metadata={"name": ""}), id="a node"),
    ],
)
def test_delete_is_not_permitted_if_an_object_is_malformed(kube: GroupKube, change: Change) -> None:
    """A pod whose chips are unknown must prevent a delete."""
    change(kube)
    with pytest.raises(Malformed):
        verify(kube)
