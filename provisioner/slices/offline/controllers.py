"""Derives the unschedulable pods of kind POD that objects such as Deployments would create. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields
from provisioner.model.workloads import Pod
from provisioner.slices.offline.documents import Path, value_at
from provisioner.slices.offline.expand import NO_NODES, Template, template_of_job
from provisioner.workloads.parse_pod import parse_pod
from provisioner.workloads.plain import as_plain

Json = dict[str, Any]
#: Path of the spec that contains the pod template, by API group ("v1" for the core group) and kind.
_SPECS: dict[tuple[str, str], Path] = {
    **{("apps", kind): ("spec",) for kind in ("Deployment", "ReplicaSet", "StatefulSet")},
    ("v1", "ReplicationController"): ("spec",),
    ("batch", "Job"): ("spec",),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec"),
}
_POD = ("v1", "Pod")
#: A day before the decision, because the planner delays pools for pods that became unschedulable seconds ago.
_LONG_AGO = "1999-12-31T00:00:00Z"
_TOLERATION = {"key": constants.TPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}


def template_of(raw: Json) -> Template | None:
    """Return the pod template of a pod or of an object whose kind is in _SPECS; None for others, such as DaemonSet."""
    kind = fields.text(raw.get("apiVersion")).partition("/")[0], fields.text(raw.get("kind"))
    if kind == _POD:
        return Template(path=(), pods_path=("spec",), replicas_path=("spec",))
    at = _SPECS.get(kind)
    if at is None:
        return None
    spec = fields.mapping(value_at(raw, at))
    if kind[0] == "batch":
        job = template_of_job(spec, at, replicas_path=(*at, "parallelism"))
        return job._replace(replicas=job.pods, pods=1)
    path = (*at, "replicas")
    return Template(
        path=(*at, "template"),
        pods_path=path,
        replicas_path=path,
        replicas=fields.count(spec.get("replicas")),
        indexed=kind[1] == "StatefulSet",
    )


def pods_of(raw: Json, template: Template, *, limit: int | None, serve_pods: str) -> Iterator[Pod]:
    """Yield up to `limit` pods of an object (all if None), if they request chips and `serve_pods` selects them.

    If the pods of a StatefulSet form one slice, only the first pod is yielded unless podManagementPolicy is Parallel:
    the StatefulSet controller creates each further pod when the previous pod is ready. Raises MalformedObject.
    """
    first = parse_pod(_pod(raw, template), serve_pods=serve_pods, jobs=False) if template.replicas else None
    if first is None:
        return
    yield first
    number = template.replicas if limit is None else min(limit, template.replicas)
    in_order = raw["kind"] == "StatefulSet" and fields.mapping(raw.get("spec")).get("podManagementPolicy") != "Parallel"
    if in_order and first.group_name != first.name:
        return
    for index in range(1, number):
        place = index if template.indexed else None
        name, uid = (f"{text.removesuffix('-0')}-{index}" for text in (first.name, first.uid))
        yield as_plain(replace(first, name=name, uid=uid, completion_index=place))


def _pod(raw: Json, template: Template) -> Json:
    """Return the first pod of a template as it would be in the API if no node fitted."""
    made, own = fields.mapping(value_at(raw, template.path)), raw["metadata"]
    metadata, spec = fields.mapping(made.get("metadata")), fields.mapping(made.get("spec"))
    if template.path:
        owner = {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "name": own["name"], "uid": own["uid"]}
        marks = {constants.COMPLETION_INDEX: "0"} if template.indexed else {}
        metadata = {
            "labels": metadata.get("labels"),
            "annotations": {**fields.mapping(metadata.get("annotations")), **marks},
            "name": f"{own['name']}-0",
            "namespace": own["namespace"],
            "uid": f"uid-of-{own['uid']}-0",
            "creationTimestamp": own["creationTimestamp"],
            "ownerReferences": [{**owner, "controller": True}],
        }
    tolerations = [*fields.sequence(spec.get("tolerations")), _TOLERATION]
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_NODES}
    condition = {**waits, "lastTransitionTime": _LONG_AGO}
    status = {"phase": "Pending", "conditions": [condition]}
    return {"metadata": metadata, "spec": {**spec, "nodeName": "", "tolerations": tolerations}, "status": status}
