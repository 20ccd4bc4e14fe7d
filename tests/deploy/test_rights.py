"""The rights of the manifests suffice for everything the provisioner does, and it does something with each of them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants, kube
from provisioner.kube import KubeApi
from provisioner.kube.protocol import LEASES_ROOT, object_path
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.hints import HintsStore
from provisioner.workloads import JOBSET, LEADER_WORKER_SET, PLAIN_JOB, live
from provisioner.workloads.watches import watch_pods, watch_workloads
from rehearsal.demos import Rehearsal
from rehearsal.demos.world import wait_for
from tests.deploy.kit import (
    NAMESPACE,
    SERVICE_ACCOUNT,
    Recorder,
    Right,
    only,
    request_as,
    right_of,
    rights,
    role_without,
    rule_of_component,
)
from tests.deploy.mainjob import do_the_main_job, used_rights
from tests.deploy.tries import SERVED_SECONDS, Try, try_events, try_watch
from tests.e2e.kit import Ground

pytestmark = pytest.mark.e2e

_ROLES = "/apis/rbac.authorization.k8s.io/v1"
_ORIGINAL_LEASE = object_path("leases", constants.ORIGINAL_LEASE_NAME, namespace=NAMESPACE, root=LEASES_ROOT)
_OWN_LEASE = object_path("leases", constants.LEASE_NAME, namespace=NAMESPACE, root=LEASES_ROOT)
_HINTS = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace=NAMESPACE)
_NODE = "guarded-node"


def _make_original_lease(rehearsal: Rehearsal, *, holder: str = "") -> None:
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": constants.ORIGINAL_LEASE_NAME, "namespace": NAMESPACE},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    }
    rehearsal.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(body))


def _forget(rehearsal: Rehearsal, path: str) -> None:
    try:
        rehearsal.api.delete(path)
    except kube.NotFound:
        return


def _lease_holder(rehearsal: Rehearsal, path: str) -> str:
    return str(rehearsal.api.get(path)["spec"].get("holderIdentity", ""))


def test_the_main_job(rehearsal: Rehearsal, installed: list[dict[str, Any]], ground: Ground, tmp_path: Path) -> None:
    """The main job is done with the ServiceAccount's token alone; nothing is refused, and every right is used."""
    _make_original_lease(rehearsal)
    with Recorder(rehearsal).recording() as recorder:
        # It cordoned, or the right to patch nodes would not be used: the policy on nodes let that pass.
        _, kubeconfig = do_the_main_job(rehearsal, ground, installed, recorder, tmp_path)
        assert rehearsal.api.get(_HINTS).get("data")
        assert not any(_lease_holder(rehearsal, path) for path in (_OWN_LEASE, _ORIGINAL_LEASE))
        # What a run of seconds does not come to: a lease made, the repeat of an Event, a cordon undone.
        _forget(rehearsal, _OWN_LEASE)
        _TRIES[_CREATE_LEASE](kube.connect(str(kubeconfig)), rehearsal)
        _TRIES[_PATCH_EVENTS](kube.connect(str(kubeconfig)), rehearsal)
        _TRIES[_GET_NODES](kube.connect(str(kubeconfig)), rehearsal)
        # The main job is a JobSet's; LeaderWorkerSets are only watched meanwhile.
        _TRIES[_GET_LEADER_WORKER_SETS](kube.connect(str(kubeconfig)), rehearsal)
    _forget(rehearsal, _ORIGINAL_LEASE)

    assert used_rights(recorder, installed) == rights(installed)
    assert {right.resource for right, _ in recorder.answers} == {
        "pods", "nodes", "jobsets", "leaderworkersets", "events", "leases", "configmaps"
    }  # fmt: skip


def test_what_the_gate_asks_of_nodes_is_understood(rehearsal: Rehearsal) -> None:
    """A real API server selects nodes by their cordon, and sends their metadata alone."""
    labels = {constants.NODE_POOL: "asked-about"}
    names = ("asked-closed", "asked-ours", "asked-open")
    for name in names:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        rehearsal.api.post("/api/v1/nodes", body)
    try:
        kube.cordon(rehearsal.api, "asked-ours")
        rehearsal.api.patch(object_path("nodes", "asked-closed"), {"spec": {"unschedulable": True}})
        assert [replace(node, uid="") for node in kube.list_nodes_of_pool(rehearsal.api, "asked-about")] == [
            kube.PoolNode(name="asked-closed", open=False, marked=False),
            kube.PoolNode(name="asked-open", open=True, marked=False),
            kube.PoolNode(name="asked-ours", open=False, marked=True),
        ]
        query = {"labelSelector": f"{constants.NODE_POOL}=asked-about"}
        page = rehearsal.api.list_page("/api/v1/nodes", query, metadata_only=True)
        assert {key for item in page.items for key in item} <= {"kind", "apiVersion", "metadata"}
    finally:
        for name in names:
            _forget(rehearsal, object_path("nodes", name))


# --- each right, taken away -------------------------------------------------------------------------------------------


def _elect(path: str) -> Try:
    def attempt(api: KubeApi, rehearsal: Rehearsal) -> str:
        if path == _ORIGINAL_LEASE:
            _make_original_lease(rehearsal)
        elector = kube.LeaseElector(
            api, namespace=NAMESPACE, identity="trial", on_started=lambda: None, on_lost=lambda: None
        )
        elector.step()
        problem = elector.problem
        elector.release()
        _forget(rehearsal, _ORIGINAL_LEASE)
        return problem or ""

    return attempt


def _create_lease(api: KubeApi, rehearsal: Rehearsal) -> str:
    _forget(rehearsal, _OWN_LEASE)
    return _elect(_OWN_LEASE)(api, rehearsal)


def _update_own_lease(api: KubeApi, rehearsal: Rehearsal) -> str:
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": constants.LEASE_NAME, "namespace": NAMESPACE},
    }
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    return _elect(_OWN_LEASE)(api, rehearsal)


def _cordon(api: KubeApi, rehearsal: Rehearsal) -> str:
    labels = {constants.NODEPOOL_MANAGER: constants.MANAGER, constants.POOL_JOBSET_NAME: "guarded"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE, "labels": labels}}
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    try:
        assert kube.cordon(api, _NODE)
        assert kube.uncordon(api, _NODE)
    except kube.ClusterError as error:
        return str(error)
    finally:
        _forget(rehearsal, object_path("nodes", _NODE))
    return ""


def _get_workload(kind: WorkloadKind) -> Try:
    def attempt(api: KubeApi, rehearsal: Rehearsal) -> str:
        try:
            live.get_workload(api, kind, "default", "absent")
        except kube.ClusterError as error:
            return str(error)
        return ""

    return attempt


def _load_hints(api: KubeApi, rehearsal: Rehearsal) -> str:
    store = HintsStore(api, NAMESPACE)
    rehearsal.api.patch(_HINTS, {"data": {"kept": "yes"}})
    return "" if store.load().get("kept") == "yes" else "hints are not loaded"


def _save_hints(api: KubeApi, rehearsal: Rehearsal) -> str:
    return "" if HintsStore(api, NAMESPACE).save({"kept": "yes"}) else "hints are not saved"


_COORDINATION = "coordination.k8s.io"
_CREATE_LEASE = Right(_COORDINATION, "leases", "create", NAMESPACE)
_PATCH_EVENTS = Right("", "events", "patch")
_GET_NODES = Right("", "nodes", "get")
_GET_LEADER_WORKER_SETS = Right("leaderworkerset.x-k8s.io", "leaderworkersets", "get")
_TRIES: dict[Right, Try] = {
    Right("", "pods", "list"): try_watch(partial(watch_pods, kinds=[JOBSET])),
    Right("", "pods", "watch"): try_watch(partial(watch_pods, kinds=[JOBSET])),
    Right("", "nodes", "list"): try_watch(kube.nodes),
    Right("", "nodes", "watch"): try_watch(kube.nodes),
    _GET_NODES: _cordon,
    Right("", "nodes", "patch"): _cordon,
    **{
        Right(kind.root.split("/")[2], kind.resource, verb): attempt
        for kind in (JOBSET, LEADER_WORKER_SET)
        for verb, attempt in (
            ("get", _get_workload(kind.kind)),
            ("list", try_watch(partial(watch_workloads, kind=kind))),
            ("watch", try_watch(partial(watch_workloads, kind=kind))),
        )
    },
    Right("", "events", "create"): try_events(repeated=False),
    _PATCH_EVENTS: try_events(repeated=True),
    _CREATE_LEASE: _create_lease,
    Right(_COORDINATION, "leases", "get", NAMESPACE, constants.LEASE_NAME): _elect(_OWN_LEASE),
    Right(_COORDINATION, "leases", "update", NAMESPACE, constants.LEASE_NAME): _update_own_lease,
    Right(_COORDINATION, "leases", "get", NAMESPACE, constants.ORIGINAL_LEASE_NAME): _elect(_ORIGINAL_LEASE),
    Right(_COORDINATION, "leases", "update", NAMESPACE, constants.ORIGINAL_LEASE_NAME): _elect(_ORIGINAL_LEASE),
    Right("", "configmaps", "get", NAMESPACE, constants.HINTS_CONFIGMAP_NAME): _load_hints,
    Right("", "configmaps", "update", NAMESPACE, constants.HINTS_CONFIGMAP_NAME): _save_hints,
    **{
        Right("", "configmaps", verb, NAMESPACE, constants.PAUSE_CONFIGMAP_NAME): try_watch(
            partial(kube.pause, namespace=NAMESPACE)
        )
        for verb in ("list", "watch")
    },
}


def test_every_right_is_tried(installed: list[dict[str, Any]]) -> None:
    """The table above has a try for each right that the manifests grant, and for no other."""
    assert set(_TRIES) == rights(installed)


def put_back(rehearsal: Rehearsal, role: dict[str, Any]) -> None:
    """Give a role its rules again, and to the applier what belongs to it: the next apply must not meet a stranger."""
    rehearsal.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(role))


@pytest.mark.parametrize("right", _TRIES, ids=str)
def test_a_right_taken_away(
    right: Right, rehearsal: Rehearsal, installed: list[dict[str, Any]], controller: Path
) -> None:
    """With the right all is well; without it, and with all the others, its user gets to see what fails."""
    kind = "Role" if right.namespace else "ClusterRole"
    role = only(installed, kind)
    path = object_path(f"{kind.lower()}s", role["metadata"]["name"], namespace=right.namespace, root=_ROLES)
    attempt = _TRIES[right]
    api = kube.connect(str(controller))
    assert attempt(api, rehearsal) == ""
    less = role_without(role, right)
    assert rights([{**role, "rules": less}]) == rights([role]) - {right}
    rehearsal.api.patch(path, {"rules": less})
    try:
        # The authorizer learns of a changed role by its own watch, milliseconds later.
        wait_for(lambda: attempt(api, rehearsal), f"something fails without the right to {right}", SERVED_SECONDS)
    finally:
        put_back(rehearsal, role)
        api.close()
    wait_for(lambda: attempt(kube.connect(str(controller)), rehearsal) == "", f"{right} is back", SERVED_SECONDS)


def _read_jobs(api: KubeApi, rehearsal: Rehearsal) -> str:
    read, watch = _get_workload(WorkloadKind.JOB), try_watch(partial(watch_workloads, kind=PLAIN_JOB))
    return read(api, rehearsal) or watch(api, rehearsal)


@pytest.mark.parametrize(
    ("component", "attempt", "resource"),
    [
        pytest.param("opt-in-label", try_watch(kube.namespaces), "namespaces", id="namespaces for OPT_IN_LABEL"),
        pytest.param("serve-jobs", _read_jobs, "jobs", id="Jobs for SERVE_JOBS"),
    ],
)
def test_what_only_a_setting_needs(
    component: str,
    attempt: Try,
    resource: str,
    rehearsal: Rehearsal,
    installed: list[dict[str, Any]],
    controller: Path,
) -> None:
    """It comes with the component of the setting and not before."""
    rule = rule_of_component(component)
    role = only(installed, "ClusterRole")
    path = object_path("clusterroles", role["metadata"]["name"], root=_ROLES)
    api = kube.connect(str(controller))
    assert resource in attempt(api, rehearsal)
    for verb in rule["verbs"]:
        others = [each for each in rule["verbs"] if each != verb]
        rehearsal.api.patch(path, {"rules": [*role["rules"], {**rule, "verbs": others}]})
        wait_for(lambda: attempt(api, rehearsal), f"something fails without {verb}", SERVED_SECONDS)
    rehearsal.api.patch(path, {"rules": [*role["rules"], rule]})
    wait_for(lambda: attempt(api, rehearsal) == "", f"the {resource} are read", SERVED_SECONDS)
    put_back(rehearsal, role)
    api.close()


# --- what a stolen token cannot do ------------------------------------------------------------------------------------

_FORBIDDEN = (
    ("GET", "/api/v1/namespaces/default/secrets", "no secret is read"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", "not its own namespace's either"),
    ("GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "no other ConfigMap"),
    ("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", "no ConfigMap is made"),
    ("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{constants.PAUSE_CONFIGMAP_NAME}", "no pause is ended"),
    ("POST", "/api/v1/namespaces/default/pods", "no pod is made"),
    ("DELETE", "/api/v1/namespaces/default/pods/any", "no pod is deleted"),
    ("DELETE", "/api/v1/nodes/any", "no node is deleted"),
    ("PATCH", "/api/v1/nodes/any/status", "no node's status is written"),
    ("PATCH", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/any", "no JobSet is changed"),
    ("PATCH", f"{LEADER_WORKER_SET.root}/namespaces/default/leaderworkersets/any", "no LeaderWorkerSet is changed"),
    ("GET", f"{PLAIN_JOB.root}/namespaces/default/jobs/any", "no Job is read, where they are not served"),
    ("PATCH", f"{PLAIN_JOB.root}/namespaces/default/jobs/any", "no Job is changed"),
    ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{SERVICE_ACCOUNT}/token", "no further token is made"),
    ("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler", "no other lease"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "no right is granted"),
)


@pytest.mark.parametrize(("method", "path", "why"), _FORBIDDEN, ids=[case[2] for case in _FORBIDDEN])
def test_refused(method: str, path: str, why: str, controller: Path, installed: list[dict[str, Any]]) -> None:
    """The API server refuses the ServiceAccount what it has no use for."""
    with pytest.raises(kube.Forbidden):
        request_as(controller, method, path)


def test_right_of_a_request() -> None:
    """Requests are understood as the API server's authorizer understands them."""
    assert right_of("GET", "/api/v1/pods?watch=true") == Right("", "pods", "watch")
    assert right_of("GET", "/api/v1/nodes?limit=500") == Right("", "nodes", "list")
    assert right_of("GET", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/a/jobsets/b") == Right(
        "jobset.x-k8s.io", "jobsets", "get", "a", "b"
    )
    assert right_of("GET", "/version") is None
    assert right_of("PATCH", "/api/v1/namespaces/a/events/b") == Right("", "events", "patch", "a", "b")
    assert right_of("POST", "/api/v1/namespaces/a/pods/b/eviction") == Right("", "pods/eviction", "create", "a", "b")
    assert right_of("GET", "/apis/apps/v1/namespaces/a/daemonsets?fieldSelector=metadata.name%3Db&watch=1") == Right(
        "apps", "daemonsets", "watch", "a", "b"
    )
    assert right_of("PUT", _OWN_LEASE) == Right(_COORDINATION, "leases", "update", NAMESPACE, "tpu-provisioner")
