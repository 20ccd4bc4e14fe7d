"""Each right of the controller of node groups, taken away: its user gets to see what fails, and nothing else does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import crds
from provisioner import kube
from provisioner.kube import KubeApi
from provisioner.kube.gates import KeptError
from provisioner.kube.protocol import LEASES_ROOT, collection_path, object_path
from provisioner.nodegroups import app, device_plugin
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.parse import parse
from provisioner.nodegroups.api.types import (
    GROUP,
    RECORDS,
    Kind,
    ObjectMeta,
)
from provisioner.nodegroups.bootstrap import approval, tokens
from provisioner.nodegroups.gate import Gate
from provisioner.nodegroups.observe import ClusterReader, make_watches
from provisioner.nodegroups.planning.calls import Proof
from provisioner.nodegroups.planning.nodes import TPU_TAINT
from provisioner.nodegroups.planning.writes import (
    ApplyDevicePlugin,
    ApproveRequest,
    CreateChild,
    CreateToken,
    DeleteChild,
    DeleteDevicePlugin,
    DeleteNode,
    DeleteToken,
    EvictPod,
    PatchNode,
    PatchStatus,
    SetFinalizers,
    Write,
)
from provisioner.nodegroups.reading import API_ROOT, APPS_ROOT, taint_of
from provisioner.nodegroups.writing import Writer
from rehearsal.demos import Rehearsal
from rehearsal.demos.world import wait_for
from rehearsal.simulators.compute.guests import joining
from tests.deploy.kit import DEPLOY, NAMESPACE, Right, kubeconfig_of_service_account, request_as, rights, role_without
from tests.deploy.tries import SERVED_SECONDS, Try, try_events, try_watch
from tests.support.nodegroups import SPECS

pytestmark = pytest.mark.e2e

_ROLES = "/apis/rbac.authorization.k8s.io/v1"
_NODE = "machine-of-rights"
_DEFINITIONS = tuple(f"customresourcedefinitions/{kind.plural}.{GROUP}" for kind in Kind)
_CHILDREN = tuple(kind for kind in Kind if kind is not Kind.TPU_NODE_GROUP)
_PLUGIN = device_plugin.manifest("registry.example/plugin:1")
_PLUGIN_PATH = object_path("daemonsets", device_plugin.NAME, namespace=device_plugin.NAMESPACE, root=APPS_ROOT)
_LEASE = object_path("leases", app.LEASE_NAME, namespace=NAMESPACE, root=LEASES_ROOT)
_ABSENT = ObjectMeta(namespace="default", name="absent", uid="absent")
_NUMBERS = itertools.count(1)


# --- what is tried


def _write(make: Callable[[Rehearsal], Write]) -> Try:
    """Make a write; what it is about may be absent, which is asked after the right to it."""

    def attempt(api: KubeApi, rehearsal: Rehearsal) -> str:
        try:
            Writer(api=api, device_plugin=_PLUGIN).write(make(rehearsal))
        except kube.Forbidden as error:
            return str(error)
        except kube.Conflict:
            # One of Kubernetes' own controllers was faster.
            return attempt(api, rehearsal)
        return ""

    return attempt


def _seen(rehearsal: Rehearsal, kind: Kind) -> Any:
    raw = rehearsal.api.get(object_path(kind.plural, "rights", namespace="default", root=API_ROOT))
    return parse(RECORDS[kind], raw)


def _finalizers(kind: Kind, rehearsal: Rehearsal) -> Write:
    return SetFinalizers(record=_seen(rehearsal, kind), finalizers=())


def _status(kind: Kind, rehearsal: Rehearsal) -> Write:
    record = _seen(rehearsal, kind)
    return PatchStatus(record=record, new=replace(record.status, observed_generation=next(_NUMBERS)))


def _child(kind: Kind, rehearsal: Rehearsal) -> Write:
    child = _seen(rehearsal, kind)
    meta = ObjectMeta(namespace="default", name=f"rights-{next(_NUMBERS)}", uid="")
    return CreateChild(record=replace(child, meta=meta))


def _absent_child(kind: Kind, rehearsal: Rehearsal) -> Write:
    return DeleteChild(record=replace(_seen(rehearsal, kind), meta=_ABSENT))


def _node(rehearsal: Rehearsal) -> Write:
    raw = rehearsal.api.get(object_path("nodes", _NODE))
    taints = tuple(taint_of(taint) for taint in raw["spec"]["taints"])
    return PatchNode(
        name=_NODE,
        uid=raw["metadata"]["uid"],
        resource_version=raw["metadata"]["resourceVersion"],
        labels={names.WORKER_INDEX: str(next(_NUMBERS))},
        taints=taints if TPU_TAINT in taints else (*taints, TPU_TAINT),
        cordon=True,
    )


def _token(rehearsal: Rehearsal) -> Write:
    machine, later = f"machine-{next(_NUMBERS)}", datetime.now(UTC) + timedelta(minutes=30)
    return CreateToken(namespace="default", name="rights", machine=machine, machine_id="1", expires_at=later)


def _request(rehearsal: Rehearsal) -> Write:
    body = joining.request_body(joining.new_key("rights").request_pem)
    # As no kubelet asks: Kubernetes would approve what the administrator asks for.
    body["spec"]["usages"] = ["client auth"]
    made = rehearsal.api.post(collection_path("certificatesigningrequests", root=approval.API_ROOT), body)["metadata"]
    return ApproveRequest(name=made["name"], uid=made["uid"], resource_version=made["resourceVersion"])


def _new_plugin(rehearsal: Rehearsal) -> Write:
    _forget(rehearsal, _PLUGIN_PATH)
    return ApplyDevicePlugin(version=device_plugin.version_of(_PLUGIN))


def _no_plugin(rehearsal: Rehearsal) -> Write:
    _forget(rehearsal, _PLUGIN_PATH)
    return DeleteDevicePlugin(uid="absent")


def _pass_the_gate(api: KubeApi, rehearsal: Rehearsal) -> str:
    proof = Proof(namespace="default", name="absent", uid="absent", group_labels={}, provider_ids=frozenset())
    try:
        Gate(api=api, clock=lambda: datetime.now(UTC)).pass_through(proof)
    except KeptError as error:
        assert "there is no ManagedInstanceGroup" in str(error)  # noqa: PT017 - the other side of an exception
    except kube.Forbidden as error:
        return str(error)
    return ""


def _read_cluster(api: KubeApi, rehearsal: Rehearsal) -> str:
    reader = ClusterReader(api=api, clock=lambda: datetime.now(UTC), project="project-1")
    reader.read()
    return reader.problem


def _elect(make: Callable[[Rehearsal], object]) -> Try:
    def attempt(api: KubeApi, rehearsal: Rehearsal) -> str:
        make(rehearsal)
        elector = kube.LeaseElector(
            api,
            namespace=NAMESPACE,
            identity="trial",
            on_started=lambda: None,
            on_lost=lambda: None,
            leases=(app.LEASE_NAME,),
        )
        elector.step()
        problem = elector.problem
        elector.release()
        return problem or ""

    return attempt


def _have_lease(rehearsal: Rehearsal) -> None:
    _forget(rehearsal, _LEASE)
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": app.LEASE_NAME},
        "spec": {},
    }
    rehearsal.api.post(collection_path("leases", namespace=NAMESPACE, root=LEASES_ROOT), body)


def _forget(rehearsal: Rehearsal, path: str) -> None:
    try:
        rehearsal.api.delete(path)
    except kube.NotFound:
        return


_CERTIFICATES = "certificates.k8s.io"
_WATCHED = {
    **{kind.plural: Right(GROUP, kind.plural, "") for kind in Kind},
    "nodes": Right("", "nodes", ""),
    "pods": Right("", "pods", ""),
    "secrets": Right("", "secrets", "", tokens.NAMESPACE),
    "certificatesigningrequests": Right(_CERTIFICATES, "certificatesigningrequests", ""),
    "daemonsets": Right("apps", "daemonsets", "", device_plugin.NAMESPACE, device_plugin.NAME),
}


def _make_watch(name: str, api: KubeApi, **options: Any) -> Any:
    return make_watches(api, options.pop("on_change"), **options).named()[name]


_COORDINATION = "coordination.k8s.io"
_TRIES: dict[Right, Try] = {
    **{
        replace(right, verb=verb): try_watch(partial(_make_watch, name))
        for name, right in _WATCHED.items()
        for verb in ("list", "watch")
    },
    **{Right(GROUP, kind.plural, "patch"): _write(partial(_finalizers, kind)) for kind in Kind},
    **{Right(GROUP, f"{kind.plural}/status", "patch"): _write(partial(_status, kind)) for kind in Kind},
    **{Right(GROUP, kind.plural, "create"): _write(partial(_child, kind)) for kind in _CHILDREN},
    **{Right(GROUP, kind.plural, "delete"): _write(partial(_absent_child, kind)) for kind in _CHILDREN},
    Right(GROUP, "managedinstancegroups", "get"): _pass_the_gate,
    Right("", "nodes", "get"): _write(_node),
    Right("", "nodes", "patch"): _write(_node),
    Right("", "nodes", "delete"): _write(lambda _: DeleteNode(name="absent", uid="absent")),
    Right("", "pods/eviction", "create"): _write(lambda _: EvictPod(namespace="default", name="absent", uid="absent")),
    Right("", "events", "create"): try_events(repeated=False),
    Right("", "events", "patch"): try_events(repeated=True),
    Right("", "namespaces", "get", "", "kube-system"): _read_cluster,
    Right("", "configmaps", "get", "kube-system", "kube-root-ca.crt"): _read_cluster,
    Right("", "configmaps", "get", "kube-public", "cluster-info"): _read_cluster,
    Right("", "secrets", "create", "kube-system"): _write(_token),
    Right("", "secrets", "delete", "kube-system"): _write(lambda _: DeleteToken(name="absent", uid="absent")),
    Right(_CERTIFICATES, "certificatesigningrequests/approval", "patch"): _write(_request),
    Right(_CERTIFICATES, "signers", "approve", "", approval.SIGNER): _write(_request),
    Right("apps", "daemonsets", "create", "kube-system", device_plugin.NAME): _write(_new_plugin),
    Right("apps", "daemonsets", "patch", "kube-system", device_plugin.NAME): _write(_new_plugin),
    Right("apps", "daemonsets", "delete", "kube-system", device_plugin.NAME): _write(_no_plugin),
    Right(_COORDINATION, "leases", "create", NAMESPACE): _elect(lambda rehearsal: _forget(rehearsal, _LEASE)),
    Right(_COORDINATION, "leases", "get", NAMESPACE, app.LEASE_NAME): _elect(_have_lease),
    Right(_COORDINATION, "leases", "update", NAMESPACE, app.LEASE_NAME): _elect(_have_lease),
}


# --- where it is tried


@pytest.fixture(scope="module")
def roles() -> list[dict[str, Any]]:
    """Give the roles of the controller."""
    folder = DEPLOY / "nodegroups" / "rbac"
    documents = [
        each
        for path in sorted(folder.glob("*.yaml"))
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if each["kind"] in ("ClusterRole", "Role") and path.name != "machines.yaml"
    ]
    assert {each["metadata"]["name"] for each in documents} == {app.LEASE_NAME}
    return documents


@pytest.fixture(scope="module")
def controller(rehearsal: Rehearsal, installed: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a kubeconfig with nothing but a token of the controller's ServiceAccount, and objects to try it on."""
    folders = [str(DEPLOY / "nodegroups" / "rbac"), str(crds.FOLDER)]
    for folder in folders:
        rehearsal.kubectl("apply", "--server-side", "-k", folder)
    rehearsal.kubectl("wait", "--for=condition=Established", "--timeout=30s", *_DEFINITIONS)
    for kind in Kind:
        body = {
            "apiVersion": "tpu.google.com/v1alpha1",
            "kind": kind.value,
            "metadata": {"name": "rights"},
            "spec": dict(SPECS[kind]),
        }
        rehearsal.api.post(collection_path(kind.plural, namespace="default", root=API_ROOT), body)
    _make_node(rehearsal)
    directory = tmp_path_factory.mktemp("nodegroups")
    yield kubeconfig_of_service_account(rehearsal, directory / "kubeconfig", name=app.LEASE_NAME)
    rehearsal.kubectl("delete", "secrets", "--namespace=kube-system", "--selector=cloud.google.com/tpu-node-group-name")
    for kind in Kind:
        for item in rehearsal.objects(collection_path(kind.plural, root=API_ROOT)):
            # No controller is there to remove them.
            path = object_path(kind.plural, item["metadata"]["name"], namespace="default", root=API_ROOT)
            rehearsal.api.patch(path, {"metadata": {"finalizers": None}})
    for path in (_PLUGIN_PATH, _LEASE, object_path("nodes", _NODE)):
        _forget(rehearsal, path)
    for folder in reversed(folders):
        rehearsal.kubectl("delete", "-k", folder)


def test_every_right_is_tried(roles: list[dict[str, Any]]) -> None:
    """The table above has a try for each right that the manifests grant, and for no other."""
    assert set(_TRIES) == rights(roles)


def test_with_all_rights(rehearsal: Rehearsal, controller: Path) -> None:
    """Everything works."""
    api = kube.connect(str(controller))
    for right, attempt in _TRIES.items():
        # A list and its watch are tried together.
        if right.verb != "list":
            assert attempt(api, rehearsal) == "", str(right)
    api.close()


@pytest.mark.parametrize("right", _TRIES, ids=str)
def test_a_right_taken_away(right: Right, rehearsal: Rehearsal, roles: list[dict[str, Any]], controller: Path) -> None:
    """Without the right, and with all the others, something says what is forbidden; with it again all is well."""
    (role,) = [each for each in roles if right in rights([each])]
    metadata = role["metadata"]
    namespace = metadata.get("namespace", "")
    path = object_path(f"{role['kind'].lower()}s", metadata["name"], namespace=namespace, root=_ROLES)
    less = role_without(role, right)
    assert rights([{**role, "rules": less}]) == rights([role]) - {right}
    api = kube.connect(str(controller))
    rehearsal.api.patch(path, {"rules": less})
    try:
        # The authorizer learns of a changed role by its own watch, milliseconds later.
        wait_for(lambda: _TRIES[right](api, rehearsal), f"something fails without the right to {right}", SERVED_SECONDS)
        said = _TRIES[right](api, rehearsal)
        assert right.resource.partition("/")[0].removesuffix("s") in said or "dropped" in said or "lease" in said
    finally:
        rehearsal.api.patch(path, {"rules": role["rules"]})
    if right.verb not in ("list", "watch"):
        # Those come back in a second each, and all of them below.
        wait_for(lambda: _TRIES[right](api, rehearsal) == "", f"{right} is back", SERVED_SECONDS)
    api.close()


def test_with_all_rights_again(rehearsal: Rehearsal, controller: Path) -> None:
    """The same process has its watches back."""
    api = kube.connect(str(controller))
    for name in _WATCHED:
        attempt = try_watch(partial(_make_watch, name))
        wait_for(lambda attempt=attempt: attempt(api, rehearsal) == "", f"{name} are watched", SERVED_SECONDS)
    api.close()


# --- what the policy on nodes lets the controller do


def _make_node(rehearsal: Rehearsal, **labels: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _NODE, "labels": labels, "annotations": {"kept": "yes"}},
        "spec": {
            "providerID": f"gce://project-1/us-east5-b/{_NODE}",
            "unschedulable": True,
            "taints": [{"key": "kept.example", "effect": "NoSchedule"}],
        },
    }
    _forget(rehearsal, object_path("nodes", _NODE))
    rehearsal.api.post(collection_path("nodes"), body)


_TPU_TAINT = {"key": TPU_TAINT.key, "value": TPU_TAINT.value, "effect": TPU_TAINT.effect}
_CHANGES: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("labels of groups", {"metadata": {"labels": {names.GROUP_NAME: "a", names.TRUSTED_NAMESPACE: "b"}}}, True),
    ("another label", {"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}}, False),
    ("a label taken away", {"metadata": {"labels": {"kept": None}}}, False),
    ("an annotation", {"metadata": {"annotations": {"kept": "no"}}}, False),
    ("a finalizer", {"metadata": {"finalizers": ["a.example/b"]}}, False),
    ("a cordon undone", {"spec": {"unschedulable": False}}, False),
)


@pytest.mark.parametrize(("name", "change", "want_allowed"), _CHANGES, ids=[each[0] for each in _CHANGES])
def test_changes_of_nodes(
    name: str, change: dict[str, Any], want_allowed: bool, rehearsal: Rehearsal, controller: Path
) -> None:
    """Labels of groups, their taint and the cordon, and nothing else."""
    _make_node(rehearsal, kept="yes")
    api = kube.connect(str(controller))
    if want_allowed:
        api.patch(object_path("nodes", _NODE), change, strategic=True)
    else:
        with pytest.raises(kube.ClusterError, match="tpu-provisioner may"):
            api.patch(object_path("nodes", _NODE), change, strategic=True)
    api.close()


_TAINTS: tuple[tuple[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]], bool], ...] = (
    ("the taint of TPUs is added", lambda there: [*there, _TPU_TAINT], True),
    ("another one is", lambda there: [*there, {"key": "a", "effect": "NoExecute"}], False),
    ("the same with another effect is", lambda there: [*there, {**_TPU_TAINT, "effect": "NoExecute"}], False),
    ("it takes the place of others", lambda there: [_TPU_TAINT], False),
)


@pytest.mark.parametrize(("name", "change", "want_allowed"), _TAINTS, ids=[each[0] for each in _TAINTS])
def test_changes_of_taints(
    name: str,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    want_allowed: bool,
    rehearsal: Rehearsal,
    controller: Path,
) -> None:
    """One taint comes, and those of others stay."""
    _make_node(rehearsal)
    api = kube.connect(str(controller))

    def is_allowed() -> bool:
        raw = rehearsal.api.get(object_path("nodes", _NODE))
        # Kubernetes' own controllers add theirs meanwhile.
        metadata = {"resourceVersion": raw["metadata"]["resourceVersion"]}
        patch = {"metadata": metadata, "spec": {"taints": change(raw["spec"]["taints"])}}
        try:
            api.patch(object_path("nodes", _NODE), patch)
        except kube.Conflict:
            return is_allowed()
        except kube.Invalid as error:
            assert "tpu-provisioner may only add the taint" in str(error)  # noqa: PT017 - the other side
            return False
        return True

    assert is_allowed() == want_allowed
    api.close()


def test_deletes_of_nodes(rehearsal: Rehearsal, controller: Path) -> None:
    """A machine's node can be deleted, one of the control plane cannot."""
    api = kube.connect(str(controller))
    _make_node(rehearsal, **{"node-role.kubernetes.io/control-plane": ""})
    with pytest.raises(kube.ClusterError, match="not of the control plane"):
        api.delete(object_path("nodes", _NODE))
    _make_node(rehearsal)
    api.delete(object_path("nodes", _NODE))
    _make_node(rehearsal)
    api.close()


@pytest.mark.parametrize("change", [{"type": "Opaque"}, {"metadata": {"name": "trial"}}], ids=["type", "label"])
def test_secrets_that_are_no_tokens_of_groups(change: dict[str, Any], rehearsal: Rehearsal, controller: Path) -> None:
    """None is created in kube-system, where it could become the token of any ServiceAccount, and none deleted."""
    labels = {names.GROUP_NAMESPACE: "default", names.GROUP_NAME: "rights"}
    token = {"metadata": {"name": "trial", "labels": labels}, "type": "bootstrap.kubernetes.io/token"}
    secret = {"apiVersion": "v1", "kind": "Secret", **token, **change}
    path = collection_path("secrets", namespace="kube-system")
    api = kube.connect(str(controller))
    with pytest.raises(kube.ClusterError, match="only bootstrap tokens of groups"):
        api.post(path, secret)
    rehearsal.api.post(path, secret)
    try:
        with pytest.raises(kube.ClusterError, match="only bootstrap tokens of groups"):
            api.delete(f"{path}/trial")
    finally:
        rehearsal.api.delete(f"{path}/trial")
    api.close()


_FORBIDDEN = (
    ("GET", "/api/v1/secrets", "no Secret of other namespaces is listed"),
    ("PATCH", "/api/v1/namespaces/kube-system/secrets/any", "no Secret is changed"),
    ("POST", "/apis/apps/v1/namespaces/kube-system/daemonsets", "no other DaemonSet is created"),
    ("PATCH", "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy", "no other DaemonSet is changed"),
    ("DELETE", "/api/v1/namespaces/default/pods/any", "no pod is deleted, but evicted"),
    ("DELETE", "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups/rights", "no group is deleted"),
    ("POST", "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups", "no group is created"),
    ("PATCH", "/api/v1/nodes/any/status", "no node's status is written"),
    ("GET", "/api/v1/namespaces/kube-system/configmaps/kubeadm-config", "no other ConfigMap is read"),
    ("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler", "no other lease"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "no right is granted"),
    ("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", "no certificate is asked for"),
)


@pytest.mark.parametrize(("method", "path", "why"), _FORBIDDEN, ids=[case[2] for case in _FORBIDDEN])
def test_refused(method: str, path: str, why: str, controller: Path) -> None:
    """The API server refuses the ServiceAccount what it has no use for."""
    with pytest.raises(kube.Forbidden):
        request_as(controller, method, path)
