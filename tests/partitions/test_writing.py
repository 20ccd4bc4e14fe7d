"""The ledger's ConfigMap, and the one write that lets a pod be scheduled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import kube
from provisioner.kube.protocol import object_path
from provisioner.partitions import names
from provisioner.partitions.demand import Server
from provisioner.partitions.planning.calls import OpenGate, TakeBack
from provisioner.partitions.writing import LedgerStore, open_gate, take_back
from tests.partitions.planning.stories import make_entry, make_pod
from tests.support.clock import NOW
from tests.support.kube import FakeKube

PATH = object_path("configmaps", names.LEDGER_CONFIGMAP_NAME, namespace="system")
POD_PATH = object_path("pods", "train", namespace="research")
SERVER = Server(host="10.0.0.5", port=8090, node_selector=("ipu-pod", "one"))


#: As they are read: by id.
ONE, TWO, THREE = sorted((make_entry(make_pod(f"pod-{n}"), at=NOW) for n in range(3)), key=lambda each: each.id)
#: The pod that the controller has seen.
POD = make_pod("train", namespace="research", uid="u-1", resource_version="7")
#: What the plan asks for.
OPENING = OpenGate(pod=POD, partition_id="tpup-1", server=SERVER)


@pytest.fixture(name="api")
def _api() -> FakeKube:
    return FakeKube()


@pytest.fixture(name="store")
def _store(api: FakeKube) -> LedgerStore:
    return LedgerStore(api=api, namespace="system")


def test_a_ledger_that_is_not_there_is_empty(store: LedgerStore) -> None:
    """And has no version: the first write creates it."""
    ledger = store.read()
    assert (ledger.entries, ledger.resource_version, ledger.unreadable) == ((), "", {})


def test_what_is_written_is_read_again(store: LedgerStore) -> None:
    """By whoever leads next."""
    first = store.save(store.read(), (ONE, TWO))
    assert store.read() == first
    second = store.save(first, (TWO, THREE))
    assert store.read() == second
    assert {each.id for each in second.entries} == {TWO.id, THREE.id}


def test_a_write_onto_an_older_ledger_is_a_conflict(store: LedgerStore) -> None:
    """Two that lead for a moment must not write over each other's entries."""
    before = store.read()
    store.save(before, (ONE,))
    with pytest.raises(kube.Conflict):
        store.save(before, (TWO,))
    read = store.read()
    store.save(read, (ONE, TWO))
    with pytest.raises(kube.Conflict):
        store.save(read, (THREE,))
    assert {each.id for each in store.read().entries} == {ONE.id, TWO.id}


def test_entries_that_cannot_be_read_stay(api: FakeKube, store: LedgerStore) -> None:
    """A later release may have written them, and their partitions are there."""
    store.save(store.read(), (ONE,))
    raw = api.object(PATH)
    assert raw is not None
    api.put_object(PATH, {**raw, "data": {**raw["data"], "strange": "{"}})
    read = store.read()
    assert (read.entries, set(read.unreadable)) == ((ONE,), {"strange"})
    written = store.save(read, ())
    assert written.unreadable == read.unreadable
    assert set((api.object(PATH) or {})["data"]) == {"strange"}


def test_labels_of_whoever_installed_the_ledger_stay(api: FakeKube, store: LedgerStore) -> None:
    """Only data is written."""
    api.put_object(PATH, {"metadata": {"name": names.LEDGER_CONFIGMAP_NAME, "labels": {"team": "ml"}}})
    store.save(store.read(), (ONE,))
    assert (api.object(PATH) or {})["metadata"]["labels"] == {"team": "ml"}


def raw_pod(**spec: Any) -> dict[str, Any]:
    """Return the pod as the API server has it."""
    gates = [{"name": "example.com/other"}, {"name": names.SCHEDULING_GATE}]
    return {
        "metadata": {"namespace": "research", "name": "train", "uid": "u-1", "annotations": {"theirs": "stays"}},
        "spec": {"schedulingGates": gates, **spec},
    }


def test_our_gate_goes_and_others_stay(api: FakeKube) -> None:
    """With the partition told in the same write, and the nodes that reach it."""
    api.put_object(POD_PATH, raw_pod(nodeSelector={"disk": "ssd"}))
    open_gate(api, OPENING)
    written = api.object(POD_PATH) or {}
    assert written["spec"] == {
        "schedulingGates": [{"name": "example.com/other"}],
        "nodeSelector": {"disk": "ssd", "ipu-pod": "one"},
    }
    assert written["metadata"]["annotations"] == {
        "theirs": "stays",
        names.PARTITION_ID: "tpup-1",
        names.PARTITION_HOST: "10.0.0.5",
        names.PARTITION_PORT: "8090",
    }


def test_a_server_that_all_nodes_reach_adds_no_selector(api: FakeKube) -> None:
    """And a list of gates that is empty goes."""
    api.put_object(POD_PATH, raw_pod(schedulingGates=[{"name": names.SCHEDULING_GATE}]))
    open_gate(api, replace(OPENING, server=replace(SERVER, node_selector=None)))
    assert (api.object(POD_PATH) or {})["spec"] == {}


@pytest.mark.parametrize(
    ("change", "want"),
    [
        pytest.param({"metadata": {"uid": "u-2"}}, "another one", id="a pod of the same name came after it"),
        pytest.param({"spec": {"schedulingGates": []}}, "no gate", id="somebody opened it"),
        pytest.param({"spec": {"nodeSelector": {"ipu-pod": "two"}}}, "selects other nodes", id="it may not go there"),
    ],
)
def test_another_pod_than_was_decided_on_is_left_alone(api: FakeKube, change: dict[str, Any], want: str) -> None:
    """The next decision sees it as it is."""
    raw = raw_pod()
    api.put_object(POD_PATH, {part: {**raw[part], **change.get(part, {})} for part in raw})
    before = api.object(POD_PATH)
    with pytest.raises(kube.Conflict, match=want):
        open_gate(api, OPENING)
    assert api.object(POD_PATH) == before


def test_a_change_in_between_is_a_conflict(api: FakeKube) -> None:
    """The list of gates is written as a whole: a gate that came meanwhile must not be lost."""
    api.put_object(POD_PATH, raw_pod())
    get = api.get

    def changed_after(path: str, *arguments: Any, **options: Any) -> Any:
        found = get(path, *arguments, **options)
        api.put_object(POD_PATH, raw_pod(schedulingGates=[{"name": names.SCHEDULING_GATE}, {"name": "late/gate"}]))
        return found

    api.get = changed_after  # type: ignore[method-assign]
    with pytest.raises(kube.Conflict):
        open_gate(api, OPENING)
    assert {"name": "late/gate"} in (api.object(POD_PATH) or {})["spec"]["schedulingGates"]


def test_a_partition_is_taken_back_from_the_pod_as_it_was_seen(api: FakeKube) -> None:
    """By the annotation that the REST API writes as well."""
    api.put_object(POD_PATH, raw_pod())
    version = (api.object(POD_PATH) or {})["metadata"]["resourceVersion"]
    take_back(api, TakeBack(pod=replace(POD, resource_version=version), partition_id="tpup-1"))
    assert (api.object(POD_PATH) or {})["metadata"]["annotations"] == {"theirs": "stays", names.RELEASE: "true"}


def test_a_pod_that_the_scheduler_has_bound_meanwhile_keeps_its_partition(api: FakeKube) -> None:
    """Its init container may have it already."""
    api.put_object(POD_PATH, raw_pod())
    version = (api.object(POD_PATH) or {})["metadata"]["resourceVersion"]
    api.put_object(POD_PATH, raw_pod(nodeName="host-1"))
    with pytest.raises(kube.Conflict):
        take_back(api, TakeBack(pod=replace(POD, resource_version=version), partition_id="tpup-1"))
    assert names.RELEASE not in (api.object(POD_PATH) or {})["metadata"]["annotations"]
