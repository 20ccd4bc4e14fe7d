"""Live reads immediately before a partition is removed, and writes to Kubernetes with their preconditions."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner.kube.errors import ClusterError, Conflict, Unavailable
from provisioner.kube.live import DeletionBlockedError
from provisioner.kube.protocol import object_path
from provisioner.partitions import names
from provisioner.partitions.act import check_unused, open_gate, save_ledger, take_back
from provisioner.partitions.observe import Known
from provisioner.partitions.planning.actions import OpenGate, RemovePartition, SaveLedger, TakeBack
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.settings.partitions import Server
from tests.partitions.planning.stories import CLUSTER, make_entry, make_pod
from tests.support.clock import NOW
from tests.support.kube import FakeKube

_TRAIN = object_path("pods", "train", namespace="research")
_ID = names.partition_id("cluster", "uid-train", "vipu-1:8090")
_ELSEWHERE = names.partition_id("cluster", "uid-train", "vipu-2:8090")
_OF_ANOTHER_CLUSTER = names.partition_id("another", "uid-train", "vipu-1:8090")
_DELETED = "2026-11-23T02:00:00Z"
_REMOVE = RemovePartition(server="vipu-1:8090", id=_ID, pod=("research", "train", "uid-train"))


def _raw(
    *gates: str, told: str = "", phase: str = "Running", spec: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    annotations = {names.IPUS: "4"} | metadata.pop("annotations", {}) | ({names.PARTITION_ID: told} if told else {})
    identity = {"namespace": "research", "name": "train", "uid": "uid-train", "annotations": annotations}
    return {
        "metadata": {"labels": {names.POD_LABEL: "train"}, **identity, **metadata},
        "spec": {"schedulingGates": [{"name": gate} for gate in gates], **(spec or {})},
        "status": {"phase": phase},
    }


_AT = datetime(2026, 11, 23, 2, tzinfo=UTC)


@pytest.mark.parametrize("known", [True, False], ids=["known pod", "orphan"])
@pytest.mark.parametrize(
    ("pod", "changes", "want"),
    [
        pytest.param(_raw(), {}, False, id="pod running"),
        pytest.param(_raw(phase="Succeeded"), {}, True, id="pod succeeded"),
        pytest.param(_raw(annotations={names.RELEASE: "true"}), {}, True, id="pod released"),
        pytest.param(_raw(told=_ELSEWHERE), {}, True, id="pod with another partition"),
        pytest.param(
            _raw(told=_ID), {"server": "vipu.example:8090"}, False, id="same partition, other name of the server"
        ),
        pytest.param(_raw(names.SCHEDULING_GATE), {}, False, id="pod with its gate"),
        pytest.param(_raw(names.SCHEDULING_GATE), {"unused": True}, True, id="pod with its gate, unused partition"),
        pytest.param(_raw(phase="Pending"), {"unused": True}, True, id="pending pod, unused partition"),
        pytest.param(_raw(), {"unused": True}, False, id="running pod, unused partition"),
        pytest.param(_raw(deletionTimestamp=_DELETED), {}, False, id="pod being deleted"),
        pytest.param(_raw(deletionTimestamp=_DELETED), {"past_deletion": _AT}, True, id="grace period over"),
        pytest.param(
            _raw(deletionTimestamp=_DELETED),
            {"past_deletion": _AT.replace(hour=1)},
            False,
            id="another deletionTimestamp",
        ),
        pytest.param(_raw(), {"past_deletion": _AT}, False, id="deletion time of a pod that is not deleted"),
        pytest.param(None, {}, True, id="no pod"),
        pytest.param(None, {"id": _OF_ANOTHER_CLUSTER}, False, id="partition of another cluster"),
        pytest.param(_raw(uid="uid-of-the-next"), {}, True, id="another pod of the same name"),
    ],
)
def test_remove_is_prevented_only_if_a_pod_may_use_the_partition(
    pod: dict[str, Any] | None, changes: dict[str, Any], want: bool, known: bool
) -> None:
    api = FakeKube()
    if pod is not None:
        api.put_object(_TRAIN, pod)
    call = replace(_REMOVE, **changes) if known else replace(_REMOVE, pod=None, **changes)
    with contextlib.nullcontext() if want else pytest.raises(DeletionBlockedError):
        check_unused(api, "cluster", call)


def test_remove_is_prevented_while_the_api_server_does_not_respond() -> None:
    api = FakeKube()
    api.fail("GET", ".*", Unavailable("away"), times=2)
    for call in (_REMOVE, replace(_REMOVE, pod=None)):
        with pytest.raises(ClusterError):
            check_unused(api, "cluster", call)


PATH = object_path("configmaps", names.LEDGER_CONFIGMAP_NAME, namespace="system")
SERVER = Server(host="10.0.0.5", port=8090, node_selector=("ipu-pod", "one"))


#: Three entries, sorted by id as in a ledger.
ONE, TWO, THREE = sorted((make_entry(make_pod(f"pod-{n}"), at=NOW) for n in range(3)), key=lambda entry: entry.id)
#: The pod as it is in the plan of the controller.
POD = make_pod("train", namespace="research", uid="uid-train", resource_version="7")
OPENING = OpenGate(pod=POD, partition_id="tpup-1", server=SERVER)


@pytest.fixture(name="api")
def _api() -> FakeKube:
    made = FakeKube()
    made.put_object(object_path("namespaces", "kube-system"), {"metadata": {"uid": CLUSTER}})
    return made


def read(api: FakeKube) -> Ledger:
    known = Known(api=api, namespace="system", clock=lambda: NOW, servers=())
    known.read(leading=True)
    assert known.ledger is not None
    return known.ledger


def save(api: FakeKube, before: Ledger, *entries: Entry) -> Ledger:
    return save_ledger(api, "system", SaveLedger(before=before, entries=entries))


def test_written_ledger_is_read_back_by_the_next_leader(api: FakeKube) -> None:
    assert read(api) == Ledger()
    first = save(api, Ledger(), ONE, TWO)
    assert read(api) == first
    second = save(api, first, TWO, THREE)
    assert read(api) == second
    assert {entry.id for entry in second.entries} == {TWO.id, THREE.id}


def test_write_based_on_an_outdated_ledger_raises_conflict(api: FakeKube) -> None:
    """Two processes that both lead for a short time must not overwrite each other's entries."""
    first = save(api, Ledger(), ONE)
    save(api, first, ONE, TWO)
    for before in (Ledger(), first):
        with pytest.raises(Conflict):
            save(api, before, THREE)
    assert {entry.id for entry in read(api).entries} == {ONE.id, TWO.id}


def test_unreadable_entries_are_kept_by_a_write(api: FakeKube) -> None:
    """A later release may have written the entries, and their partitions exist."""
    save(api, Ledger(), ONE)
    raw = api.object(PATH)
    assert raw is not None
    api.put_object(PATH, {**raw, "data": {**raw["data"], "strange": "{"}})
    before = read(api)
    assert (before.entries, set(before.unreadable)) == ((ONE,), {"strange"})
    written = save(api, before)
    assert written.unreadable == before.unreadable
    assert set((api.object(PATH) or {})["data"]) == {"strange"}


#: Scheduling gates of a pod that another controller also holds back.
_GATES = ("example.com/other", names.SCHEDULING_GATE)


def test_open_gate_removes_the_partition_gate_and_keeps_other_gates(api: FakeKube) -> None:
    api.put_object(_TRAIN, _raw(*_GATES, spec={"nodeSelector": {"disk": "ssd"}}))
    open_gate(api, OPENING)
    written = api.object(_TRAIN) or {}
    assert written["spec"] == {
        "schedulingGates": [{"name": "example.com/other"}],
        "nodeSelector": {"disk": "ssd", "ipu-pod": "one"},
    }
    assert written["metadata"]["annotations"] == {
        names.IPUS: "4",
        names.PARTITION_ID: "tpup-1",
        names.PARTITION_HOST: "10.0.0.5",
        names.PARTITION_PORT: "8090",
    }


def test_open_gate_adds_no_selector_if_all_nodes_reach_the_server(api: FakeKube) -> None:
    api.put_object(_TRAIN, _raw(names.SCHEDULING_GATE))
    open_gate(api, replace(OPENING, server=SERVER._replace(node_selector=None)))
    assert (api.object(_TRAIN) or {})["spec"] == {}


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param(_raw(*_GATES, uid="u-2"), "another one", id="replaced by a pod of the same name"),
        pytest.param(_raw(), "no longer has the scheduling gate", id="gate already removed"),
        pytest.param(
            _raw(*_GATES, spec={"nodeSelector": {"ipu-pod": "two"}}),
            "selects other nodes",
            id="selector excludes the server",
        ),
    ],
)
def test_open_gate_does_not_change_a_pod_that_was_replaced_or_changed(
    api: FakeKube, raw: dict[str, Any], want: str
) -> None:
    """The write is not repeated: the next decision sees the changed pod."""
    before = api.put_object(_TRAIN, raw)
    with pytest.raises(Conflict, match=want):
        open_gate(api, OPENING)
    assert api.object(_TRAIN) == before


def test_open_gate_raises_conflict_if_the_pod_changes_before_the_write(api: FakeKube) -> None:
    """The list of gates is written as a whole, so a gate that was added after the read would be lost."""
    api.put_object(_TRAIN, _raw(*_GATES))
    get = api.get

    def changed_after(path: str, *arguments: Any, **options: Any) -> Any:
        found = get(path, *arguments, **options)
        api.put_object(_TRAIN, _raw(names.SCHEDULING_GATE, "late/gate"))
        return found

    api.get = changed_after  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        open_gate(api, OPENING)
    assert {"name": "late/gate"} in (api.object(_TRAIN) or {})["spec"]["schedulingGates"]


@pytest.mark.parametrize("got_node", [False, True], ids=["unchanged pod", "pod with a node"])
def test_take_back_releases_a_pod_only_if_it_is_unchanged(api: FakeKube, got_node: bool) -> None:
    """The init container of a pod with a node may already have the partition.

    `take_back` sets the same annotation as the REST API when a pod releases its partition.
    """
    api.put_object(_TRAIN, _raw(*_GATES))
    version = (api.object(_TRAIN) or {})["metadata"]["resourceVersion"]
    if got_node:
        api.put_object(_TRAIN, _raw(spec={"nodeName": "host-1"}))
    with pytest.raises(Conflict) if got_node else contextlib.nullcontext():
        take_back(api, TakeBack(pod=replace(POD, resource_version=version), partition_id="tpup-1"))
    released = {} if got_node else {names.RELEASE: "true"}
    assert (api.object(_TRAIN) or {})["metadata"]["annotations"] == {names.IPUS: "4", **released}
