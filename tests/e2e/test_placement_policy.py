"""Tests of the admission policies of placement with a real API server and real controllers of workloads.

The webhook server's code also reviews most of these pods, and must set the same marks and affinity terms.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from provisioner import constants
from provisioner.admission.review import Answer, Request
from provisioner.kube.errors import ClusterError, Invalid
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.placement import FREE, MARKS, UNKNOWN_GROUP, labels_of, slice_key
from provisioner.slices.marking import review_placement
from provisioner.slices.preflight import Status
from provisioner.slices.preflight.in_placement import check_placement
from provisioner.workloads import LEADER_WORKER_SET, PLAIN_JOB
from rehearsal.demos import Rehearsal
from tests.e2e.kit import ASSIGNED, EXCLUSIVE, Ground, has_mutating_policies, jobset, placement_policies
from tests.support.objects import Json, pod_spec, raw_job, raw_lws, reference
from tests.support.patches import apply_patch
from tests.support.settings import settings as make_settings

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not has_mutating_policies(), reason="MutatingAdmissionPolicy needs Kubernetes 1.36"),
]

_ASSIGNED, _OPEN = "placed-assigned", "placed-open"
_ADMIN, _ADMIN_ASSIGNED = "placed-admin", "placed-admin-assigned"
ADMIN = {"resource.kubernetes.io/admin-access": "true"}
_KEPT_OFF = {"key": constants.SLICE, "operator": "DoesNotExist"}
_ZONE = {"key": constants.ZONE, "operator": "In", "values": ["us-central2-b"]}
_ON_NODE = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
_GROUP = {constants.JOB_KEY: "a" * 40}
CLAIMS: Json = {"resourceClaims": [{"name": "tpu", "resourceClaimTemplateName": "all-chips"}]}


@dataclass(frozen=True)
class Admission:
    """Creates pods as dry runs: the API server admits the pods without storing them."""

    rehearsal: Rehearsal
    #: Whether the changes of the policy are compared with the review of the webhook server.
    compared: bool = True

    def admit(self, namespace: str, spec: Json, **metadata: Any) -> Json:
        body: Json = {"metadata": {"name": "trial", **metadata}, "spec": spec}
        path = f"{collection_path('pods', namespace=namespace)}?dryRun=All"
        admitted = self.rehearsal.api.post(path, body)
        # In namespaces with admin access, the policy and the webhook have different conditions: do not compare them.
        if self.compared and namespace not in (_ADMIN, _ADMIN_ASSIGNED):
            reviewed = apply_patch(body, _review(namespace, body).patch)["spec"]
            assert (marks(reviewed), terms(reviewed)) == (marks(admitted["spec"]), terms(admitted["spec"]))
            assert _review(namespace, admitted).patch == ()
        found: Json = admitted["spec"]
        return found

    def refusal(self, namespace: str, spec: Json, **metadata: Any) -> str:
        try:
            self.admit(namespace, spec, **metadata)
        except ClusterError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def admission(rehearsal: Rehearsal) -> Iterator[Admission]:
    rehearsal.create_namespace(_ASSIGNED, labels=ASSIGNED)
    rehearsal.create_namespace(_OPEN)
    rehearsal.create_namespace(_ADMIN, labels=ADMIN)
    rehearsal.create_namespace(_ADMIN_ASSIGNED, labels={**ADMIN, **ASSIGNED})
    _exempt_from_operators(rehearsal, _ASSIGNED, _OPEN, _ADMIN, _ADMIN_ASSIGNED)
    with placement_policies(rehearsal):
        yield Admission(rehearsal)


def _exempt_from_operators(rehearsal: Rehearsal, *namespaces: str) -> None:
    """Exempt namespaces from the webhooks of operators, which reject pods with incomplete labels."""
    others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(namespaces)}
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        for name in rehearsal.kubectl("get", kind, "-o", "name").split():
            found = json.loads(rehearsal.kubectl("get", name, "-o", "json"))
            for webhook in found["webhooks"]:
                webhook.setdefault("namespaceSelector", {}).setdefault("matchExpressions", []).append(others)
            patch = json.dumps({"webhooks": found["webhooks"]})
            rehearsal.kubectl("patch", name, "--type=merge", f"--patch={patch}")


def _review(namespace: str, pod: Json) -> Answer:
    request = Request(kind="Pod", operation="CREATE", namespace=namespace, object=pod)
    return review_placement(request, assigned=namespace == _ASSIGNED)


def marks(spec: Json) -> dict[str, str]:
    return {key: value for key, value in spec.get("nodeSelector", {}).items() if key in MARKS}


def terms(spec: Json) -> list[Json]:
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    found: list[Json] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return found


def _with_terms(*wanted: Json, **affinity: Any) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(wanted)}}
    return pod_spec(affinity={"nodeAffinity": required, **affinity})


def _random_labels(chosen: random.Random) -> dict[str, str]:
    values = {
        constants.JOB_KEY: ("", "a" * 40),
        constants.LWS_GROUP_KEY: ("", "b" * 40),
        constants.LWS_SUBGROUP_KEY: ("", "d" * 40),
        constants.LWS_NAME: ("", "serve"),
        constants.RAY_CLUSTER_NAME: ("llm", "c" * 40),
        constants.RAY_GROUP: ("tpus", "g" * 20, "g" * 21),
        constants.RAY_REPLICA_INDEX: ("0", "12"),
        constants.CONTROLLER_UID: ("", "0b8c3d4e-0000-4000-8000-000000000000"),
        constants.COMPLETION_INDEX: ("0", "12"),
    }
    return {key: chosen.choice(values[key]) for key in values if chosen.random() < 0.4}


def test_marks_of_pods_equal_the_keys_that_the_provisioner_computes(admission: Admission) -> None:
    """Random labels, owners and topologies give the same key in CEL and in Python, which `admit` compares."""
    chosen = random.Random(46)
    wanted, seen = {"po", "j-", "l-", "r-", "ra", "b-", "s-"}, set()
    for draw in range(2000):
        # A new label changes all draws, so rare keys may need more of them.
        if draw >= 200 and seen == wanted:
            break
        owner = reference(chosen.choice(("ReplicaSet", "StatefulSet")), "a")
        spec = pod_spec(topology=chosen.choice(("2x2x1", "2x2x2", "2x2", "large")), chips=chosen.choice((4, 8)))
        labels = _random_labels(chosen)
        spec = admission.admit(_ASSIGNED, spec, labels=labels, ownerReferences=[owner])
        seen.add(marks(spec)[constants.SLICE][:2])
    assert seen == wanted


def test_marks_that_the_author_wrote_are_overwritten(admission: Admission) -> None:
    """The author of a pod cannot choose another slice, or the namespace of another slice."""
    spec = pod_spec()
    spec["nodeSelector"] |= labels_of("j-victim", _OPEN)
    for labels in (_GROUP, {}):
        assert marks(admission.admit(_ASSIGNED, spec, labels=labels)) == labels_of(slice_key(labels), _ASSIGNED)


def test_pod_of_another_namespace_with_the_same_key_gets_no_mark(admission: Admission) -> None:
    """In a namespace without the placement label, a pod with the labels of a group is kept off all slices."""
    spec = admission.admit(_OPEN, pod_spec(tolerations=[{"operator": "Exists"}]), labels=_GROUP)
    assert (marks(spec), terms(spec)) == ({}, [{"matchExpressions": [_KEPT_OFF]}])


_NOT_SERVED: dict[str, tuple[Json, Json]] = {
    "without a topology": (pod_spec(nodeSelector={constants.TPU_ACCELERATOR: "tpu-v4-podslice"}), {}),
    "provisioning disabled by a label": (pod_spec(), {"labels": {**_GROUP, constants.DISABLE: "true"}}),
    "provisioning disabled by an annotation": (pod_spec(), {"annotations": {constants.DISABLE: "true"}}),
    "dynamic slice": (pod_spec(), {"annotations": {constants.SLICE_TOPOLOGY: "2x2x2"}}),
    "claims without an accelerator": (
        pod_spec(chips=0, nodeSelector={constants.TPU_TOPOLOGY: "2x2x2"}, **CLAIMS),
        {},
    ),
}


@pytest.mark.parametrize(("spec", "metadata"), _NOT_SERVED.values(), ids=_NOT_SERVED)
def test_pod_of_a_group_that_the_provisioner_cannot_serve_is_not_marked(
    spec: Json, metadata: Json, admission: Admission
) -> None:
    """A pod with marks would wait for a pool indefinitely."""
    admitted = admission.admit(_ASSIGNED, spec, **{"labels": _GROUP, **metadata})
    assert (marks(admitted), terms(admitted)) == ({}, [{"matchExpressions": [_KEPT_OFF]}])


def test_pod_of_a_group_with_claims_is_marked(admission: Admission) -> None:
    spec = admission.admit(_ASSIGNED, pod_spec(chips=0, **CLAIMS), labels=_GROUP)
    assert marks(spec) == labels_of(slice_key(_GROUP), _ASSIGNED)


_TERMS: dict[str, tuple[list[Json], list[Json]]] = {
    "expressions": ([{"matchExpressions": [_ZONE]}], [{"matchExpressions": [_ZONE, _KEPT_OFF]}]),
    "fields": ([{"matchFields": [_ON_NODE]}], [{"matchFields": [_ON_NODE], "matchExpressions": [_KEPT_OFF]}]),
    "several terms": (
        [{"matchExpressions": [_ZONE]}, {"matchFields": [_ON_NODE]}, {"matchExpressions": [_KEPT_OFF]}],
        [
            {"matchExpressions": [_ZONE, _KEPT_OFF]},
            {"matchFields": [_ON_NODE], "matchExpressions": [_KEPT_OFF]},
            {"matchExpressions": [_KEPT_OFF]},
        ],
    ),
    # A term without requirements matches no node.
    "empty term": ([{}, {"matchExpressions": [_ZONE]}], [{}, {"matchExpressions": [_ZONE, _KEPT_OFF]}]),
}


@pytest.mark.parametrize(("given", "want"), _TERMS.values(), ids=_TERMS)
def test_every_term_of_node_affinity_excludes_slices(given: list[Json], want: list[Json], admission: Admission) -> None:
    """The scheduler needs only one matching term, so a term without the expression would admit the pod to slices."""
    assert terms(admission.admit(_OPEN, _with_terms(*given))) == want


@pytest.mark.parametrize(
    "affinity",
    [
        {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        {},
    ],
    ids=["affinity to pods", "preferences", "empty affinity"],
)
def test_pod_without_required_node_affinity_is_kept_off_slices(affinity: Json, admission: Admission) -> None:
    assert terms(admission.admit(_OPEN, pod_spec(affinity=affinity))) == [{"matchExpressions": [_KEPT_OFF]}]


def test_affinity_without_terms_is_still_rejected(admission: Admission) -> None:
    """The API server rejects an empty list of terms, so the policy must not add a term to it."""
    assert "must have at least one node selector term" in admission.refusal(_OPEN, _with_terms())


def _limits(name: str, amount: str = "1", *, roles: tuple[str, ...] = ("requests", "limits")) -> Json:
    resources = {role: {name: amount} for role in roles}
    return {"containers": [{"name": "main", "image": "none", "resources": resources}]}


_ASKING: dict[str, tuple[str, Json, bool]] = {
    "chips": (_OPEN, _limits(constants.TPU_RESOURCE), True),
    "chips in kube-system": ("kube-system", _limits(constants.TPU_RESOURCE), True),
    "chips of an init container": (
        _OPEN,
        {**_limits("cpu"), "initContainers": _limits(constants.TPU_RESOURCE)["containers"]},
        True,
    ),
    "claims": (_OPEN, {**_limits("cpu"), **CLAIMS}, True),
    "resource of a device class": (_OPEN, _limits("deviceclass.resource.kubernetes.io/tpu.google.com"), True),
    # A name in the domain kubernetes.io is not an extended resource, so the API server requires no limit.
    "request of a device class without a limit": (
        _OPEN,
        _limits("deviceclass.resource.kubernetes.io/tpu.google.com", roles=("requests",)),
        True,
    ),
    "claims of an administrator": (_ADMIN, {**_limits("cpu"), **CLAIMS}, False),
    "chips in a namespace for administrators": (_ADMIN, _limits(constants.TPU_RESOURCE), True),
    "no chips": (_OPEN, _limits("cpu"), False),
    "zero chips": (_OPEN, _limits(constants.TPU_RESOURCE, "0"), False),
    "no chips with the selector of an accelerator": (_OPEN, pod_spec(chips=0), False),
    "no chips on a node by name": (_OPEN, {**_limits("cpu"), "nodeName": "node-1"}, False),
    "chips on a node by name": (_OPEN, {**_limits(constants.TPU_RESOURCE), "nodeName": "node-1"}, True),
}


@pytest.mark.parametrize(("namespace", "spec", "want"), _ASKING.values(), ids=_ASKING)
def test_only_pods_that_may_get_chips_are_kept_off_slices(
    namespace: str, spec: Json, want: bool, admission: Admission
) -> None:
    found = {"name": "main", "image": "none"}
    spec = {"initContainers": [], **spec}
    for container in spec["initContainers"]:
        container["name"] = "init"
    assert found.items() <= spec["containers"][0].items()
    assert terms(admission.admit(namespace, spec)) == ([{"matchExpressions": [_KEPT_OFF]}] if want else [])


def test_pod_of_a_group_without_chips_is_not_marked(admission: Admission) -> None:
    spec = admission.admit(_ASSIGNED, pod_spec(chips=0), labels=_GROUP)
    assert (marks(spec), terms(spec)) == ({}, [])


def test_leader_without_chips_is_marked_or_kept_off_if_it_selects_an_accelerator(admission: Admission) -> None:
    """A LeaderWorkerSet's leader may request no chips; any node of the accelerator has room for such a pod."""
    labels = {constants.LWS_NAME: "serve", constants.LWS_GROUP_KEY: "b" * 40}
    spec, without_topology = pod_spec(chips=0), pod_spec(chips=0, nodeSelector={constants.TPU_ACCELERATOR: "any"})
    assert marks(admission.admit(_ASSIGNED, spec, labels=labels)) == labels_of(slice_key(labels), _ASSIGNED)
    for kept_off in (
        admission.admit(_OPEN, spec, labels=labels),
        # The topology may be in the affinity of all pods of the group, and then the workers get no marks either.
        admission.admit(_ASSIGNED, without_topology, labels=labels),
        admission.admit(_ASSIGNED, spec, labels={**labels, constants.DISABLE: "true"}),
    ):
        assert (marks(kept_off), terms(kept_off)) == ({}, [{"matchExpressions": [_KEPT_OFF]}])
    excluded = {constants.LWS_SUBGROUP_POLICY_TYPE: "LeaderExcluded"}
    for unchanged in (
        admission.admit(_ASSIGNED, spec, labels=labels, annotations=excluded),
        admission.admit(_ASSIGNED, pod_spec(chips=0, nodeSelector={}), labels=labels),
        admission.admit(_ADMIN_ASSIGNED, spec, labels=labels),
    ):
        assert (marks(unchanged), terms(unchanged)) == ({}, [])


def test_only_groups_with_chips_are_marked_in_namespaces_for_administrators(admission: Admission) -> None:
    """In namespaces for administrators, the webhook that can replace the policy gets only pods that request chips."""
    marked = admission.admit(_ADMIN_ASSIGNED, pod_spec(), labels=_GROUP)
    assert (marks(marked), terms(marked)) == (labels_of(slice_key(_GROUP), _ADMIN_ASSIGNED), [])
    monitoring = admission.admit(_ADMIN_ASSIGNED, pod_spec(chips=0, **CLAIMS), labels=_GROUP)
    assert (marks(monitoring), terms(monitoring)) == ({}, [])


def _selecting(selector: dict[str, str], **fields: Any) -> Json:
    spec = pod_spec(**fields)
    return {**spec, "nodeSelector": {**spec["nodeSelector"], **selector}}


def _expressions(*expressions: Json) -> Json:
    return _with_terms({"matchExpressions": [_ZONE]}, {"matchExpressions": list(expressions)})


_OF_OPEN, _OF_ASSIGNED = labels_of("j-a", _OPEN), labels_of("j-a", _ASSIGNED)
# In _ASSIGNED, pods with forged marks select no topology; otherwise, admission would replace the forged marks.
_FORGED: dict[str, tuple[str, Json, str]] = {
    "marks of its own namespace without the label": (_OPEN, _selecting(_OF_OPEN), "are set by admission"),
    "marks of another namespace": (_OPEN, _selecting(_OF_ASSIGNED), "are set by admission"),
    "marks without chips": (_OPEN, _selecting(_OF_ASSIGNED, chips=0), "are set by admission"),
    "marks of free pools": (_ASSIGNED, pod_spec(nodeSelector=dict(FREE)), "are set by admission"),
    "a key of its own": (_ASSIGNED, pod_spec(nodeSelector={constants.SLICE: "j-a"}), "are set by admission"),
    "a namespace of its own": (
        _ASSIGNED,
        pod_spec(nodeSelector={constants.SLICE_NAMESPACE: _ASSIGNED}),
        "are set by admission",
    ),
    "marks of another slice of its namespace": (_ASSIGNED, pod_spec(nodeSelector=_OF_ASSIGNED), "excludes the nodes"),
    "affinity to a slice": (_OPEN, _expressions({"key": constants.SLICE, "operator": "Exists"}), "only with"),
    "affinity to a key": (
        _ASSIGNED,
        _expressions({"key": constants.SLICE, "operator": "In", "values": ["j-a"]}),
        "only with",
    ),
    "affinity to all other keys": (
        _OPEN,
        _expressions({"key": constants.SLICE, "operator": "NotIn", "values": ["j-a"]}),
        "only with",
    ),
    "affinity to free pools": (
        _OPEN,
        _expressions({"key": constants.SLICE, "operator": "In", "values": ["none"]}),
        "only with",
    ),
    "affinity to a namespace": (
        _OPEN,
        _expressions({"key": constants.SLICE_NAMESPACE, "operator": "DoesNotExist"}),
        "only with",
    ),
}


@pytest.mark.parametrize(("namespace", "spec", "want"), _FORGED.values(), ids=_FORGED)
def test_pod_with_a_forged_selection_of_slices_is_rejected(
    namespace: str, spec: Json, want: str, admission: Admission
) -> None:
    assert want in admission.refusal(namespace, spec)


def test_affinity_that_excludes_slices_is_allowed(admission: Admission) -> None:
    """A pod without chips may exclude the provisioner's node pools."""
    assert not admission.refusal(_OPEN, {**_with_terms({"matchExpressions": [_KEPT_OFF]}), **_limits("cpu")})


def test_pod_with_too_many_terms_is_rejected(admission: Admission) -> None:
    """The policy exceeds its CEL budget for the pod, which must not be admitted without the affinity."""
    spec = _with_terms(*({"matchExpressions": [_ZONE]} for _ in range(20_000)))
    refusal = admission.refusal(_OPEN, spec)
    assert "tpu-provisioner-placement" in refusal, refusal


def test_selectors_of_gated_pods_cannot_be_extended_with_marks(admission: Admission) -> None:
    """The nodeSelector of a pod with a scheduling gate can be extended, as Kueue does."""
    api, path = admission.rehearsal.api, collection_path("pods", namespace=_ASSIGNED)
    ground = Ground(admission.rehearsal)
    ground.wait(lambda: admission.rehearsal.objects(collection_path("serviceaccounts", namespace=_ASSIGNED)), "account")
    gated = {"schedulingGates": [{"name": "example.com/gate"}]}
    for name, labels, spec in (
        ("marked", _GROUP, pod_spec(**gated)),
        ("plain", {constants.DISABLE: "true"}, pod_spec(**gated)),
        ("none", {}, pod_spec(chips=0, **gated)),
    ):
        api.post(path, {"metadata": {"name": name, "labels": labels}, "spec": spec})

    def extended(name: str, selector: dict[str, str]) -> str:
        try:
            api.patch(object_path("pods", name, namespace=_ASSIGNED), {"spec": {"nodeSelector": selector}})
        except ClusterError as error:
            return str(error)
        return ""

    try:
        # Kueue's topology-aware scheduling adds this selector.
        for name in ("marked", "plain", "none"):
            assert not extended(name, {constants.HOSTNAME: "node-1"})
        assert "excludes the nodes" in extended("plain", labels_of("j-a", _ASSIGNED))
        assert "are set by admission" in extended("none", labels_of("j-a", _OPEN))
        # A pod that was marked while its namespace had the placement label can still be changed.
        namespace = object_path("namespaces", _ASSIGNED)
        api.patch(namespace, {"metadata": {"labels": {constants.PLACEMENT: None}}})
        trial = Admission(admission.rehearsal, compared=False)

        def is_marked() -> bool | None:
            # The two policies see the change of the namespace at different times, and then reject the pod.
            try:
                return bool(marks(trial.admit(_ASSIGNED, pod_spec(), labels=_GROUP)))
            except Invalid:
                return None

        ground.wait(lambda: is_marked() is False, "the label is gone")
        assert not extended("marked", {"example.com/rack": "1"})
        api.patch(namespace, {"metadata": {"labels": ASSIGNED}})
        ground.wait(is_marked, "the label is back")
    finally:
        for name in ("marked", "plain", "none"):
            api.delete(object_path("pods", name, namespace=_ASSIGNED) + "?gracePeriodSeconds=0")


def test_placement_check_tries_a_pod_and_names_namespaces_without_the_label(assigned: Ground) -> None:
    settings = make_settings(namespaces=(assigned.namespace,))
    assigned.post(jobset("train", assigned.namespace))
    finding = check_placement(assigned.api, settings)
    assert finding.status is Status.OK
    assert f"marks pods, as a trial in namespace {assigned.namespace} shows" in finding.message
    namespace = object_path("namespaces", assigned.namespace)
    assigned.api.patch(namespace, {"metadata": {"labels": {constants.PLACEMENT: None}}})
    assert f"but {assigned.namespace} (of 1 namespaces" in check_placement(assigned.api, settings).message


# --- The pods of real controllers ---


@pytest.fixture
def assigned(alone: Ground, admission: Admission) -> Ground:
    alone.assign()
    return alone


def await_marks(ground: Ground, pods: int) -> set[str]:
    """Wait for a number of pods, check that their marks follow from their labels, and return the keys of the groups."""
    ground.wait(lambda: len(ground.pods()) == pods, f"there are {pods} pods")
    keys = set()
    for pod in ground.pods():
        key = slice_key(pod["metadata"]["labels"])
        assert marks(pod["spec"]) == labels_of(key, ground.namespace), pod["metadata"]
        keys.add(key)
    return keys


@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "not exclusive"])
def test_pods_of_a_jobset_are_marked_by_their_job(exclusive: bool, assigned: Ground) -> None:
    body = jobset("train", assigned.namespace, topology="2x2x2", replicas=2, parallelism=2)
    if not exclusive:
        del body["metadata"]["annotations"][EXCLUSIVE]
    assigned.post(body)
    # With exclusive placement, only the two leaders exist: JobSet creates followers when the leaders are bound.
    keys = await_marks(assigned, 2 if exclusive else 4)
    assert len(keys) == 2
    assert all(key.startswith("j-") for key in keys)


@pytest.mark.usefixtures("leaderworkersets")
def test_leaders_of_a_leaderworkerset_are_marked_after_its_webhook(assigned: Ground) -> None:
    """LeaderWorkerSet's webhook sets the label with the group's key; then the API server calls the policy again."""
    path = collection_path("leaderworkersets", namespace=assigned.namespace, root=LEADER_WORKER_SET.root)
    lws = raw_lws("serve", namespace=assigned.namespace, uid="", pod=pod_spec(), metadata={"annotations": {}})
    assigned.api.post(path, lws)
    keys = await_marks(assigned, 4)
    assert len(keys) == 2
    assert UNKNOWN_GROUP not in keys


def test_pods_of_an_indexed_job_are_marked_by_its_uid(assigned: Ground) -> None:
    path = collection_path("jobs", namespace=assigned.namespace, root=PLAIN_JOB.root)
    uid = assigned.api.post(path, raw_job(namespace=assigned.namespace, uid="", pod=pod_spec()))["metadata"]["uid"]
    assert await_marks(assigned, 2) == {f"b-{uid}"}


_NODES: dict[str, dict[str, str]] = {
    "placed-assigned": labels_of("j-a", "victims"),
    "placed-free": dict(FREE),
    "placed-open": {},
}


@pytest.fixture
def tpu_nodes(rehearsal: Rehearsal) -> Iterator[None]:
    """Create a node of an assigned pool, of a free pool and of an open pool."""
    room = {"cpu": "8", "memory": "16Gi", "pods": "20", constants.TPU_RESOURCE: "4"}
    taint = {"key": constants.TPU_RESOURCE, "value": "present", "effect": "NoSchedule"}
    for name, labels in _NODES.items():
        selected = {**pod_spec()["nodeSelector"], **labels}
        status = {"capacity": room, "allocatable": room}
        body = {"metadata": {"name": name, "labels": selected}, "spec": {"taints": [taint]}, "status": status}
        rehearsal.api.post(collection_path("nodes"), body)
    yield
    for name in _NODES:
        rehearsal.api.delete(object_path("nodes", name))


@pytest.mark.usefixtures("admission", "tpu_nodes")
def test_scheduler_binds_pods_without_marks_only_to_open_pools(alone: Ground) -> None:
    """A pod that tolerates every taint and has the labels of a group still gets no assigned and no free node."""
    spec = pod_spec(tolerations=[{"operator": "Exists"}])
    for name, labels in (("one", _GROUP), ("two", {constants.JOB_KEY: "a"})):
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        alone.api.post(collection_path("pods", namespace=alone.namespace), body)
    daemons = {
        "metadata": {"name": "monitor"},
        "spec": {
            "selector": {"matchLabels": {"app": "monitor"}},
            "template": {
                "metadata": {"labels": {"app": "monitor"}},
                "spec": {
                    "containers": [{"name": "main", "image": "none"}],
                    "nodeSelector": pod_spec()["nodeSelector"],
                    "tolerations": [{"key": constants.TPU_RESOURCE, "operator": "Exists"}],
                },
            },
        },
    }
    alone.api.post(collection_path("daemonsets", namespace=alone.namespace, root="/apis/apps/v1"), daemons)

    def bound() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in _NODES}
        for pod in alone.pods():
            if node := pod["spec"].get("nodeName"):
                found[node].append(pod["metadata"]["name"].split("-")[0])
        return found

    def unscheduled() -> int:
        conditions = [condition for pod in alone.pods() for condition in pod["status"].get("conditions", ())]
        return sum(condition.get("reason") == "Unschedulable" for condition in conditions)

    alone.wait(lambda: sum(map(len, bound().values())) == 4 and unscheduled() == 1, "the scheduler has decided")
    found = bound()
    assert found["placed-assigned"] == found["placed-free"] == ["monitor"]
    assert len(found["placed-open"]) == 2
    alone.api.delete(object_path("daemonsets", "monitor", namespace=alone.namespace, root="/apis/apps/v1"))
