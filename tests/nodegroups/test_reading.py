"""Nodes, pods and the device plugin are read as records; a value that must not be guessed is malformed."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.kube.fields import MalformedObject
from provisioner.nodegroups.api import names
from provisioner.nodegroups.device_plugin import manifest, version_of
from provisioner.nodegroups.planning.round import DevicePlugin, Node
from provisioner.nodegroups.reading import (
    may_be_of_a_group,
    parse_device_plugin,
    parse_node,
    parse_pod,
    tolerates_tpu_nodes,
)
from tests.support.any_json import ANY_JSON, spoilt
from tests.support.nodegroup_world import LABELS, STARTED, provider_id, raw_machine_node, raw_pod_on

TPU = constants.TPU_RESOURCE


def test_node_of_a_machine_is_read_with_known_labels_only() -> None:
    raw = raw_machine_node("m-0", labels={**LABELS, names.WORKER_INDEX: "0", "kubernetes.io/hostname": "m-0"})
    assert parse_node(raw) == Node(
        name="m-0",
        uid="uid-of-m-0",
        resource_version="7",
        provider_id=provider_id("m-0"),
        labels={**LABELS, names.WORKER_INDEX: "0"},
        tainted=True,
        unschedulable=True,
        ready=True,
        capacity_chips=4,
        allocatable_chips=4,
    )


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"conditions": [{"type": "Ready", "status": "Unknown"}]}, id="a kubelet that is silent"),
        pytest.param({"conditions": "x", "capacity": []}, id="fields of a wrong type"),
    ],
)
def test_node_without_a_status_is_not_ready_and_has_no_chips(status: dict[str, Any]) -> None:
    """A node that has just registered has no status."""
    node = parse_node(raw_machine_node("m-0", status=status))
    assert (node.ready, node.capacity_chips, node.allocatable_chips) == (False, 0, 0)


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param(raw_machine_node("m-0", labels={}), True, id="a machine of Compute Engine"),
        pytest.param(raw_machine_node("m-0", spec={"providerID": ""}), True, id="one that carries a group's labels"),
        pytest.param(raw_machine_node("m-0", labels={}, spec={"providerID": "kind://x"}), False, id="any other"),
    ],
)
def test_node_may_be_of_a_group_if_it_is_a_machine_or_has_labels(raw: dict[str, Any], want: bool) -> None:
    assert may_be_of_a_group(parse_node(raw)) is want


@pytest.mark.parametrize(
    ("condition", "want"),
    [
        pytest.param({}, True, id="found silent after more than ten minutes"),
        pytest.param({"lastTransitionTime": "2026-01-01T00:10:00Z"}, False, id="found silent within ten minutes"),
        pytest.param({"status": "False"}, False, id="reported by its kubelet as not ready"),
        pytest.param({"status": "True"}, False, id="ready"),
        pytest.param({"lastHeartbeatTime": None}, False, id="without a report"),
        pytest.param({"lastTransitionTime": 7}, False, id="unreadable"),
    ],
)
def test_node_is_silent_only_if_its_kubelet_had_not_reported_for_long(condition: dict[str, Any], want: bool) -> None:
    """Kubernetes notices a failed kubelet within 9 minutes of its last report, unless the control plane was down."""
    times = {"lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:10:01Z"}
    raw = raw_machine_node("m-0", status={"conditions": [{"type": "Ready", "status": "Unknown", **times, **condition}]})
    assert parse_node(raw).silent_since == (datetime(2026, 1, 1, tzinfo=UTC) if want else None)


@pytest.mark.parametrize("metadata", [{"name": ""}, {"uid": None}], ids=["without a name", "without a uid"])
def test_node_without_identity_is_malformed(metadata: dict[str, Any]) -> None:
    with pytest.raises(MalformedObject, match="name or uid is missing"):
        parse_node(raw_machine_node("m-0", metadata=metadata))


def test_node_whose_chips_cannot_be_read_is_malformed() -> None:
    """Assuming no chips or all chips would be a guess."""
    with pytest.raises(MalformedObject, match=r"capacity google\.com/tpu is 'many'"):
        parse_node(raw_machine_node("m-0", status={"capacity": {TPU: "many"}}))


def owned(kind: str, **changes: Any) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": "o", "uid": "u", "controller": True, **changes}]}


@pytest.mark.parametrize(
    ("parts", "changes"),
    [
        pytest.param({}, {}, id="one that runs"),
        pytest.param({"chips": 0}, {"chips": 0}, id="one without chips"),
        pytest.param(
            {"metadata": {"creationTimestamp": "2026-01-01T00:00:30Z"}},
            {"created_at": datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)},
            id="one with its time of creation",
        ),
        pytest.param({"status": {"phase": "Pending"}}, {"started": False}, id="one that was not started"),
        pytest.param({"status": {"phase": "Succeeded", **STARTED}}, {"finished": True}, id="one that succeeded"),
        pytest.param({"status": {"phase": "Failed", **STARTED}}, {"finished": True}, id="one that failed"),
        pytest.param({"status": STARTED}, {}, id="one that says nothing of its phase"),
        pytest.param({"spec": {"nodeName": None}}, {"node": ""}, id="one that waits for a node"),
        pytest.param(
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z"}},
            {"deletion_deadline": datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)},
            id="one that is being deleted",
        ),
        pytest.param({"metadata": owned("DaemonSet")}, {"bound_to_node": True}, id="one of a DaemonSet"),
        pytest.param({"metadata": owned("Node")}, {"bound_to_node": True}, id="one of a node"),
        pytest.param(
            {"metadata": owned("DaemonSet", controller=False)}, {}, id="one that a DaemonSet does not control"
        ),
        pytest.param({"metadata": owned("Job")}, {}, id="one of a Job"),
        pytest.param(
            {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}},
            {"bound_to_node": True},
            id="the mirror of a static pod",
        ),
    ],
)
def test_pod_is_read_with_all_fields_that_keep_its_node(parts: dict[str, Any], changes: dict[str, Any]) -> None:
    """If a field were missing in the record, the machine of a running pod could be deleted."""
    pod = parse_pod(raw_pod_on("m-0", **parts))
    want = {
        "namespace": "research",
        "name": "train-0",
        "uid": "uid-of-train-0",
        "node": "m-0",
        "chips": 4,
        "finished": False,
        "created_at": None,
        "started": True,
        "deletion_deadline": None,
        "bound_to_node": False,
        **changes,
    }
    assert {key: getattr(pod, key) for key in want} == want


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"metadata": {"uid": ""}}, id="an identity"),
        pytest.param({"metadata": {"deletionTimestamp": "soon"}}, id="a time of deletion"),
        pytest.param({"spec": {"overhead": {TPU: "many"}}}, id="a count of chips"),
    ],
)
def test_pod_with_an_invalid_essential_field_is_malformed(parts: dict[str, Any]) -> None:
    """A field that decides whether machines are kept is never guessed."""
    with pytest.raises(MalformedObject):
        parse_pod(raw_pod_on("m-0", **parts))


@pytest.mark.parametrize(
    ("tolerations", "want"),
    [
        pytest.param([{"key": TPU, "operator": "Exists"}], True, id="the taint of TPUs"),
        pytest.param([{"key": TPU, "value": "present", "effect": "NoSchedule"}], True, id="its value and effect"),
        pytest.param([{"operator": "Exists"}], True, id="every taint"),
        pytest.param([{"operator": "Exists", "effect": "NoExecute"}], False, id="taints of another effect"),
        pytest.param([{"key": "other", "operator": "Exists"}], False, id="another taint"),
        pytest.param("x", False, id="what is no list"),
        pytest.param(None, False, id="none"),
    ],
)
def test_pod_may_run_on_tpu_nodes_only_if_it_tolerates_the_taint(tolerations: object, want: bool) -> None:
    assert tolerates_tpu_nodes(raw_pod_on("m-0", spec={"tolerations": tolerations})) is want


def test_device_plugin_is_read_with_its_version() -> None:
    """A DaemonSet that another client created has no version."""
    made = manifest("p")
    raw = {**made, "metadata": {**made["metadata"], "uid": "u"}}
    assert parse_device_plugin(raw) == DevicePlugin(uid="u", version=version_of(made))
    del raw["metadata"]["annotations"]
    assert parse_device_plugin(raw) == DevicePlugin(uid="u")


@given(st.data())
def test_any_json_is_read_or_malformed(data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from([raw_machine_node("m-0"), raw_pod_on("m-0"), manifest("p")]))
    for changed in (spoilt(data, raw), data.draw(ANY_JSON)):
        for parse in (parse_node, parse_pod, parse_device_plugin):
            with contextlib.suppress(MalformedObject):
                parse(changed)
        tolerates_tpu_nodes(changed)
