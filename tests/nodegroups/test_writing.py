"""Writes to Kubernetes have the right requests and preconditions, and are idempotent."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.errors import Conflict, Invalid, NotFound
from provisioner.kube.fields import format_time
from provisioner.kube.protocol import object_path
from provisioner.nodegroups import device_plugin
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.statuses import Condition, ConditionStatus, UriStatus
from provisioner.nodegroups.api.types import API_VERSION, RECORDS, Kind, ObjectMeta, TpuNodeGroup, WorkloadPolicy
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.bootstrap.tokens import LIFE, parse_secret
from provisioner.nodegroups.device_plugin import manifest, version_of
from provisioner.nodegroups.planning import actions
from provisioner.nodegroups.writing import Writer
from tests.support.kube import FakeKube
from tests.support.nodegroup_world import (
    GROUP,
    LABELS,
    NAMESPACE,
    TAINT,
    a_child,
    encoded,
    kind_path,
    raw_kind,
    raw_machine_node,
    raw_pod_on,
    raw_request,
)

GROUP_KIND, POLICY = Kind.TPU_NODE_GROUP, Kind.WORKLOAD_POLICY
MANIFEST = manifest("p")
PLUGIN = "/apis/apps/v1/namespaces/kube-system/daemonsets/tpu-device-plugin"
EXPIRES = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)
NODE = "/api/v1/nodes/m-0"


@pytest.fixture
def api() -> FakeKube:
    return FakeKube()


def writer(api: FakeKube, **parts: Any) -> Writer:
    return Writer(**{"api": api, "device_plugin": MANIFEST, **parts})


def put(api: FakeKube, kind: Kind = GROUP_KIND, name: str = GROUP, **metadata: Any) -> Any:
    return parse(RECORDS[kind], api.put_object(kind_path(kind, name), raw_kind(kind, name, **metadata)))


_OWNER = ObjectMeta(namespace="", name=GROUP, uid="u1")
_NAME = names.child_name(ObjectMeta(namespace=NAMESPACE, name=GROUP, uid="u1"), POLICY)
CREATE = actions.CreateChild(
    record=replace(a_child(POLICY), meta=ObjectMeta(namespace=NAMESPACE, name=_NAME, uid="", owner=_OWNER))
)


def test_child_is_created_as_decided(api: FakeKube) -> None:
    write, child = CREATE, CREATE.record
    writer(api).write(write)
    writer(api).write(write)
    raw = api.object(kind_path(POLICY, child.meta.name))
    made = parse(WorkloadPolicy, raw)
    assert made.spec == child.spec
    assert raw["metadata"]["labels"] == {names.GROUP_NAMESPACE: NAMESPACE, names.GROUP_NAME: GROUP}
    owner = {"apiVersion": API_VERSION, "kind": "TPUNodeGroup", "name": GROUP, "uid": "u1", "controller": True}
    assert raw["metadata"]["ownerReferences"] == [owner]
    assert made.meta.finalizers == (names.CHILD_FINALIZERS[POLICY],)


def test_create_fails_for_a_conflict_that_is_no_existing_name(api: FakeKube) -> None:
    """The API server may report a conflict because the namespace is being changed."""
    api.fail("POST", "/workloadpolicies", Conflict("try again", status=409, reason="Conflict"))
    with pytest.raises(Conflict):
        writer(api).write(CREATE)


def test_finalizers_are_replaced_only_in_the_version_that_was_read(api: FakeKube) -> None:
    """An object that has changed needs a new decision."""
    group = put(api)
    writer(api).write(actions.SetFinalizers(record=group, finalizers=("a", "b")))
    assert parse(TpuNodeGroup, api.object(kind_path(GROUP_KIND))).meta.finalizers == ("a", "b")
    with pytest.raises(Conflict):
        writer(api).write(actions.SetFinalizers(record=group, finalizers=()))
    body = api.calls[-1].body
    assert body is not None
    assert body["metadata"] == {"resourceVersion": group.meta.resource_version, "finalizers": []}


def test_status_is_patched_with_changed_fields_only(api: FakeKube) -> None:
    ready = Condition(
        type="Ready", status=ConditionStatus.TRUE, reason="Created", message="", last_transition_time=EXPIRES
    )
    policy = replace(put(api, POLICY), status=UriStatus(conditions=(ready,)))
    writer(api).write(actions.PatchStatus(record=policy, new=replace(policy.status, url="https://x")))
    call = api.calls[-1]
    assert call.path == f"{kind_path(POLICY)}/status"
    assert call.body == {
        "metadata": {"resourceVersion": policy.meta.resource_version},
        "status": {"uri": "https://x"},
    }
    before = len(api.calls)
    writer(api).write(actions.PatchStatus(record=policy, new=policy.status))
    assert len(api.calls) == before


_TAINTS = (
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
    {"key": "old", "value": "x", "effect": "NoSchedule"},
)


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"labels": LABELS}, {"labels": {"a": "b", **LABELS}}),
        ({"taint": True}, {"taints": [*_TAINTS, TAINT]}),
        ({"cordon": True}, {"unschedulable": True}),
    ],
    ids=["labels", "taint", "cordon"],
)
def test_node_is_changed_only_in_the_version_that_was_read(
    api: FakeKube, changes: dict[str, Any], want: dict[str, Any]
) -> None:
    """Other labels and taints are kept, with their times."""
    node = raw_machine_node("m-0", labels={"a": "b"}, unschedulable=False, spec={"taints": [*_TAINTS]})
    metadata = api.put_object(NODE, node)["metadata"]
    values = {"uid": metadata["uid"], "resource_version": metadata["resourceVersion"], "labels": {}, **changes}
    write = actions.PatchNode(name="m-0", **values)
    writer(api).write(write)
    after = api.object(NODE)
    assert after is not None
    found = {"labels": after["metadata"]["labels"], **after["spec"]}
    assert found == {"labels": {"a": "b"}, **node["spec"], **want}
    with pytest.raises(Conflict):
        writer(api).write(write)
    assert api.object(NODE) == after


@pytest.mark.parametrize(
    ("path", "raw", "write"),
    [
        pytest.param(
            kind_path(POLICY), raw_kind(POLICY), actions.DeleteChild(record=a_child(POLICY)), id="a workload policy"
        ),
        pytest.param(NODE, raw_machine_node("m-0"), actions.DeleteNode(name="m-0", uid="uid-of-m-0"), id="a node"),
        pytest.param(
            "/api/v1/namespaces/kube-system/secrets/s",
            {"metadata": {"name": "s", "uid": "u"}},
            actions.DeleteToken(name="s", uid="u"),
            id="a token",
        ),
        pytest.param(
            PLUGIN, {"metadata": {"name": "x", "uid": "u"}}, actions.DeleteDevicePlugin(uid="u"), id="the device plugin"
        ),
    ],
)
def test_object_is_deleted_only_with_its_uid(
    api: FakeKube, path: str, raw: dict[str, Any], write: actions.Write
) -> None:
    api.put_object(path, raw)
    writer(api).write(write)
    writer(api).write(write)
    assert api.object(path) is None
    api.put_object(path, {**raw, "metadata": {**raw["metadata"], "uid": "another"}})
    with pytest.raises(Conflict):
        writer(api).write(write)


def test_pod_is_evicted_only_with_its_uid(api: FakeKube) -> None:
    path = object_path("pods", "train-0", namespace=NAMESPACE)
    api.put_object(path, raw_pod_on("m-0"))
    write = actions.EvictPod(namespace=NAMESPACE, name="train-0", uid="uid-of-train-0")
    writer(api).write(write)
    call = api.calls[-1]
    assert (call.method, call.path) == ("POST", f"{path}/eviction")
    assert call.body is not None
    assert call.body["deleteOptions"] == {"preconditions": {"uid": "uid-of-train-0"}}
    api.fail("POST", "/eviction", NotFound("gone", status=404, reason="NotFound"))
    writer(api).write(write)


TOKEN = actions.CreateToken(namespace=NAMESPACE, name=GROUP, machine="m-0", machine_id="17", expires_at=EXPIRES)


def test_token_is_created_for_one_machine(api: FakeKube) -> None:
    writer(api).write(TOKEN)
    (raw,) = api.objects("/api/v1/namespaces/kube-system/secrets")
    token = parse_secret(encoded(raw))
    assert token is not None
    assert (token.group_namespace, token.group_name, token.machine, token.machine_id) == (NAMESPACE, GROUP, "m-0", "17")
    assert (token.expires_at, len(token.value)) == (EXPIRES, 23)


@pytest.mark.parametrize(
    ("minutes", "reported"),
    [
        (-60, "60 minutes ahead of that of the API server"),
        (-16, "16 minutes ahead of that of the API server"),
        (-14, ""),
        (0, ""),
        (14, ""),
        (16, "16 minutes behind that of the API server"),
        (40, "40 minutes behind that of the API server"),
    ],
)
def test_token_is_deleted_if_the_clock_of_the_api_server_differs(
    api: FakeKube, monkeypatch: pytest.MonkeyPatch, minutes: int, reported: str
) -> None:
    """If the controller's clock is far behind, tokens expire too early; if it is far ahead, grace periods end early."""
    now = EXPIRES - LIFE + timedelta(minutes=minutes)
    post = api.post

    def stamped(path: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        return post(path, {**body, "metadata": {**body["metadata"], "creationTimestamp": format_time(now)}}, **options)

    monkeypatch.setattr(api, "post", stamped)
    if reported:
        with pytest.raises(Invalid, match=f"the clock of this controller is {reported}"):
            writer(api).write(TOKEN)
    else:
        writer(api).write(TOKEN)
    assert len(api.objects("/api/v1/namespaces/kube-system/secrets")) == (not reported)


def test_token_whose_id_exists_already_is_not_used(api: FakeKube) -> None:
    drawn = iter(["aaaaaa.aaaaaaaaaaaaaaaa", "aaaaaa.bbbbbbbbbbbbbbbb", "cccccc.cccccccccccccccc"])
    both = writer(api, draw_token=lambda: next(drawn))
    both.write(TOKEN)
    with pytest.raises(Conflict):
        both.write(TOKEN)
    both.write(TOKEN)
    secrets = api.objects("/api/v1/namespaces/kube-system/secrets")
    assert [raw["stringData"]["token-secret"] for raw in secrets] == ["a" * 16, "c" * 16]


def test_request_is_approved_only_in_the_version_that_was_read(api: FakeKube) -> None:
    """Approvals can be written only to the subresource `approval`."""
    path = object_path("certificatesigningrequests", "csr-1", root=tokens.CERTIFICATES_ROOT)
    raw = api.put_object(path, raw_request("m-0"))
    version = api.put_object(f"{path}/approval", raw)["metadata"]["resourceVersion"]
    writer(api).write(actions.ApproveRequest(name="csr-1", uid="uid-of-csr-1", resource_version=version))
    call = api.calls[-1]
    assert (call.method, call.path) == ("PATCH", f"{path}/approval")
    assert call.body is not None
    assert call.body["metadata"] == {"uid": "uid-of-csr-1", "resourceVersion": version}
    assert [condition["type"] for condition in call.body["status"]["conditions"]] == ["Approved"]


def test_device_plugin_is_applied_with_one_field_manager(api: FakeKube) -> None:
    """With one field manager for all releases, the API server removes fields that a new release no longer has."""
    write = actions.ApplyDevicePlugin(version=version_of(MANIFEST))
    writer(api).write(write)
    writer(api).write(write)
    assert api.calls[-1].query["fieldManager"] == constants.MANAGER
    raw = api.object(PLUGIN)
    assert raw is not None
    assert raw["metadata"]["annotations"] == {device_plugin.VERSION: write.version}
