"""Tests which changes of nodes, pods and Secrets the admission policies allow, on a real API server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.kube.api import connect
from provisioner.kube.errors import NotFound
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.placement import FREE, MARKS, labels_of
from provisioner.nodegroups import app, device_plugin
from provisioner.nodegroups.api import names as of_groups
from provisioner.nodegroups.reading import API_ROOT, TPU_TAINT
from provisioner.partitions import names as of_partitions
from rehearsal.demos import Rehearsal, RehearsalError
from rehearsal.demos.world import wait_for
from tests.deploy.kit import DEPLOY, NAMESPACE, REPOSITORY, SERVICE_ACCOUNT, kubeconfig_of_service_account
from tests.e2e.kit import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
#: Merge patch of an object, or a function that returns the new taints for the old taints.
Change = Json | Callable[[list[Json]], list[Json]]

#: Flags of kubectl for requests in the name of a service account.
_PROVISIONER, _NODE_GROUPS, _PARTITIONS = (
    (f"--as=system:serviceaccount:{NAMESPACE}:{name}",)
    for name in (SERVICE_ACCOUNT, app.LEASE_NAME, of_partitions.LEASE_NAME)
)
_PLUGIN_ACCOUNT = "tpu-device-plugin-sa"
_NODE_OF_TOKEN = "authentication.kubernetes.io/node-name"
_PLUGIN_WITHOUT_NODE = (f"--as=system:serviceaccount:{device_plugin.NAMESPACE}:{_PLUGIN_ACCOUNT}",)
_PLUGIN, _PLUGIN_ELSEWHERE = (
    (*_PLUGIN_WITHOUT_NODE, f"--as-user-extra={_NODE_OF_TOKEN}={node}") for node in ("guarded", "other")
)
#: Identity of a kubelet. The group system:masters grants all rights, so only admission can reject its changes.
_KUBELET = ("--as=system:node:guarded", "--as-group=system:nodes", "--as-group=system:masters")
#: Agent of a network plugin: its account may patch all nodes, and its pod runs on another node.
_AGENT = ("--as=system:serviceaccount:kube-system:a", "--as-group=system:masters", _PLUGIN_ELSEWHERE[-1])
#: Identity of node-problem-detector, which may patch the status of nodes. All nodes of GKE share it.
_DETECTOR = ("--as=system:node-problem-detector", "--as-group=system:masters")
#: Beginning of the message of each rejection by a policy.
_DENIED = "denied request: tpu-"
_MANIFESTS = (
    ("-k", str(DEPLOY / "nodegroups" / "rbac")),
    ("-k", str(DEPLOY / "nodegroups" / "device-plugin")),
    *(("-f", str(DEPLOY / "partitions" / f"{name}.yaml")) for name in ("service-account", "cluster-role", "pod-guard")),
)


def _annotated(key: str, value: str | None) -> Json:
    return {"metadata": {"annotations": {key: value}}}


def _labelled(key: str, value: str | None) -> Json:
    return {"metadata": {"labels": {key: value}}}


def _assigned(labels: Mapping[str, str | None]) -> Json:
    return {"metadata": {"labels": dict(labels)}}


def _without(*keys: str) -> Callable[[list[Json]], list[Json]]:
    return lambda taints: [taint for taint in taints if taint["key"] not in keys]


_FINALIZER: Json = {"metadata": {"finalizers": ["a.example/b"]}}
_KEPT = {"key": "kept.example", "effect": "NoSchedule"}
_OTHER = {"key": "a", "effect": "NoExecute"}
_NODE: Json = {
    "metadata": {"annotations": {"kept": "yes"}},
    "spec": {"taints": [_KEPT, *({"key": key, "effect": "NoSchedule"} for key in constants.HELD_KEYS)]},
}
_OURS: Json = {**_NODE, "metadata": {**_NODE["metadata"], "labels": {constants.NODEPOOL_MANAGER: constants.MANAGER}}}
_ASSIGNED: Json = {**_OURS, "metadata": {"labels": {**_OURS["metadata"]["labels"], **labels_of("j-a", "research")}}}
_OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}
_OF_JOB: Json = {
    **_OURS,
    "metadata": {
        "labels": {
            **_OURS["metadata"]["labels"],
            constants.POOL_JOBSET_NAMESPACE: "team-a",
            constants.PARENT_NAME: "train-w-0",
        }
    },
}
_OF_PROVISIONER: dict[str, tuple[Json, Change, bool]] = {
    "cordons a node of its own": (_OURS, {"spec": {"unschedulable": True}}, True),
    "notes that it cordoned": (_OURS, _annotated(constants.CORDONED, "true"), True),
    "cordons no other node": (_NODE, {"spec": {"unschedulable": True}}, False),
    "cannot make another node its own": (_NODE, _labelled(constants.NODEPOOL_MANAGER, constants.MANAGER), False),
    "assigns a node of its own to a slice": (_OURS, _assigned(labels_of("j-a", "research")), True),
    "frees a node of its own": (_ASSIGNED, _assigned(FREE), True),
    "opens a node of its own": (_ASSIGNED, _assigned(dict.fromkeys(MARKS)), True),
    "assigns no other node": (_NODE, _assigned(FREE), False),
    "changes no other label with an assignment": (_OURS, _assigned({**FREE, "a": "b"}), False),
    "labels a node for the Job of its pool": (_OF_JOB, _labelled(constants.NAMESPACED_JOB, "team-a_train-w-0"), True),
    "labels no node for another Job": (_OF_JOB, _labelled(constants.NAMESPACED_JOB, "team-b_train-w-0"), False),
    "labels no node for a Job if its pool has none": (_OURS, _labelled(constants.NAMESPACED_JOB, "a"), False),
    "changes no label": (_OURS, _labelled("a", "b"), False),
    "takes no label away": (_OURS, _labelled(constants.NODEPOOL_MANAGER, None), False),
    "writes no other annotation": (_OURS, _annotated("a", "b"), False),
    "takes no other annotation away": (_OURS, _annotated("kept", None), False),
    "sets no finalizer": (_OURS, _FINALIZER, False),
    "sets no owner": (_OURS, {"metadata": {"ownerReferences": [_OWNER]}}, False),
    "sets no provider": (_OURS, {"spec": {"providerID": "gce://other"}}, False),
    "takes its own taints off": (_OURS, _without(*constants.HELD_KEYS), True),
    "not those of another node": (_NODE, _without(*constants.HELD_KEYS), False),
    "takes no other taint off": (_OURS, _without(_KEPT["key"]), False),
    "takes not all taints off": (_OURS, lambda taints: [], False),
    "adds no taint": (_OURS, lambda taints: [*taints, _OTHER], False),
    "gives its own taint no other value": (
        _OURS,
        lambda taints: [{**taint, "value": "a"} if taint["key"] in constants.HELD_KEYS else taint for taint in taints],
        False,
    ),
}

_MACHINE: Json = {
    "metadata": {"labels": {"kept": "yes"}, "annotations": {"kept": "yes"}},
    "spec": {"providerID": "gce://project-1/us-east5-b/guarded", "unschedulable": True, "taints": [_KEPT]},
}
_OF_NODE_GROUPS: dict[str, tuple[Json, Change, bool]] = {
    "writes labels of groups": (
        _MACHINE,
        {"metadata": {"labels": {of_groups.GROUP_NAME: "a", of_groups.TRUSTED_NAMESPACE: "b"}}},
        True,
    ),
    "writes no other label": (_MACHINE, _labelled("node-role.kubernetes.io/worker", ""), False),
    "takes no other label away": (_MACHINE, _labelled("kept", None), False),
    "writes no annotation": (_MACHINE, _annotated("kept", "no"), False),
    "sets no finalizer": (_MACHINE, _FINALIZER, False),
    "undoes no cordon": (_MACHINE, {"spec": {"unschedulable": False}}, False),
    "adds the taint of TPUs": (_MACHINE, lambda taints: [*taints, TPU_TAINT], True),
    "adds no other taint": (_MACHINE, lambda taints: [*taints, _OTHER], False),
    "adds it with no other effect": (_MACHINE, lambda taints: [*taints, {**TPU_TAINT, "effect": "NoExecute"}], False),
    "puts it in the place of no other": (_MACHINE, lambda taints: [TPU_TAINT], False),
}

#: Label with a prefix that Kubernetes reserves for administrators, who isolate workloads with such labels.
_ADMINISTERED = "node-restriction.kubernetes.io/a"
_CHIPS: Json = {"status": {"capacity": {"google.com/tpu": "4"}, "allocatable": {"google.com/tpu": "4"}}}
_OF_TENANT: Json = {**_MACHINE, "metadata": {"labels": {of_groups.TRUSTED_NAMESPACE: "tenant", "kept": "yes"}}}
_OF_PLUGIN: dict[str, tuple[Json, Change, bool]] = {
    "sets chips of its node": (_OF_TENANT, _CHIPS, True),
    "sets a label of its node": (_OF_TENANT, _labelled("cloud.google.com/gke-tpu-topology", "2x2"), True),
    "sets an annotation of its node": (_OF_TENANT, _annotated("a", "b"), True),
    "gives its node to no other tenant": (_OF_TENANT, _labelled(of_groups.TRUSTED_NAMESPACE, "victim"), False),
    "gives its node to no other tenant by its status": (
        _OF_TENANT, {**_CHIPS, **_labelled(of_groups.TRUSTED_NAMESPACE, "victim")}, False,
    ),
    "removes no trusted label": (_OF_TENANT, _labelled(of_groups.TRUSTED_NAMESPACE, None), False),
    "adds no trusted label": (_MACHINE, _labelled(_ADMINISTERED, "b"), False),
    "makes its node no control plane": (_OF_TENANT, _labelled(of_groups.CONTROL_PLANE, ""), False),
    "sets no label of k8s.io": (_OF_TENANT, _labelled("kops.k8s.io/instancegroup", "a"), False),
    "cordons no node": (_NODE, {"spec": {"unschedulable": True}}, False),
    "undoes no cordon": (_OF_TENANT, {"spec": {"unschedulable": False}}, False),
    "adds no taint": (_OF_TENANT, lambda taints: [*taints, _OTHER], False),
    "removes no taint": (_OF_TENANT, lambda taints: [], False),
    "sets no finalizer": (_OF_TENANT, _FINALIZER, False),
    "sets no owner": (_OF_TENANT, {"metadata": {"ownerReferences": [_OWNER]}}, False),
}  # fmt: skip
_CAPTURED = _assigned(labels_of("j-a", "victim"))
#: Changes with the identity of a node, which a tenant with root access to the node has.
_OF_KUBELET: dict[str, tuple[Json, Change, bool]] = {
    "reports chips": (_ASSIGNED, _CHIPS, True),
    "sets another label": (_ASSIGNED, _labelled("a", "b"), True),
    "assigns its node to no slice": (_OURS, _CAPTURED, False),
    "assigns a node of others to no slice": (_NODE, _CAPTURED, False),
    "changes no assignment": (_ASSIGNED, _CAPTURED, False),
    "changes no assignment by the status": (_ASSIGNED, {**_CHIPS, **_CAPTURED}, False),
    "removes no assignment": (_ASSIGNED, _assigned(dict.fromkeys(MARKS)), False),
    # The provisioner deletes a pool only after cordoning its nodes, and can cordon only nodes with this label.
    "keeps its node from no delete": (_OURS, _labelled(constants.NODEPOOL_MANAGER, None), False),
}
_OF_CONTROL_PLANE: Json = {**_NODE, "metadata": {"labels": {of_groups.CONTROL_PLANE: "", _ADMINISTERED: "b"}}}
_OF_AGENT: dict[str, tuple[Json, Change, bool]] = {
    "sets another label": (_ASSIGNED, _labelled("a", "b"), True),
    "sets another label of a node of the control plane": (_OF_CONTROL_PLANE, _labelled("a", "b"), True),
    "assigns no node to a slice": (_OURS, _CAPTURED, False),
    "assigns no node to a child Job": (_OF_JOB, _labelled(constants.NAMESPACED_JOB, "team-a_train-w-0"), False),
    "gives no node to another tenant": (_OF_TENANT, _labelled(of_groups.TRUSTED_NAMESPACE, "victim"), False),
    # Controllers run only on nodes with the label of the control plane, and their own guards protect these nodes.
    "makes no node a control plane": (_OF_TENANT, _labelled(of_groups.CONTROL_PLANE, ""), False),
    "takes no node from the control plane": (_OF_CONTROL_PLANE, _labelled(of_groups.CONTROL_PLANE, None), False),
    "sets no label for isolation": (_OF_TENANT, _labelled(_ADMINISTERED, "b"), False),
    "removes no label for isolation": (_OF_CONTROL_PLANE, _labelled(_ADMINISTERED, None), False),
}
_OF_DETECTOR: dict[str, tuple[Json, Change, bool]] = {
    "writes the status": (_ASSIGNED, _CHIPS, True),
    "assigns no node to a slice": (_OURS, {**_CHIPS, **_CAPTURED}, False),
    # Admission keeps pods without marks off every node with the label of a slice, regardless of its value.
    "sets no empty label": (_NODE, {**_CHIPS, **_assigned(dict.fromkeys(MARKS, ""))}, False),
    "gives no node to another tenant": (
        _OF_TENANT,
        {**_CHIPS, **_labelled(of_groups.TRUSTED_NAMESPACE, "victim")},
        False,
    ),
    "makes no node a control plane": (_OF_TENANT, {**_CHIPS, **_labelled(of_groups.CONTROL_PLANE, "")}, False),
    "sets no label for isolation": (_OF_TENANT, {**_CHIPS, **_labelled(_ADMINISTERED, "b")}, False),
}
_OF_PLUGIN_ELSEWHERE: dict[str, tuple[Json, Change, bool]] = {
    "sets no chips": (_OF_TENANT, _CHIPS, False),
    "sets no label": (_OF_TENANT, _labelled("a", "b"), False),
    "sets no annotation": (_OF_TENANT, _annotated("a", "b"), False),
    "adds no taint": (_OF_TENANT, lambda taints: [*taints, _OTHER], False),
}

_GATE, _OTHER_GATE = {"name": of_partitions.SCHEDULING_GATE}, {"name": "a.example/b"}
_POD: Json = {
    "metadata": {},
    "spec": {
        "schedulingGates": [_GATE, _OTHER_GATE],
        "nodeSelector": {"kept": "yes"},
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none"}],
    },
}
_IPUS = of_partitions.IPUS
_LABEL = {"labels": {of_partitions.POD_LABEL: "p"}}
_LABELLED_POD: Json = {**_POD, "metadata": _LABEL}
_IPU_POD: Json = {**_POD, "metadata": {**_LABEL, "annotations": {_IPUS: "4", "kept": "yes"}}}
_OWN = {of_partitions.PARTITION_ID: "p", of_partitions.PARTITION_HOST: "10.0.0.5", of_partitions.PARTITION_PORT: "8090"}
_TOLD: Json = {"metadata": {"annotations": _OWN}}
_IMAGE: Json = {"spec": {"containers": [{"name": "main", "image": "of-others"}]}}
_TOLERATION = {"key": "a", "operator": "Exists", "effect": "NoSchedule"}
_OF_PARTITIONS: dict[str, tuple[Json, Change, bool]] = {
    "opens its gate": (
        _IPU_POD,
        {**_TOLD, "spec": {"schedulingGates": [_OTHER_GATE], "nodeSelector": {"vipu": "one"}}},
        True,
    ),
    "releases": (_IPU_POD, _annotated(of_partitions.RELEASE, "true"), True),
    "opens no other gate": (_IPU_POD, {"spec": {"schedulingGates": [_GATE]}}, False),
    "opens not all gates": (_IPU_POD, {"spec": {"schedulingGates": None}}, False),
    "changes no image": (_IPU_POD, _IMAGE, False),
    "adds no toleration": (_IPU_POD, {"spec": {"tolerations": [_TOLERATION]}}, False),
    "sets no deadline": (_IPU_POD, {"spec": {"activeDeadlineSeconds": 1}}, False),
    "writes no label": (_IPU_POD, _labelled("a", "b"), False),
    "writes no other annotation": (_IPU_POD, _annotated("kept", "no"), False),
    "takes no other annotation away": (_IPU_POD, _annotated("kept", None), False),
    "asks for no other number of IPUs": (_IPU_POD, _annotated(_IPUS, "64"), False),
    "sets no finalizer": (_IPU_POD, _FINALIZER, False),
    "changes no other pod": (_POD, _TOLD, False),
    "changes no pod with the label alone": (_LABELLED_POD, _TOLD, False),
    "changes no image of another pod": (_POD, _IMAGE, False),
}
_CASES = [
    pytest.param(account, *case, id=f"{who} {what}")
    for who, account, cases in (
        ("the provisioner", _PROVISIONER, _OF_PROVISIONER),
        ("node groups", _NODE_GROUPS, _OF_NODE_GROUPS),
        ("partitions", _PARTITIONS, _OF_PARTITIONS),
        ("the device plugin", _PLUGIN, {**_OF_PLUGIN, "assigns its node to no slice": (_OF_TENANT, _CAPTURED, False)}),
        ("the kubelet", _KUBELET, _OF_KUBELET),
        ("a pod of another node", _AGENT, _OF_AGENT),
        ("node-problem-detector", _DETECTOR, _OF_DETECTOR),
        ("the device plugin of another node", _PLUGIN_ELSEWHERE, _OF_PLUGIN_ELSEWHERE),
        ("a token without a node", _PLUGIN_WITHOUT_NODE, _OF_PLUGIN_ELSEWHERE),
    )
    for what, case in cases.items()
]


@pytest.fixture(name="guarded", scope="module")
def _guarded(rehearsal: Rehearsal, installed: list[Json]) -> Iterator[Rehearsal]:
    """Yield a cluster in which all controllers have their rights, and their policies are in force."""
    for manifest in _MANIFESTS:
        rehearsal.kubectl("apply", "--server-side", *manifest)
    # The wait is needed because the API server uses new policies and roles after a delay.
    for account, given in ((_NODE_GROUPS, _MACHINE), (_PARTITIONS, _POD), (_PLUGIN_ELSEWHERE, _MACHINE)):
        change = _annotated("tried", uuid.uuid4().hex)
        wait_for(
            lambda account=account, given=given, change=change: _DENIED in _refusal(rehearsal, account, given, change),
            f"the policy on {account} is in force",
            PATIENCE_SECONDS,
        )
    yield rehearsal
    for manifest in _MANIFESTS:
        rehearsal.kubectl("delete", *manifest)


def _refusal(rehearsal: Rehearsal, account: tuple[str, ...], given: Json, change: Change) -> str:
    """Create a node or a pod, change it as an account, and delete it; return the message of the rejection, or ""."""
    is_pod = "containers" in given["spec"]
    kind, where = ("pod", {"namespace": "default"}) if is_pod else ("node", {})
    path = object_path(f"{kind}s", "guarded", **where)
    body = {"apiVersion": "v1", "kind": kind.title(), **given, "metadata": {"name": "guarded", **given["metadata"]}}
    rehearsal.api.post(collection_path(f"{kind}s", **where), body)
    try:
        # The policies do not apply to administrators.
        rehearsal.api.patch(path, _annotated("admin", "yes"))
        while True:
            patch = change
            if callable(change):
                raw = rehearsal.api.get(path)
                # The version makes the patch fail if a controller of Kubernetes adds a taint at the same time.
                version = {"resourceVersion": raw["metadata"]["resourceVersion"]}
                patch = {"metadata": version, "spec": {"taints": change(raw["spec"]["taints"])}}
            try:
                part = ("--subresource=status",) if "status" in patch else ()
                rehearsal.kubectl(
                    "patch", kind, "guarded", "--type=merge", f"--patch={json.dumps(patch)}", *part, *account
                )
            except RehearsalError as refused:
                if "the object has been modified" not in str(refused):
                    return str(refused)
            else:
                return ""
    finally:
        rehearsal.api.delete(path)


@pytest.mark.parametrize(("account", "given", "change", "want_allowed"), _CASES)
def test_account_can_make_only_the_changes_of_its_policy(
    account: tuple[str, ...], given: Json, change: Change, want_allowed: bool, guarded: Rehearsal
) -> None:
    refusal = _refusal(guarded, account, given, change)
    assert (refusal == "") if want_allowed else (_DENIED in refusal), refusal


def test_token_of_the_device_plugin_names_the_node_of_its_pod(guarded: Rehearsal, tmp_path: Path) -> None:
    """The policy relies on the node name: a tenant with root access to a node can use the token of the plugin."""
    for name in ("own", "foreign"):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": _MACHINE["spec"]}
        guarded.api.post(collection_path("nodes"), body)
    where = {"namespace": device_plugin.NAMESPACE}
    spec = {"nodeName": "own", "serviceAccountName": _PLUGIN_ACCOUNT, "containers": _POD["spec"]["containers"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plugin"}, "spec": spec}
    made = guarded.api.post(collection_path("pods", **where), pod)
    try:
        kubeconfig = kubeconfig_of_service_account(
            guarded, tmp_path / "kubeconfig", name=_PLUGIN_ACCOUNT, pod=made["metadata"], **where
        )

        def patch(node: str, change: Json, *part: str) -> None:
            flags = ("--type=merge", f"--patch={json.dumps(change)}", *part, f"--kubeconfig={kubeconfig}")
            guarded.kubectl("patch", "node", node, *flags)

        patch("own", _CHIPS, "--subresource=status")
        with pytest.raises(RehearsalError, match="may change only the node that its pod runs on"):
            patch("foreign", _CHIPS, "--subresource=status")
        with pytest.raises(RehearsalError, match="may change neither the spec of its node"):
            patch("own", {"spec": {"unschedulable": False}})
    finally:
        guarded.kubectl("delete", "pod", "plugin", "--namespace=kube-system", "--force", "--grace-period=0")
        for name in ("own", "foreign"):
            guarded.api.delete(object_path("nodes", name))


def test_node_of_a_machine_can_be_deleted_but_not_of_the_control_plane(guarded: Rehearsal) -> None:
    for labels in ({of_groups.CONTROL_PLANE: ""}, {}):
        metadata = {"name": "guarded", "labels": labels}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": _MACHINE["spec"]}
        guarded.api.post(collection_path("nodes"), body)
        delete = ("delete", "node", "guarded", *_NODE_GROUPS)
        if labels:
            with pytest.raises(RehearsalError, match="not of the control plane"):
                guarded.kubectl(*delete)
            guarded.api.delete(object_path("nodes", "guarded"))
        else:
            guarded.kubectl(*delete)
            with pytest.raises(NotFound):
                guarded.api.get(object_path("nodes", "guarded"))


@pytest.mark.parametrize("change", [{"type": "Opaque"}, {"metadata": {"name": "trial"}}], ids=["type", "label"])
def test_create_and_delete_of_a_secret_that_is_not_a_bootstrap_token_is_rejected(
    change: Json, guarded: Rehearsal
) -> None:
    """In kube-system, a created Secret could become the token of any ServiceAccount."""
    labels = {of_groups.GROUP_NAMESPACE: "default", of_groups.GROUP_NAME: "rights"}
    token = {"metadata": {"name": "trial", "labels": labels}, "type": "bootstrap.kubernetes.io/token"}
    secret = {"apiVersion": "v1", "kind": "Secret", **token, **change}
    with pytest.raises(RehearsalError, match="only bootstrap tokens of groups"):
        guarded.kubectl("create", "--namespace=kube-system", "-f", "-", *_NODE_GROUPS, stdin=json.dumps(secret))
    guarded.api.post(collection_path("secrets", namespace="kube-system"), secret)
    try:
        with pytest.raises(RehearsalError, match="only bootstrap tokens of groups"):
            guarded.kubectl("delete", "secret", "trial", "--namespace=kube-system", *_NODE_GROUPS)
    finally:
        guarded.api.delete(object_path("secrets", "trial", namespace="kube-system"))


def test_tenant_without_the_right_to_delete_machines_cannot_remove_finalizers(
    guarded: Rehearsal, tmp_path: Path
) -> None:
    """Otherwise, a tenant could leave machines behind, by deleting groups with --cascade=orphan."""
    guarded.kubectl("apply", "--server-side", "-k", str(DEPLOY / "nodegroups" / "crds"))
    guarded.kubectl("wait", "--for=condition=Established", "crd", "tpunodegroups.tpu.google.com")
    where, tenant, finalizers = "--namespace=default", "--as=tenant", of_groups.GROUP_FINALIZERS
    guarded.kubectl("create", "role", "tenant", "--verb=*", "--resource=tpunodegroups.tpu.google.com", where)
    guarded.kubectl("create", "rolebinding", "tenant", "--role=tenant", "--user=tenant", where)
    group = yaml.safe_load((REPOSITORY / "examples" / "nodegroups" / "slice.yaml").read_text(encoding="utf-8"))
    group["metadata"] = {"name": "guarded", "namespace": "default", "finalizers": ["a.example/b", *finalizers]}
    guarded.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(group))
    guarded.kubectl("delete", "tpunodegroup", "guarded", "--cascade=orphan", "--wait=false", where, tenant)

    def keep(kept: Sequence[str]) -> None:
        patch = json.dumps({"metadata": {"finalizers": kept}})
        guarded.kubectl("patch", "tpunodegroup", "guarded", "--type=merge", f"--patch={patch}", where, tenant)

    for finalizer in finalizers:
        with pytest.raises(RehearsalError, match="need the right to delete managedinstancegroups"):
            keep([other for other in finalizers if other != finalizer])
    keep(finalizers)
    account = kubeconfig_of_service_account(guarded, tmp_path / "kubeconfig", name=app.LEASE_NAME, namespace=NAMESPACE)
    path = object_path("tpunodegroups", "guarded", namespace="default", root=API_ROOT)
    connect(str(account)).patch(path, {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        guarded.api.get(path)
