"""Proof that the cluster works as a whole, beyond each program's word for itself.

A node and a suspended JobSet are made, seen to be handled, and removed again. Their Events stay. Objects are made
by server-side apply: the API server holds back other creates of a kind that it has not served for two seconds.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from provisioner.localcluster.api import ApiClient

_NAMESPACE = "kube-system"
_NAME = "localcluster-probe"
_NODES = "/api/v1/nodes"
_JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{_NAMESPACE}/jobsets"
_JOBS = f"/apis/batch/v1/namespaces/{_NAMESPACE}/jobs"

_NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": _NAME},
    "spec": {"unschedulable": True},
}
_JOBSET: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": _NAME},
    "spec": {
        "suspend": True,
        "replicatedJobs": [
            {
                "name": "probe",
                "template": {
                    "spec": {"template": {"spec": {"containers": [{"name": "probe", "image": "none"}]}}},
                },
            }
        ],
    },
}

Condition = tuple[str, Callable[[], bool]]


def conditions(api: ApiClient, *, with_jobset: bool) -> list[Condition]:
    """Return what has to become true, in this order, each with words for it."""
    found: list[Condition] = [
        ("the controller manager to make the default service account", lambda: _service_account_exists(api)),
        ("kwok to make a node ready", lambda: _node_becomes_ready(api)),
    ]
    if with_jobset:
        found += [
            ("JobSet's mutating webhooks to be called", lambda: _jobset_is_defaulted(api)),
            ("JobSet's validating webhooks to be called", lambda: _wrong_jobset_is_refused(api)),
            ("JobSet's controller to make a job of a JobSet", lambda: _jobset_gets_job(api)),
        ]
    found.append(("the probe's objects to be gone", lambda: _removed(api, with_jobset=with_jobset)))
    return found


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


def _jobset_is_defaulted(api: ApiClient) -> bool:
    answer = api.try_apply(f"{_JOBSETS}/{_NAME}", _bytes(_JOBSET), dry_run=True)
    if answer.status >= 300:
        return False
    return "completionMode" in answer.body["spec"]["replicatedJobs"][0]["template"]["spec"]


def _wrong_jobset_is_refused(api: ApiClient) -> bool:
    wrong = copy.deepcopy(_JOBSET)
    wrong["spec"]["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["no-such-job"]}
    answer = api.try_apply(f"{_JOBSETS}/{_NAME}", _bytes(wrong), dry_run=True)
    return answer.status >= 400 and "no-such-job" in answer.body.get("message", "")


def _jobset_gets_job(api: ApiClient) -> bool:
    path = f"{_JOBSETS}/{_NAME}"
    if api.call("GET", path).status == 404:
        api.apply(path, _bytes(_JOBSET))
        return False
    job = api.call("GET", f"{_JOBS}/{_NAME}-probe-0")
    # The job controller says Suspended of it: so that one works as well.
    return job.status == 200 and bool(job.body.get("status", {}).get("conditions"))


def _removed(api: ApiClient, *, with_jobset: bool) -> bool:
    paths = [f"{_NODES}/{_NAME}"]
    if with_jobset:
        paths += [f"{_JOBSETS}/{_NAME}", f"{_JOBS}/{_NAME}-probe-0"]
    found = [path for path in paths if api.call("GET", path).status != 404]
    for path in found:
        api.call("DELETE", f"{path}?propagationPolicy=Background")
    return not found


def _bytes(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest).encode()
