"""Tests of the conversion of raw JSON to records: each rule by an example, and arbitrary JSON by a property."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.kube.fields import MalformedObject
from provisioner.kube.watches import parse_node
from provisioner.model.capacity import Taint
from provisioner.model.workloads import Expression, Toleration
from provisioner.workloads.jobset import parse_jobset
from provisioner.workloads.parse_pod import parse_pod
from tests.support.any_json import ANY_JSON, spoilt
from tests.support.objects import (
    job_reference,
    parsed_pod,
    pod_spec,
    raw_jobset,
    raw_node,
    raw_pod,
    required_affinity,
)

#: SHA1 of "default/train-slice-0".
JOB_KEY = "85d5b40df9777c538c56fd5da6a51702a106bc4b"


def _spec(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"resources": {"requests": {"google.com/tpu": "4"}}}], **fields}


def _chips(amount: object) -> dict[str, Any]:
    return {"resources": {"requests": {"google.com/tpu": amount}}}


def test_unschedulable_leader_is_read_completely() -> None:
    pod = parsed_pod(raw_pod())
    assert (pod.namespace, pod.name, pod.uid) == ("default", "train-slice-0-0-abcde", "uid-of-train-slice-0-0-abcde")
    assert (pod.workload_name, pod.workload_uid, pod.group_key) == ("train", "jobset-uid-1", JOB_KEY)
    assert pod.completion_index == 0
    assert pod.requirements.chips == 4
    assert pod.unschedulable_since == datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert pod.unschedulable_message == "0/3 nodes are available"
    assert pod.requirements.labels["jobset.sigs.k8s.io/jobset-name"] == "train"
    assert pod.deletion_deadline is None


def _with_resources(**chips: str) -> dict[str, Any]:
    resources = {name: {constants.TPU_RESOURCE: count} for name, count in chips.items()}
    return {"containers": [{"resources": resources}]}


_SIDECAR = {**_chips(1), "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param(_spec(), 4, id="requests of one container"),
        pytest.param({"containers": [_chips("4"), _chips(4)]}, 8, id="containers add up"),
        pytest.param(_with_resources(limits="8"), 8, id="limits count where there is no request"),
        pytest.param(_with_resources(requests="4", limits="8"), 4, id="a request goes before a limit"),
        pytest.param(
            {"initContainers": [_chips(8)], "containers": [_chips(4)]}, 8, id="a larger init container counts"
        ),
        pytest.param(
            {"initContainers": [_chips(2), _chips(3)], "containers": [_chips(4)]}, 4, id="init containers don't add up"
        ),
        pytest.param({"initContainers": [_SIDECAR], "containers": [_chips(4)]}, 5, id="sidecar beside the containers"),
        pytest.param(
            {"initContainers": [_SIDECAR, _chips(4)], "containers": [_chips(1)]},
            5,
            id="sidecar before an init container",
        ),
        pytest.param({"containers": [_chips("4000m")]}, 4, id="thousandths that make a whole"),
    ],
)
def test_chips_are_counted_as_by_the_scheduler(raw: dict[str, Any], want: int) -> None:
    pod = parsed_pod(raw_pod(spec=raw))
    assert want == pod.requirements.chips


def test_cpu_and_memory_are_rounded_up_and_include_overhead() -> None:
    """If an amount were too small, the pod would not fit on its pool."""
    spec = {
        "containers": [{"resources": {"requests": {"google.com/tpu": 4, "cpu": "100500u", "memory": "1.5"}}}],
        "overhead": {"cpu": "10m"},
    }
    pod = parsed_pod(raw_pod(spec=spec))
    assert (pod.requirements.cpu_millicores, pod.requirements.memory_bytes) == (111, 2)
    spec["resources"] = {"requests": {"cpu": "2"}}
    pod = parsed_pod(raw_pod(spec=spec))
    assert pod.requirements.cpu_millicores == 2010


def test_pod_of_the_gvisor_class_selects_nodes_with_a_sandbox() -> None:
    """The API server adds the selector of the RuntimeClass only to pods, not to templates."""
    pod = parsed_pod(raw_pod(spec={"containers": [_chips(4)], "runtimeClassName": "gvisor"}))
    assert pod.requirements.node_selector == {"sandbox.gke.io/runtime": "gvisor"}


def test_ephemeral_storage_and_huge_pages_are_summed_over_the_containers() -> None:
    asked = [{"ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"}, {"ephemeral-storage": "1Gi", "nvidia.com/gpu": "1"}]
    containers = [{"resources": {"requests": {"google.com/tpu": 4, **requests}}} for requests in asked]
    pod = parsed_pod(raw_pod(spec={"containers": containers, "overhead": {"ephemeral-storage": "1"}}))
    assert dict(pod.requirements.other_bytes) == {"ephemeral-storage": 2**31 + 1, "hugepages-2Mi": 2**22}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param(
            raw_pod(spec={"containers": [_chips("500m")]}), "request a whole number of chips", id="half a chip"
        ),
        pytest.param(raw_pod(spec={"containers": [_chips("four")]}), "'four'", id="chips in words"),
        pytest.param(raw_pod(spec={"containers": [_chips([4])]}), "a list", id="chips in a list"),
        pytest.param(raw_pod(metadata={"uid": None}), "uid is missing", id="no uid"),
        pytest.param(raw_pod(metadata={"name": 5}), "name or uid is missing", id="a name that is no text"),
        pytest.param(raw_pod(metadata={"deletionTimestamp": "soon"}), "'soon'", id="a deletion at no known time"),
    ],
)
def test_unreadable_pod_is_reported(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedObject) as caught:
        parse_pod(raw)
    assert words in str(caught.value)
    assert "pod" in str(caught.value)


CLAIMS = [{"name": "tpu", "resourceClaimTemplateName": "all-chips"}]


@pytest.mark.parametrize(
    ("spec", "chips", "driver"),
    [
        pytest.param(pod_spec(chips=0, resourceClaims=CLAIMS), 4, "true", id="claims are for all chips of a host"),
        pytest.param(pod_spec(resourceClaims=CLAIMS), 4, None, id="chips as a resource, and claims for something else"),
        pytest.param(pod_spec(topology="2x99", chips=0, resourceClaims=CLAIMS), 1, "true", id="no such slice"),
    ],
)
def test_pod_with_claims_requests_all_chips_of_its_host(spec: dict[str, Any], chips: int, driver: str | None) -> None:
    """Only nodes with the DRA driver fit, even if the pod does not select them."""
    pod = parsed_pod(raw_pod(spec=spec))
    assert (pod.requirements.chips, pod.requirements.node_selector.get(constants.TPU_DRA_DRIVER)) == (chips, driver)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(raw_pod(spec={"containers": [{}]}), id="a pod without chips"),
        pytest.param(raw_pod(spec={"containers": [{}], "resourceClaims": CLAIMS}), id="claims, and no TPU selected"),
        pytest.param(raw_pod(spec=None), id="a pod without a spec"),
        pytest.param({}, id="an empty object"),
        pytest.param([], id="no object at all"),
        pytest.param(None, id="null"),
    ],
)
def test_pod_without_workload_or_chips_is_none(raw: object) -> None:
    assert parse_pod(raw) is None


@pytest.mark.parametrize(
    ("references", "want"),
    [
        pytest.param([job_reference("train-slice-0")], JOB_KEY, id="the Job controls it"),
        pytest.param(
            [{"kind": "Queue", "name": "q"}, job_reference("train-slice-0")], JOB_KEY, id="something else owns it too"
        ),
        pytest.param(None, "", id="nothing owns it"),
        pytest.param(
            [job_reference("train-slice-0", controller=False)], "", id="a Job owns it and does not control it"
        ),
        pytest.param([job_reference("train-slice-0", controller="true")], "", id="a control that is no boolean"),
        pytest.param([job_reference("train-slice-0", name=5)], "", id="a name that is no text"),
        pytest.param("train-slice-0", "", id="references that are no list"),
    ],
)
def test_job_of_a_pod_is_its_controller(references: object, want: str) -> None:
    """The key is computed from the owner reference; labels are ignored."""
    raw = raw_pod(metadata={"ownerReferences": references})
    raw["metadata"]["labels"]["batch.kubernetes.io/job-name"] = "train-slice-0"
    pod = parsed_pod(raw)
    assert want == pod.group_key


def test_job_of_a_pod_is_in_the_namespace_of_the_pod() -> None:
    """Owner references do not cross namespaces, so the key depends on the namespace of the pod."""
    pod = parsed_pod(raw_pod(namespace="other"))
    assert pod.group_key not in ("", JOB_KEY)


def test_annotations_replace_missing_labels() -> None:
    """Kubernetes releases before 1.28 set only an annotation for the index."""
    raw = raw_pod(
        metadata={
            "labels": {"batch.kubernetes.io/job-name": "train-slice-0"},
            "annotations": {
                "jobset.sigs.k8s.io/jobset-name": "train",
                "batch.kubernetes.io/job-completion-index": "3",
                "tpu-provisioner.cloud.google.com/copy-labels": "team",
                "cloud.google.com/gke-tpu-slice-topology": "2x2",
                "example.com/other": "dropped",
            },
        }
    )
    pod = parsed_pod(raw)
    assert (pod.workload_name, pod.completion_index, pod.workload_uid) == ("train", 3, "")
    assert pod.group_key == JOB_KEY
    assert set(pod.requirements.annotations) == {
        "tpu-provisioner.cloud.google.com/copy-labels",
        "cloud.google.com/gke-tpu-slice-topology",
    }


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("0", 0, id="the leader"),
        pytest.param("17", 17, id="a follower"),
        pytest.param("-1", None, id="below zero"),
        pytest.param("²", None, id="a digit that is none"),
        pytest.param("x", None, id="no number"),
    ],
)
def test_completion_index_is_none_if_invalid(text: str, want: int | None) -> None:
    """An invalid index must not count as the leader's."""
    raw = raw_pod()
    raw["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = text
    pod = parsed_pod(raw)
    assert want == pod.completion_index


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param({"phase": "Running"}, False, id="phase Running"),
        pytest.param({"phase": "Pending"}, False, id="no condition yet"),
        pytest.param({"phase": "Pending", "reason": "SchedulingGated"}, False, id="gated"),
        pytest.param({"phase": "Pending", "reason": "Unschedulable"}, True, id="unschedulable"),
        pytest.param({"phase": "Failed", "reason": "Unschedulable"}, False, id="failed while unschedulable"),
    ],
)
def test_pod_is_unschedulable_only_by_the_condition_of_the_scheduler(status: dict[str, str], *, want: bool) -> None:
    conditions = []
    if "reason" in status:
        conditions = [{"type": "PodScheduled", "status": "False", "reason": status["reason"]}]
    pod = parsed_pod(raw_pod(status={"phase": status["phase"], "conditions": conditions}))
    assert want is (pod.unschedulable_since is not None)


def test_pod_of_an_incomplete_gang_is_gated_since_its_creation() -> None:
    """The scheduler writes no condition until enough pods of the gang exist."""
    spec = {**pod_spec(), "schedulingGroup": {"podGroupName": "train"}}
    pod = parsed_pod({**raw_pod(status={"phase": "Pending"}), "spec": spec})
    assert (pod.gang, pod.gated, pod.unschedulable_since) == ("train", True, pod.created_at)
    scheduled = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    pod = parsed_pod({**raw_pod(status=scheduled), "spec": spec})
    assert (pod.gang, pod.gated, pod.unschedulable_since) == ("train", False, None)


def test_affinity_and_tolerations_are_read() -> None:
    term = {
        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
    }
    spec = _spec(
        affinity=required_affinity(term, {}),
        tolerations=[{"key": "k", "operator": "Exists", "effect": "NoSchedule"}, {"key": "v", "value": "1"}],
    )
    pod = parsed_pod(raw_pod(spec=spec))
    assert pod.requirements.affinity_terms == (
        (
            Expression(key="zone", operator="In", values=("a", "b")),
            Expression(key="metadata.name", operator="In", values=("n1",), on_field=True),
        ),
    )
    assert pod.requirements.tolerations == (
        Toleration(key="k", operator="Exists", effect="NoSchedule"),
        Toleration(key="v", operator="Equal", value="1"),
    )


def test_affinity_that_matches_no_node_is_kept() -> None:
    """An empty term matches no node. Ignoring it would allow any node."""
    pod = parsed_pod(raw_pod(spec=_spec(affinity=required_affinity({}))))
    assert pod.requirements.affinity_terms == ((Expression(key="metadata.name", operator="In", on_field=True),),)


def _term(**labels: list[str]) -> dict[str, Any]:
    keys = {"accelerator": constants.TPU_ACCELERATOR, "topology": constants.TPU_TOPOLOGY, "pool": constants.NODE_POOL}
    return {
        "matchExpressions": [{"key": keys[name], "operator": "In", "values": values} for name, values in labels.items()]
    }


def _of_topology(*values: list[Any], operator: str = "In") -> dict[str, Any]:
    return {
        "matchExpressions": [{"key": constants.TPU_TOPOLOGY, "operator": operator, "values": texts} for texts in values]
    }


_BOTH = {constants.TPU_ACCELERATOR: "tpu-v6e-slice", constants.TPU_TOPOLOGY: "4x4"}
_V6E = {constants.TPU_ACCELERATOR: "tpu-v6e-slice"}


@pytest.mark.parametrize(
    ("terms", "selector", "want"),
    [
        pytest.param([_term(accelerator=["tpu-v6e-slice"], topology=["4x4"])], {}, _BOTH, id="one term"),
        pytest.param([_term(topology=["4x4"])], _V6E, _BOTH, id="the rest of a selector"),
        pytest.param([_term(topology=["4x4"])], _BOTH | {constants.TPU_TOPOLOGY: "8x8"}, None, id="the selector wins"),
        pytest.param([_term(topology=["4x4", "4x8"])], _V6E, None, id="two values"),
        pytest.param([_term(topology=["4x4"]), _term(topology=["4x8"])], _V6E, None, id="two terms"),
        pytest.param([_term(topology=["4x4"], pool=["a"]), _term(topology=["4x4"])], _V6E, _BOTH, id="two equal terms"),
        pytest.param([_term(topology=["4x4"]), _term(pool=["a"])], _V6E, None, id="one term allows any"),
        pytest.param([_term(topology=["4x4"]), {"matchFields": [{}]}], _V6E, None, id="one term selects a name"),
        pytest.param([_term(topology=["4x4"]), {}], _V6E, _BOTH, id="an empty term matches nothing"),
        pytest.param([_of_topology(["4x4", "2x2"], ["4x4"])], _V6E, _BOTH, id="two expressions"),
        pytest.param([_of_topology(["4x4"], operator="NotIn")], _V6E, None, id="another operator"),
        pytest.param([_term(pool=["a"])], {}, None, id="another label"),
        pytest.param([_of_topology([[], 4])], {}, None, id="no texts"),
    ],
)
def test_slice_is_read_from_required_affinity_if_one_value_is_left(
    terms: list[Any], selector: dict[str, str], want: dict[str, str] | None
) -> None:
    """Otherwise, a workload that selects its topology by affinity would get no pool."""
    pod = parsed_pod(raw_pod(spec=_spec(affinity=required_affinity(*terms), nodeSelector=selector)))
    assert pod.requirements.node_selector == (selector if want is None else want)


def test_jobset_is_read_completely() -> None:
    """The value of managedBy for JobSet's own controller counts as empty."""
    raw = raw_jobset(
        replicas=2,
        parallelism=4,
        metadata={
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"tpu-provisioner.cloud.google.com/copy-labels": "a", "other": "b"},
        },
    )
    raw["spec"]["suspend"] = True
    raw["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    jobset = parse_jobset(raw)
    (job,) = jobset.groups
    assert (job.name, job.replicas, job.parallelism, job.template.chips) == ("slice", 2, 4, 4)
    assert (jobset.suspended, jobset.deleting, jobset.finished) == (True, True, False)
    assert jobset.managed_by == "kueue.x-k8s.io/multikueue"
    placed = {constants.EXCLUSIVE_TOPOLOGY: constants.NODE_POOL}
    assert jobset.annotations == {**placed, "tpu-provisioner.cloud.google.com/copy-labels": "a"}
    raw["spec"]["managedBy"] = "jobset.sigs.k8s.io/jobset-controller"
    assert parse_jobset(raw).managed_by == ""


def test_missing_replicas_and_parallelism_are_one() -> None:
    """The APIs of JobSet and Job have these defaults."""
    raw = raw_jobset()
    raw["spec"]["replicatedJobs"] = [{"name": "x"}, {"name": "y", "replicas": 0}]
    assert [(job.replicas, job.parallelism) for job in parse_jobset(raw).groups] == [(1, 1), (0, 1)]


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param({"terminalState": "Completed"}, "Completed", id="terminalState"),
        pytest.param({"conditions": [{"type": "Failed", "status": "True"}]}, "Failed", id="a true condition"),
        pytest.param({"conditions": [{"type": "Failed", "status": "False"}]}, "", id="a false condition"),
        pytest.param({"conditions": [{"type": "Suspended", "status": "True"}]}, "", id="another condition"),
        pytest.param(None, "", id="no status"),
    ],
)
def test_end_of_a_jobset_is_read_from_old_and_new_releases(status: object, want: str) -> None:
    """Old releases have only conditions, and no terminalState."""
    assert want == parse_jobset(raw_jobset(status=status)).terminal_state


def test_node_is_read_completely() -> None:
    raw = raw_node()
    raw["spec"].update(
        unschedulable=True, taints=[{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]
    )
    raw["metadata"]["annotations"] = {"tpu-provisioner.cloud.google.com/cordoned": "true"}
    raw["status"]["allocatable"] |= {"ephemeral-storage": "47060071478", "hugepages-2Mi": "0", "pods": "15"}
    node = parse_node(raw)
    assert node is not None
    assert (node.name, node.pool_name, node.ready) == ("gke-c-p-1", "train-pool", True)
    assert (node.cordoned, node.cordoned_by_us) == (True, True)
    assert node.taints == (Taint(key="google.com/tpu", value="present"),)
    assert node.allocatable_chips == 4
    assert node.allocatable_cpu_millicores == 239830
    assert node.allocatable_memory_bytes == 405 * 2**30
    assert node.allocatable_other_bytes == (("ephemeral-storage", 47060071478), ("hugepages-2Mi", 0))


def test_node_without_pool_is_none_and_without_creation_time_is_malformed() -> None:
    """Nodes are read if they have a pool or the manager's label. Decisions need the age of a node."""
    assert parse_node(raw_node(metadata={"labels": {}})) is None
    # A node of the provisioner is read even if a user removed its label gke-nodepool.
    ours = parse_node(raw_node(metadata={"labels": {constants.NODEPOOL_MANAGER: constants.MANAGER}}))
    assert ours is not None
    assert ours.pool_name == ""
    recorded = {constants.APPLIED_LABELS: f"a=b,{constants.NODE_POOL}=theirs"}
    edited = parse_node(raw_node(metadata={"labels": {constants.NODE_POOL: "x"}, "annotations": recorded}))
    assert edited is not None
    assert edited.pool_name == "theirs"
    with pytest.raises(MalformedObject, match="creationTimestamp"):
        parse_node(raw_node(metadata={"creationTimestamp": None}))


@pytest.mark.timeout(30)  # many random examples
@given(st.data(), ANY_JSON)
def test_any_json_is_parsed_or_raises_malformed_object(data: st.DataObject, other: Any) -> None:
    whole = data.draw(st.sampled_from([raw_pod(), raw_jobset(), raw_node()]))
    for raw in (other, spoilt(data, whole)):
        for parse in (parse_pod, parse_jobset, parse_node):
            with contextlib.suppress(MalformedObject):
                record = parse(raw)
                assert record is None or isinstance(record.name, str)
