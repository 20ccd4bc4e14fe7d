"""What is read live, right before a partition is removed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner import kube
from provisioner.kube.gates import KeptError
from provisioner.kube.protocol import object_path
from provisioner.partitions import names
from provisioner.partitions.act import Gate
from provisioner.partitions.planning.calls import RemovePartition
from tests.support.kube import FakeKube

_PATH = object_path("pods", "train", namespace="research")
_ID = names.partition_id("cluster", "uid-train", "vipu-1:8090")
_ELSEWHERE = names.partition_id("cluster", "uid-train", "vipu-2:8090")
_DELETED = "2026-11-23T02:00:00Z"
_REMOVE = RemovePartition(server="vipu-1:8090", id=_ID, pod=("research", "train", "uid-train"))


def _pod(*, gated: bool = False, told: str = "", phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    annotations = {names.IPUS: "4"} | metadata.pop("annotations", {})
    if told:
        annotations |= {names.PARTITION_ID: told}
    labels = {names.POD_LABEL: "train"}
    identity = {"namespace": "research", "name": "train", "uid": "uid-train", "annotations": annotations}
    gates = [{"name": names.SCHEDULING_GATE}] if gated else []
    return {
        "metadata": {"labels": labels, **identity, **metadata},
        "spec": {"schedulingGates": gates},
        "status": {"phase": phase},
    }


def _is_let_through(pod: dict[str, Any] | None, call: RemovePartition) -> bool:
    api = FakeKube()
    if pod is not None:
        api.put_object(_PATH, pod)
    gate = Gate(api=api, cluster_uid=lambda: "cluster")
    try:
        gate.pass_through(call)
    except KeptError:
        return False
    return True


_AT = datetime(2026, 11, 23, 2, tzinfo=UTC)


@pytest.mark.parametrize("known", [True, False], ids=["its pod is known", "an orphan"])
@pytest.mark.parametrize(
    ("pod", "changes", "want"),
    [
        pytest.param(_pod(), {}, False, id="a pod that runs keeps its partition"),
        pytest.param(_pod(phase="Succeeded"), {}, True, id="one that has ended does not"),
        pytest.param(_pod(annotations={names.RELEASE: "true"}), {}, True, id="nor one that gives it back"),
        pytest.param(_pod(told=_ELSEWHERE), {}, True, id="nor one that has another partition"),
        pytest.param(_pod(told=_ID), {"server": "vipu.example:8090"}, False, id="a server may have two names"),
        pytest.param(_pod(gated=True), {}, False, id="one that waits keeps it"),
        pytest.param(_pod(gated=True), {"unused": True}, True, id="but for what is made anew"),
        pytest.param(_pod(phase="Pending"), {"unused": True}, True, id="also where its init container waits"),
        pytest.param(_pod(), {"unused": True}, False, id="and its others do not run meanwhile"),
        pytest.param(_pod(deletionTimestamp=_DELETED), {}, False, id="one that is being deleted has its grace"),
        pytest.param(_pod(deletionTimestamp=_DELETED), {"past_deletion": _AT}, True, id="until that has run out"),
        pytest.param(
            _pod(deletionTimestamp=_DELETED),
            {"past_deletion": _AT.replace(hour=1)},
            False,
            id="with another time its grace is another one",
        ),
        pytest.param(_pod(), {"past_deletion": _AT}, False, id="a time without a deletion is no proof"),
        pytest.param(None, {}, True, id="a pod that is gone needs none"),
    ],
)
def test_who_keeps_its_partition(pod: dict[str, Any] | None, changes: dict[str, Any], want: bool, known: bool) -> None:
    call = replace(_REMOVE, **changes) if known else replace(_REMOVE, pod=None, **changes)
    assert _is_let_through(pod, call) is want


def test_another_pod_of_the_same_name_has_another_partition() -> None:
    assert _is_let_through(_pod(uid="uid-of-the-next"), _REMOVE)


def test_a_partition_of_another_cluster_is_never_let_through() -> None:
    assert not _is_let_through(None, replace(_REMOVE, id=names.partition_id("another", "uid-train", "vipu-1:8090")))


def test_nothing_is_let_through_while_kubernetes_does_not_answer() -> None:
    api = FakeKube()
    api.fail("GET", ".*", kube.Unavailable("away"), times=2)
    gate = Gate(api=api, cluster_uid=lambda: "cluster")
    for call in (_REMOVE, replace(_REMOVE, pod=None)):
        with pytest.raises(kube.ClusterError):
            gate.pass_through(call)
