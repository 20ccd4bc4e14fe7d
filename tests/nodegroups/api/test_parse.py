"""Custom resources are parsed into records. Any JSON is parsed or malformed, and writing a record loses no field."""

from __future__ import annotations

import contextlib
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.crds import schema_of
from provisioner.kube.fields import MalformedObject
from provisioner.model import bounds
from provisioner.nodegroups.api import codec, documents, names
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.specs import (
    BootstrapConfig,
    InstanceConfig,
    ProvisioningModel,
    ServiceAccount,
    SizePolicyMode,
    TpuNodeGroupSpec,
)
from provisioner.nodegroups.api.statuses import (
    Condition,
    ConditionStatus,
    Machine,
    NodeSummary,
    OperationRef,
    OperationType,
    Reason,
    TpuNodeGroupStatus,
)
from provisioner.nodegroups.api.types import (
    RECORDS,
    Kind,
    ManagedInstanceGroup,
    ObjectMeta,
    TpuNodeGroup,
    WorkloadPolicy,
)
from tests.support.any_json import ANY_JSON
from tests.support.nodegroups import IMAGE, UID, UNREAD, raw_object, valid, without
from tests.support.nodegroups import SPECS as EXAMPLES

#: Time-out longer than the default, because generating values for all fields takes several seconds.
pytestmark = pytest.mark.timeout(20)

GROUP = EXAMPLES[Kind.TPU_NODE_GROUP]
THEN = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
CONFIG = InstanceConfig(
    machine_type="tpu7x-standard-4t",
    provisioning_model=ProvisioningModel.RESERVATION_BOUND,
    reservation="research-reservation",
    image=IMAGE,
    boot_disk_size_gb=250,
    disk_type="hyperdisk-balanced",
    subnetwork="regions/us-central1/subnetworks/default",
    service_accounts=(ServiceAccount(email="default", scopes=("https://www.googleapis.com/auth/cloud-platform",)),),
    network_tags=("research", "tpu"),
    metadata={"team": "research"},
)


@pytest.mark.parametrize("kind", Kind)
def test_object_of_a_namespace_that_is_not_served_is_read_without_large_fields(kind: Kind) -> None:
    """In an earlier version, 170 TPUNodeGroups of 1 MiB in any namespace took 173 of the controller's 256 MiB."""
    large = {"metadata": {"k": "x" * 1_000_000}, "networkTags": ["t" * 1_000_000], "image": "x" * 1_000_000}
    spec = {**EXAMPLES[kind], **large, "instanceConfig": {**EXAMPLES[Kind.TPU_NODE_GROUP]["instanceConfig"], **large}}
    condition = {"type": "Ready", "status": "False", "reason": "NotAllowed", "message": "m" * 1_000_000}
    others = [{**condition, "type": f"Other{number}"} for number in range(10)]
    status = {"conditions": [*others, condition], "machines": [{"name": "m" * 1_000_000, "ready": True}]}
    raw = raw_object(kind, spec, status=status, metadata={"finalizers": ["tpu.google.com/cleanup-mig"]})
    record = parse(RECORDS[kind], raw, served=("other", "another"))
    assert len(pickle.dumps(record)) < 8192
    assert record.meta == parse(RECORDS[kind], raw, served=("research",)).meta
    assert record.spec.project == "research-project"
    (ready,) = record.status.conditions
    assert (ready.reason, len(ready.message)) == (Reason.NOT_ALLOWED, bounds.CONDITION_MESSAGE)


def test_object_whose_finalizers_exceed_their_bound_is_rejected() -> None:
    name = "f" * bounds.FINALIZERS
    raw = raw_object(Kind.TPU_NODE_GROUP, GROUP, metadata={"finalizers": [name]})
    assert parse(TpuNodeGroup, raw).meta.finalizers == (name,)
    raw["metadata"]["finalizers"].append("g")
    with pytest.raises(MalformedObject, match="finalizers have more than 4,096 characters; remove some"):
        parse(TpuNodeGroup, raw)


def test_spec_of_a_group_is_read_with_all_fields() -> None:
    group = parse(TpuNodeGroup, raw_object(Kind.TPU_NODE_GROUP, GROUP))
    assert group.meta == ObjectMeta(namespace="research", name="slice", uid=UID)
    assert group.status == TpuNodeGroupStatus()
    assert group.spec == TpuNodeGroupSpec(
        project="research-project",
        node_location="us-central1-c",
        instance_config=CONFIG,
        node_count=2,
        topology="2x2x2",
        bootstrap_kubernetes=BootstrapConfig(version="1.31", control_plane_ip="10.128.0.2"),
        target_size_policy_mode=SizePolicyMode.BULK,
    )


def test_metadata_is_read_with_known_annotations_only() -> None:
    raw = raw_object(
        Kind.MANAGED_INSTANCE_GROUP,
        EXAMPLES[Kind.MANAGED_INSTANCE_GROUP],
        metadata={
            "generation": 3,
            "resourceVersion": "12345",
            "creationTimestamp": "2026-01-01T12:00:00Z",
            "deletionTimestamp": "2026-01-01T12:00:00Z",
            "finalizers": ["tpu.google.com/managedinstancegroup-cleanup", "example.com/other"],
            "annotations": {"tpu-provisioner.cloud.google.com/adopt": "true", "example.com/note": "left out"},
        },
    )
    assert parse(ManagedInstanceGroup, raw).meta == ObjectMeta(
        namespace="research",
        name="slice",
        uid=UID,
        generation=3,
        resource_version="12345",
        created_at=THEN,
        deleted_at=THEN,
        finalizers=("tpu.google.com/managedinstancegroup-cleanup", "example.com/other"),
        annotations={names.ADOPT: "true"},
    )


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param(None, "namespace, name or uid is missing", id="nothing"),
        pytest.param({"metadata": {"namespace": "n", "name": "s"}}, "uid is missing", id="no uid"),
        pytest.param(
            {"metadata": {"namespace": "n", "name": "s\nuid 5", "uid": UID}},
            "namespace, name or uid is invalid",
            id="a name that no API server takes",
        ),
        pytest.param(
            {"metadata": {"namespace": "n", "name": "s", "uid": UID, "deletionTimestamp": "soon"}},
            "TPUNodeGroup n/s: deletionTimestamp 'soon' is not an RFC 3339 time",
            id="a deletion at no time",
        ),
    ],
)
def test_object_with_an_invalid_identity_or_deletion_time_is_malformed(raw: object, want: str) -> None:
    with pytest.raises(MalformedObject, match=want):
        parse(TpuNodeGroup, raw)


STATUS = {
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "AwaitingNodeJoin",
            "message": "1 of 2 nodes are ready",
            "lastTransitionTime": "2026-01-01T12:00:00Z",
            "observedGeneration": 1,
        }
    ],
    "observedGeneration": 1,
    "nodeSummary": {"ready": 1, "reconciling": 1, "failed": 0},
    "nodes": "1/2",
    "topology": "2x2x2",
    "nodeCount": 2,
    "targetSizePolicyMode": "BULK",
    "machines": [
        {"name": "m-0", "state": "RUNNING", "node": "m-0", "ready": True, "since": "2026-01-01T12:00:00Z"},
        {"name": "m-1", "state": "STAGING", "ready": False},
    ],
    "recreations": ["2026-01-01T12:00:00Z"],
}
GROUP_STATUS = TpuNodeGroupStatus(
    conditions=(
        Condition(
            type="Ready",
            status=ConditionStatus.FALSE,
            reason=Reason.AWAITING_NODE_JOIN,
            message="1 of 2 nodes are ready",
            last_transition_time=THEN,
            observed_generation=1,
        ),
    ),
    observed_generation=1,
    node_summary=NodeSummary(ready=1, reconciling=1, failed=0),
    topology="2x2x2",
    node_count=2,
    target_size_policy_mode=SizePolicyMode.BULK,
    machines=(
        Machine(name="m-0", state="RUNNING", node="m-0", ready=True, since=THEN),
        Machine(name="m-1", state="STAGING", ready=False),
    ),
    recreated_at=(THEN,),
)


def test_status_of_a_group_is_read_and_written_unchanged() -> None:
    assert parse(TpuNodeGroup, raw_object(Kind.TPU_NODE_GROUP, GROUP, status=STATUS)).status == GROUP_STATUS
    assert codec.write(GROUP_STATUS) == STATUS


def test_status_written_by_tpu_operator_is_read() -> None:
    """A status of tpu-operator has no attempts and no generations, and may lack the type of an operation."""
    status = {"uri": "u", "operationName": "operation-1", "operationType": "DELETE"}
    raw = raw_object(Kind.WORKLOAD_POLICY, EXAMPLES[Kind.WORKLOAD_POLICY], status=status)
    read = parse(WorkloadPolicy, raw).status
    assert (read.url, read.operation) == ("u", OperationRef(name="operation-1", type=OperationType.DELETE, attempt=0))
    del status["operationType"]
    assert parse(WorkloadPolicy, raw).status.operation is None


def test_malformed_status_is_read_as_an_empty_one() -> None:
    status = {"conditions": [{"type": "Ready"}, 5], "machines": [{"state": "RUNNING"}], "nodeCount": "two"}
    group = parse(TpuNodeGroup, raw_object(Kind.TPU_NODE_GROUP, GROUP, status=status))
    assert group.status == TpuNodeGroupStatus()


@pytest.mark.parametrize("changes", [{"nodeCount": 2**63}, {"instanceConfig": 5}, {"targetSizePolicyMode": "ODD"}])
def test_spec_that_violates_the_schema_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedObject, match="TPUNodeGroup research/slice: spec: "):
        parse(TpuNodeGroup, raw_object(Kind.TPU_NODE_GROUP, without(GROUP, **changes)))


def test_missing_fields_of_an_object_of_an_earlier_crd_are_empty() -> None:
    group = parse(TpuNodeGroup, raw_object(Kind.TPU_NODE_GROUP, None))
    assert group.spec == TpuNodeGroupSpec(project="", node_location="")


SCHEMAS = {kind: {part: schema_of(kind, part) for part in ("spec", "status")} for kind in Kind}


@given(st.sampled_from(Kind), ANY_JSON)
def test_any_json_is_read_or_malformed(kind: Kind, raw: object) -> None:
    with contextlib.suppress(MalformedObject):
        parse(RECORDS[kind], raw)


@given(st.sampled_from(Kind), st.data())
def test_any_value_in_any_field_is_malformed_or_can_be_written(kind: Kind, data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(["spec", "status"]))
    raw = raw_object(kind, dict(EXAMPLES[kind]), status={})
    for _ in range(data.draw(st.integers(1, 3))):
        raw[part][data.draw(st.sampled_from(sorted(SCHEMAS[kind][part]["properties"])))] = data.draw(ANY_JSON)
    with contextlib.suppress(MalformedObject):
        record = parse(RECORDS[kind], raw)
        json.dumps(codec.write(record.spec))
        json.dumps(codec.write(record.status))


def _without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {key: _without_empty(part) for key, part in value.items()}
    kept = {key: part for key, part in kept.items() if (key, part) != ("secureBoot", False)}
    return {key: part for key, part in kept.items() if key == "bootstrapKubernetes" or part not in ("", [], {})}


def _as_read(spec: dict[str, Any]) -> dict[str, Any]:
    config = spec.get("instanceConfig")
    return without(spec, *UNREAD, **({"instanceConfig": {"subnetwork": "default", **config}} if config else {}))


@given(st.sampled_from(Kind), st.data())
def test_spec_is_read_and_written_without_losing_a_field(kind: Kind, data: st.DataObject) -> None:
    spec = data.draw(valid(SCHEMAS[kind]["spec"]))
    record = parse(RECORDS[kind], raw_object(kind, spec))
    written = _without_empty(codec.write(record.spec))
    # Each field of the spec is written unchanged; further written fields have defaults.
    assert written == _without_empty({**written, **_as_read(spec)})
    again = parse(RECORDS[kind], raw_object(kind, codec.write(record.spec)))
    assert again.spec == record.spec


@given(st.sampled_from(Kind), st.data())
def test_status_is_read_and_written_without_losing_a_field(kind: Kind, data: st.DataObject) -> None:
    raw = data.draw(valid(SCHEMAS[kind]["status"]))
    status = parse(RECORDS[kind], raw_object(kind, EXAMPLES[kind], status=raw)).status
    written = codec.write(status)
    assert parse(RECORDS[kind], raw_object(kind, EXAMPLES[kind], status=written)).status == status
    # These keys may be missing: `nodes` is derived, and an operation without a name or a type is dropped.
    loose = {"nodes", "operationName", "operationType"}
    lost = {key for key in raw if key not in written and key not in loose and raw[key] not in ("", [], 0)}
    assert lost == set()


@given(st.sampled_from(Kind), st.data())
def test_patch_changes_one_status_into_the_other(kind: Kind, data: st.DataObject) -> None:
    records = valid(SCHEMAS[kind]["status"]).map(lambda raw: parse(RECORDS[kind], raw_object(kind, {}, status=raw)))
    record, new = data.draw(records), data.draw(records).status
    patch = documents.status_patch(record, new)
    document = codec.write(record.status)
    for key, value in patch["status"].items() if patch is not None else ():
        assert value != document.get(key)
        document = without(document, key) if value is None else {**document, key: value}
    assert parse(RECORDS[kind], raw_object(kind, {}, status=document)).status == new
    assert (patch is None) is (record.status == new)
    assert documents.status_patch(record, record.status) is None
