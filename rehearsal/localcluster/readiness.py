"""Checks that the cluster works as a whole, in addition to the readiness of each program.

A Node and an object of each operator are created, and deleted when they have been handled. No pods are created, but
Events remain. Objects are created by server-side apply, because the API server delays other creates of a kind that it
has served for less than two seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rehearsal.localcluster.api import ApiClient
from rehearsal.localcluster.operators import JOBSET, KUBERAY, KUEUE, LWS, Operator

_NAMESPACE = "kube-system"
_NAME = "localcluster-probe"
_NODES = "/api/v1/nodes"
_TEMPLATE = {"spec": {"containers": [{"name": "probe", "image": "none"}]}}

_NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": _NAME},
    "spec": {"unschedulable": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """An object that proves that an operator works."""

    path: str
    manifest: Mapping[str, Any]

    #: Path of the object that the operator creates for the probe; the probe's own path if it creates none.
    child: str
    #: Whether the child's status shows that its controller has handled it.
    handled: Callable[[Mapping[str, Any]], bool]
    #: Whether the object has the fields that only the mutating webhook fills in.
    defaulted: Callable[[Mapping[str, Any]], bool] = bool
    #: Spec that only the validating webhook rejects.
    wrong: Mapping[str, Any] = field(default_factory=dict)
    #: Part of the message with which the webhook rejects `wrong`.
    refusal: str = ""
    #: Paths of other objects that the operator creates for the probe, which have to be deleted.
    left: tuple[str, ...] = ()


def _namespaced(group: str, resource: str, name: str = _NAME) -> str:
    return f"/{'apis/' if '/' in group else 'api/'}{group}/namespaces/{_NAMESPACE}/{resource}/{name}"


def _object(api_version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": _NAME}, "spec": spec}


_JOBSET_SPEC: dict[str, Any] = {
    "suspend": True,
    "replicatedJobs": [{"name": "probe", "template": {"spec": {"template": _TEMPLATE}}}],
}
_LWS_SPEC: dict[str, Any] = {"replicas": 0, "leaderWorkerTemplate": {"workerTemplate": _TEMPLATE}}
_RAY_SPEC: dict[str, Any] = {"suspend": True, "headGroupSpec": {"template": _TEMPLATE}}
_RAY_CLUSTER = _namespaced("ray.io/v1", "rayclusters")
_QUEUE = f"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{_NAME}"

_PROBES = {
    JOBSET.name: _Probe(
        path=_namespaced("jobset.x-k8s.io/v1alpha2", "jobsets"),
        manifest=_object("jobset.x-k8s.io/v1alpha2", "JobSet", _JOBSET_SPEC),
        defaulted=lambda raw: "completionMode" in raw["spec"]["replicatedJobs"][0]["template"]["spec"],
        wrong={"successPolicy": {"operator": "All", "targetReplicatedJobs": ["no-such-job"]}},
        refusal="no-such-job",
        child=_namespaced("batch/v1", "jobs", f"{_NAME}-probe-0"),
        # The Job controller adds the condition Suspended.
        handled=lambda status: bool(status.get("conditions")),
    ),
    LWS.name: _Probe(
        path=_namespaced("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
        manifest=_object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", _LWS_SPEC),
        defaulted=lambda raw: "networkConfig" in raw["spec"],
        wrong={"leaderWorkerTemplate": {"size": 0, "workerTemplate": _TEMPLATE}},
        refusal="size must be equal or greater than 1",
        child=_namespaced("apps/v1", "statefulsets"),
        handled=lambda status: "observedGeneration" in status,
        left=(_namespaced("v1", "services"),),
    ),
    KUEUE.name: _Probe(
        path=_QUEUE,
        manifest=_object("kueue.x-k8s.io/v1beta2", "ClusterQueue", {}),
        defaulted=lambda raw: bool(raw["metadata"].get("finalizers")),
        wrong={"admissionChecksStrategy": {"admissionChecks": [{"name": _NAME, "onFlavors": ["no-such-flavor"]}]}},
        refusal="no-such-flavor",
        child=_QUEUE,
        handled=lambda status: bool(status.get("conditions")),
    ),
    KUBERAY.name: _Probe(
        path=_RAY_CLUSTER,
        manifest=_object("ray.io/v1", "RayCluster", _RAY_SPEC),
        child=_RAY_CLUSTER,
        handled=lambda status: status.get("state") == "suspended",
        left=(_namespaced("v1", "services", f"{_NAME}-head-svc"),),
    ),
}

Condition = tuple[str, Callable[[], bool]]


def conditions(api: ApiClient) -> list[Condition]:
    """Return the conditions of a working cluster in the order of the checks, each with a text for messages."""
    return [
        ("the controller manager to make the default service account", lambda: _service_account_exists(api)),
        ("kwok to make a node ready", lambda: _node_becomes_ready(api)),
        ("the probe's node to be gone", lambda: _removed(api, [f"{_NODES}/{_NAME}"])),
    ]


def operator_conditions(api: ApiClient, operator: Operator) -> list[Condition]:
    """Return the conditions of a working operator in the order of the checks, each with a text for messages."""
    probe = _PROBES[operator.name]
    webhooks: list[Condition] = [
        (f"{operator.title}'s mutating webhooks to be called", partial(_is_defaulted, api, probe)),
        (f"{operator.title}'s validating webhooks to be called", partial(_wrong_is_rejected, api, probe)),
    ]
    return [
        *(webhooks if operator.configuration else ()),
        (f"{operator.title}'s controller to work on one of its objects", partial(_gets_child, api, probe)),
        (
            f"the probe's objects of {operator.title} to be gone",
            partial(_removed, api, [probe.path, probe.child, *probe.left]),
        ),
    ]


def _service_account_exists(api: ApiClient) -> bool:
    return api.call("GET", "/api/v1/namespaces/default/serviceaccounts/default").status == 200


def _node_becomes_ready(api: ApiClient) -> bool:
    path = f"{_NODES}/{_NAME}"
    node = api.call("GET", path)
    if node.status == 404:
        api.apply(path, _bytes(_NODE))
        return False
    found = node.body.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in found)


def _is_defaulted(api: ApiClient, probe: _Probe) -> bool:
    answer = api.try_apply(probe.path, _bytes(probe.manifest), dry_run=True)
    return answer.status < 300 and probe.defaulted(answer.body)


def _wrong_is_rejected(api: ApiClient, probe: _Probe) -> bool:
    wrong = {**probe.manifest, "spec": {**probe.manifest["spec"], **probe.wrong}}
    answer = api.try_apply(probe.path, _bytes(wrong), dry_run=True)
    return answer.status >= 400 and probe.refusal in answer.body.get("message", "")


def _gets_child(api: ApiClient, probe: _Probe) -> bool:
    if api.call("GET", probe.path).status == 404:
        api.apply(probe.path, _bytes(probe.manifest))
        return False
    child = api.call("GET", probe.child)
    # If the child is not the probe, another controller sets its status, so that controller works as well.
    return child.status == 200 and probe.handled(child.body.get("status", {}))


def _removed(api: ApiClient, paths: Iterable[str]) -> bool:
    found = [path for path in paths if api.call("GET", path).status != 404]
    for path in found:
        api.call("DELETE", f"{path}?propagationPolicy=Background")
    return not found


def _bytes(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest).encode()
