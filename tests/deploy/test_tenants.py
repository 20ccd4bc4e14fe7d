"""Tests which objects of the manifests and charts a tenant can use.

A tenant administers one namespace, may be root on the TPU nodes of its TPUNodeGroups, and has no other rights. The
tests fail for a kind that is not listed here, so that its author decides whether tenants may use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.kube.protocol import collection_path
from rehearsal.demos import Rehearsal, RehearsalError
from rehearsal.demos.world import wait_for
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, NAMESPACE, key_of
from tests.e2e.kit import PATIENCE_SECONDS

Json = dict[str, Any]

_IPU_NAMESPACE = "ipus"
_CHARTS: dict[str, Json] = {
    "tpu-provisioner": {
        "image": {"repository": "registry.example/it"},
        "nodegroups": {"enabled": True},
        "webhook": {"enabled": True, "partitions": {"enabled": True}},
        "dashboards": {"enabled": True},
        "podMonitor": {"enabled": True},
        "podMonitoring": {"enabled": True},
        "prometheusRule": {"enabled": True},
    },
    "ipu-partitions": {"image": {"repository": "registry.example/it"}, "vipuServerAddr": "vipu.example"},
}
_COMPONENTS = (
    "placement",
    "webhook",
    "webhook-partitions",
    "pod-monitor",
    "pod-monitoring",
    "prometheus-rule",
    "dashboards",
)


def _manifests(folder: Path) -> list[Json]:
    return tools.built(folder, *_COMPONENTS, resources=("base", "nodegroups", "nodegroups/crds", "partitions"))


def _rendered(chart: str, namespace: str = NAMESPACE) -> list[Json]:
    return tools.template(DEPLOY / "charts" / chart, _CHARTS[chart], release="ipu", namespace=namespace)


@pytest.fixture(name="documents", scope="module", params=["manifests", *_CHARTS])
def _documents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    folder = tmp_path_factory.mktemp("tenants")
    return _manifests(folder) if request.param == "manifests" else _rendered(request.param)


#: Namespaces of administrators. The last two have only roles, bindings and the device plugin's account.
_OF_ADMINISTRATORS = (NAMESPACE, "kube-system", "kube-public")
#: Kinds whose objects are in namespaces of administrators, in which tenants have no rights.
_NAMESPACED = frozenset(
    {
        "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "PodMonitoring",
        "PrometheusRule", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount",
    }
)  # fmt: skip
#: Cluster-wide kinds that give tenants no rights: a tenant can bind a ClusterRole only with the rights of the role.
_ACTING = frozenset(
    {
        "ClusterRole", "ClusterRoleBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration", "Namespace", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    }
)  # fmt: skip
#: Cluster-wide kinds whose objects each tenant can name in a request. Each kind has a test below.
_NAMED = frozenset({"PriorityClass", "CustomResourceDefinition"})


def test_each_kind_has_a_rule_for_tenants(documents: list[Json]) -> None:
    for document in documents:
        kind, namespace = document["kind"], document["metadata"].get("namespace")
        assert kind in (_ACTING | _NAMED if namespace is None else _NAMESPACED), key_of(document)
        assert namespace in (None, *_OF_ADMINISTRATORS), key_of(document)
        if namespace not in (None, NAMESPACE):
            assert kind in ("Role", "RoleBinding", "ServiceAccount"), key_of(document)


def _policies(documents: list[Json]) -> Iterator[Json]:
    """Yield the specs of the policies that are bound with the action Deny; check that their failurePolicy is Fail."""
    bound = {
        document["spec"]["policyName"]
        for document in documents
        if document["kind"] == "ValidatingAdmissionPolicyBinding" and document["spec"]["validationActions"] == ["Deny"]
    }
    for document in documents:
        if document["kind"] == "ValidatingAdmissionPolicy" and document["metadata"]["name"] in bound:
            assert document["spec"]["failurePolicy"] == "Fail"
            yield document["spec"]


def _covers(policy: Json, condition: str, resource: str, operation: str) -> bool:
    rules = policy["matchConstraints"]["resourceRules"]
    return [match_condition["expression"] for match_condition in policy["matchConditions"]] == [condition] and any(
        "" in rule["apiGroups"] and resource in rule["resources"] and operation in rule["operations"] for rule in rules
    )


def test_each_priority_class_is_for_the_namespace_of_the_installation(documents: list[Json]) -> None:
    """A policy must prevent other uses: with the class, a tenant could preempt pods of other tenants."""
    classes = [document for document in documents if document["kind"] == "PriorityClass"]
    assert classes
    deployments = [document for document in documents if document["kind"] == "Deployment"]
    used = {deployment["spec"]["template"]["spec"]["priorityClassName"] for deployment in deployments}
    assert used == {priority_class["metadata"]["name"] for priority_class in classes}
    for priority_class in classes:
        assert not priority_class.get("globalDefault")
        condition = f'object.spec.?priorityClassName.orValue("") == "{priority_class["metadata"]["name"]}"'
        (policy,) = [policy for policy in _policies(documents) if _covers(policy, condition, "pods", "CREATE")]
        (validation,) = policy["validations"]
        assert validation["expression"] == f'request.namespace == "{NAMESPACE}"'


def test_no_role_adds_to_the_rights_of_tenants(documents: list[Json]) -> None:
    """Kubernetes adds the rules of roles with an "aggregate-to" label to admin, edit and view, which tenants have."""
    for role in (document for document in documents if document["kind"] in ("ClusterRole", "Role")):
        assert not [key for key in role["metadata"].get("labels", {}) if "aggregate-to" in key], key_of(role)
        assert "aggregationRule" not in role


def test_rights_are_only_for_accounts_of_the_installation_and_for_machines(documents: list[Json]) -> None:
    accounts = {
        (document["metadata"]["namespace"], document["metadata"]["name"])
        for document in documents
        if document["kind"] == "ServiceAccount"
    }
    assert {name for namespace, name in accounts if namespace != NAMESPACE} <= {"tpu-device-plugin-sa"}
    for document in documents:
        for subject in document.get("subjects", ()) if document["kind"].endswith("RoleBinding") else ():
            if subject["kind"] == "Group":
                # Machines of TPUNodeGroups are in this group until they have joined the cluster.
                assert subject["name"] == "system:bootstrappers:tpu-provisioner:node-groups"
            else:
                assert (subject["namespace"], subject["name"]) in accounts


#: Rights to write that no policy limits, outside of the installation's namespace. docs/security.md lists them.
_WITHOUT_POLICY = {
    ("", "events", "create"): "Events are information.",
    ("", "events", "patch"): "Events are information.",
    ("", "pods/eviction", "create"): "PodDisruptionBudgets limit it.",
    ("authentication.k8s.io", "tokenreviews", "create"): "It stores nothing.",
    ("authorization.k8s.io", "subjectaccessreviews", "create"): "It stores nothing.",
    ("autoscaling.x-k8s.io", "capacitybuffers/status", "patch"): "The status reports what the owner has.",
    ("autoscaling.x-k8s.io", "provisioningrequests/status", "patch"): "The status reports what the owner has.",
    ("certificates.k8s.io", "certificatesigningrequests", "create"): "A request without approval has no effect.",
    ("certificates.k8s.io", "certificatesigningrequests/approval", "patch"): "The right to approve is for one signer.",
    ("tpu.google.com", "*", "*"): "They are the controller's own kinds.",
}
_OPERATIONS = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}
_READS = frozenset({"get", "list", "watch"})


def _rights_to_write(documents: list[Json]) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield users and rights to write, except rights in the installation's namespace and on named objects."""
    rules = {
        (document["kind"], document["metadata"].get("namespace"), document["metadata"]["name"]): document["rules"]
        for document in documents
        if document["kind"] in ("ClusterRole", "Role")
    }
    for document in documents:
        namespace = document["metadata"].get("namespace")
        if document["kind"] not in ("ClusterRoleBinding", "RoleBinding") or namespace == NAMESPACE:
            continue
        for subject in document["subjects"]:
            user = f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
            for rule in rules[document["roleRef"]["kind"], namespace, document["roleRef"]["name"]]:
                if "resourceNames" not in rule:
                    yield from (
                        (user, (group, resource, verb))
                        for group in rule["apiGroups"]
                        for resource in rule["resources"]
                        for verb in rule["verbs"]
                        if verb not in _READS
                    )


def test_each_right_to_write_shared_objects_has_a_policy(documents: list[Json], request: pytest.FixtureRequest) -> None:
    """RBAC cannot limit "patch nodes" to some nodes, and machines of tenants have tokens of some accounts."""
    policies = list(_policies(documents))
    unlimited = set()
    for user, right in _rights_to_write(documents):
        group, resource, verb = right
        condition = f'request.userInfo.username == "{user}"'
        if not any(
            group == "" and _covers(policy, condition, resource, _OPERATIONS.get(verb, verb)) for policy in policies
        ):
            unlimited.add((group, "*", "*") if group == "tpu.google.com" else right)
    assert unlimited <= _WITHOUT_POLICY.keys()
    if request.node.callspec.params["documents"] == "manifests":
        assert unlimited == _WITHOUT_POLICY.keys()


# --- Rights of a tenant on a real API server ---


#: Kinds that grant or limit rights.
_OF_RIGHTS = frozenset(
    {
        "ClusterRole", "ClusterRoleBinding", "PriorityClass", "Role", "RoleBinding", "ServiceAccount",
        "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    }
)  # fmt: skip


@pytest.fixture(name="tenant", scope="module")
def _tenant(
    rehearsal: Rehearsal, installed: list[Json], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Rehearsal, list[Json]]]:
    """Install all rights; yield the cluster and all objects. User "tenant" administers namespace "tenant"."""
    # The chart tpu-provisioner creates the same objects as the manifests.
    documents = [*_manifests(tmp_path_factory.mktemp("all")), *_rendered("ipu-partitions", _IPU_NAMESPACE)]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
    }
    own = ("tenant", _IPU_NAMESPACE)
    for name in own:
        rehearsal.kubectl("create", "namespace", name)
    # Objects of the fixture `installed` are not applied again, because their delete would break other tests.
    kept = {key_of(document) for document in installed}
    applied = [document for document in documents if document["kind"] in _OF_RIGHTS and key_of(document) not in kept]
    text = yaml.safe_dump_all([*applied, binding])
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    for name in _classes(documents):
        wait_for(
            lambda name=name: _refusal(rehearsal, name), f"the policy on class {name} is in force", PATIENCE_SECONDS
        )
    yield rehearsal, documents
    rehearsal.kubectl("delete", "--wait=false", "-f", "-", stdin=text)
    rehearsal.kubectl("delete", "namespace", "--wait=false", *own)


def _classes(documents: list[Json]) -> list[str]:
    return [document["metadata"]["name"] for document in documents if document["kind"] == "PriorityClass"]


def _refusal(rehearsal: Rehearsal, priority_class: str, namespace: str = "tenant") -> str:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": "none", "securityContext": security}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": namespace}}
    body = yaml.safe_dump({**pod, "spec": {**spec, "priorityClassName": priority_class} if priority_class else spec})
    flags = ("--as=tenant",) if namespace == "tenant" else ()
    try:
        rehearsal.kubectl("create", "--dry-run=server", "-f", "-", *flags, stdin=body)
    except RehearsalError as error:
        return str(error)
    return ""


@pytest.mark.e2e
def test_tenant_can_use_no_priority_class_of_the_installation(tenant: tuple[Rehearsal, list[Json]]) -> None:
    rehearsal, documents = tenant
    assert _refusal(rehearsal, "") == ""
    classes = _classes(documents)
    assert len(classes) == 5
    for name in classes:
        own, other = (_IPU_NAMESPACE, NAMESPACE) if name.startswith("ipu") else (NAMESPACE, _IPU_NAMESPACE)
        message = f"PriorityClass {name} is only for pods of namespace {own}; name another class in priorityClassName"
        assert message in _refusal(rehearsal, name)
        assert message in _refusal(rehearsal, name, other)
        assert _refusal(rehearsal, name, own) == ""


@pytest.mark.e2e
def test_tenant_can_read_and_write_no_object_of_the_installation(tenant: tuple[Rehearsal, list[Json]]) -> None:
    """The role admin of the tenant's own namespace grants no right on any object of the installation."""
    rehearsal, documents = tenant
    resources = _Resources(rehearsal)
    allowed = []
    for document in documents:
        group, resource = resources.of(document)
        namespace, name = document["metadata"].get("namespace", ""), document["metadata"]["name"]
        allowed += [
            (document["kind"], name, verb)
            for verb in ("get", "create", "patch", "delete")
            if _may(rehearsal, verb, group, resource, namespace, name)
        ]
        if document["kind"] == "CustomResourceDefinition":
            assert document["spec"]["scope"] == "Namespaced"
            kind = document["spec"]["names"]["plural"]
            allowed += [
                (kind, "*", verb)
                for verb in ("get", "create", "patch", "delete")
                if _may(rehearsal, verb, document["spec"]["group"], kind, "tenant", "")
            ]
    assert allowed == []
    # The tenant may create pods, so `_may` does not return False for everything.
    assert _may(rehearsal, "create", "", "pods", "tenant", "")


class _Resources:
    """Reads the resource names of kinds from the API server, and caches them. Used by one thread."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._by_version: dict[str, Mapping[str, str]] = {}

    def of(self, document: Json) -> tuple[str, str]:
        """Return the API group and the resource name (plural) of an object's kind."""
        version = document["apiVersion"]
        if version not in self._by_version:
            root = "/apis" if "/" in version else "/api"
            served = self._rehearsal.api.get(f"{root}/{version}")["resources"]
            self._by_version[version] = {entry["kind"]: entry["name"] for entry in served if "/" not in entry["name"]}
        return version.rpartition("/")[0], self._by_version[version][document["kind"]]


def _may(rehearsal: Rehearsal, verb: str, group: str, resource: str, namespace: str, name: str) -> bool:
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": "tenant", "groups": ["system:authenticated"], "resourceAttributes": attributes},
    }
    path = collection_path("subjectaccessreviews", root="/apis/authorization.k8s.io/v1")
    return bool(rehearsal.api.post(path, review)["status"]["allowed"])
